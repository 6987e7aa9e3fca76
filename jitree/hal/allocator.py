"""Allocators: where buffers come from, and the accounting of their memory."""

from __future__ import annotations

import abc
from _thread import allocate_lock
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from jitree.hal.buffer import Buffer
from jitree.hal.enums import BufferCompatibility, MemoryType

_HOST_LOCAL: Final = int(MemoryType.HOST_LOCAL)


@dataclass(slots=True)
class HeapStatistics:
    """Bytes of one heap; ``peak`` is the most that was live at one time."""

    peak: int = 0
    allocated: int = 0
    freed: int = 0

    @property
    def live(self) -> int:
        return self.allocated - self.freed


@dataclass(slots=True)
class AllocatorStatistics:
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


class Accounting:
    """Thread-safe counters behind :class:`AllocatorStatistics`."""

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self._host = HeapStatistics()
        self._device = HeapStatistics()

    def allocated(self, memory_type: int, size: int) -> None:
        with self._lock:
            heap = self._host if memory_type & _HOST_LOCAL == _HOST_LOCAL else self._device
            heap.allocated += size
            if heap.live > heap.peak:
                heap.peak = heap.live

    def freed(self, memory_type: int, size: int) -> None:
        with self._lock:
            heap = self._host if memory_type & _HOST_LOCAL == _HOST_LOCAL else self._device
            heap.freed += size

    def snapshot(self) -> AllocatorStatistics:
        with self._lock:
            return AllocatorStatistics(
                HeapStatistics(self._host.peak, self._host.allocated, self._host.freed),
                HeapStatistics(self._device.peak, self._device.allocated, self._device.freed),
            )


class Allocator(abc.ABC):
    """Makes buffers of one device."""

    @abc.abstractmethod
    def allocate(self, memory_type: int, usage: int, size: int, *, alignment: int = 64) -> Buffer:
        """A buffer of ``size`` bytes, contents undefined, zero bytes allowed.

        0 as ``memory_type`` or ``usage`` means optimal and default. The buffer may get more memory and usage
        bits than asked. RESOURCE_EXHAUSTED when it does not fit, INVALID_ARGUMENT for a size below 0.
        """

    @abc.abstractmethod
    def import_host(
        self,
        view: memoryview,
        memory_type: int,
        usage: int,
        release: Callable[[], None] | None = None,
    ) -> Buffer | None:
        """A buffer over host memory without copying, or None when the device cannot use that memory as it is.

        ``view`` must be contiguous; the buffer keeps it, is read-only if it is, and calls ``release`` at the
        end.
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
    def formatted_statistics(self) -> str:
        return self.statistics.format()
