"""Pieces of regions, device and pinned memory, imports, accounting, trimming."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Iterable
from functools import partial
from types import FrameType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from jitree.cuda import allocator as allocator_module
from jitree.cuda import transfers
from jitree.cuda.allocator import CudaAllocator
from jitree.cuda.device import CudaDevice
from jitree.cuda.suballocator import ALIGNMENT
from jitree.errors import (
    InvalidArgumentError,
    OutOfRangeError,
    PermissionDeniedError,
    ResourceExhaustedError,
)
from jitree.hal.buffer import Buffer
from jitree.hal.enums import BufferCompatibility, MemoryAccess, MemoryType
from jitree.hal.fence import Fence
from jitree.hal.heap import HeapAllocator
from tests.base.interruption import PACKAGE, Handler, Interruption, interruptions
from tests.cuda.fake import FakeDriver
from tests.cuda.fake_results import CUresult

DEVICE_LOCAL, HOST_LOCAL, STAGING = 0x30, 0x46, 0x56
REGION = 1 << 20


# Device and pinned memory.


class OutsideOfTheDriver(Interruption):
    """As its base, in functions of the package: that of CUDA is C, in which no handler runs."""

    def _look(self, frame: FrameType, event: str, argument: Any) -> None:
        if frame.f_code.co_filename.startswith(PACKAGE):
            super()._look(frame, event, argument)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("memory_type", [DEVICE_LOCAL, STAGING])
def test_no_piece_is_lost_wherever_an_interrupt_comes(
    fake: FakeDriver, device: CudaDevice, memory_type: int
) -> None:
    """As it is taken, comes back, or goes to the free ones; none is given twice."""
    allocator = device.device_allocator
    assert isinstance(allocator, CudaAllocator)
    sizes, places = (64, 64, 20 << 20, 5000), 0

    def work() -> None:
        kept = [allocator.allocate(memory_type, 0, size) for size in sizes]
        del kept[::2]
        kept += [allocator.allocate(memory_type, 0, size) for size in sizes]
        assert len({buffer.address for buffer in kept}) == len(kept)
        blocks = allocator.lend(1 << 10, 2, memory_type)
        kept.clear()
        blocks.clear()
        allocator.trim()

    for interruption in interruptions(24, OutsideOfTheDriver):
        interruption.during(work)
        gc.collect()  # an error that a finalizer has put off is in a circle, with the frames it came through
        allocator.trim()
        device.context.release_discarded()
        assert not fake.allocations, f"interrupted at place {interruption.place}"
        assert not (allocator._accounting.live or allocator._pinned_bytes or allocator.kept_bytes)
        places += 1
    assert places > 20


@pytest.mark.parametrize("memory_type", [DEVICE_LOCAL, STAGING])
def test_no_piece_is_given_twice_wherever_a_handler_takes_and_drops_some(
    fake: FakeDriver, device: CudaDevice, memory_type: int
) -> None:
    """A signal's handler runs on the thread that has the lock, in between."""
    allocator, live = allocator_of(device), dict[int, Buffer]()

    def take(*sizes: int) -> None:
        for size in sizes:
            buffer = allocator.allocate(memory_type, 0, size)
            live[id(buffer)] = buffer

    def drop(kept: int) -> None:
        while len(live) > kept:
            live.popitem()

    def handle() -> None:
        take(64, 20 << 20, 64)
        live.popitem()
        require_apart(live.values())

    def work() -> None:
        take(64, 64, 20 << 20, 5000)
        drop(2)
        take(64, 20 << 20, 5000)
        require_apart(live.values())

    for interruption in interruptions(24, partial(Handler, handle=handle)):
        interruption.during(work)
        require_apart(live.values())
        drop(0)
        allocator.trim()
        device.context.release_discarded()
        assert not (fake.allocations or allocator._accounting.live or allocator._pinned_bytes)


def require_apart(buffers: Iterable[Buffer]) -> None:
    spans = sorted((buffer.address, buffer.byte_length) for buffer in buffers)
    assert all(address + size <= following for (address, size), (following, _) in itertools.pairwise(spans))


