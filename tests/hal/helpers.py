"""Short forms of what most device tests do. Time-outs are there to fail instead of hanging."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np

from jitree.errors import StatusCode, StatusError
from jitree.hal.buffer import Buffer
from jitree.hal.command_buffer import BufferRange, CommandBuffer
from jitree.hal.device import Device
from jitree.hal.fence import Fence

DEVICE_LOCAL = 0x30
SHARED = 0x32
"""Of the device, and visible to the host: what tests read and write directly."""
DEFAULT_USAGE = 0xC03
TIMEOUT = 20.0
"""Seconds; far more than any operation here takes."""
ONE_SHOT = 1
REUSABLE = 0
TRANSFER = 1
DISPATCH = 2
ANY = 3


def allocate(device: Device, contents: bytes | int) -> Buffer:
    """A buffer with these contents, or of that many bytes 0xEE."""
    data = bytes([0xEE]) * contents if isinstance(contents, int) else contents
    buffer = device.device_allocator.allocate(SHARED, DEFAULT_USAGE, len(data))
    buffer.host_array()[:] = np.frombuffer(data, np.uint8)
    return buffer


def contents(buffer: Buffer) -> bytes:
    return bytes(buffer.host_view())


def finish(fence: Fence) -> None:
    """Waits; raises the failure."""
    assert fence.wait(TIMEOUT) == StatusCode.OK


def direct(buffer: Buffer, offset: int = 0, length: int = -1) -> BufferRange:
    return BufferRange(0, buffer, offset, length)


def slot(index: int, offset: int = 0, length: int = -1) -> BufferRange:
    return BufferRange(index, None, offset, length)


def record(device: Device, capacity: int = 0, modes: int = REUSABLE, categories: int = ANY) -> CommandBuffer:
    return device.create_command_buffer(modes, categories, -1, capacity)


def execute(device: Device, command_buffer: CommandBuffer, table: object = ()) -> None:
    """Submits and waits."""
    done = Fence.create(device)
    device.queue_execute(-1, None, done, command_buffer, table)  # type: ignore[arg-type]
    finish(done)


class Meeting:
    """A task that ends when as many of its kind run."""

    def __init__(self, barrier: threading.Barrier) -> None:
        self.barrier = barrier
        self.done = threading.Event()

    def run(self) -> None:
        self.barrier.wait()
        self.done.set()

    def cancel(self, failure: StatusError) -> None:
        raise AssertionError(failure)


def wait_until(condition: Callable[[], bool]) -> None:
    """Looks until the condition holds."""
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def new_threads(name: str) -> Callable[[], int]:
    """Counts the threads of a name that begin from now on: the process may keep devices of other tests."""
    earlier = {thread for thread in threading.enumerate() if thread.is_alive()}
    return lambda: sum(
        thread.name.startswith(name) and thread not in earlier for thread in threading.enumerate()
    )
