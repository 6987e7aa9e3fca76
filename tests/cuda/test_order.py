"""Order and completion: what is waited for by whom, and with which driver calls."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time
from functools import partial

import numpy as np
import pytest

from jitree.base import cancel_scopes
from jitree.cuda.device import CudaDevice
from jitree.cuda.semaphore import CudaSemaphore
from jitree.errors import (
    AbortedError,
    CancelledError,
    DeadlineExceededError,
    FailedPreconditionError,
    InternalError,
    StatusCode,
    StatusError,
)
from jitree.hal.buffer import Buffer
from jitree.hal.fence import Fence
from jitree.hal.semaphore import Semaphore
from jitree.hal.waiting import SemaphoreCompatibility, WaitMode
from tests.cuda.fake import FakeDriver
from tests.cuda.ordering import TIMEOUT, Threads, allocate, fill

# Waits that are met.


def test_a_chain_on_one_device_needs_no_event_no_thread_and_one_synchronisation(
    fake: FakeDriver, device: CudaDevice
) -> None:
    buffer = allocate(device)
    fill(device, buffer, None, None)  # loads the kernels
    fences = [Fence.create(device) for _ in range(10)]
    fake.calls.clear()
    with Threads() as threads:
        fill(device, buffer, None, fences[0])
        for wait, signal in itertools.pairwise(fences):
            fill(device, buffer, wait, signal)
        assert fences[-1].wait() == StatusCode.OK
    assert threads.started == 0
    assert not {name for name in fake.names() if "Event" in name}
    assert fake.count("cuStreamQuery") == 1 and not fake.count("cuStreamSynchronize")
    assert all(fence.is_reached() for fence in fences)


def test_nothing_to_do_signals_at_once(fake: FakeDriver, device: CudaDevice) -> None:
    ready, freed = Fence.create(device), Fence.create(device)
    fake.calls.clear()
    buffer = device.queue_alloca(-1, None, ready, 0, 0x30, 0, 100)
    device.queue_dealloca(-1, ready, freed, buffer)
    assert ready.is_reached() and freed.is_reached()
    assert not {"cuLaunchKernel", "cuStreamQuery", "cuEventRecord"} & set(fake.names())


def test_signals_come_when_the_device_gets_there(fake: FakeDriver, device: CudaDevice) -> None:
    buffer = allocate(device)
    with fake.busy():
        first, second = Fence.create(device), Fence.create(device)
        fill(device, buffer, None, first)
        device.queue_barrier(-1, first, second)
        for fence in (first, second):
            assert not fence.is_reached() and fence.query() == StatusCode.DEFERRED
    assert second.query() == StatusCode.OK and first.is_reached()


def test_another_device_waits_for_an_event() -> None:
    fake = FakeDriver(devices=2)
    with CudaDevice(fake, 0) as first, CudaDevice(fake, 1) as second:
        source, target = allocate(first), allocate(second)
        fill(first, source, None, None)
        fill(second, target, None, None)
        with Threads() as threads, fake.busy():
            written, done = Fence.create(first), Fence.create(second)
            fill(first, source, None, written, 7)
            second.queue_copy(-1, written, done, source, 0, target, 0, 64)
        assert threads.started == 0 and fake.count("cuStreamWaitEvent") == 1
        assert done.wait(TIMEOUT) == StatusCode.OK
        assert (second.read_buffer(target) == 7).all()


# Waits that are not met.


def test_deferred_work_is_submitted_by_the_worker(fake: FakeDriver, device: CudaDevice) -> None:
    buffer = allocate(device)
    device.write_buffer(buffer, np.zeros(64, np.uint8))
    wait, done = Fence.create(device), Fence.create(device)
    with Threads() as threads:
        fill(device, buffer, wait, done, 3)
        assert device._queue.waiting_count == 1
        assert not device.read_buffer(buffer).any()
        wait.signal()
        assert done.wait(TIMEOUT) == StatusCode.OK
    assert threads.started <= 2 and device._queue.waiting_count == 0
    assert (device.read_buffer(buffer) == 3).all()


@pytest.mark.parametrize("how", ["deadline", "passed", "interrupt"])
def test_what_was_deferred_ends_with_its_call(fake: FakeDriver, device: CudaDevice, how: str) -> None:
    """It touches no memory any more, also when what it waited for comes."""
    buffer = allocate(device)
    fill(device, buffer, None, None, 1)
    host, first, last = (Fence.create(device) for _ in range(3))
    with cancel_scopes.deadline({"deadline": 0.01, "passed": 0}.get(how, TIMEOUT)):
        fill(device, buffer, host, first, 2)
        fill(device, buffer, first, last, 3)
        if how == "interrupt":
            last.interrupt(CancelledError("it is over"))
    failure = CancelledError if how == "interrupt" else DeadlineExceededError
    for fence in (first, last):
        with pytest.raises(failure):
            fence.wait(TIMEOUT)
    assert device._queue.waiting_count == 0
    host.signal()
    fill(device, buffer, None, last := Fence.create(device), 4)
    assert last.wait(TIMEOUT) == StatusCode.OK
    assert (device.read_buffer(buffer) == 4).all()
    assert not any(semaphore.producer(value) for semaphore, value in first.timepoints)


def test_a_deadline_leaves_what_was_submitted_elsewhere(fake: FakeDriver, device: CudaDevice) -> None:
    buffer = allocate(device)
    host, done = Fence.create(device), Fence.create(device)
    fill(device, buffer, host, done, 2)
    with cancel_scopes.deadline(0):
        pass
    with cancel_scopes.Scope(TIMEOUT) as limit:
        fill(device, buffer, done, late := Fence.create(device), 3)
    host.signal()
    assert late.wait(TIMEOUT) == StatusCode.OK
    assert (device.read_buffer(buffer) == 3).all()
    device._queue.close()  # its worker has ended what it did
    assert not limit.is_used, "nothing is left that it would end"


def test_a_promise_is_enough_for_what_was_deferred(fake: FakeDriver, device: CudaDevice) -> None:
    """The second operation waits for the first, which waits for the host: it enters the stream after it."""
    buffer = allocate(device)
    fill(device, buffer, None, None)
    device.stream.synchronize()
    host, first, second = (Fence.create(device) for _ in range(3))
    fill(device, buffer, first, second, 2)
    fill(device, buffer, host, first, 1)
    with fake.busy():
        host.signal()
        deadline = time.monotonic() + TIMEOUT
        while device._queue.waiting_count and time.monotonic() < deadline:
            time.sleep(0.001)
        assert device._queue.waiting_count == 0, "the device is busy: nothing but promises has been made"
    assert second.wait(TIMEOUT) == StatusCode.OK
    assert (device.read_buffer(buffer) == 2).all()


def test_host_semaphores_are_signalled_and_waited_for(fake: FakeDriver, device: CudaDevice) -> None:
    buffer, started, done = allocate(device), Semaphore(), Semaphore()
    fill(device, buffer, Fence([(started, 3)]), Fence([(done, 5)]))
    assert done.query() == 0
    started.signal(3)
    assert done.wait(5, TIMEOUT)
    compatibility = device.query_semaphore_compatibility
    assert compatibility(done) == SemaphoreCompatibility.HOST_ONLY
    assert compatibility(device.create_semaphore()) == SemaphoreCompatibility.ALL


def test_callbacks_and_waits_for_any_come_from_the_completion_thread(
    fake: FakeDriver, device: CudaDevice
) -> None:
    buffer, called = allocate(device), threading.Event()
    with fake.busy():
        done, never = Fence.create(device), device.create_semaphore()
        fill(device, buffer, None, done)
        done.on_reached(lambda failure: called.set())
        points = [done.timepoints[0], (never, 1)]
        assert device.wait_semaphores(WaitMode.ANY, points, 0.01) is False
        assert not called.is_set()
    assert device.wait_semaphores(WaitMode.ANY, points, TIMEOUT)
    assert called.wait(TIMEOUT)


def test_who_asked_before_the_submission_is_called_too(device: CudaDevice) -> None:
    buffer, called, done = allocate(device), threading.Event(), Fence.create(device)
    done.on_reached(lambda failure: called.set())
    fill(device, buffer, None, done)
    assert called.wait(TIMEOUT)


def _set(event: threading.Event, failure: StatusError | None) -> None:
    event.set()


def test_callbacks_that_raise_stop_no_others(fake: FakeDriver, device: CudaDevice) -> None:
    def broken(failure: StatusError | None) -> None:
        raise ZeroDivisionError("callback")

    buffer = allocate(device)
    fill(device, buffer, None, None)
    for host in (None, Fence.create(device)):  # on the completion thread, and after deferred work
        with pytest.warns(RuntimeWarning, match="ZeroDivisionError"):
            fake.hold()
            broken_one, done = Fence.create(device), Fence.create(device)
            fill(device, buffer, host, broken_one)
            broken_one.on_reached(broken)
            fill(device, buffer, broken_one, done)
            called = threading.Event()
            done.on_reached(partial(_set, called))
            if host is not None:
                host.signal()
            fake.release()
            assert called.wait(TIMEOUT)


def test_a_callback_that_raises_keeps_no_other_signal(
    fake: FakeDriver, device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(failure: StatusError | None) -> None:
        raise ZeroDivisionError("callback")

    monkeypatch.setattr(type(device.stream), "watch", lambda stream: None)  # this thread is to call it
    buffer = allocate(device)
    fill(device, buffer, None, None)
    with fake.busy():
        first, second = Fence.create(device), Fence.create(device)
        fill(device, buffer, None, first)
        first.on_reached(broken)
        fill(device, buffer, None, second)
    with pytest.raises(ZeroDivisionError):
        device.stream.synchronize()
    assert first.is_reached() and second.is_reached()


def test_asyncio(fake: FakeDriver, device: CudaDevice) -> None:
    buffer = allocate(device)
    fill(device, buffer, None, None)

    async def run() -> int:
        fake.hold()
        done = Fence.create(device)
        fill(device, buffer, None, done)
        turns = 0
        task = asyncio.ensure_future(_wait(done))
        while turns < 5:
            await asyncio.sleep(0.001)
            turns += 1
            assert not task.done()
        fake.release()
        await asyncio.wait_for(task, TIMEOUT)
        return turns

    assert asyncio.run(run()) == 5


async def _wait(fence: Fence) -> None:
    await fence


# Time-outs.


@pytest.mark.parametrize("timeout", [0, 0.001, 0.02])
def test_time_outs(fake: FakeDriver, device: CudaDevice, timeout: float) -> None:
    buffer = allocate(device)
    fill(device, buffer, None, None)
    with fake.busy():
        done = Fence.create(device)
        fill(device, buffer, None, done)
        start = time.monotonic()
        assert done.wait(timeout) == StatusCode.DEADLINE_EXCEEDED
        assert time.monotonic() - start >= timeout
        assert device.wait_semaphores(WaitMode.ALL, done.timepoints, timeout) is False
    assert done.wait(timeout or TIMEOUT) == StatusCode.OK


def test_time_outs_while_another_thread_waits_for_the_device(fake: FakeDriver, device: CudaDevice) -> None:
    """Counts of an indirect dispatch are read with the stream's lock held."""
    buffer, done = allocate(device), Fence.create(device)
    fill(device, buffer, None, None)
    held, go = threading.Event(), threading.Event()

    def hold() -> None:
        with device.stream.lock:
            held.set()
            go.wait(TIMEOUT)

    with fake.busy():
        fill(device, buffer, None, done)
        thread = threading.Thread(target=hold)
        thread.start()
        held.wait(TIMEOUT)
        for timeout in (0, 0.01):
            assert done.wait(timeout) == StatusCode.DEADLINE_EXCEEDED
        go.set()
        thread.join()
    assert done.wait(TIMEOUT) == StatusCode.OK


