"""Closing a device while other threads use it: nothing is asked of a stream or an event that is gone, and
nothing of the device stays."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from jitree import Session
from jitree.codegen.record import words_of
from jitree.cuda.device import CudaDevice
from jitree.cuda.launches import StreamRecord
from jitree.errors import FailedPreconditionError, StatusCode, StatusError
from jitree.hal.fence import Fence
from tests.cuda.fake import FakeDriver
from tests.cuda.ordering import TIMEOUT, allocate, fill
from tests.cuda.programs import LENDING, PROGRAM_KERNELS
from tests.cuda.test_exchange import Producer
from tests.cuda.test_lending import warm

X = np.arange(8, dtype=np.float32)


def used_too_late(fake: FakeDriver) -> list[str]:
    """Calls with a stream or an event that had been destroyed."""
    gone: set[int] = set()
    late = []
    for name, arguments in tuple(fake.calls):
        handles = {int(value) for value in arguments[-2:] if isinstance(value, int)}
        if "Stream" in name or "Event" in name:
            late += [name] if handles & gone else []
        if name in ("cuStreamDestroy", "cuEventDestroy"):
            gone |= handles
    return late


class Closing:
    """Closes a device on another thread, and looks whether its stream outlives what goes on meanwhile."""

    def __init__(self, fake: FakeDriver, device: CudaDevice) -> None:
        self._fake = fake
        self.stream = int(device.stream.handle)
        self._thread = threading.Thread(target=device.close)
        self.found: list[bool] = []

    def begin(self) -> None:
        self._thread.start()
        self._thread.join(0.1)
        self.found.append(self.stream in self._fake.streams)

    def end(self) -> None:
        self._thread.join(TIMEOUT)
        assert not self._thread.is_alive() and self.stream not in self._fake.streams


@pytest.fixture
def other(fake: FakeDriver) -> Iterator[CudaDevice]:
    fake.kernels.update(PROGRAM_KERNELS)
    with CudaDevice(fake, 0) as device:
        yield device


def test_a_wait_for_another_stream_comes_too_late(
    fake: FakeDriver, device: CudaDevice, other: CudaDevice
) -> None:
    """The device is closed between the look whether it is and what enters its stream."""
    promised, done = Fence.create(other), Fence.create(device)
    mark = other.stream.mark

    def mark_late() -> Any:
        event = mark()
        device.close()
        return event

    with fake.busy():
        fill(other, allocate(other), None, promised)
        other.stream.mark = mark_late  # type: ignore[method-assign]
        closing = threading.Timer(0.05, fake.release)
        closing.start()
        device.queue_barrier(-1, promised, done)
        closing.join()
    assert isinstance(done.failure, FailedPreconditionError)
    assert not used_too_late(fake)
    events = other.stream.events
    taken = [events.acquire() for _ in range(3)]
    assert len({int(event) for event in taken}) == 3, "an event came back twice"


def test_the_number_of_a_stream_that_is_gone_is_not_given(session: Session) -> None:
    array = session.to_device(X)
    assert array.__cuda_array_interface__["stream"]
    session.device.close()
    with pytest.raises(FailedPreconditionError, match="closed"):
        _ = array.__cuda_array_interface__


class Lingering(Producer):
    """A library's array; the device is closed while the library orders it with the stream that it is told."""

    closing: Closing | None = None

    def __dlpack__(self, **named: Any) -> object:
        closing = self.closing
        if closing is not None and named.get("stream") == closing.stream:
            Lingering.closing = None
            closing.begin()
        return super().__dlpack__(**named)


@pytest.mark.usefixtures("machine_code")
@pytest.mark.parametrize("is_machine_code", [False, True], ids=["Python", "machine code"])
def test_a_stream_outlives_the_library_that_is_told_of_it(
    fake: FakeDriver, session: Session, other: CudaDevice, is_machine_code: bool
) -> None:
    with Session(device=other) as closed:
        add, x = closed.load(LENDING).add, closed.to_device(X)
        value = Lingering(session.to_device(X))
        if is_machine_code:
            warm(add, x, value)
        closing = Lingering.closing = Closing(fake, other)
        with suppress(StatusError):
            add(x, value) if is_machine_code else closed.to_device(value)
    closing.end()
    assert closing.found == [True] and not used_too_late(fake)


