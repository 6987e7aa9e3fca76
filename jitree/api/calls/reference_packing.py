"""Packs references of any kind, workspaces and spans."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from jitree.api.array import Array
from jitree.api.calls.declaration import WORKSPACE, Parameter
from jitree.api.calls.number_packing import list_packer
from jitree.api.calls.refusal import refused
from jitree.api.calls.storage_arguments import own_view, require_writable
from jitree.api.calls.tensor_packing import LISTS, NUMBERS, ArrayTransfer, as_array, is_object
from jitree.api.calls.transfers import native_row
from jitree.base.arguments import contents, is_masked
from jitree.errors import InvalidArgumentError
from jitree.hal.buffer import Buffer, BufferView
from jitree.regs.buffer import VmBuffer

if TYPE_CHECKING:
    from typing import Protocol

    from jitree.regs.ref_types import RefTypes

    class Packer(Protocol):
        def pack(self, value: Any) -> object: ...


_WORKSPACE_TYPE: Final = "memory for what is computed in between, as session.empty(size, numpy.uint8) gives,"


class ReferencePacker:
    """Packs a reference other than a tensor, or without a declared type. The program may write to it.

    Arrays become buffer views (of the host: of copies), bytes-like objects ``vm.buffer``s, lists and tuples
    ``vm.list``s, None null; objects of the HAL and the VM are passed as they are. The program checks what it
    gets.
    """

    __slots__ = (
        "_buffers", "_name", "_pack_list", "_ref_types", "_transfer", "_type", "_view_of",
    )  # fmt: skip

    def __init__(self, parameter: Parameter, transfer: ArrayTransfer, ref_types: RefTypes) -> None:
        self._name = parameter.name
        self._type = parameter.type
        self._view_of = partial(own_view, transfer.view_of, transfer.device)
        self._transfer = transfer
        self._ref_types = ref_types
        self._buffers = parameter.type == "!hal.buffer"
        self._pack_list = list_packer(parameter, self._pack)

    def pack(self, value: Any) -> object:
        packed = self._view_of(value) if type(value) is Array else self._pack(value)
        if self._buffers and isinstance(packed, BufferView):
            return packed.buffer
        return packed

    def _pack(self, value: Any) -> object:
        if value is None:
            return None
        if isinstance(value, Array):
            return self._view_of(value)
        if isinstance(value, LISTS) and self._type != "!hal.buffer_view":
            return self._pack_list(value)
        if isinstance(value, (bytes, bytearray, memoryview)) and not self._type.startswith("!hal."):
            return VmBuffer.alias(contents(self._name, value))
        if isinstance(value, (str, *NUMBERS)) and not isinstance(value, np.generic):
            raise refused(self._name, self._type, value)
        if isinstance(value, (BufferView, Buffer)):
            return require_writable(value, self._name)
        if is_object(value):
            return value
        exchange = self._transfer.device.array_exchange
        if exchange is not None and exchange.is_importable(value):
            return require_writable(exchange.import_view(value), self._name)
        if is_masked(value):
            raise refused(self._name, self._type, value)
        array = np.asarray(value) if isinstance(value, np.generic) else as_array(value)
        if array is None:
            return self._registered(value)
        row = native_row(array.dtype)
        if row is None:
            raise refused(self._name, self._type, value)
        return self._transfer.import_array(array, row, self._transfer.device)

    def _registered(self, value: object) -> object:
        """An object of a type that some module has registered."""
        try:
            self._ref_types.id_of(value)
        except InvalidArgumentError:
            raise refused(self._name, self._type, value) from None
        return value


class WorkspacePacker(ReferencePacker):
    """Memory for what a program computes in between: kernels rely on its size."""

    __slots__ = ("_least",)

    def __init__(self, parameter: Parameter, transfer: ArrayTransfer, ref_types: RefTypes) -> None:
        super().__init__(parameter, transfer, ref_types)
        self._least = max(0, parameter.workspace or 0)
        self._name, self._type = WORKSPACE, _WORKSPACE_TYPE

    def pack(self, value: Any) -> object:
        packed = super().pack(value)
        if isinstance(packed, BufferView):
            packed = packed.buffer
        if not isinstance(packed, Buffer):
            raise refused(self._name, self._type, value)
        require_workspace(packed, self._least)
        return packed


def require_workspace(memory: Buffer, least: int) -> None:
    """INVALID_ARGUMENT for less memory than the program needs."""
    if memory.byte_length < least:
        raise InvalidArgumentError(
            f"{WORKSPACE}: the program needs {least} bytes but got {memory.byte_length}; pass "
            f"session.empty({least}, numpy.uint8)"
        )


class SpanPacker:
    """A variadic argument: any number of values, or of tuples of values."""

    __slots__ = ("_name", "_packers", "_type")

    def __init__(self, parameter: Parameter, packers: Sequence[Packer]) -> None:
        """``packers``: of the values of one tuple."""
        self._name = parameter.name
        self._type = parameter.type
        self._packers = packers

    def pack(self, value: Any) -> list[object]:
        if not isinstance(value, LISTS):
            raise refused(self._name, self._type, value)
        return [self._pack_row(row) for row in value]

    def _pack_row(self, row: Any) -> object:
        if len(self._packers) == 1:
            return self._packers[0].pack(row)
        if not isinstance(row, (list, tuple)) or len(row) != len(self._packers):
            raise refused(self._name, self._type, row)
        return tuple(packer.pack(value) for packer, value in zip(self._packers, row, strict=True))
