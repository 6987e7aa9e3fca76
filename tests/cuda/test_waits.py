"""A wait for a device that works for long is ended by what ends other waits; the device goes on."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from jitree import Session
from jitree.api.calls.native import RECIPE as CALLS_RECIPE
from jitree.codegen import image
from jitree.cuda.device import CudaDevice
from jitree.dispatch.fast import LOOP
from jitree.errors import DeadlineExceededError, StatusCode
from jitree.hal.fence import Fence
from jitree.hal.local import executor
from jitree.hal.waiting import _sleep
from jitree.modules.hal.native import RECIPE
from tests.cuda.fake import FakeDriver
from tests.cuda.programs import LENDING, LENDING_ASYNC, PROGRAM_KERNELS

X = np.arange(8, dtype=np.float32)
LONG = 20.0
"""Seconds that the device works, if nothing ends the test before."""
SOON = 0.05
TIMEOUT = 20.0


@pytest.fixture(params=["machine code", "Python"])
def session(request: pytest.FixtureRequest, fake: FakeDriver) -> Iterator[Session]:
    """Who waits: machine code first, or Python alone, as on the plain tier."""
    fake.kernels.update(PROGRAM_KERNELS)
    is_machine_code = request.param == "machine code"
    if is_machine_code:
        for recipe in (RECIPE, LOOP, CALLS_RECIPE):
            image.wait(recipe)
        executor.require_native_executor()
    with (
        CudaDevice(fake, 0) as device,
        Session(device=device, tier="fast" if is_machine_code else "plain") as session,
    ):
        yield session


def read_a_result(session: Session) -> Any:
    return np.asarray(session["lending.add"](X, X))


def read_an_array(session: Session) -> Any:
    return np.asarray(session.to_device(2 * X))


def call_what_waits(session: Session) -> Any:
    return np.asarray(session["lending.add"](X, X).wait())


def by_deadline(session: Session) -> Any:
    return session.deadline(SOON)


def by_signal(session: Session) -> Any:
    """When Python waits: the fake driver is Python that machine code calls, where signals are lost."""
    waiting = threading.get_ident()

    def interrupt() -> None:
        frame = sys._current_frames().get(waiting)
        if frame is not None and frame.f_code is _sleep.__code__:
            os.kill(os.getpid(), signal.SIGINT)
        else:
            again()

    def again() -> None:
        threading.Timer(SOON, interrupt).start()

    again()
    return nullcontext()


@pytest.mark.parametrize("program", [LENDING, LENDING_ASYNC])
@pytest.mark.parametrize("wait", [read_a_result, read_an_array, call_what_waits])
@pytest.mark.parametrize(
    ("end", "raised"),
    [(by_deadline, DeadlineExceededError), (by_signal, KeyboardInterrupt)],
)
def test_what_ends_a_wait(
    fake: FakeDriver,
    session: Session,
    program: Any,
    wait: Callable[[Session], Any],
    end: Callable[[Session], Any],
    raised: type[BaseException],
) -> None:
    session.load(program)
    for _ in range(60):
        expected = wait(session)
    for _ in range(2):
        fake.hold()
        release = threading.Timer(LONG, fake.release)
        release.start()
        begun = time.monotonic()
        with pytest.raises(raised), end(session):
            wait(session)
        assert time.monotonic() - begun < LONG
        release.cancel()
        fake.release()
        assert np.array_equal(wait(session), expected)


def test_numpy_does_not_lose_an_interrupt(fake: FakeDriver, session: Session) -> None:
    """From Python 3.12 on numpy asks for a buffer, drops whatever that raises, and asks for an array."""
    session.load(LENDING)
    array = session.to_device(2 * X)
    fake.hold()
    release = threading.Timer(LONG, fake.release)
    release.start()
    interrupts = 0
    by_signal(session)
    for method, arguments in ((array.__buffer__, (0,)), (array.__array__, ())):
        try:  # one instruction calls both, as that does which calls np.asarray
            method(*arguments)
        except KeyboardInterrupt:
            interrupts += 1
    assert interrupts == 2 and release.is_alive()
    release.cancel()
    fake.release()
    assert np.array_equal(np.asarray(array), 2 * X)
    other = session.to_device(3 * X)
    fake.hold()
    by_signal(session)
    with pytest.raises(KeyboardInterrupt):
        other.__buffer__(0)
    fake.release()
    assert np.array_equal(other.__array__(), 3 * X), "elsewhere it is not raised again"


@pytest.mark.parametrize("look", ["wait", "callback", "poll"])
def test_what_machine_code_has_waited_for_is_done(fake: FakeDriver, look: str) -> None:
    """It counts what is done in the StreamRecord record, and signals nothing."""
    with CudaDevice(fake, 0) as device:
        fake.hold()
        stream, called = device.stream, threading.Event()
        buffer = device.device_allocator.allocate(0x30, 0, 64)
        done = Fence.create(device)
        device.queue_fill(-1, None, done, buffer, 0, 64, 5, 1)
        fake.release()
        stream.share.completed = stream.tick
        if look == "wait":
            assert done.wait(TIMEOUT) == StatusCode.OK
        elif look == "poll":
            assert done.query() == StatusCode.OK
        else:
            ((semaphore, value),) = done.timepoints
            semaphore.on_reached(value, lambda failure: called.set())
            assert called.wait(TIMEOUT)
