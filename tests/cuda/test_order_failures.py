"""Order on a CUDA device when submissions, callbacks or the device fail; locks, and what is given back."""

from __future__ import annotations

import gc
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import pytest

from jitree.cuda import completion
from jitree.cuda.allocator import CudaAllocator
from jitree.cuda.device import CudaDevice
from jitree.cuda.semaphore import CudaSemaphore
from jitree.cuda.suballocator import Piece
from jitree.errors import (
    InternalError,
    ResourceExhaustedError,
    StatusCode,
    StatusError,
)
from jitree.hal.command_buffer import CommandBufferMode, CommandCategory
from jitree.hal.enums import MemoryType
from jitree.hal.fence import Fence
from jitree.hal.semaphore import Semaphore
from tests.base.interruption import interruptions
from tests.cuda.fake import FakeDriver
from tests.cuda.fake_results import CUresult
from tests.cuda.ordering import TIMEOUT, allocate, fill, release_after

PINNED: Final = int(MemoryType.HOST_LOCAL | MemoryType.DEVICE_VISIBLE)
LARGE: Final = 32 << 20
"""Bytes that no region has room for."""


def test_a_call_that_fails_at_submission_fails_the_signal(fake: FakeDriver, device: CudaDevice) -> None:
    buffer = allocate(device)
    fill(device, buffer, None, None)
    for signal in (Fence.create(device), None):
        fake.fail_next("cuLaunchKernel", CUresult.CUDA_ERROR_OUT_OF_MEMORY)
        if signal is None:
            with pytest.raises(ResourceExhaustedError, match="cuLaunchKernel"):
                fill(device, buffer, None, None)
            continue
        fill(device, buffer, None, signal)
        with pytest.raises(ResourceExhaustedError, match="cuLaunchKernel"):
            signal.wait(TIMEOUT)
    fill(device, buffer, None, None)  # nothing else is broken


def test_devices_never_wait_for_each_others_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two threads that submit what waits for the other's device, neither may keep the other from it."""
    fake = FakeDriver(devices=2)
    with CudaDevice(fake, 0) as first, CudaDevice(fake, 1) as second:
        mark, owned = first.stream.mark, []

        def checked() -> Any:
            owned.append(second.stream.lock._is_owned())  # type: ignore[attr-defined]
            return mark()

        monkeypatch.setattr(first.stream, "mark", checked)
        with fake.busy():
            written, done = Fence.create(first), Fence.create(second)
            fill(first, allocate(first), None, written)
            second.queue_barrier(-1, written, done)
        assert owned == [False] and done.wait(TIMEOUT) == StatusCode.OK


def test_what_is_deferred_keeps_its_bindings(fake: FakeDriver, device: CudaDevice) -> None:
    buffer = allocate(device)
    address = buffer.address
    wait, done = Fence.create(device), Fence.create(device)
    commands = device.create_command_buffer(CommandBufferMode.ONE_SHOT, CommandCategory.TRANSFER, -1, 1)
    commands.fill_buffer((0, None, 0, 64), 7, 1)
    commands.finalize()
    device.queue_execute(-1, wait, done, commands, ((buffer, 0, 64),))
    del buffer
    assert allocate(device).address != address
    wait.signal()
    assert done.wait(TIMEOUT) == StatusCode.OK
    assert allocate(device).address == address


def test_a_callback_that_raises_keeps_no_failure_from_others(fake: FakeDriver, device: CudaDevice) -> None:
    buffer = allocate(device)
    fill(device, buffer, None, None)
    fences = [Fence.create(device) for _ in range(2)]

    def broken(failure: StatusError | None) -> None:
        raise ZeroDivisionError

    with fake.busy():
        fences[0].on_reached(broken)
        for fence in fences:
            fill(device, buffer, None, fence)
        stream = device.stream
        with pytest.raises(ZeroDivisionError):
            stream.fail(InternalError("the device is lost"))
    assert fences[1].failure is not None


def test_threads_give_back_what_was_discarded(fake: FakeDriver, device: CudaDevice) -> None:
    device.context.enter()
    event = device.context.api.call("cuEventCreate", 0)
    device.context._discarded._left = OneLeft([partial(fake.cuEventDestroy, event)])
    device.context.release_discarded()
    assert not fake.count("cuEventDestroy")


class OneLeft(deque[Any]):
    """What another thread takes the last item of in this moment."""

    def popleft(self) -> Any:
        super().popleft()
        return super().popleft()


