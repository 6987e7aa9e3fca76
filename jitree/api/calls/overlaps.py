"""Arguments of one call that lie in the same memory.

The compiler takes the storage of a result for memory that nothing else lies in, and may have a kernel write
there before all of another argument has been read. So an argument in that memory is copied before the call.
It stays where it is if it is exactly the memory of the storage, and the program does no more than copy it
there at its end (``updates.py``): so programs update caches of their callers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from jitree.api.array import Array
from jitree.api.calls.tensor_packing import Donation
from jitree.api.calls.transfers import copy_view
from jitree.errors import InvalidArgumentError
from jitree.hal.buffer import Buffer, BufferView
from jitree.regs.list import without_lists

if TYPE_CHECKING:
    from jitree.api.calls.declaration import Parameter
    from jitree.api.calls.updates import Pairs
    from jitree.hal.device import Device

    class StoringFunction(Protocol):
        """What this needs of a function."""

        @property
        def arguments(self) -> tuple[Parameter, ...]: ...
        @property
        def device(self) -> Device: ...
        @property
        def updates_in_place(self) -> Pairs: ...


def separated(function: StoringFunction, arguments: Sequence[Any], packed: Sequence[object]) -> list[object]:
    """``packed`` with a copy of each tensor that lies in the storage of a result. INVALID_ARGUMENT for others
    that lie there, such as another storage."""
    separate, parameters = list(packed), function.arguments
    for place, storage in enumerate(parameters):
        for index, other in enumerate(parameters if storage.storage_of is not None else ()):
            if index == place or not shares_memory(packed[place], [packed[index]]):
                continue
            view, value = packed[index], arguments[index]
            is_same = _extent(packed[place]) == _extent(view)
            if is_same and (place, index) in function.updates_in_place:
                continue
            is_read = other.tensor is not None and other.storage_of is None
            if not is_read or not isinstance(view, BufferView) or isinstance(value, Donation):
                raise InvalidArgumentError(
                    f"{other.name} lies in the memory of {storage.name}, where the program puts a result; "
                    "pass other memory, such as session.empty(shape)"
                )
            if isinstance(value, Array):
                value.wait()
            separate[index] = copy_view(view, function.device)
    return separate


def shares_memory(one: object, others: Iterable[object]) -> bool:
    """Whether any of the others lies in the memory of one, however it came by it."""
    return any(
        mine.address < other.address + other.byte_length and other.address < mine.address + mine.byte_length
        for mine in _buffers([one])
        for other in _buffers(others)
    )


def _buffers(packed: Iterable[object]) -> Iterator[Buffer]:
    for value in without_lists(packed):
        if isinstance(value, BufferView):
            value = value.buffer
        if isinstance(value, Buffer) and value.byte_length:
            yield value


def _extent(value: object) -> list[tuple[int, int]]:
    return [(buffer.address, buffer.byte_length) for buffer in _buffers([value])]
