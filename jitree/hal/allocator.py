"""Defines the contract of allocators, and accounts for the memory of buffers."""

from __future__ import annotations

import abc
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from jitree.base.arguments import integer, integers, shown
from jitree.base.finalizers import SharedWeakSet, Unique
from jitree.base.records import NamedTuple
from jitree.errors import InvalidArgumentError, OutOfRangeError, ResourceExhaustedError
from jitree.hal.buffer import no_device
from jitree.hal.enums import BufferCompatibility, MemoryType

Charge = Callable[[int], object]
"""Counts so many bytes until what it gives dies. RESOURCE_EXHAUSTED where a limit allows no more."""
_PAGE: Final = 4096

if TYPE_CHECKING:
    from _thread import RLock

    from jitree.hal.buffer import Allocation, Buffer

    class Borrower(Protocol):
        """Borrows blocks of an allocator and hands them out itself."""

        @property
        def counts(self) -> Sequence[int]:
            """What it has handed out: bytes handed out and taken back so far and the most that were out, of
            the device's memory, then of the host's."""

        @property
        def live(self) -> int:
            """Bytes that are handed out now."""

        def limit(self, room: int) -> None:
            """It may have handed out so many bytes at one time."""

        def resume(self) -> None:
            """Hands out memory again, after :meth:`stop`."""

        def stop(self) -> None:
            """The allocator is no longer its device's."""


_HOST_LOCAL: Final = int(MemoryType.HOST_LOCAL)
_UNSIGNED: Final = 2**64 - 1
_PADDING: Final = 64
"""Bytes that aligning a block takes at most."""


def check_request(size: int, alignment: int) -> tuple[int, int]:
    """Both as plain integers. What no allocator can be asked for fails: INVALID_ARGUMENT for an alignment
    that is no power of two, or for what are no integers.

    Programs count bytes in 64 bits without a sign. So a negative size is more than any machine has
    (RESOURCE_EXHAUSTED), and one that has no room in 64 bits together with its padding has wrapped
    (OUT_OF_RANGE).
    """
    if type(size) is not int or type(alignment) is not int:
        size, alignment = integer("size", size), integer("alignment", alignment)
    if alignment & alignment - 1:
        raise InvalidArgumentError(
            f"cannot allocate {shown(size)} bytes aligned to {shown(alignment)}: alignments are powers of two"
        )
    if size < 0:
        length = size & _UNSIGNED
        if length + _PADDING > _UNSIGNED:
            raise OutOfRangeError(f"cannot allocate {shown(size)} bytes: the computed size has wrapped")
        raise ResourceExhaustedError(f"cannot allocate {length} bytes (computed as {shown(size)})")
    if size > _UNSIGNED:
        raise ResourceExhaustedError(f"cannot allocate {shown(size)} bytes")
    return size, alignment


class HeapStatistics(NamedTuple):
    """Bytes of one heap; ``peak`` is the most that was live at one time."""

    allocated: int
    freed: int
    peak: int

    @property
    def live(self) -> int:
        return self.allocated - self.freed


class AllocatorStatistics(NamedTuple):
    """As requested by programs, without rounding and without memory that is kept for reuse."""

    host: HeapStatistics
    device: HeapStatistics

    def format(self) -> str:
        """The text that command lines print for ``--print_statistics``."""
        lines = ["[[ iree_hal_allocator_t memory statistics ]]"]
        for name, heap in (("HOST_LOCAL", self.host), ("DEVICE_LOCAL", self.device)):
            lines.append(
                f"{name:>12}: {heap.peak:12}B peak / {heap.allocated:12}B allocated / "
                f"{heap.freed:12}B freed / {heap.live:12}B live"
            )
        return "\n".join(lines) + "\n"


Item = TypeVar("Item")


class Accounting:
    """Counts for :class:`AllocatorStatistics`, under a lock of its owner."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts = [0] * 6
        """As of a borrower."""

    def allocated(self, memory_type: int, size: int) -> None:
        counts, first = self.counts, 3 if memory_type & _HOST_LOCAL == _HOST_LOCAL else 0
        counts[first] += size
        live = counts[first] - counts[first + 1]
        if live > counts[first + 2]:
            counts[first + 2] = live

    def freed(self, memory_type: int, size: int) -> None:
        self.counts[4 if memory_type & _HOST_LOCAL == _HOST_LOCAL else 1] += size

    def take_back(self, returned: deque[tuple[Item, int, int]]) -> Item | None:
        """Takes the first block that has come back off its list, counted.

        With it are its memory type and its size. No interrupt comes between the two steps, nor does a
        signal's handler, which may take memory itself."""
        if not returned:
            return None
        block, memory_type, size = returned[0]
        self.counts[4 if memory_type & _HOST_LOCAL == _HOST_LOCAL else 1] += size
        returned.popleft()
        return block

    @property
    def live(self) -> int:
        return self.counts[0] - self.counts[1] + self.counts[3] - self.counts[4]

    @property
    def taken(self) -> int:
        return self.counts[0] + self.counts[3]


Block = tuple[int, int, object]
"""(address, capacity, what owns the memory)"""


