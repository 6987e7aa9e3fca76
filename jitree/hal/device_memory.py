"""Reports memory allocated on a device by the functions and lines that asked.

Totals are counted always. The functions and lines are known of memory that is allocated while
:class:`DeviceMemory` is entered: the device has another allocator then, which asks the device's own and looks
at Python's stack.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, Protocol
from weakref import ref

from jitree.base.finalizers import Unique, guard
from jitree.base.records import NamedTuple
from jitree.dispatch.backtrace import asking, describe
from jitree.errors import FailedPreconditionError
from jitree.hal.allocator import Allocator, AllocatorStatistics, Charge
from jitree.hal.enums import BufferCompatibility

if TYPE_CHECKING:
    from jitree.hal.buffer import Allocation, Buffer
    from jitree.hal.executable import Executable

_PYTHON: Final = "(Python)"


class MemoryRow(NamedTuple):
    """Sums what one function has allocated for calls from one line."""

    function: str
    """Its name, with the source where the module says it: ``module.f+0000001C at f.mlir:3:10``."""
    call_site: str
    """The line of Python: ``model.py:12 in main``."""
    live: int
    """Bytes that are still used: by results that something keeps, and by the state of programs."""
    live_count: int
    allocated: int
    """Bytes so far."""
    allocations: int


class _Sums:
    def __init__(self) -> None:
        self.live = self.live_count = self.allocated = self.count = 0


class Tracked(Protocol):
    """Stands for a device, as far as this looks at it."""

    uri: str
    device_allocator: Allocator

    @property
    def executables(self) -> Iterable[Executable]: ...

    def replace_device_allocator(self, allocator: Allocator) -> None: ...


class DeviceMemory(Unique):
    """Shows a device's memory at a moment, or allocations of a ``with`` block."""

    def __init__(self, device: Tracked) -> None:
        self._device = device
        self._own: Allocator = device.device_allocator
        self._count()
        self.tracked_peak = 0
        """The most that was used at one time of what was allocated in the ``with`` block."""
        self._tracked = 0
        self._lock = guard()
        """Memory may go while a thread has it."""
        self._sums: dict[tuple[str, str], _Sums] = {}
        self._kept: dict[ref[Allocation], tuple[_Sums, int]] = {}
        self._gone: deque[ref[Allocation]] = deque()
        """What has gone since it was counted last: code in Python where it goes would lose an interrupt."""

    def _count(self) -> None:
        statistics = self._own.statistics
        self.live: int = statistics.host.live + statistics.device.live
        """Bytes that buffers have. As all totals, those of the moment when this was made, or when its
        ``with`` block ended."""
        self.peak: int = statistics.host.peak + statistics.device.peak
        """The most that they had at one time since the device was made, at most."""
        self.allocated: int = statistics.host.allocated + statistics.device.allocated
        """Bytes so far."""
        self.reserved: int = self._own.reserved
        """Bytes that were taken from the system, or the driver, so far."""
        self.copied: int = sum(executable.copied for executable in self._device.executables)
        """Bytes of copies of constants in another order, which programs keep for speed and give up where
        memory is short. Other totals do not have them."""

    @property
    def rows(self) -> tuple[MemoryRow, ...]:
        """Lists the block's functions and lines, most live memory first."""
        with self._lock:
            self._forget_gone()
            rows = [
                MemoryRow(*place, sums.live, sums.live_count, sums.allocated, sums.count)
                for place, sums in self._sums.items()
            ]
        return tuple(sorted(rows, key=lambda row: (-row.live, -row.allocated)))

    def __enter__(self) -> DeviceMemory:
        device = self._device
        if isinstance(device.device_allocator, _TrackingAllocator):
            raise FailedPreconditionError(
                f"the memory of {device.uri} is being tracked already; end that first"
            )
        self._own = device.device_allocator
        try:
            device.replace_device_allocator(_TrackingAllocator(self._own, self._note))
        except BaseException:
            device.replace_device_allocator(self._own)
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        """Memory that was allocated inside goes on being counted when it goes."""
        self._device.replace_device_allocator(self._own)
        self._count()

    def _note(self, allocation: Allocation) -> None:
        size, (machine, word, line) = allocation.byte_length, asking(sys._getframe(1))
        function = _PYTHON if machine is None else describe(*next(machine.locations(word)))
        place = function, line or "(no line)"
        with self._lock:
            self._forget_gone()
            sums = self._sums.setdefault(place, _Sums())
            sums.live, sums.live_count = sums.live + size, sums.live_count + 1
            sums.allocated, sums.count = sums.allocated + size, sums.count + 1
            self._tracked += size
            self.tracked_peak = max(self.tracked_peak, self._tracked)
            self._kept[ref(allocation, self._gone.append)] = sums, size

    def _forget_gone(self) -> None:
        """The caller has the lock."""
        while self._gone:
            gone = self._gone[0]
            if gone in self._kept:  # no call is made here, after which an interrupt could come
                sums, size = self._kept[gone]
                sums.live, sums.live_count = sums.live - size, sums.live_count - 1
                self._tracked -= size
                del self._kept[gone]
            del self._gone[0]

    def __str__(self) -> str:
        totals = f"{self.live} bytes live, {self.peak} at most, {self.allocated} allocated so far"
        copies = f", {self.copied} of copies of constants" if self.copied else ""
        lines = [f"{self._device.uri}: {totals}, {self.reserved} reserved{copies}"]
        lines += [
            f"  {row.live} bytes live ({row.live_count} of {row.allocations}), {row.allocated} allocated: "
            f"{row.function}, called from {row.call_site}"
            for row in self.rows
        ]
        return "\n".join(lines)

    __repr__ = __str__


class _TrackingAllocator(Allocator):
    """Another allocator, of whose buffers it tells."""

    def __init__(self, own: Allocator, note: Callable[[Allocation], None]) -> None:
        self._own = own
        self._note = note
        self.is_zeroed = own.is_zeroed

    def allocate(self, memory_type: int, usage: int, size: int, *, alignment: int = 64) -> Buffer:
        buffer = self._own.allocate(memory_type, usage, size, alignment=alignment)
        self._note(buffer.allocation)
        return buffer

    def import_host(self, view: memoryview, memory_type: int, usage: int) -> Buffer | None:
        """As the other does: it is no memory of the device's."""
        return self._own.import_host(view, memory_type, usage)

    def query_compatibility(
        self, memory_type: int, usage: int, intended_usage: int, size: int
    ) -> BufferCompatibility:
        return self._own.query_compatibility(memory_type, usage, intended_usage, size)

    def trim(self) -> None:
        self._own.trim()

    @property
    def limited_charge(self) -> Charge | None:
        return self._own.limited_charge

    @property
    def statistics(self) -> AllocatorStatistics:
        return self._own.statistics
