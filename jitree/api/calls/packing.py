"""Arguments from Python values to VM values, results back.

Every parameter gets one packer when its function is looked up: an object whose ``pack`` method takes the
caller's value and returns what the VM takes, or raises INVALID_ARGUMENT naming the parameter, what it takes
and what was given. Nothing is parsed when a call is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from jitree.api.array import Array
from jitree.api.calls.declaration import WORKSPACE, Parameter, Signature
from jitree.api.calls.refusal import refused
from jitree.api.calls.tensor_packing import NUMBERS, ArrayTransfer, as_array, is_object, tensor_packer
from jitree.api.calls.transfers import native_row
from jitree.base.elements import is_masked
from jitree.errors import InvalidArgumentError
from jitree.hal.buffer import Buffer, BufferView
from jitree.hal.device import Device, home_of
from jitree.regs.buffer import VmBuffer
from jitree.regs.ref_types import LIST_NAME, stated_type
from jitree.vmfb.cconv import TYPE_NAMES, Item, Span

if TYPE_CHECKING:
    from jitree.hal.fence import Fence
    from jitree.regs.ref_types import RefTypes

    Unpacker = Callable[[Any, Sequence[Device], Fence | None], Any]
    """(value of the VM, devices of the session, fence to be reached before arrays may be read) → value for
    Python."""

    class Packer(Protocol):
        def pack(self, value: Any) -> object: ...


def packers(
    signature: Signature, items: Sequence[Item], transfer: ArrayTransfer, ref_types: RefTypes
) -> tuple[Packer, ...]:
    """A packer for each argument that the caller passes."""
    return tuple(
        _packer(parameter, item, transfer, ref_types)
        for parameter, item in zip(signature.arguments, items, strict=False)
    )


def _packer(parameter: Parameter, item: Item, transfer: ArrayTransfer, ref_types: RefTypes) -> Packer:
    if isinstance(item, Span):
        return SpanPacker(parameter, item, transfer, ref_types)
    if item != "r":
        from jitree.api.calls.number_packing import number_packer

        return number_packer(parameter, item)
    if parameter.workspace is not None:
        return WorkspacePacker(parameter, transfer, ref_types)
    if parameter.tensor is not None:
        return tensor_packer(parameter, parameter.tensor, transfer)
    return ReferencePacker(parameter, transfer, ref_types)


class ReferencePacker:
    """A reference other than a tensor, or one without a declared type: the program may write to it.

    Arrays become buffer views, bytes-like objects ``vm.buffer``s, lists and tuples ``vm.list``s, None null;
    objects of the HAL and the VM are passed as they are. The program checks what it gets.
    """

    __slots__ = (
        "_buffers", "_name", "_pack_list", "_ref_types", "_require_writable", "_transfer", "_type",
        "_view_of",
    )  # fmt: skip

    def __init__(self, parameter: Parameter, transfer: ArrayTransfer, ref_types: RefTypes) -> None:
        from jitree.api.calls.list_packing import list_packer
        from jitree.api.calls.writing import own_view, require_writable, writable_import

        self._name = parameter.name
        self._type = parameter.type
        self._require_writable = require_writable
        self._view_of = partial(own_view, transfer.view_of, transfer.device)
        self._transfer = transfer._replace(import_array=writable_import(transfer.import_array))
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
        if isinstance(value, (list, tuple)):
            return self._pack_list(value)
        if isinstance(value, (bytes, bytearray, memoryview)) and not self._type.startswith("!hal."):
            return VmBuffer.alias(memoryview(value).cast("B") if len(value) else b"")
        if isinstance(value, (str, *NUMBERS)) and not isinstance(value, np.generic):
            raise refused(self._name, self._type, value)
        if isinstance(value, (BufferView, Buffer)):
            return self._require_writable(value, self._name)
        if is_object(value):
            return value
        exchange = self._transfer.device.array_exchange
        if exchange is not None and exchange.is_importable(value):
            return self._require_writable(exchange.import_view(value), self._name)
        if is_masked(value):
            raise refused(self._name, self._type, value)
        array = np.asarray(value) if isinstance(value, np.generic) else as_array(value)
        if array is None:
            return self._registered(value)
        row = native_row(array.dtype)
        if row is None:
            raise refused(self._name, self._type, value)
        return self._transfer.implicit(array, row, self._transfer.device)

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
        self._least = parameter.workspace or 0

    def pack(self, value: Any) -> object:
        packed = super().pack(value)
        if isinstance(packed, BufferView):
            packed = packed.buffer
        if not isinstance(packed, Buffer):
            raise refused(self._name, "memory for what the program computes in between", value)
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

    def __init__(
        self, parameter: Parameter, span: Span, transfer: ArrayTransfer, ref_types: RefTypes
    ) -> None:
        self._name = parameter.name
        self._type = parameter.type
        self._packers = tuple(
            _packer(Parameter(parameter.name, TYPE_NAMES[character]), character, transfer, ref_types)
            for character in span.characters
        )

    def pack(self, value: Any) -> list[object]:
        if not isinstance(value, (list, tuple)):
            raise refused(self._name, self._type, value)
        return [self._pack_row(row) for row in value]

    def _pack_row(self, row: Any) -> object:
        if len(self._packers) == 1:
            return self._packers[0].pack(row)
        if not isinstance(row, (list, tuple)) or len(row) != len(self._packers):
            raise refused(self._name, self._type, row)
        return tuple(packer.pack(value) for packer, value in zip(self._packers, row, strict=True))


# -- results -----------------------------------------------------------------------------------------


def unpackers(signature: Signature, results: str) -> tuple[Unpacker, ...]:
    """An unpacker for each result; ``results`` are the characters of the calling convention."""
    return tuple(
        unpack_reference if character == "r" else number_unpacker(parameter.type) or _unpack_number
        for parameter, character in zip(signature.results, results, strict=True)
    )


def number_unpacker(declared: str) -> Unpacker | None:
    """What makes a register's number one of the declared type; None if it is one."""
    from jitree.api.calls.number_packing import narrow_float

    if declared == "i1":
        return lambda value, devices, fence: bool(value)
    narrow = narrow_float(declared)
    if narrow is not None:
        size = narrow.itemsize
        mask = (1 << 8 * size) - 1
        return lambda value, devices, fence: float(
            np.frombuffer((value & mask).to_bytes(size, "little"), narrow)[0]
        )
    if declared.startswith("ui") and declared[2:].isdecimal():
        mask = (1 << int(declared[2:])) - 1
        return lambda value, devices, fence: value & mask
    return None


def _unpack_number(value: Any, devices: Sequence[Device], fence: Fence | None) -> Any:
    return value


def _unpack_list(value: Any, devices: Sequence[Device], fence: Fence | None) -> list[Any]:
    """Lists in lists may be deep, in a circle, or the same one many times: each is made once."""
    made: dict[int, tuple[Any, list[Any]]] = {id(value): (value, [])}
    waiting = [made[id(value)]]
    while waiting:
        items, unpacked = waiting.pop()
        for item in items:
            if stated_type(item) != LIST_NAME:
                unpacked.append(unpack_reference(item, devices, fence))
                continue
            if id(item) not in made:
                made[id(item)] = item, []
                waiting.append(made[id(item)])
            unpacked.append(made[id(item)][1])
    return made[id(value)][1]


def unpack_reference(value: Any, devices: Sequence[Device], fence: Fence | None) -> Any:
    """Arrays, lists, memoryviews of the bytes of a ``vm.buffer``, None, other objects as they are."""
    if type(value) is BufferView:
        return Array(value, home_of(value.buffer, devices), fence)
    if stated_type(value) == LIST_NAME:
        return _unpack_list(value, devices, fence)
    if type(value) is VmBuffer:
        return value.view
    return value
