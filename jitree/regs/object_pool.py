"""What handle tables ask of those who give machine code the means to make objects, and of its users."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from jitree.codegen.record import words_of
from jitree.regs.layout import OWNER_PYTHON, Entry

if TYPE_CHECKING:
    import numpy.typing as npt

_ENTRY: Final = words_of(Entry)
_MANY: Final = 1 << 12
"""References that may be to the same objects, which is worth a look."""


class Connected(Protocol):
    """A machine, whose state block refers to the native objects of its table."""

    def connect(self, handle_pool: ObjectPool) -> None: ...


class ObjectPool(Protocol):
    """Gives machine code the means to make objects of a table, and knows what it has made."""

    @property
    def record(self) -> int:
        """The value of STATE.handle_pool."""

    @property
    def sweep(self) -> int:
        """The value of STATE.sweep."""

    @property
    def new_list(self) -> int:
        """The value of STATE.new_list."""

    @property
    def live_count(self) -> int:
        """Objects without a Python object."""

    @property
    def promised(self) -> int:
        """The same, with those that machine code may make without asking."""

    def withdraw(self) -> None:
        """Machine code has to ask before it makes more."""

    def make(self, table: Any, address: int) -> object:
        """The Python object of an entry of the table, which knows it from then on
        (:meth:`HandleTable.adopt`, ``take_over``)."""

    def free(self, owed: list[int]) -> None:
        """The last reference to what the last of these handles is of is gone. It is taken out."""

    def drop(self, owed: list[int]) -> None:
        """As :meth:`free`; it may be freed later."""

    def drop_all(self, addresses: npt.NDArray[np.int64]) -> None:
        """The same of several. Nothing is called when they are known."""

    def settle(self) -> None:
        """Frees what was dropped."""

    def supply_lists(self) -> bool:
        """Gives machine code lists where it has none left; whether it has some now."""


def release_last(owed: list[int], base: int, entries: npt.NDArray[np.int32], pool: ObjectPool | None) -> None:
    """Drops last references to objects which machine code frees, all at once."""
    handles = np.asarray(owed, np.int64)
    handles = handles[handles != 0]
    numbers = handles - base >> 6
    if len(handles) > _MANY:  # all but one of those to one object
        repeats = np.bincount(numbers)
        numbers = np.flatnonzero(repeats)
        handles, others = base + (numbers << 6), (repeats[numbers] - 1).astype(np.int32)
        each = handles.tolist()
        entries[numbers, _ENTRY.count] -= others
        owed[:] = each
    freed = (entries[numbers, _ENTRY.count] == 1) & (entries[numbers, _ENTRY.owner] != OWNER_PYTHON)
    if pool is not None and freed.any():
        rest = handles[~freed].tolist()
        entries[numbers[freed], _ENTRY.count] = 0
        pool.drop_all(handles[freed])
        owed[:] = rest
        pool.settle()
