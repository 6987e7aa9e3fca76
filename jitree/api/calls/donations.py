"""Arrays that a call gives to the program for good (:func:`jitree.donate`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from jitree.api.array import Array
from jitree.api.calls.declaration import Parameter
from jitree.api.calls.tensor_packing import Donation
from jitree.errors import InvalidArgumentError
from jitree.hal.buffer import Buffer, BufferView
from jitree.regs.list import VmList

_TWICE: Final = (
    "is donated and passed a second time: the program may overwrite it while it reads it. Pass it once, or "
    "donate a copy: donate(session.to_device(numpy.array(array)))"
)


def arrays_of(arguments: Iterable[Any]) -> Iterator[Array]:
    """The device arrays among the arguments of a call, also those that are donated or in a tuple."""
    for value in arguments:
        if isinstance(value, Donation):
            yield value.array
        elif isinstance(value, Array):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from arrays_of(value)


def require_once(parameters: Sequence[Parameter], arguments: Sequence[Any]) -> None:
    """INVALID_ARGUMENT for an array that is donated twice, or donated and passed."""
    passed = list(arrays_of(arguments))
    for parameter, value in zip(parameters, arguments, strict=True):
        if isinstance(value, Donation) and sum(value.array is array for array in passed) > 1:
            raise InvalidArgumentError(f"{parameter.name}: the array {_TWICE}")


def give_up(parameters: Sequence[Parameter], arguments: Sequence[Any], packed: Sequence[object]) -> None:
    """Takes the donated arrays from their owners: when all arguments are packed, and none can be refused any
    more. INVALID_ARGUMENT if another argument lies in their memory."""
    for position, value in enumerate(arguments):
        others = [other for index, other in enumerate(packed) if index != position]
        if isinstance(value, Donation) and shares_memory(packed[position], others):
            raise InvalidArgumentError(f"{parameters[position].name}: the memory of the array {_TWICE}")
    for value in arguments:
        if isinstance(value, Donation):
            value.array.give_up()


def shares_memory(donated: object, others: Iterable[object]) -> bool:
    """Whether any of the others lies in the memory of the donated one, however it came by it."""
    return any(
        mine.address < other.address + other.byte_length and other.address < mine.address + mine.byte_length
        for mine in _buffers([donated])
        for other in _buffers(others)
    )


def _buffers(packed: Iterable[object]) -> Iterator[Buffer]:
    for value in packed:
        if isinstance(value, BufferView):
            value = value.buffer
        if isinstance(value, Buffer) and value.byte_length:
            yield value
        elif isinstance(value, VmList):
            yield from _buffers(value)