def allocator_of(device: CudaDevice) -> CudaAllocator:
    allocator = device.device_allocator
    assert isinstance(allocator, CudaAllocator)
    return allocator


@pytest.mark.parametrize(
    ("memory_type", "visible"),
    [
        (0, False),
        (1, False),
        (DEVICE_LOCAL, False),
        (0x33, False),
        (HOST_LOCAL, True),
        (STAGING, True),
        (0x32, True),
    ],
)
def test_what_the_host_is_to_see_is_pinned(device: CudaDevice, memory_type: int, visible: bool) -> None:
    buffer = allocator_of(device).allocate(memory_type, 0, 100)
    assert (buffer.host_address is not None) == visible == bool(buffer.memory_type & MemoryType.HOST_VISIBLE)
    assert buffer.memory_type & memory_type & ~3 == memory_type & ~3
    assert buffer.address % ALIGNMENT == 0 and not buffer.memory_type & MemoryType.OPTIMAL
    if visible:
        buffer.host_array()[:] = 1
    else:
        with pytest.raises(PermissionDeniedError, match="DEVICE_LOCAL"):
            buffer.host_array()


def test_nothing_is_allocated_while_a_program_runs(fake: FakeDriver, device: CudaDevice) -> None:
    def call() -> None:
        held = [allocator_of(device).allocate(DEVICE_LOCAL, 0, size) for size in (4, 4096, 1 << 20, 40 << 20)]
        held += [allocator_of(device).allocate(STAGING, 0, size) for size in (1, 65536)]

    call()
    fake.calls.clear()
    for _ in range(100):
        call()
    assert not {"cuMemAlloc", "cuMemHostAlloc", "cuMemFree", "cuMemFreeHost"} & set(fake.names())


def test_device_memory_is_reused_in_stream_order(fake: FakeDriver, device: CudaDevice) -> None:
    """While the device is busy with the old use: what comes next waits for it anyway."""
    with fake.busy():
        buffer = allocator_of(device).allocate(DEVICE_LOCAL, 0, 1000)
        device.queue_fill(-1, None, None, buffer, 0, 1000, 1, 1)
        address = buffer.address
        del buffer
        again = allocator_of(device).allocate(DEVICE_LOCAL, 0, 1000)
        assert again.address == address
        device.queue_fill(-1, None, None, again, 0, 1000, 2, 1)
    assert (device.read_buffer(again) == 2).all()


def test_pinned_memory_rests_until_the_device_has_done_with_it(fake: FakeDriver, device: CudaDevice) -> None:
    with fake.busy():
        buffer = allocator_of(device).allocate(STAGING, 0, 1000)
        device.queue_fill(-1, None, None, buffer, 0, 1000, 1, 1)
        address = buffer.address
        del buffer
        assert allocator_of(device).allocate(STAGING, 0, 1000).address != address
    device.stream.synchronize()
    reused = {allocator_of(device).allocate(STAGING, 0, 1000).address for _ in range(3)}
    assert address in reused or len(reused) == 1


def test_alignment_on_request(device: CudaDevice) -> None:
    buffer = allocator_of(device).allocate(DEVICE_LOCAL, 0, 100, alignment=1 << 16)
    assert buffer.address % (1 << 16) == 0 and buffer.byte_length == 100
    for size, alignment, status in (
        (8, 48, InvalidArgumentError), (-1, 64, OutOfRangeError), (-(2**63), 64, ResourceExhaustedError),
    ):  # fmt: skip
        with pytest.raises(status, match="cannot allocate"):
            allocator_of(device).allocate(DEVICE_LOCAL, 0, size, alignment=alignment)


