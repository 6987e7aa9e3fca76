"""What a device has promised ends, or is submitted, wherever Ctrl-C comes; it needs no GPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial

import pytest

from jitree.cuda.device import CudaDevice
from jitree.cuda.queue import DeferredOperation, DeferredWork
from jitree.cuda.stream import Stream
from jitree.errors import CancelledError
from jitree.hal.fence import Fence
from jitree.hal.semaphore import Semaphore
from tests.base.interruption import AtJump, Interruption, interruptions
from tests.cuda.fake import FakeDriver

Step = Callable[[DeferredWork, DeferredOperation], None]


def scheduled(work: DeferredWork, operation: DeferredOperation) -> None:
    work._schedule(operation, None)


def failed(work: DeferredWork, operation: DeferredOperation) -> None:
    operation.interrupt(CancelledError("too late"))


def failed_without_signal(work: DeferredWork, operation: DeferredOperation) -> None:
    operation.signal = None
    work._schedule(operation, CancelledError("its wait fence failed"))


@pytest.mark.parametrize("step", [scheduled, failed, failed_without_signal])
def test_an_interrupt_leaves_no_operation_to_nobody(step: Step) -> None:
    """It ends once, at the latest when the queue is closed."""
    places = 0
    for interruption in interruptions(0):
        ends: list[str] = []

        def submit(operation: DeferredOperation, ends: list[str] = ends) -> None:
            ends.append("submitted")
            operation.settle()

        work = DeferredWork("test", submit)
        wait, signal = Fence(((Semaphore(), 1),)), Fence(((Semaphore(), 1),))
        operation = DeferredOperation(work, "operation", wait, signal, lambda: None)
        work.defer(operation)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            came = interruption.during(lambda work=work, operation=operation: step(work, operation))  # type: ignore[misc]
            is_left = work.waiting_count == 1
            work.close()
        has_failed = operation.action is None
        assert ends == ["submitted"] * (not has_failed), f"interrupted at place {interruption.place}"
        assert (signal.failure is not None) == (has_failed and operation.signal is not None)
        if came and step is not scheduled:
            assert has_failed
        assert came or not is_left
        places += 1
    assert places > 5


def reached(stream: Stream) -> None:
    stream.retire(stream.tick)


def not_done(stream: Stream) -> None:
    stream.fail(CancelledError("the work has failed"))


@pytest.mark.parametrize(("kind", "most"), [(Interruption, 20), (AtJump, 0)])
@pytest.mark.parametrize("settle", [reached, not_done])
def test_an_interrupt_leaves_no_promise_to_nobody(
    fake: FakeDriver, settle: Callable[[Stream], None], kind: Callable[[int], Interruption], most: int
) -> None:
    """A thread waits for each promise, and sleeps until it is told."""
    places = 0
    with CudaDevice(fake, 0) as device:
        buffer = device.device_allocator.allocate(0x30, 0, 64)
        for interruption in interruptions(0, kind):
            fences = [Fence.create(device) for _ in range(3)]
            fake.hold()
            for fence in fences:
                device.queue_fill(-1, None, fence, buffer, 0, 64, 5, 1)
            fake.release()
            interruption.during(partial(settle, device.stream))
            device.stream.retire(device.stream.tick)
            assert all(fence.is_reached() or fence.failure is not None for fence in fences), (
                interruption.place
            )
            places += 1
    assert places > most