def test_a_call_that_fails_while_the_device_works_makes_no_work_done(
    fake: FakeDriver, device: CudaDevice
) -> None:
    """A reader got what was in memory before (found by the campaign of turns)."""
    pinned = device.device_allocator.allocate(PINNED, 0, 64)
    fill(device, pinned, None, None, 1)
    device.stream.synchronize()
    fake.hold()
    done = Fence.create(device)
    fill(device, pinned, None, done, 2)
    fake.fail_next("cuStreamQuery", CUresult.CUDA_ERROR_INVALID_VALUE)
    assert done.wait(0.0) == StatusCode.DEADLINE_EXCEEDED
    assert device.stream.completed < device.stream.tick
    fake.fail_next("cuStreamQuery", CUresult.CUDA_ERROR_INVALID_VALUE)
    releaser = release_after(fake, "cuStreamQuery")
    assert (device.read_buffer(pinned) == 2).all()
    releaser.join()


@pytest.mark.parametrize(
    "name", ["cuStreamQuery", "cuCtxSetCurrent", "cuEventRecord", "cuEventCreate", "cuEventSynchronize"]
)
@pytest.mark.parametrize("look", [Fence.query, partial(Fence.wait, timeout=0.0), Fence.wait])
def test_a_call_that_fails_once_as_a_thread_waits_fails_nobody(
    name: str, look: Callable[[Fence], StatusCode], fake: FakeDriver, device: CudaDevice
) -> None:
    """A program that kept such a fence failed from then on (found by the campaign of turns)."""
    done, told = Fence.create(device), list[StatusError | None]()
    fake.hold()
    fill(device, allocate(device), None, done)
    ((semaphore, value),) = done.timepoints
    fake.fail_next(name, CUresult.CUDA_ERROR_OUT_OF_MEMORY)
    releaser = threading.Timer(0.05, fake.release)
    releaser.start()
    look(done)
    semaphore.on_reached(value, told.append)
    assert done.wait(TIMEOUT) == StatusCode.OK
    releaser.join()
    device.stream._completion.close()
    assert told == [None]


@pytest.mark.parametrize("name", ["cuCtxSetCurrent", "cuEventRecord"])
def test_a_call_that_always_fails_ends_a_wait(name: str, fake: FakeDriver, device: CudaDevice) -> None:
    done = Fence.create(device)
    fake.hold()
    fill(device, allocate(device), None, done)
    for failing in (name, "cuStreamQuery", "cuStreamSynchronize"):
        for _ in range(1000):
            fake.fail_next(failing, CUresult.CUDA_ERROR_OUT_OF_MEMORY)
    with pytest.raises(ResourceExhaustedError, match="failed: CUDA_ERROR_OUT_OF_MEMORY"):
        done.wait(TIMEOUT)
    fake.failures.clear()
    fake.release()