def test_a_wait_that_ends_within_its_time(fake: FakeDriver, device: CudaDevice) -> None:
    buffer, done = allocate(device), Fence.create(device)
    fill(device, buffer, None, None)
    fake.hold()
    fill(device, buffer, None, done)
    timer = threading.Timer(0.02, fake.release)
    timer.start()
    assert done.wait(TIMEOUT) == StatusCode.OK
    timer.join()


# Failures.


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_a_forked_process_says_so(fake: FakeDriver, device: CudaDevice) -> None:
    buffer = allocate(device)
    fill(device, buffer, None, None)
    held, go = threading.Event(), threading.Event()

    def hold() -> None:
        with device.stream.lock:
            held.set()
            go.wait(TIMEOUT)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(TIMEOUT)
    child = os.fork()
    if not child:
        try:
            with pytest.raises(FailedPreconditionError, match="spawn"):
                fill(device, buffer, None, None)
            fake.calls.clear()
            device.close()
            os._exit(bool(fake.calls))
        finally:
            os._exit(2)
    go.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
    fill(device, buffer, None, None)


def test_work_that_raises_anything_is_a_defect_of_its_own(device: CudaDevice) -> None:
    def broken() -> None:
        raise ZeroDivisionError("x")

    signal = Fence.create(device)
    device._queue.submit("work", None, signal, broken)
    with pytest.raises(InternalError, match="work failed: ZeroDivisionError: x"):
        signal.wait(TIMEOUT)


