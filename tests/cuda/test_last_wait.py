"""Waits that the host makes at the end of a call, in place of the program."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from jitree import Array, Session
from jitree.api.calls.native.python_fallback import Rest
from jitree.cuda.device import CudaDevice
from jitree.errors import CancelledError
from jitree.hal.fence import Fence
from tests.cuda.fake import FakeDriver
from tests.cuda.programs import LENDING, LENDING_ASYNC, PROGRAM_KERNELS
from tests.cuda.test_lending import warm

pytestmark = pytest.mark.usefixtures("machine_code")

X = np.arange(8, dtype=np.float32)


def test_a_call_is_cancelled_as_soon_as_it_waits(fake: FakeDriver, session: Session) -> None:
    """By machine code, without the lock: what is cancelled then has begun."""
    add, x = session.load(LENDING).add, session.to_device(X)
    warm(add, x, x)
    query = fake.cuStreamQuery
    asked: list[int] = []

    def ask(stream: int) -> object:
        if not asked:
            asked.append(stream)
            session.cancel()
        return query(stream)

    fake.cuStreamQuery = ask  # type: ignore[method-assign]
    fake.hold()
    safety = threading.Timer(5, fake.release)
    safety.start()
    with pytest.raises(CancelledError):
        add(x, x)
    safety.cancel()
    fake.release()
    assert np.array_equal(np.asarray(add(x, x)), 2 * X)


def test_a_call_is_cancelled_just_before_it_waits(
    fake: FakeDriver, device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a fence of Python's, when it has given up the session: what counts is what came since it began."""
    fake.kernels.update(PROGRAM_KERNELS)
    wait_for, waited, is_tested = Rest.wait_for, list[Fence](), list[bool]()

    def cancel_and_wait(rest: Rest, fence: Fence, begun: int) -> None:
        if is_tested:
            waited.append(fence)
            called.cancel()
        wait_for(rest, fence, begun)

    monkeypatch.setattr(Rest, "wait_for", cancel_and_wait)
    with Session(device=device) as called:
        add, x = called.load(LENDING_ASYNC).add, called.to_device(X)
        warm(add, x, x)
        device.stream.share.record.hold("a test")
        is_tested.append(True)
        with fake.busy(), pytest.raises(CancelledError):
            add(x, x)
        assert len(waited) == 1


def test_a_stream_that_has_ended_is_not_asked(fake: FakeDriver) -> None:
    """The session and its device are closed while machine code waits for the end of a call."""
    fake.kernels.update(PROGRAM_KERNELS)
    device = CudaDevice(fake, 0)
    session = Session(device=device)
    add, x = session.load(LENDING).add, session.to_device(X)
    warm(add, x, x)
    query, waits, asked = fake.cuStreamQuery, threading.Event(), []
    results: list[Array] = []

    def ask(stream: int) -> object:
        asked.append(stream in fake.streams)
        if threading.current_thread() is not thread:
            return query(stream)
        waits.set()
        time.sleep(0.001)
        return fake.CUresult.CUDA_ERROR_NOT_READY, None

    fake.cuStreamQuery = ask  # type: ignore[method-assign]
    thread = threading.Thread(target=lambda: results.append(add(x, x)))
    thread.start()
    waits.wait()
    session.close()
    device.close()
    thread.join()
    assert len(results) == 1
    assert all(asked)
