"""What the ``hal`` module keeps per context, and what the host may plug into it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from jitree.errors import NotFoundError, StatusError, printable
from jitree.types import element_type

if TYPE_CHECKING:
    from jitree.hal.buffer import BufferView
    from jitree.hal.command_buffer import CommandBuffer, Reference
    from jitree.hal.device import Device
    from jitree.hal.executable import ExecutableCache
    from jitree.modules.hal.native.supply import Supplier

TraceSink = Callable[[str, Sequence["BufferView"]], None]
"""Gets the key and the tensors of ``hal.buffer_view.trace``, which the host can read until it returns."""

Placement = Callable[[Sequence[tuple["Device", int]], int, int], tuple["Device", int]]
"""Chooses the (device, queue affinity) for memory that several share: (candidates, memory types, usage)."""


MAXIMUM_CONSTANTS: Final = 64
"""32-bit words that programs of ABI 0.2 to 0.4 can push into a command buffer."""


class Pushed:
    """What a program of ABI 0.2 to 0.4 has pushed into a command buffer; constants are 0 until then."""

    __slots__ = ("bindings", "constants")

    def __init__(self) -> None:
        self.constants = [0] * MAXIMUM_CONSTANTS
        self.bindings: dict[tuple[int, int], Reference] = {}
        """By (set, binding)."""


class HalState:
    """State of the module in one context."""

    __slots__ = ("_caches", "devices", "placement", "pushed", "supplier", "trace_sink")

    def __init__(
        self,
        devices: Sequence[Device],
        trace_sink: TraceSink | None,
        placement: Placement | None,
        supplier: Supplier,
    ) -> None:
        self.devices = tuple(devices)
        self.supplier = supplier
        self.trace_sink = trace_sink
        self.placement = placement
        self.pushed: WeakKeyDictionary[CommandBuffer, Pushed] = WeakKeyDictionary()
        """By command buffer that is being recorded."""
        self._caches: dict[Device, ExecutableCache] = {}

    def executable_cache(self, device: Device) -> ExecutableCache:
        """The context's executable cache of a device. NOT_FOUND for one that the module was not given."""
        cache = self._caches.get(device)
        if cache is None:
            if device not in self.devices:
                raise NotFoundError(f"device {device.id} is not one of this context's devices")
            cache = self._caches[device] = device.create_executable_cache("hal")
        return cache


def write_to_stderr(key: str, views: Sequence[BufferView]) -> None:
    """What happens to traced tensors unless the host wants them: ``=== key ===``, one line per tensor, an
    empty line."""
    lines = [f"=== {key} ===", *map(view_text, views), "", ""]
    sys.stderr.write(printable("\n".join(lines)))


def view_text(view: BufferView) -> str:
    """``4xf32=1 2 3 4``; a reason in place of the elements when the host cannot read them."""
    from jitree.base.host_tensor import HostTensor  # few programs trace

    row = element_type(view.element_type)
    try:
        return HostTensor(row, view.shape, view.buffer.host_array()).text()
    except StatusError as error:
        shape = "".join(f"{size}x" for size in view.shape)
        return f"{shape}{row.name}=<{error}>"
