"""Arrays that a call gives to the program for good (:func:`jitree.donate`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from jitree.api.array import Array
from jitree.api.calls.declaration import Parameter
from jitree.api.calls.overlaps import shares_memory
from jitree.api.calls.tensor_packing import Donation, as_array, is_object
from jitree.errors import InvalidArgumentError

if TYPE_CHECKING:
    import numpy.typing as npt

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
    """INVALID_ARGUMENT for an array that is donated twice, or donated and passed, also as a numpy array."""
    passed = list(arrays_of(arguments))
    for parameter, value in zip(parameters, arguments, strict=True):
        if not isinstance(value, Donation):
            continue
        if sum(value.array is array for array in passed) > 1 or _is_on_host(value.array, arguments):
            raise InvalidArgumentError(f"{parameter.name}: the array {_TWICE}")


def _is_on_host(array: Array, arguments: Iterable[Any]) -> bool:
    """Whether an argument that will be copied, and is not known any more then, lies in its memory."""
    if array.is_donated or array.view.buffer.host_address is None:
        return False
    memory = array.view.buffer.host_array()
    return any(np.may_share_memory(memory, other) for other in _host_arrays(arguments))


def _host_arrays(arguments: Iterable[Any]) -> Iterator[npt.NDArray[Any]]:
    for value in arguments:
        if isinstance(value, (tuple, list)):
            yield from _host_arrays(value)
        elif not (isinstance(value, (Array, Donation)) or is_object(value)):
            array = as_array(value)
            if array is not None:
                yield array


def give_up(parameters: Sequence[Parameter], arguments: Sequence[Any], packed: Sequence[object]) -> None:
    """Takes the donated arrays from their owners: when all arguments are packed, and none can be refused any
    more. INVALID_ARGUMENT if another argument lies in their memory."""
    for position, value in enumerate(arguments):
        others = [other for index, other in enumerate(packed) if index != position]
        if isinstance(value, Donation) and shares_memory(packed[position], others):
            raise InvalidArgumentError(f"{parameters[position].name}: the memory of the array {_TWICE}")
    for value in arguments:
        if isinstance(value, Donation):
            value.array._give_up()
