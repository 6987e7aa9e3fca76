"""A stream is not destroyed while a thread is in the driver with it: one that asks whether the stream is done
needs no lock for that."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from jitree import Session
from jitree.cuda import stream_share
from jitree.cuda.device import CudaDevice
from jitree.cuda.stream_share import StreamUsers
from jitree.errors import StatusCode
from jitree.hal.fence import Fence
from jitree.hal.semaphore import Semaphore
from tests.base.interruption import interruptions
from tests.cuda.fake import FakeDriver
from tests.cuda.programs import LENDING, PROGRAM_KERNELS
from tests.cuda.test_lending import warm

X = np.arange(8, dtype=np.float32)
TIMEOUT = 10.0


def wait_in_python(device: CudaDevice) -> Callable[[], object]:
    stream = device.stream
    device.write_buffer(device.device_allocator.allocate(0, 0, 64), np.zeros(64, np.uint8))
    return stream.poll


def finish_in_python(device: CudaDevice) -> Callable[[], object]:
    wait_in_python(device)
    return device.stream.finish


def wait_in_machine_code(device: CudaDevice) -> Callable[[], object]:
    session = Session(device=device)
    add, x = session.load(LENDING).add, session.to_device(X)
    warm(add, x, x)
    return lambda: add(x, x)


@pytest.mark.usefixtures("machine_code")
@pytest.mark.parametrize(
    ("call", "work"),
    [
        ("cuStreamQuery", wait_in_python),
        ("cuStreamQuery", wait_in_machine_code),
        ("cuStreamSynchronize", finish_in_python),
    ],
)
def test_a_stream_outlives_those_that_ask(
    fake: FakeDriver, call: str, work: Callable[[CudaDevice], Callable[[], object]]
) -> None:
    fake.kernels.update(PROGRAM_KERNELS)
    device = CudaDevice(fake, 0)
    wait = work(device)
    handle = int(device.stream.handle)
    ask, was_there = getattr(fake, call), list[bool]()
    is_inside, may_leave = threading.Event(), threading.Event()

    def linger(stream: int) -> object:
        if threading.current_thread() is not thread:
            return ask(stream)
        is_inside.set()
        may_leave.wait(TIMEOUT)
        was_there.append(handle in fake.streams)
        return ask(stream)

    setattr(fake, call, linger)
    thread = threading.Thread(target=wait)
    thread.start()
    assert is_inside.wait(TIMEOUT)
    closing = threading.Thread(target=device.close)
    closing.start()
    closing.join(0.1)
    may_leave.set()
    thread.join(TIMEOUT)
    closing.join(TIMEOUT)
    assert was_there and all(was_there)
    assert handle not in fake.streams


class Queried:
    is_asked = False


def test_the_thread_that_ends_it_may_ask() -> None:
    """As where the garbage collector ends a device."""
    ended = list[str]()
    users = StreamUsers(Queried(), lambda: ended.append("ended"))

    def end_twice(may_ask: bool) -> None:
        assert may_ask
        users.ask(lambda may_ask: users.end())
        assert not ended

    users.ask(end_twice)
    assert ended == ["ended"]
    assert not users.ask(bool)
    users.end()
    assert ended == ["ended"]


def test_the_last_thread_that_asks_destroys_it_also_when_that_is_interrupted() -> None:
    places = 0
    for interruption in interruptions(0):
        ended = list[str]()
        users = StreamUsers(Queried(), partial(ended.append, "ended"))
        interruption.during(partial(users.ask, lambda may_ask, users=users: users.end()))  # type: ignore[misc]
        assert bool(ended) is users.are_over, f"interrupted at place {interruption.place}"
        assert users not in stream_share._ended
        places += 1
    assert places > 5


def test_what_machine_code_does_not_leave_is_not_destroyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jitree.cuda.stream_share._QUERY_SECONDS", 0.01)
    asked, ended = Queried(), list[str]()
    asked.is_asked = True
    users = StreamUsers(asked, lambda: ended.append("ended"))
    begun = time.monotonic()
    users.end()
    assert time.monotonic() - begun < TIMEOUT and not ended


def test_an_interrupted_closing_is_finished_by_the_next(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No thread is left, and no operation that waits; nothing is destroyed twice."""
    before = set(threading.enumerate())
    destroyed = list[int]()
    destroy = fake.cuEventDestroy

    def noted(event: int) -> object:
        destroyed.append(int(event))
        return destroy(event)

    monkeypatch.setattr(fake, "cuEventDestroy", noted)
    places = 0
    for interruption in interruptions(16):
        destroyed.clear()
        device = CudaDevice(fake, 0)
        wait, done = (Fence([(Semaphore(), 1)]) for _ in range(2))
        device.queue_barrier(-1, wait, done)
        device.write_buffer(device.device_allocator.allocate(0, 0, 64), np.zeros(64, np.uint8))
        assert set(threading.enumerate()) - before
        interruption.during(device.close)
        device.close()
        assert done.query() == StatusCode.CANCELLED
        assert not set(threading.enumerate()) - before, f"interrupted at place {places}"
        assert len(set(destroyed)) == len(destroyed)
        places += 1
    assert places > 20 and destroyed and int(device.stream.handle) not in fake.streams