def test_a_full_device_gives_up_what_it_only_keeps(fake: FakeDriver, device: CudaDevice) -> None:
    allocator = allocator_of(device)
    sizes = [fake.memory // 3, fake.memory // 2, fake.memory // 3 * 2]
    for size in sizes:
        assert allocator.allocate(DEVICE_LOCAL, 0, size).byte_length == size
    assert fake.count("cuMemFree") == 2


def test_trim_lets_no_work_in_between(
    fake: FakeDriver, device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work that comes after the wait would run when its memory has gone back to the driver."""
    free, owned = fake.cuMemFree, []

    def checked(address: int) -> Any:
        owned.append(device.stream.lock._is_owned())  # type: ignore[attr-defined]
        return free(address)

    monkeypatch.setattr(fake, "cuMemFree", checked)
    allocator_of(device).allocate(DEVICE_LOCAL, 0, 1 << 20)
    device.trim()
    assert owned == [True]


def test_pinned_memory_that_the_system_refuses(fake: FakeDriver, device: CudaDevice) -> None:
    for _ in range(3):  # at once, when all is done, when nothing is kept any more
        fake.fail_next("cuMemHostAlloc", CUresult.CUDA_ERROR_OUT_OF_MEMORY)
    with pytest.raises(ResourceExhaustedError, match="cuMemHostAlloc"):
        allocator_of(device).allocate(HOST_LOCAL, 0, 100 << 20)


def test_results_take_ordinary_memory_when_much_is_pinned(
    fake: FakeDriver, device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allocator_module, "_MOST_PINNED", 10_000)
    buffer = allocator_of(device).allocate(DEVICE_LOCAL, 0, 4096)
    results = [device.read_buffer(buffer) for _ in range(5)]
    assert fake.count("cuMemcpyDtoHAsync") == 2
    results.clear()
    device.read_buffer(buffer)
    assert fake.count("cuMemcpyDtoHAsync") == 2


def test_results_that_the_host_has_no_memory_for(device: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*arguments: object) -> None:
        raise MemoryError

    monkeypatch.setattr(allocator_module, "_MOST_PINNED", 0)
    buffer = allocator_of(device).allocate(DEVICE_LOCAL, 0, 4096)
    monkeypatch.setattr(transfers, "np", SimpleNamespace(empty=none, uint8=np.uint8))
    with pytest.raises(ResourceExhaustedError, match="reading 4096 bytes from the device"):
        device.read_buffer(buffer)


def test_accounting(device: CudaDevice) -> None:
    allocator = allocator_of(device)
    held = [allocator.allocate(DEVICE_LOCAL, 0, 1000), allocator.allocate(HOST_LOCAL, 0, 30)]
    statistics = allocator.statistics
    assert (statistics.device.live, statistics.host.live) == (1000, 30)
    held.clear()
    statistics = allocator.statistics
    assert (statistics.device.live, statistics.host.live, statistics.device.peak) == (0, 0, 1000)


def test_trim(fake: FakeDriver, device: CudaDevice) -> None:
    allocator = allocator_of(device)
    allocator.allocate(DEVICE_LOCAL, 0, 1000)
    allocator.allocate(HOST_LOCAL, 0, 1000)
    assert allocator.kept_bytes > 0 and fake.live_bytes > 0
    device.trim()
    assert allocator.kept_bytes == 0 and fake.live_bytes == 0


def test_compatibility(device: CudaDevice) -> None:
    query = allocator_of(device).query_compatibility
    assert BufferCompatibility.IMPORTABLE not in query(DEVICE_LOCAL, 0, 0, 1)
    assert BufferCompatibility.IMPORTABLE in query(HOST_LOCAL, 0, 0, 1)


# Imports.


def test_host_memory_is_pinned_in_place_and_released(fake: FakeDriver, device: CudaDevice) -> None:
    memory = np.arange(100, dtype=np.uint8)
    lent = memory.view()
    is_lent = weakref.ref(lent)
    assert allocator_of(device).import_host(memory.data, DEVICE_LOCAL, 0) is None
    buffer = allocator_of(device).import_host(lent.data, HOST_LOCAL, 0)
    assert buffer is not None and buffer.host_address == memory.ctypes.data
    done = Fence.create(device)
    device.queue_fill(-1, None, done, buffer, 0, 4, 9, 1)
    done.wait()
    assert memory[:5].tolist() == [9, 9, 9, 9, 4]
    del buffer, lent
    gc.collect()
    assert is_lent() is not None
    assert not fake.count("cuMemHostUnregister")  # finalizers run anywhere and touch no driver
    again = allocator_of(device).import_host(memory.data, HOST_LOCAL, 0)
    assert is_lent() is None and fake.count("cuMemHostUnregister") == 1 and again is not None


def test_pinned_memory_of_the_host_is_kept_while_the_device_uses_it(
    fake: FakeDriver, device: CudaDevice
) -> None:
    memory = np.zeros(64, np.uint8)
    is_lent = weakref.ref(memory)
    buffer = allocator_of(device).import_host(memory.data, HOST_LOCAL, 0)
    assert buffer is not None
    with fake.busy():
        device.queue_fill(-1, None, None, buffer, 0, 64, 9, 1)
        del buffer, memory
        gc.collect()
        assert is_lent() is not None
    device.trim()
    assert is_lent() is None and fake.lost is None


def test_host_memory_that_the_driver_does_not_pin(fake: FakeDriver, device: CudaDevice) -> None:
    fake.fail_next("cuMemHostRegister", CUresult.CUDA_ERROR_NOT_SUPPORTED)
    assert allocator_of(device).import_host(memoryview(bytearray(64)), HOST_LOCAL, 0) is None
    buffer = allocator_of(device).import_host(memoryview(bytes(64)), HOST_LOCAL, 0)
    assert buffer is not None and buffer.allowed_access == MemoryAccess.READ


def test_memory_of_another_library_is_kept_until_the_device_has_done_with_it(
    fake: FakeDriver, device: CudaDevice
) -> None:
    memory = allocator_of(device).allocate(DEVICE_LOCAL, 0, 256)
    owner = np.empty(0)
    is_lent = weakref.ref(owner)
    buffer = allocator_of(device).import_device(memory.address, 256, owner)
    with fake.busy():
        device.queue_fill(-1, None, None, buffer, 0, 256, 5, 1)
        del buffer, owner
        gc.collect()
        assert is_lent() is not None
    device.stream.synchronize()
    assert is_lent() is None
    assert (device.read_buffer(memory) == 5).all()


def test_memory_of_another_device_is_refused() -> None:
    fake = FakeDriver(devices=2)
    with CudaDevice(fake, 0) as first, CudaDevice(fake, 1) as second:
        buffer = first.device_allocator.allocate(DEVICE_LOCAL, 0, 64)
        with pytest.raises(InvalidArgumentError, match="memory of cuda://0 cannot be used on cuda://1"):
            allocator_of(second).import_device(buffer.address, 64, buffer)
        with pytest.raises(InvalidArgumentError, match="not memory of cuda://1"):
            allocator_of(second).import_device(0x1234, 64, None)


def test_buffers_of_another_gpu_are_reached_and_of_the_host_copied() -> None:
    fake = FakeDriver(devices=2)
    with CudaDevice(fake, 0) as first, CudaDevice(fake, 1) as second:
        source = first.device_allocator.allocate(DEVICE_LOCAL, 0, 64)
        first.write_buffer(source, np.arange(64, dtype=np.uint8))
        target, done = second.device_allocator.allocate(DEVICE_LOCAL, 0, 64), Fence.create(second)
        written = Fence.create(first)
        first.queue_barrier(-1, None, written)
        second.queue_copy(-1, written, done, source, 0, target, 0, 64)
        done.wait()
        assert fake.count("cuCtxEnablePeerAccess") == 1
        assert (second.read_buffer(target) == np.arange(64)).all()
        host = HeapAllocator().allocate(0, 0, 64)
        host.host_array()[:] = 3
        back = HeapAllocator().allocate(0, 0, 64)
        second.queue_copy(-1, None, None, host, 0, target, 0, 64)
        done = Fence.create(second)
        second.queue_copy(-1, None, done, target, 0, back, 0, 64)
        done.wait()
        assert (back.host_array() == 3).all()
        with pytest.raises(PermissionDeniedError, match="cuda://1 cannot reach"):
            second.queue_fill(-1, None, None, host, 0, 4, 0, 1)
