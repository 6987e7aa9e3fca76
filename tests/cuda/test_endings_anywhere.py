"""Devices and sessions that are forgotten end wherever the garbage collector runs: also on a thread that has
a lock which their end wants."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import pytest

from jitree.cuda import nccl
from jitree.cuda.completion import CompletionThread
from jitree.cuda.device import CudaDevice
from jitree.cuda.nccl import Communicator, release_abandoned
from jitree.cuda.timings import Tracer
from jitree.errors import StatusError
from jitree.hal.buffer import Buffer
from jitree.hal.fence import Fence
from tests.base.ending_inside import ending_inside
from tests.cuda.fake import FakeDriver
from tests.cuda.fake_cupti import FakeCupti


def test_a_device_ends_while_its_stream_is_watched(device: CudaDevice) -> None:
    """What is left of it, such as arrays, has the stream."""
    stream, completion = device.stream, CompletionThread("test")
    work = partial(completion.watch, stream, 0, stream.mark())
    for name in ("CompletionThread.watch", "InboxThread.start"):
        ending_inside(name, work, completion.close)
    completion.close()


@pytest.mark.parametrize("name", ["DeferredWork.defer", "InboxThread.start"])
def test_a_device_ends_while_work_is_deferred(fake: FakeDriver, name: str) -> None:
    device, before = CudaDevice(fake, 0), set(threading.enumerate())
    fences = [Fence.create(device) for _ in range(8)]
    ended = Fence.create(device)

    def work() -> None:
        with pytest.raises(StatusError, match="closed"):
            for fence in fences:
                device.queue_barrier(-1, fence, ended)

    ending_inside(name, work, device.end)
    assert not set(threading.enumerate()) - before, "the worker has ended, too"


def test_a_device_ends_while_memory_is_taken(fake: FakeDriver) -> None:
    device = CudaDevice(fake, 0)
    allocator, kept = device._own_allocator, list[Buffer]()

    def work() -> None:
        kept.extend(allocator.allocate(0x30, 0, 100) for _ in range(8))

    ending_inside("CudaAllocator._take_now", work, device.end)
    kept.clear()
    assert allocator.kept_bytes == 0  # no region is left


def test_a_profile_ends_while_another_begins() -> None:
    cupti = FakeCupti()
    tracer = Tracer(cupti)
    forgotten = [tracer]
    assert tracer.start()

    def end() -> None:
        if forgotten:
            forgotten.pop().pause()
            tracer.stop()

    ending_inside("Tracer.start", tracer.start, end)
    end()  # from Python 3.12 on no collection may have come there
    assert cupti.enabled
    tracer.pause()
    tracer.stop()
    assert not cupti.enabled


def test_a_group_is_left_while_its_failure_is_asked_for(device: CudaDevice) -> None:
    """It is released by the next that ends."""
    called = list[str]()

    class Library:
        def failure_of(self, handle: int) -> None:
            nccl.ABANDONED[member] = None
            release_abandoned()
            called.append("failure")

        def attempt(self, name: str, handle: int) -> bool:
            called.append(name)
            return True

        def function(self, name: str) -> Callable[[object], None]:
            return lambda made: called.append(name)

    member = Communicator(Library(), device.context)  # type: ignore[arg-type]
    member._made.value = 1
    assert member.failure() is None
    release_abandoned()
    assert called == ["failure", "ncclCommFinalize", "ncclCommDestroy"]