class Allocator(Unique, abc.ABC):
    """Makes buffers of one device."""

    VM_TYPE: Final = "hal.allocator"

    device: Callable[[], object] = staticmethod(no_device)
    """The device that it is of, the first where several share it. Memory does not keep its device."""

    is_zeroed: bool = False
    """Whether buffers are zero when they are handed out."""

    reserved: int = 0
    """Bytes that it has taken from the system, or the driver, so far, where it keeps them for reuse."""

    @abc.abstractmethod
    def allocate(self, memory_type: int, usage: int, size: int, *, alignment: int = 64) -> Buffer:
        """A buffer of ``size`` bytes, contents undefined, zero bytes allowed.

        0 as ``memory_type`` or ``usage`` means optimal and default. The buffer may get more memory and usage
        bits than asked. RESOURCE_EXHAUSTED when it does not fit; :func:`check_request`.
        """

    @abc.abstractmethod
    def import_host(self, view: memoryview, memory_type: int, usage: int) -> Buffer | None:
        """Wraps host memory in a buffer without copying; None where that is impossible.

        ``view`` must be contiguous; the buffer keeps it, and is read-only if it is.
        """

    @abc.abstractmethod
    def query_compatibility(
        self, memory_type: int, usage: int, intended_usage: int, size: int
    ) -> BufferCompatibility:
        """What can be done with buffers of these properties on this device."""

    @abc.abstractmethod
    def trim(self) -> None:
        """Gives memory that is kept for reuse back to the system."""

    @property
    @abc.abstractmethod
    def statistics(self) -> AllocatorStatistics: ...

    @property
    def allocated(self) -> int:
        """Bytes that have been handed out so far, also those that came back."""
        return sum(kind.allocated for kind in self.statistics)

    @property
    def formatted_statistics(self) -> str:
        return self.statistics.format()

    reclaim: Callable[[], object] = bool
    """Frees what a program has dropped and not given back yet, where it would pass a limit."""

    @property
    def limited_charge(self) -> Charge | None:
        """Finds what counts host memory a program has elsewhere; None without a limit."""
        return None


class HostMemory:
    """Counts an object's host memory in steps of a page until it dies."""

    __slots__ = ("_charge", "_charged", "_charges")

    def __init__(self, charge: Charge | None) -> None:
        self._charge = charge
        self._charged = 0
        self._charges: list[object] = []

    def reach(self, size: int) -> None:
        """The object has so many bytes now. RESOURCE_EXHAUSTED where a limit allows no more."""
        if self._charge is not None and size - self._charged >= _PAGE:
            self._charges.append(self._charge(size - self._charged))
            self._charged = size

    def end(self) -> None:
        """Counts no more, though something such as an error may still refer to it."""
        self._charges.clear()
        self._charged = 0


class LendingAllocator(Allocator):
    """Lends blocks of memory to borrowers, which hand them out without asking for each."""

    _lock: RLock
    _accounting: Accounting
    most_lent: int = 256 << 20
    """Bytes that a borrower may have."""

    def __init__(self) -> None:
        self.borrowers: SharedWeakSet[Borrower] = SharedWeakSet()
        self._settled: Sequence[int] = (0,) * 6

    @property
    @abc.abstractmethod
    def lends(self) -> bool:
        """Whether blocks may be handed out without asking for each."""

    def is_pinned(self, memory_type: int) -> bool:
        """Whether a request wants memory that the host sees beside a busy device."""
        return False

    def has_rested(self, tick: int) -> bool:
        """Whether the host may have pinned memory returned at submission ``tick``."""
        return True

    @abc.abstractmethod
    def lend(self, capacity: int, count: int, memory_type: int = 0) -> Sequence[Block]:
        """Lends blocks of a size class for a memory type, until taken back."""

    @abc.abstractmethod
    def take_back(self, address: int) -> None:
        """A lent block that is not used any more. INVALID_ARGUMENT where no lent one begins."""

    @abc.abstractmethod
    def allocation_over(self, block: Block, length: int, memory_type: int, usage: int) -> Allocation:
        """The first bytes of a lent block, as Python knows memory. The caller says what its end does."""

    def forget(self, counts: Sequence[int]) -> None:
        """A borrower ends; its blocks live as long as they are used. INVALID_ARGUMENT for another number of
        counts than statistics have."""
        added = integers("counts", counts)
        if len(added) != len(self._settled):
            raise InvalidArgumentError(f"counts: expected {len(self._settled)} numbers but got {len(added)}")
        self._settled = tuple(map(sum, zip(self._settled, added, strict=True)))

    @abc.abstractmethod
    def _collect(self) -> None:
        """Accounts for what has come back; the caller holds the lock."""

    @property
    def statistics(self) -> AllocatorStatistics:
        """Counts what borrowers have handed out, too. Peaks are added up."""
        with self._lock:
            self._collect()
            counts = tuple(self._accounting.counts)
        lent = (self._settled, *(borrower.counts for borrower in self.borrowers))
        total = [*map(sum, zip(counts, *lent, strict=True))]
        return AllocatorStatistics(HeapStatistics(*total[3:]), HeapStatistics(*total[:3]))
