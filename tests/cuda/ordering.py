"""What the tests of order share."""

from __future__ import annotations

import threading
import time

from jitree.cuda.device import CudaDevice
from jitree.hal.buffer import Buffer
from jitree.hal.fence import Fence
from tests.cuda.fake import FakeDriver

TIMEOUT = 20.0


def allocate(device: CudaDevice, size: int = 64) -> Buffer:
    return device.device_allocator.allocate(0x30, 0, size)


def fill(
    device: CudaDevice, buffer: Buffer, wait: Fence | None, signal: Fence | None, value: int = 1
) -> None:
    device.queue_fill(-1, wait, signal, buffer, 0, buffer.byte_length, value, 1)


class Threads:
    """Counts threads that start while it is entered."""

    def __enter__(self) -> Threads:
        self._before = threading.active_count()
        return self

    def __exit__(self, *exception: object) -> None:
        self.started = threading.active_count() - self._before


def release_after(fake: FakeDriver, name: str) -> threading.Thread:
    """A thread that releases the device when a call of that name has been made, or when none comes."""

    def release() -> None:
        late = time.monotonic() + TIMEOUT
        while name not in fake.names() and time.monotonic() < late:
            time.sleep(0.001)
        fake.release()

    thread = threading.Thread(target=release)
    thread.start()
    return thread
