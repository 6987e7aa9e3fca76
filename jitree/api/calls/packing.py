"""Packs arguments as VM values, and unpacks results.

Every parameter gets one packer when its function is looked up: an object whose ``pack`` method takes the
caller's value and returns what the VM takes, or raises INVALID_ARGUMENT naming the parameter, what it takes
and what was given. Nothing is parsed when a call is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jitree.api.array import Array
from jitree.api.calls.declaration import Parameter, Signature, width_of
from jitree.api.calls.tensor_packing import ArrayTransfer, TensorPacker
from jitree.hal.buffer import BufferView
from jitree.hal.device import Device, home_of
from jitree.regs.buffer import VmBuffer
from jitree.regs.ref_types import LIST_NAME, stated_type
from jitree.vmfb.cconv import TYPE_NAMES, Item, Span
from jitree.vmfb.words import signed

if TYPE_CHECKING:
    from typing import Protocol

    from jitree.api.calls.declaration import DeclaredTensor
    from jitree.api.calls.reference_packing import Packer
    from jitree.hal.fence import Fence
    from jitree.regs.ref_types import RefTypes

    Packs = tuple[Callable[[Any], object], ...]
    """What packs each argument of a function."""

    class MachineCall(Protocol):
        """Calls of a function by machine code (:class:`jitree.api.calls.native.direct.DirectCall`)."""

        make: Callable[..., Any]
        packers: Packs
        run: Callable[..., Any]

    Unpacker = Callable[[Any, Sequence[Device], Fence | None], Any]
    """(value of the VM, devices of the session, fence to be reached before arrays may be read) → value for
    Python."""


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
        from jitree.api.calls.reference_packing import SpanPacker

        return SpanPacker(
            parameter,
            [
                _packer(Parameter(parameter.name, TYPE_NAMES[character]), character, transfer, ref_types)
                for character in item.characters
            ],
        )
    if item != "r":
        from jitree.api.calls.number_packing import number_packer

        return number_packer(parameter, item)
    if parameter.tensor is not None and parameter.workspace is None:
        return tensor_packer(parameter, parameter.tensor, transfer)
    from jitree.api.calls.reference_packing import ReferencePacker, WorkspacePacker

    if parameter.workspace is not None:
        return WorkspacePacker(parameter, transfer, ref_types)
    return ReferencePacker(parameter, transfer, ref_types)


def tensor_packer(parameter: Parameter, tensor: DeclaredTensor, transfer: ArrayTransfer) -> TensorPacker:
    """The packer of a tensor, by what the program does with its memory."""
    if parameter.storage_of is None and not parameter.consumed:
        return TensorPacker(parameter.name, tensor, transfer)
    from jitree.api.calls.storage_arguments import ConsumedPacker, StoragePacker

    packer = ConsumedPacker if parameter.consumed else StoragePacker
    return packer(parameter.name, tensor, transfer)


# -- results -----------------------------------------------------------------------------------------


def unpackers(signature: Signature, results: str) -> tuple[Unpacker, ...]:
    """An unpacker for each result; ``results`` are the characters of the calling convention."""
    return tuple(
        unpack_reference if character == "r" else number_unpacker(parameter.type) or _unpack_number
        for parameter, character in zip(signature.results, results, strict=True)
    )


def unpacked(
    results: list[Any], unpackers: Sequence[Unpacker], devices: Sequence[Device], fence: Fence | None
) -> Any:
    """What a call gives to Python."""
    if len(unpackers) == 1:
        return unpackers[0](results[0], devices, fence)
    if not results:
        return None
    return tuple(unpack(value, devices, fence) for unpack, value in zip(unpackers, results, strict=True))


def number_unpacker(declared: str) -> Unpacker | None:
    """What makes a register's number one of the declared type; None if it is one."""
    from jitree.api.calls.number_packing import narrow_float

    if declared == "i1":
        return lambda value, devices, fence: bool(value & 1)
    narrow = narrow_float(declared)
    if narrow is not None:
        size = narrow.itemsize
        mask = (1 << 8 * size) - 1
        return lambda value, devices, fence: float(
            np.frombuffer((value & mask).to_bytes(size, "little"), narrow)[0]
        )
    if declared.startswith("ui") and width_of(declared):
        mask = (1 << width_of(declared)) - 1
        return lambda value, devices, fence: value & mask
    bits = narrow_integer(declared)
    return None if bits == 0 else lambda value, devices, fence: signed(value, bits)


def narrow_integer(declared: str) -> int:
    """The width of an integer that fills a part of a register: programs leave anything in the rest. 0 of
    other types."""
    width = 0 if declared.startswith("u") else width_of(declared)
    return width if 1 < width < 32 else 0


def _unpack_number(value: Any, devices: Sequence[Device], fence: Fence | None) -> Any:
    return value


def _unpack_list(value: Any, devices: Sequence[Device], fence: Fence | None) -> list[Any]:
    """Unpacks lists that may be deep, circular or shared: each is made once."""
    made: dict[int, tuple[Any, list[Any]]] = {id(value): (value, [])}
    waiting = [made[id(value)]]
    while waiting:
        items, unpacked = waiting.pop()
        for place in range(len(items)):  # no generator: a signal's handler may raise StopIteration
            item = items[place]
            if stated_type(item) != LIST_NAME:
                unpacked.append(unpack_reference(item, devices, fence))
                continue
            if id(item) not in made:
                made[id(item)] = item, []
                waiting.append(made[id(item)])
            unpacked.append(made[id(item)][1])
    return made[id(value)][1]


def unpack_reference(value: Any, devices: Sequence[Device], fence: Fence | None) -> Any:
    """Unpacks references to arrays, lists, memoryviews, None, or objects. Memoryviews are of the bytes of a
    ``vm.buffer``."""
    if type(value) is BufferView:
        return Array(value, home_of(value.buffer, devices), fence)
    if stated_type(value) == LIST_NAME:
        return _unpack_list(value, devices, fence)
    if type(value) is VmBuffer:
        return value.view
    return value