def test_interrupted_submission(device: CudaDevice) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    signal = Fence.create(device)
    with pytest.raises(KeyboardInterrupt):
        device._queue.submit("work", None, signal, interrupted)
    assert signal.query() == StatusCode.CANCELLED


def test_a_host_failure_reaches_what_was_deferred(device: CudaDevice) -> None:
    wait, done = Fence.create(device), Fence.create(device)
    fill(device, allocate(device), wait, done)
    wait.fail(AbortedError("by the host"))
    with pytest.raises(AbortedError, match="by the host"):
        done.wait(TIMEOUT)


def test_closing_cancels_what_is_deferred_and_finishes_what_is_submitted(fake: FakeDriver) -> None:
    device = CudaDevice(fake, 0)
    wait, deferred, submitted = (Fence.create(device) for _ in range(3))
    buffer = allocate(device)
    fill(device, buffer, None, submitted)
    fill(device, buffer, wait, deferred)
    device.close()
    assert submitted.is_reached()
    with pytest.raises(CancelledError, match="closed"):
        deferred.wait(TIMEOUT)
    with pytest.raises(FailedPreconditionError, match="closed"):
        fill(device, buffer, None, None)


def test_semaphores_refuse_and_fail_like_others(device: CudaDevice) -> None:
    semaphore = device.create_semaphore(3)
    assert isinstance(semaphore, CudaSemaphore) and semaphore.query() == 3
    semaphore.signal(4)
    with pytest.raises(StatusError, match="only grow"):
        semaphore.signal(4)
    semaphore.fail(DeadlineExceededError("late"))
    with pytest.raises(DeadlineExceededError):
        semaphore.query()
    with pytest.raises(DeadlineExceededError):
        semaphore.wait(9, 0)


# Many submissions.


def test_promises_do_not_pile_up_without_waits(device: CudaDevice) -> None:
    buffer = allocate(device)
    for _ in range(5000):
        fill(device, buffer, None, Fence.create(device))
    assert len(device.stream._promises) <= 1024


def test_submissions_of_many_threads(device: CudaDevice) -> None:
    buffers = [allocate(device) for _ in range(8)]
    errors: list[BaseException] = []

    def run(buffer: Buffer, value: int) -> None:
        try:
            for step in range(100):
                done = Fence.create(device)
                fill(device, buffer, None, done, value + step % 2)
                if step % 10 == 0:
                    done.wait(TIMEOUT)
                assert device.read_buffer(buffer)[0] == value + step % 2
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(target=run, args=(buffer, 10 * index)) for index, buffer in enumerate(buffers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    assert not errors
