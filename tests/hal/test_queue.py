"""Queue operations: order by fences, failures, single transfers, files, allocation, closing."""

from __future__ import annotations

import itertools
import os
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from jitree.errors import (
    AbortedError,
    CancelledError,
    DataLossError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    OutOfRangeError,
    PermissionDeniedError,
    StatusCode,
    UnimplementedError,
)
from jitree.hal.device import Device
from jitree.hal.driver import DriverRegistry
from jitree.hal.enums import MemoryAccess
from jitree.hal.fence import Fence
from jitree.hal.heap import HeapAllocator
from jitree.hal.local.device import lowest_queue
from jitree.hal.local.queue import CallerExecutor, LocalQueue
from jitree.hal.profiling import Profiler, ProfilingMode
from jitree.hal.semaphore import Semaphore
from tests.hal.helpers import DEFAULT_USAGE, DEVICE_LOCAL, TIMEOUT, allocate, contents, finish

READ, WRITE = int(MemoryAccess.READ), int(MemoryAccess.WRITE)


# Order.


def test_barrier_hands_over(any_device: Device) -> None:
    any_device.queue_barrier(-1, None, None)
    wait, signal = Fence.create(any_device), Fence.create(any_device)
    any_device.queue_barrier(-1, wait, signal)
    assert signal.query() == StatusCode.DEFERRED
    wait.signal()
    finish(signal)


def test_wait_fence_may_be_signalled_later_by_the_same_thread(device: Device) -> None:
    """No device blocks a submission on its wait fence: that would hang here."""
    first, second, third = (Fence.create(device) for _ in range(3))
    buffer = allocate(device, bytes(8))
    device.queue_fill(-1, second, third, buffer, 4, 4, 0x22, 1)
    device.queue_fill(-1, first, second, buffer, 0, 8, 0x11, 1)
    assert contents(buffer) == bytes(8)
    first.signal()
    finish(third)
    assert contents(buffer) == b"\x11" * 4 + b"\x22" * 4


def test_wait_fence_signalled_by_another_thread(device: Device) -> None:
    wait, signal = Fence.create(device), Fence.create(device)
    buffer = allocate(device, bytes(4))
    device.queue_fill(-1, wait, signal, buffer, 0, 4, 7, 1)
    timer = threading.Timer(0.03, wait.signal)
    timer.start()
    finish(signal)
    timer.join()
    assert contents(buffer) == b"\x07" * 4


def test_long_chain_started_by_one_signal(any_device: Device) -> None:
    """3000 operations that wait for each other: they must not nest."""
    semaphore = any_device.create_semaphore()
    buffer = allocate(any_device, 4)
    for index in range(1, 3000):
        wait, signal = Fence([(semaphore, index)]), Fence([(semaphore, index + 1)])
        any_device.queue_fill(-1, wait, signal, buffer, 0, 4, 1, 1)
    semaphore.signal(1)
    assert semaphore.wait(3000, TIMEOUT)