def test_where_no_thread_starts_the_submitting_one_waits(
    fake: FakeDriver, device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for ever, and nothing fails; the next thread starts."""

    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    told: list[StatusError | None] = []
    buffer = allocate(device)
    first, second, third, host = (Fence.create(device) for _ in range(4))
    fake.hold()
    releaser = release_after(fake, "cuStreamSynchronize")
    ((semaphore, value),) = first.timepoints
    semaphore.on_reached(value, told.append)
    with monkeypatch.context() as patch:
        patch.setattr(completion, "start_thread", refused)
        fill(device, buffer, None, Fence.join((first, third)))
        assert told == [None]
        with pytest.raises(ResourceExhaustedError, match="cannot start a thread"):
            fill(device, buffer, host, None)
    releaser.join()
    assert not device._completion._thread._threads, "no thread is kept that has never begun"
    with fake.busy():
        fill(device, buffer, None, second)
        for fence in (second, third):
            ((semaphore, value),) = fence.timepoints
            semaphore.on_reached(value, told.append)
    device.stream._completion.close()
    assert told == [None, None, None]


def test_work_is_watched_though_who_begins_to_is_interrupted(
    fake: FakeDriver, device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread's callback of the same work was never called: the stream noted it as watched."""
    watch = completion.CompletionThread.watch
    interrupts = [KeyboardInterrupt()]

    def interrupted(thread: completion.CompletionThread, *arguments: Any) -> None:
        if interrupts:
            raise interrupts.pop()
        watch(thread, *arguments)

    told: list[StatusError | None] = []
    done = Fence.create(device)
    with fake.busy():
        ((semaphore, value),) = done.timepoints
        semaphore.on_reached(value, told.append)
        with monkeypatch.context() as patch:
            patch.setattr(completion.CompletionThread, "watch", interrupted)
            with pytest.raises(KeyboardInterrupt):
                fill(device, allocate(device), None, done)
        assert not interrupts
    device.stream._completion.close()
    assert told == [None]


@pytest.mark.parametrize("make", [CudaSemaphore, Semaphore])
def test_who_waits_is_told_wherever_a_submitter_is_interrupted(
    fake: FakeDriver, device: CudaDevice, make: Callable[[], Semaphore]
) -> None:
    """An interrupt between a submission and the promise of its signal left a waiter untold."""
    buffer, stream, places = allocate(device), device.stream, 0
    fill(device, buffer, None, None)
    for interruption in interruptions(16):
        told: list[StatusError | None] = []
        semaphore, before = make(), stream.tick
        semaphore.on_reached(1, told.append)
        with fake.busy():
            interruption.during(partial(fill, device, buffer, None, Fence([(semaphore, 1)])))
        stream._completion.close()
        assert told or stream.tick == before, f"interrupted at place {interruption.place}"
        places += 1
    assert places > 5


def test_memory_comes_back_later_where_its_consumer_cannot_be_waited_for(
    fake: FakeDriver, device: CudaDevice
) -> None:
    """The submission that began with it was never over, and the memory used again before the consumer."""
    stream = device.stream
    stream.give_back(object(), 12345)
    fake.fail_next("cuCtxSynchronize", CUresult.CUDA_ERROR_OUT_OF_MEMORY)
    with pytest.raises(ResourceExhaustedError, match="cuCtxSynchronize"):
        device._queue.perform("fill", lambda: None)
    assert not stream._begun and len(stream._given_back) == 1
    device._queue.perform("fill", lambda: None)
    assert not stream._begun and not stream._given_back


def test_memory_that_an_interrupt_loses_goes_back_with_the_device(
    fake: FakeDriver, device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A piece that was taken, and no buffer's yet, kept its region until the process ended."""

    def interrupted(allocator: CudaAllocator, piece: Piece) -> int:
        raise KeyboardInterrupt

    kept = allocate(device)
    with monkeypatch.context() as patch:
        patch.setattr(CudaAllocator, "_place", interrupted)
        with pytest.raises(KeyboardInterrupt):
            device.device_allocator.allocate(PINNED, 0, 64)
    device.close()
    assert len(fake.allocations) == 1, "the region of the buffer that is there"
    del kept
    gc.collect()
    assert not fake.allocations


@pytest.mark.parametrize("is_full", [False, True])
def test_looking_for_memory_makes_no_submission_done(
    fake: FakeDriver, device: CudaDevice, is_full: bool
) -> None:
    """The host read what a copy had not written yet, when the device was idle before (turns:31567)."""
    resting = device.device_allocator.allocate(PINNED, 0, 64)
    fill(device, resting, None, None)
    del resting
    stream = device.stream
    if is_full:
        fake.fail_next("cuMemHostAlloc", CUresult.CUDA_ERROR_OUT_OF_MEMORY)
    before = stream.tick
    device._queue.perform("download", lambda: stream.pinned(LARGE))
    assert stream.completed == before < stream.tick, "what was submitted before is done"
    stream.synchronize()
    assert stream.completed == stream.tick


def test_memory_that_comes_back_hands_no_submission_over(
    device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Machine code of another thread took what was counted for what the stream has."""
    stream, handed_over = device.stream, []
    monkeypatch.setattr(stream.share, "hand_over", lambda: handed_over.append(stream._begun))

    def look_for_memory() -> None:
        stream.give_back(object(), int(stream.handle))
        device.device_allocator.trim()
        assert not stream._given_back and stream._begun and not handed_over

    device._queue.perform("download", look_for_memory)
    assert handed_over == [0]


def test_blocks_that_are_not_all_there_go_back(fake: FakeDriver, device: CudaDevice) -> None:
    """Those before the one that the driver refused kept their region (turns:31517)."""
    fake.memory = 100 << 20  # one region of blocks
    allocator = device.device_allocator
    assert isinstance(allocator, CudaAllocator)
    with pytest.raises(ResourceExhaustedError, match="cuMemAlloc"):
        allocator.lend(1 << 20, 65)
    assert allocator.kept_bytes == 64 << 20
    allocator.trim()
    assert not fake.allocations


def test_what_is_done_when_the_device_is_lost_fails(fake: FakeDriver, device: CudaDevice) -> None:
    """Machine code had seen that it is done, and Python waited for ever (turns:32968)."""
    buffer, done = allocate(device), Fence.create(device)
    with fake.busy():
        fill(device, buffer, None, done)
    device.stream.share.completed = device.stream.tick
    device.stream.api.failure("cuLaunchKernel", CUresult.CUDA_ERROR_ILLEGAL_ADDRESS)
    with pytest.raises(InternalError, match="is lost"):
        done.wait(TIMEOUT)