@pytest.mark.usefixtures("machine_code")
def test_a_stream_outlives_a_neighbour_that_asks(
    fake: FakeDriver, session: Session, other: CudaDevice
) -> None:
    add, x = session.load(LENDING).add, session.to_device(X)
    with Session(device=other) as there:
        far = there.to_device(X)
        warm(add, x, far)
        closing, ask = Closing(fake, other), fake.cuStreamQuery
        caller = threading.get_ident()

        def linger(stream: int) -> object:
            if int(stream) == closing.stream and not closing.found and threading.get_ident() == caller:
                closing.begin()
            return ask(stream)

        far[:] = 2 * X  # the device is done with it, which nobody has asked yet
        fake.cuStreamQuery = linger  # type: ignore[method-assign]
        result = add(x, far)
        assert np.array_equal(np.asarray(result), 3 * X)
    closing.end()
    assert closing.found == [True] and not used_too_late(fake)


@pytest.mark.usefixtures("machine_code")
def test_machine_code_asks_no_more_when_collectives_end_late(fake: FakeDriver, other: CudaDevice) -> None:
    """Their thread lets it ask again; the device was closed meanwhile."""
    share = other.stream.share
    asks = share._words[words_of(StreamRecord).query]
    share.refuse_waits()
    refuses = share._words[words_of(StreamRecord).query]
    share.allow_waits()
    assert share._words[words_of(StreamRecord).query] == asks != refuses
    other.close()
    share.allow_waits()
    assert share._words[words_of(StreamRecord).query] == refuses


def test_a_thread_that_waits_is_called_back_by_none_that_stays(fake: FakeDriver) -> None:
    """It asks to be called back when the device has begun to close."""
    device, before = CudaDevice(fake, 0), set(threading.enumerate())
    done, reached = Fence.create(device), list[object]()
    clear = device._channels.clear

    def ask_late() -> None:
        if not reached:
            done.on_reached(reached.append)
            fake.release()
        clear()

    fake.hold()
    device.write_buffer(allocate(device), np.zeros(64, np.uint8))
    fill(device, allocate(device), None, done)
    device._queue.close = lambda: None  # type: ignore[method-assign]  # which would wait for the device
    device._channels.clear = ask_late  # type: ignore[method-assign]
    device.close()
    assert reached == [None]
    assert not [thread for thread in set(threading.enumerate()) - before if thread.is_alive()]
    assert not fake.events and not used_too_late(fake)


def test_two_threads_close_one_after_the_other(fake: FakeDriver) -> None:
    device = CudaDevice(fake, 0)
    stream = int(device.stream.handle)
    fake.hold()
    device.write_buffer(allocate(device), np.zeros(64, np.uint8))
    threads = [threading.Thread(target=device.close) for _ in range(2)]
    for thread in threads:
        thread.start()
    threads[1].join(0.1)
    assert all(thread.is_alive() for thread in threads), "closed is closed"
    fake.release()
    for thread in threads:
        thread.join(TIMEOUT)
    assert stream not in fake.streams and not fake.events and not used_too_late(fake)


@pytest.mark.parametrize("name", ["cuStreamSynchronize", "cuCtxSetCurrent", "cuEventDestroy"])
def test_closing_that_is_interrupted_goes_on(fake: FakeDriver, name: str) -> None:
    device = CudaDevice(fake, 0)
    stream, call = int(device.stream.handle), getattr(fake, name)
    interrupted = list[str]()
    fake.be_lazy()
    device.write_buffer(allocate(device), np.zeros(64, np.uint8))

    def interrupt(*arguments: Any) -> Any:
        if not interrupted:
            interrupted.append(name)
            raise KeyboardInterrupt
        return call(*arguments)

    setattr(fake, name, interrupt)
    with pytest.raises(KeyboardInterrupt):
        device.close()
    device.close()
    assert interrupted and stream not in fake.streams and not used_too_late(fake)
    assert not fake.live_bytes


def test_work_that_becomes_ready_while_the_device_closes_ends(
    fake: FakeDriver, device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is on no list then: the worker has it, or it was cancelled."""
    deferred: Any = device._queue._deferred
    wait, done = Fence.create(device), Fence.create(device)
    fill(device, allocate(device), wait, done)
    worker = deferred._worker
    put: Callable[[Any], None] = worker.inbox.put
    closing = threading.Thread(target=device.close)

    def put_late(ready: Any, *_: object) -> None:
        assert not deferred.waiting_count
        closing.start()
        closing.join(0.1)
        put(ready)

    monkeypatch.setattr(type(worker), "inbox", SimpleNamespace(put=put_late))
    wait.signal()
    closing.join(TIMEOUT)
    with suppress(FailedPreconditionError):
        assert done.wait(TIMEOUT) == StatusCode.OK
