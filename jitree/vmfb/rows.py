"""Tables of a module as columns: programs have thousands of functions and constants, and hardly any row of
them is looked at by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import numpy as np

from jitree.vmfb.flatbuffer import Table

if TYPE_CHECKING:
    import numpy.typing as npt

    Column = npt.NDArray[np.int64]

T = TypeVar("T")


class MadeRows(Sequence[T], Generic[T]):
    """Rows that are made when they are first asked for."""

    __slots__ = ("_made", "_make")

    def __init__(self, count: int, make: Callable[[int], T]) -> None:
        self._make = make
        self._made: list[T | None] = [None] * count

    def __len__(self) -> int:
        return len(self._made)

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...

    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        if isinstance(index, slice):
            return tuple(self[at] for at in range(*index.indices(len(self))))
        row = self._made[index]
        if row is None:
            row = self._made[index] = self._make(index % len(self))
        return row

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]  # as for lists


class TableColumns:
    """The tables of one vector, in a FlatBuffer that has been verified as a whole (``verify.py``).

    A column has a number for each of them; places are bytes of the FlatBuffer, 0 where a table has no such
    field.
    """

    def __init__(self, parent: Table, slot: int) -> None:
        self._buffer = parent.buffer
        data, length = self._buffer.data, self._buffer.length
        self._words: npt.NDArray[Any] = np.frombuffer(data, np.uint32, length // 4)
        self._halves: npt.NDArray[Any] = np.frombuffer(data, np.uint16, length // 2)
        start, count = parent.vector(slot, 4) or (0, 0)
        places = np.arange(start, start + 4 * count, 4)
        self._tables: Column = places + self._words[places >> 2]
        vtables = self._tables - self._words.view(np.int32)[self._tables >> 2]
        self._layouts: Column = vtables >> 1
        self._sizes = self._halves[self._layouts]

    def __len__(self) -> int:
        return len(self._tables)

    def table(self, index: int) -> Table:
        return self._buffer.table(int(self._tables[index]))

    def places(self, slot: int) -> Column:
        """Where a field lies."""
        known = self._sizes > 4 + 2 * slot
        offsets = self._halves[np.where(known, self._layouts + 2 + slot, 0)]
        return np.where(known & (offsets > 0), self._tables + offsets, 0)

    def targets(self, slot: int) -> Column:
        """What the offset in a field leads to."""
        places = self.places(slot)
        return np.where(places > 0, places + self._words[places >> 2], 0)

    def uint64(self, slot: int) -> npt.NDArray[np.uint64]:
        """A field's number, 0 without one."""
        places = self.places(slot) >> 2
        numbers = self._words[places] | self._words[places + 1].astype(np.uint64) << np.uint64(32)
        return np.where(places > 0, numbers, np.uint64(0))

    def lengths(self, vectors: Column) -> Column:
        """How many elements the vectors at places have."""
        return np.where(vectors > 0, self._words[vectors >> 2], 0)

    def texts(self, slot: int) -> list[str]:
        """A field's text, empty without one."""
        targets, data = self.targets(slot), self._buffer.data
        texts = [
            bytes(data[place : place + length])
            for place, length in zip((targets + 4).tolist(), self.lengths(targets).tolist(), strict=True)
        ]
        known = {text: str(text, "utf-8", "backslashreplace") for text in set(texts)}
        return [known[text] for text in texts]
