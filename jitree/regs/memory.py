"""Keeps memory at addresses that never change, and views of it. A session may limit how much the programs of
a context have of everything.

:class:`ObjectPool` is what handle tables ask of those who give machine code the means to make objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from jitree.base.memory import address_of as address_of
from jitree.base.platform import zero_pages
from jitree.base.records import NamedTuple
from jitree.codegen.record import words_of
from jitree.errors import ResourceExhaustedError, memory_errors, pass_interruption
from jitree.regs.layout import OWNER_PYTHON, Entry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Protocol

    import numpy.typing as npt

    from jitree.codegen.image.builder import BuilderLimits

    class Lessee(Protocol):
        """Has bytes of a limit on memory in advance, of which it uses some."""

        held: int
        """All bytes that it has, used or not."""

        def withdraw(self) -> None:
            """Gives back unused bytes, while machine code may use more."""

    class Lender(Protocol):
        """Limits memory."""

        def extend(self, lessee: Lessee, size: int) -> None:
            """Lets it hold so many bytes more. RESOURCE_EXHAUSTED."""

        def convert(self, lessee: Lessee, size: int, kept: Sequence[int]) -> list[object]:
            """It holds ``size`` bytes less. ``kept`` ones are counted until what this gives for each dies."""

    class Connected(Protocol):
        """A machine, whose state block refers to the native objects of its table."""

        @property
        def state_address(self) -> int: ...
        def connect(self, handle_pool: ObjectPool) -> None: ...

    class ObjectPool(Protocol):
        """Lets machine code make a table's objects, and knows them."""

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
            """Makes the Python object of a table's entry. The table knows it from then on
            (:meth:`HandleTable.adopt`, ``take_over``)."""

        def free(self, owed: list[int], place: int) -> None:
            """The last reference to what the handle at a place is of is gone. It is taken out."""

        def drop(self, owed: list[int], place: int) -> None:
            """As :meth:`free`; it may be freed later."""

        def drop_all(
            self,
            dropped: npt.NDArray[np.int64],
            links: npt.NDArray[np.int64],
            owed: list[int],
            taken: slice,
            rest: list[int],
        ) -> None:
            """The same of several, which ``owed`` has in a range beside the ``rest``; they are freed later.
            ``links``: the links of all entries."""

        def settle(self) -> None:
            """Frees what was dropped."""

        def supply_lists(self) -> bool:
            """Gives machine code lists where it has none left; whether it has some now."""


_MANY: Final = 1 << 12
"""References that may be to the same objects, which is worth a look."""
Bytes: TypeAlias = "npt.NDArray[np.uint8]"
Entries: TypeAlias = "dict[str, npt.NDArray[Any]]"
"""The entries of a table, a row each, by type of their fields."""


def zeroed(length: int, alignment: int = 64) -> Bytes:
    """``length`` zero bytes whose address is a multiple of ``alignment``. MemoryError if there is no room."""
    block: Bytes = np.zeros(length + alignment, np.uint8)
    start = -address_of(block) % alignment
    return block[start : start + length]


def local_memory(length: int) -> Bytes:
    """As :func:`zeroed`, for workgroups. RESOURCE_EXHAUSTED if there is no room for what an executable says
    that it needs."""
    try:
        return zeroed(length)
    except MemoryError as error:
        pass_interruption(error)
        raise ResourceExhaustedError(f"no room for {length} bytes of workgroup-local memory") from None


class MemoryBlock:
    """Page-aligned zero memory of ``size`` bytes that takes room only where it is written.

    RESOURCE_EXHAUSTED if the address space has no room.
    """

    __slots__ = ("address", "array", "f32", "f64", "i32", "i64", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        try:
            self.array: Bytes = zero_pages(size)
        except OSError as error:
            pass_interruption(error)
            with memory_errors(f"{size} bytes could not be reserved"):
                raise
        self.address = address_of(self.array)
        view = self.array.data
        self.i32: memoryview = view.cast("i")
        self.i64: memoryview = view.cast("q")
        self.f32: memoryview[float] = view.cast("f")
        self.f64: memoryview[float] = view.cast("d")


MAXIMUM_FRAMES: Final = 8192


def _free(size: int) -> object:
    return None


class Bounds(NamedTuple):
    frames: int = MAXIMUM_FRAMES - 1
    """Calls of a program, one inside the other."""
    objects: int | None = None
    """What registers, globals and lists refer to; None: as many as a table has room for."""
    charge: Callable[[int], object] = _free
    """Counts bytes of ``vm.buffer``, ``vm.list`` and globals until what it gives dies. RESOURCE_EXHAUSTED."""
    builds: BuilderLimits | None = None
    """Limits what it takes to build the programs' machine code."""
    lender: Lender | None = None
    """Counts what machine code has of ``charge``; None where that limits nothing."""

    @property
    def limited_charge(self) -> Callable[[int], object] | None:
        """``charge``, where it limits anything."""
        return None if self.charge is _free else self.charge


UNBOUNDED: Final = Bounds()


def release_last(owed: list[int], base: int, entries: Entries, pool: ObjectPool | None) -> None:
    """Drops last references to objects which machine code frees, all at once."""
    entry, counts = words_of(Entry), entries["i32"]
    handles = np.asarray(owed, np.int64)
    taken = slice(len(handles))  # what dies meanwhile may owe more
    handles = handles[handles != 0]
    numbers = handles - base >> 6
    if len(handles) > _MANY:  # all but one of those to one object
        repeats = np.bincount(numbers)
        numbers = np.flatnonzero(repeats)
        handles, others = base + (numbers << 6), (repeats[numbers] - 1).astype(np.int32)
        each = handles.tolist()
        fewer = slice(len(each))
        counts[numbers, entry.count] -= others  # no call from here on, for an interrupt
        owed[taken] = each
        taken = fewer
    freed = (counts[numbers, entry.count] == 1) & (counts[numbers, entry.owner] != OWNER_PYTHON)
    if pool is not None and freed.any():
        counts[numbers[freed], entry.count] = 0
        pool.drop_all(handles[freed], entries["i64"][:, entry.link], owed, taken, handles[~freed].tolist())
        pool.settle()