def test_chain_in_many_threads(device: Device) -> None:
    """Threads submit links of one chain in any order; each copies the value on and adds to it."""
    links, semaphore = 120, device.create_semaphore()
    cells = [allocate(device, bytes(4)) for _ in range(links + 1)]
    cells[0].host_array()[:] = 9

    def submit(start: int) -> None:
        for index in range(links - 1 - start, -1, -4):
            device.queue_copy(
                -1, Fence([(semaphore, index + 1)]), Fence([(semaphore, index + 2)]),
                cells[index], 0, cells[index + 1], 0, 4,
            )  # fmt: skip

    threads = [threading.Thread(target=submit, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    semaphore.signal(1)
    for thread in threads:
        thread.join(TIMEOUT)
    assert semaphore.wait(links + 1, TIMEOUT)
    assert all(contents(cell) == b"\x09" * 4 for cell in cells)


def test_joined_waits(device: Device) -> None:
    fences = [Fence.create(device) for _ in range(3)]
    done = Fence.create(device)
    buffer = allocate(device, bytes(2))
    device.queue_fill(-1, Fence.join(fences), done, buffer, 0, 2, 1, 1)
    for fence in fences:
        assert done.query() == StatusCode.DEFERRED
        fence.signal()
    finish(done)


# Failures.


def test_failed_wait_fails_the_signal_fence(any_device: Device) -> None:
    buffer = allocate(any_device, bytes(4))
    for failing_first in (True, False):
        wait, signal = Fence.create(any_device), Fence.create(any_device)
        if failing_first:
            wait.fail(DataLossError("lost"))
        any_device.queue_fill(-1, wait, signal, buffer, 0, 4, 1, 1)
        wait.fail(DataLossError("lost"))
        with pytest.raises(DataLossError, match="lost"):
            signal.wait(TIMEOUT)
        assert contents(buffer) == bytes(4), "the operation has not been run"


def test_failed_wait_without_signal_fence_raises_when_known(any_device: Device) -> None:
    wait = Fence.create(any_device)
    wait.fail(AbortedError("x"))
    with pytest.raises(AbortedError):
        any_device.queue_barrier(-1, wait, None)


def test_failed_wait_without_signal_fence_warns_later(any_device: Device) -> None:
    wait = Fence.create(any_device)
    any_device.queue_barrier(-1, wait, None)
    with pytest.warns(RuntimeWarning, match="barrier without a signal fence failed: ABORTED; x"):
        wait.fail(AbortedError("x"))


def test_failure_travels_along_a_chain(device: Device) -> None:
    fences = [Fence.create(device) for _ in range(5)]
    buffer = allocate(device, 4)
    for wait, signal in itertools.pairwise(fences):
        device.queue_fill(-1, wait, signal, buffer, 0, 4, 0, 1)
    fences[0].fail(AbortedError("start"))
    with pytest.raises(AbortedError, match="start"):
        fences[-1].wait(TIMEOUT)


def raising(error: BaseException) -> Callable[[], None]:
    def work() -> None:
        raise error

    return work


@pytest.mark.parametrize(
    ("error", "raised", "code"),
    [
        (DataLossError("x"), DataLossError, StatusCode.DATA_LOSS),
        (ValueError("x"), InternalError, StatusCode.INTERNAL),
    ],
)
def test_errors_of_work_fail_the_fence(error: Exception, raised: type[Exception], code: StatusCode) -> None:
    queue = LocalQueue(CallerExecutor(), Profiler())
    fence = Fence([(Semaphore(), 1)])
    queue.submit("work", None, fence, raising(error))
    assert fence.query() == code
    with pytest.raises(raised, match="x"):
        queue.submit("work", None, None, raising(error))


def test_interrupted_work_is_cancelled() -> None:
    fence = Fence([(Semaphore(), 1)])
    with pytest.raises(KeyboardInterrupt):
        LocalQueue(CallerExecutor(), Profiler()).submit("work", None, fence, raising(KeyboardInterrupt()))
    assert fence.query() == StatusCode.CANCELLED


def test_close_cancels_what_waits(any_device: Device) -> None:
    wait, signal = Fence.create(any_device), Fence.create(any_device)
    any_device.queue_barrier(-1, wait, signal)
    any_device.close()
    assert signal.query() == StatusCode.CANCELLED
    with pytest.raises(CancelledError, match="closed"):
        signal.wait()
    wait.signal()


# Transfers.


@pytest.mark.parametrize(
    ("pattern", "length", "expected"),
    [
        (0xAB, 1, b"\xab" * 8),
        (0x1234_56AB, 1, b"\xab" * 8),
        (0x1234, 2, b"\x34\x12" * 4),
        (0x1234_5678, 4, b"\x78\x56\x34\x12" * 2),
        (-1, 4, b"\xff" * 8),
        (-2, 2, b"\xfe\xff" * 4),
    ],
)
def test_fill(device: Device, pattern: int, length: int, expected: bytes) -> None:
    buffer, done = allocate(device, 16), Fence.create(device)
    device.queue_fill(-1, None, done, buffer, 4, 8, pattern, length)
    finish(done)
    assert contents(buffer) == b"\xee" * 4 + expected + b"\xee" * 4


def test_fill_the_rest_and_nothing(device: Device) -> None:
    buffer, done = allocate(device, 8), Fence.create(device)
    device.queue_fill(-1, None, None, buffer, 8, 0, 1, 4)
    device.queue_fill(-1, None, done, buffer, 4, -1, 0, 4)
    finish(done)
    assert contents(buffer) == b"\xee" * 4 + bytes(4)


@pytest.mark.parametrize("pattern_length", [0, 3, 8, -1])
def test_fill_pattern_lengths(any_device: Device, pattern_length: int) -> None:
    with pytest.raises(InvalidArgumentError, match="pattern"):
        any_device.queue_fill(-1, None, None, allocate(any_device, 16), 0, 16, 0, pattern_length)


@pytest.mark.parametrize(
    ("offset", "length", "error"),
    [(1, 4, InvalidArgumentError), (0, 6, InvalidArgumentError), (0, 20, OutOfRangeError),
     (20, -1, OutOfRangeError), (-4, 4, OutOfRangeError)],
)  # fmt: skip
def test_fill_ranges(any_device: Device, offset: int, length: int, error: type[Exception]) -> None:
    signal = Fence.create(any_device)
    with pytest.raises(error):
        any_device.queue_fill(-1, None, signal, allocate(any_device, 16), offset, length, 0, 4)
    assert signal.query() == StatusCode.DEFERRED, "an error at submission leaves the fence alone"


def test_flags_are_refused(any_device: Device) -> None:
    with pytest.raises(InvalidArgumentError, match="flags"):
        any_device.queue_fill(-1, None, None, allocate(any_device, 4), 0, 4, 0, 4, 1)


def test_copy(device: Device) -> None:
    source, target, done = allocate(device, bytes(range(16))), allocate(device, 16), Fence.create(device)
    device.queue_copy(-1, None, None, source, 4, source, 0, 4)
    device.queue_copy(-1, None, done, source, 0, target, 8, 8)
    finish(done)
    assert contents(target) == b"\xee" * 8 + bytes((4, 5, 6, 7, 4, 5, 6, 7))


def test_copy_that_overlaps(any_device: Device) -> None:
    buffer = allocate(any_device, 16)
    for source, target in ((0, 4), (4, 0)):
        with pytest.raises(InvalidArgumentError, match="overlap"):
            any_device.queue_copy(-1, None, None, buffer, source, buffer, target, 8)
    any_device.queue_copy(-1, None, None, buffer, 4, buffer.subspan(4), 0, 8)  # onto itself: nothing
    with pytest.raises(InvalidArgumentError, match="overlap"):
        any_device.queue_copy(-1, None, None, buffer.subspan(4), 0, buffer.subspan(0, 8), 2, 4)
    with pytest.raises(OutOfRangeError):
        any_device.queue_copy(-1, None, None, buffer, 8, allocate(any_device, 4), 0, 8)


def test_large_transfers(device: Device) -> None:
    size = 5_000_001
    source, target = allocate(device, size), allocate(device, bytes(size))
    filled, copied = Fence.create(device), Fence.create(device)
    device.queue_fill(-1, None, filled, source, 0, size, 0x5A, 1)
    device.queue_copy(-1, filled, copied, source, 0, target, 0, size)
    finish(copied)
    assert (target.host_array() == 0x5A).all()


def test_update_captures_bytes(device: Device) -> None:
    source, target = bytearray(range(16)), allocate(device, 8)
    wait, done = Fence.create(device), Fence.create(device)
    device.queue_update(-1, wait, done, memoryview(source), 4, target, 2, 4)
    source[:] = bytes(16)
    wait.signal()
    finish(done)
    assert contents(target) == b"\xee\xee\x04\x05\x06\x07\xee\xee"


def test_update_limits(any_device: Device) -> None:
    source, target = memoryview(bytes(70_000)), allocate(any_device, 70_000)
    any_device.queue_update(-1, None, None, source, 0, target, 0, 65_536)
    with pytest.raises(InvalidArgumentError, match="65536"):
        any_device.queue_update(-1, None, None, source, 0, target, 0, 65_537)
    with pytest.raises(OutOfRangeError):
        any_device.queue_update(-1, None, None, source[:4], 2, target, 0, 4)
    with pytest.raises(OutOfRangeError):
        any_device.queue_update(-1, None, None, source, 0, target, 69_999, 4)


def test_access_and_usage_are_checked(any_device: Device) -> None:
    memory = bytes(256)
    constant = None
    for start in range(64):
        constant = HeapAllocator().import_host(memoryview(memory)[start : start + 64], 0, 0)
        if constant is not None:
            break
    assert constant is not None
    with pytest.raises(PermissionDeniedError, match="WRITE"):
        any_device.queue_fill(-1, None, None, constant, 0, 4, 0, 4)
    any_device.queue_copy(-1, None, None, constant, 0, allocate(any_device, 64), 0, 64)


# Allocation.


def test_alloca_returns_at_once(any_device: Device) -> None:
    wait, ready, freed = (Fence.create(any_device) for _ in range(3))
    buffer = any_device.queue_alloca(-1, wait, ready, 0, DEVICE_LOCAL, DEFAULT_USAGE, 100)
    assert buffer.byte_length == 100
    assert ready.query() == StatusCode.DEFERRED
    wait.signal()
    finish(ready)
    any_device.queue_dealloca(-1, ready, freed, buffer)
    finish(freed)
    with pytest.raises(UnimplementedError, match="pool 1"):
        any_device.queue_alloca(-1, None, None, 1, DEVICE_LOCAL, DEFAULT_USAGE, 4)


def test_dealloca_of_other_buffers_is_a_barrier(any_device: Device) -> None:
    buffer, done = allocate(any_device, b"abcd"), Fence.create(any_device)
    any_device.queue_dealloca(-1, None, done, buffer)
    finish(done)
    assert contents(buffer) == b"abcd"


def test_operations_keep_their_buffers(device: Device) -> None:
    allocator = device.device_allocator
    wait, done = Fence.create(device), Fence.create(device)
    device.queue_copy(-1, wait, done, allocate(device, 500), 0, allocate(device, 500), 0, 500)
    assert allocator.statistics.device.live == 1000
    wait.signal()
    finish(done)
    deadline = time.monotonic() + TIMEOUT
    while allocator.statistics.device.live and time.monotonic() < deadline:
        time.sleep(0.001)  # a worker lets go just after it has signalled
    assert allocator.statistics.device.live == 0


# Files.


def test_memory_file(device: Device) -> None:
    file = device.import_file(-1, READ, b"0123456789", 2, 6)
    target, done = allocate(device, 8), Fence.create(device)
    device.queue_read(-1, None, done, file, 1, target, 2, 4)
    finish(done)
    assert contents(target) == b"\xee\xee3456\xee\xee"
    with pytest.raises(OutOfRangeError):
        device.queue_read(-1, None, None, file, 4, target, 0, 4)
    with pytest.raises(PermissionDeniedError):
        device.queue_write(-1, None, None, target, 0, file, 0, 4)
    with pytest.raises(PermissionDeniedError):
        device.import_file(-1, READ | WRITE, b"constant")
    with pytest.raises(InvalidArgumentError):
        device.import_file(-1, 0, b"x")
    with pytest.raises(OutOfRangeError):
        device.import_file(-1, READ, b"abc", 2, 2)


def test_writable_memory_file(device: Device) -> None:
    memory, done = bytearray(8), Fence.create(device)
    file = device.import_file(-1, READ | WRITE, memory)
    device.queue_write(-1, None, done, allocate(device, b"abcd"), 1, file, 3, 3)
    finish(done)
    assert memory == b"\0\0\0bcd\0\0"


def test_path_file(device: Device, tmp_path: Path) -> None:
    path = tmp_path / "file.bin"
    path.write_bytes(bytes(range(100)))
    file = device.import_file(-1, READ | WRITE, path)
    written, read = Fence.create(device), Fence.create(device)
    target = allocate(device, 50)
    device.queue_write(-1, None, written, allocate(device, b"hello"), 0, file, 98, 5)
    device.queue_read(-1, written, read, file, 53, target, 0, 50)
    finish(read)
    assert contents(target) == bytes(range(53, 98)) + b"hello"
    with pytest.raises(NotFoundError, match="missing"):
        device.import_file(-1, READ, tmp_path / "missing")
    with pytest.raises(OutOfRangeError):
        device.queue_read(-1, None, None, file, 90, target, 0, 50)


def test_file_that_shrinks_fails_the_fence(device: Device, tmp_path: Path) -> None:
    path = tmp_path / "file.bin"
    path.write_bytes(bytes(100))
    file = device.import_file(-1, READ, str(path))
    wait, done = Fence.create(device), Fence.create(device)
    device.queue_read(-1, wait, done, file, 0, allocate(device, 100), 0, 100)
    os.truncate(path, 10)
    wait.signal()
    with pytest.raises(OutOfRangeError, match=r"ended|outside"):
        done.wait(TIMEOUT)


# Profiling.


def test_profiling(device: Device, tmp_path: Path) -> None:
    profiler: Profiler = device.profiler
    path = tmp_path / "trace.json"
    device.profiling_end()
    device.profiling_begin(ProfilingMode.QUEUE_OPERATIONS, str(path))
    done = Fence.create(device)
    device.queue_fill(-1, None, done, allocate(device, 4), 0, 4, 0, 1)
    finish(done)
    device.profiling_flush()
    assert '"fill"' in path.read_text()
    device.profiling_end()
    device.queue_fill(-1, None, None, allocate(device, 4), 0, 4, 0, 1)
    assert [measurement.name for measurement in profiler.measurements] == ["fill"]


def test_profiling_twice(any_device: Device) -> None:
    any_device.profiling_begin(ProfilingMode.QUEUE_OPERATIONS)
    with pytest.raises(Exception, match="profiled already"):
        any_device.profiling_begin(ProfilingMode.QUEUE_OPERATIONS)


# Affinity.


@pytest.mark.parametrize(("affinity", "expected"), [(-1, 0), (1, 0), (2, 1), (12, 2), (0, 0), (1 << 63, 63)])
def test_lowest_queue(affinity: int, expected: int) -> None:
    assert lowest_queue(affinity) == expected


def test_queues_of_one_device_order_by_fences(registry: DriverRegistry) -> None:
    processor = min(os.sched_getaffinity(0))
    with registry.create_device(f"local-task://?cpu_ids={processor};{processor};{processor}") as device:
        semaphore, size = device.create_semaphore(), 1_200_000
        buffer = allocate(device, size)
        for index in range(12):
            device.queue_fill(
                1 << index % 5, Fence([(semaphore, index)]), Fence([(semaphore, index + 1)]),
                buffer, 0, size, index, 1,
            )  # fmt: skip
        assert semaphore.wait(12, TIMEOUT)
        assert contents(buffer) == bytes([11]) * size


def test_no_warnings_in_ordinary_use(device: Device) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        done = Fence.create(device)
        device.queue_barrier(-1, None, done)
        finish(done)
