"""Queue operations that belong together: started after one fence, done when another one is reached."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from jitree.base.cancel_scopes import require_going_on
from jitree.errors import StatusError, again
from jitree.hal.allocator import HostMemory
from jitree.hal.buffer import Buffer
from jitree.hal.device import Device
from jitree.hal.enums import MemoryAccess
from jitree.hal.fence import Fence

Operation = Callable[[Fence | None, Fence | None], None]
"""Submits itself between a wait and a signal fence."""

Where = tuple[Device, int, Fence | None, Fence | None]
"""Device, affinity of its queues, what to wait for, what to signal."""

_READ: Final = int(MemoryAccess.READ)
_WRITE: Final = int(MemoryAccess.WRITE)
_TOGETHER: Final = 256
"""Operations after which it looks whether the thread is to end."""
_FILL_LENGTHS: Final = (1, 2, 4)
"""Bytes of the patterns that queues fill with."""
_TILE: Final = 1 << 20
"""Bytes of other patterns that are copied at one time; a multiple of all pattern lengths."""


class Batch:
    """Collects operations of one call; :meth:`submit` queues them one after another.

    As a context it fails the signal fence when the call fails before all is queued: no other code would.
    """

    def __init__(self, device: Device, queue_affinity: int, wait: Fence | None, signal: Fence | None) -> None:
        self._device = device
        self._affinity = queue_affinity
        self._wait = wait
        self._signal = signal
        self._operations: list[Operation] = []
        self.memory = HostMemory(device.device_allocator.limited_charge)
        """Counts what the host has of the call."""

    def __enter__(self) -> Batch:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.memory.end()
        if isinstance(error, StatusError) and self._signal is not None:
            self._signal.fail(again(error))

    def submit(self) -> None:
        """Queues what was added; without anything, a barrier between the fences."""
        device, affinity = self._device, self._affinity
        if not self._operations:
            device.queue_barrier(affinity, self._wait, self._signal)
            return
        timeline = device.create_semaphore(0) if len(self._operations) > 1 else None
        wait, last = self._wait, len(self._operations)
        for number, operation in enumerate(self._operations, 1):
            if number % _TOGETHER == 0:
                require_going_on()
            signal = self._signal
            if timeline is not None and number < last:
                signal = Fence(((timeline, number),))
            operation(wait, signal)
            wait = signal

    def read(self, source: memoryview, target: Buffer, offset: int) -> None:
        """Copies host bytes to ``offset`` of a buffer."""
        device, affinity, length = self._device, self._affinity, source.nbytes
        if not length:
            return
        file = device.import_file(affinity, _READ, source)
        self._operations.append(
            lambda wait, signal: device.queue_read(affinity, wait, signal, file, 0, target, offset, length)
        )

    def write(self, source: Buffer, offset: int, target: memoryview) -> None:
        """Copies bytes from ``offset`` of a buffer over all of ``target``."""
        device, affinity, length = self._device, self._affinity, target.nbytes
        if not length:
            return
        file = device.import_file(affinity, _WRITE, target)
        self._operations.append(
            lambda wait, signal: device.queue_write(affinity, wait, signal, source, offset, file, 0, length)
        )

    def fill(self, pattern: bytes, phase: int, target: Buffer, offset: int, length: int) -> None:
        """Repeats a pattern, from byte ``phase`` of it, over a range of a buffer."""
        if not length:
            return
        start = phase % len(pattern)
        pattern = _shortest(pattern[start:] + pattern[:start])
        size = len(pattern)
        if size in _FILL_LENGTHS and offset % size == 0 and length % size == 0:
            device, affinity, value = self._device, self._affinity, int.from_bytes(pattern, "little")
            self._operations.append(
                lambda wait, signal: device.queue_fill(
                    affinity, wait, signal, target, offset, length, value, size
                )
            )
            return
        tile = memoryview(pattern * (min(_TILE, length) // size + 1))
        for position in range(0, length, _TILE):
            self.read(tile[: min(_TILE, length - position)], target, offset + position)


def _shortest(pattern: bytes) -> bytes:
    """The shortest pattern that repeats to the same bytes."""
    half = len(pattern) // 2
    if half and pattern[:half] == pattern[half:]:
        return _shortest(pattern[:half])
    return pattern
