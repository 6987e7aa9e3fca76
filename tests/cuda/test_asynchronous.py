"""Asynchronous programs: results that are still computed, chained without the host, awaited."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from jitree import Session
from jitree.cuda.device import CudaDevice
from tests.cuda.fake import FakeDriver, FakeKernel

MODULE = Path(__file__).parents[1] / "data" / "cuda" / "add_async.vmfb"
X = np.arange(8, dtype=np.float32)


def _add(driver: FakeDriver, words: list[int], grid: object, block: object) -> None:
    first, second, target = (driver.bytes_at(address, 32).view("<f4") for address in words)
    target[:] = first + second


@pytest.fixture
def session(fake: FakeDriver, device: CudaDevice) -> Iterator[Session]:
    fake.kernels["add_dispatch_0_elementwise_8_f32"] = FakeKernel(3, _add)
    with Session(device=device) as session:
        yield session


def test_results_are_arguments_before_they_are_there(fake: FakeDriver, session: Session) -> None:
    add = session.load(MODULE).add
    assert np.array_equal(np.asarray(add(X, X)), 2 * X)
    threads = set(threading.enumerate())
    with fake.busy():
        first = add.submit(X, X)
        second = add.submit(first, X)
        assert not first.ready and not second.ready
        assert "being computed" in repr(second)
        assert set(threading.enumerate()) <= threads, "nothing but the stream orders the two"
    assert np.array_equal(np.asarray(second), 3 * X) and first.ready
    assert np.array_equal(np.asarray(first), 2 * X)


def test_a_reader_waits_for_the_device(fake: FakeDriver, session: Session) -> None:
    add = session.load(MODULE).add
    np.asarray(add(X, X))
    fake.hold()
    result = add.submit(X, X)
    timer = threading.Timer(0.02, fake.release)
    timer.start()
    assert np.array_equal(np.asarray(result), 2 * X)
    timer.join()


def test_calls_overlap_in_asyncio(fake: FakeDriver, session: Session) -> None:
    add = session.load(MODULE).add
    np.asarray(add(X, X))

    async def run() -> list[float]:
        fake.hold()
        calls = [asyncio.ensure_future(add.async_(X + index, X)) for index in range(20)]
        for _ in range(5):
            await asyncio.sleep(0.001)
        fake.release()
        return [float(np.asarray(await array)[0]) for array in await asyncio.gather(*calls)]

    assert asyncio.run(run()) == list(range(20))
