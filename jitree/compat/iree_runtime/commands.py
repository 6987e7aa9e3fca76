"""Command buffers of copies and fills."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from jitree.compat.iree_runtime.references import Reference
from jitree.errors import FailedPreconditionError, InvalidArgumentError
from jitree.hal.command_buffer import CommandBuffer
from jitree.hal.enums import WHOLE_BUFFER, CommandBufferMode, CommandCategory

if TYPE_CHECKING:
    from jitree.compat.iree_runtime.buffers import HalBuffer
    from jitree.compat.iree_runtime.hal import HalDevice

_BARRIER_STAGES: Final = 0x1F
"""All stages."""


class HalCommandBuffer(Reference):
    """Commands that run one after the other."""

    __slots__ = ("_begun",)
    wrapped = CommandBuffer

    def __init__(self, device: HalDevice, binding_capacity: int = 0, begin: bool = True) -> None:
        self.raw = device.raw.create_command_buffer(
            int(CommandBufferMode.DEFAULT), int(CommandCategory.ANY), binding_capacity=binding_capacity
        )
        self._begun = False
        if begin:
            self.begin()

    def begin(self) -> None:
        """FAILED_PRECONDITION when it records already."""
        if self._begun:
            raise FailedPreconditionError("command buffer is already in a recording state")
        self._begun = True

    def copy(
        self,
        source_buffer: HalBuffer,
        target_buffer: HalBuffer,
        source_offset: int = 0,
        target_offset: int = 0,
        length: int | None = None,
        end: bool = False,
    ) -> None:
        """Copies ``length`` bytes, None: the rest of the source."""
        self._require_begun()
        count = source_buffer.raw.range(source_offset, WHOLE_BUFFER if length is None else length)
        self.raw.copy_buffer(
            (0, source_buffer.raw, source_offset, count), (0, target_buffer.raw, target_offset, count)
        )
        self._order(end)

    def fill(
        self,
        target_buffer: HalBuffer,
        pattern: Any,
        target_offset: int = 0,
        length: int | None = None,
        end: bool = False,
    ) -> None:
        """Repeats the bytes of a number of numpy's, 1, 2 or 4 of them."""
        self._require_begun()
        bits = np.asarray(pattern).tobytes()
        if len(bits) not in (1, 2, 4):
            raise InvalidArgumentError(f"a pattern of {len(bits)} bytes; it must have 1, 2 or 4")
        count = WHOLE_BUFFER if length is None else length
        self.raw.fill_buffer(
            (0, target_buffer.raw, target_offset, count), int.from_bytes(bits, "little"), len(bits)
        )
        self._order(end)

    def end(self) -> None:
        """FAILED_PRECONDITION when recording has ended."""
        self._require_begun()
        self.raw.finalize()

    def _order(self, end: bool) -> None:
        if end:
            self.end()
        else:
            self.raw.execution_barrier(_BARRIER_STAGES, _BARRIER_STAGES)

    def _require_begun(self) -> None:
        if not self._begun:
            raise FailedPreconditionError("command buffer is not in a recording state; call begin()")
