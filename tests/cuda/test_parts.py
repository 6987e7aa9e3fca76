"""Parts of arrays on a GPU, what the host has read of them, and what calls do with memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import numpy as np
import pytest

from jitree import Session
from jitree.cuda.device import CudaDevice
from tests.cuda.fake import FakeDriver
from tests.cuda.programs import PROGRAM_KERNELS, STORAGE
from tests.cuda.test_repeated_calls import Vector, vector


@pytest.fixture(params=["fake", "gpu"])
def session(request: pytest.FixtureRequest) -> Iterator[Session]:
    if request.param == "fake":
        cast(FakeDriver, request.getfixturevalue("fake")).kernels.update(PROGRAM_KERNELS)
    name = "device" if request.param == "fake" else "gpu"
    with Session(device=cast(CudaDevice, request.getfixturevalue(name))) as session:
        yield session


def test_parts_are_assigned_and_read_between_repeated_calls(session: Session) -> None:
    double_into = session.load(STORAGE).double_into
    x, out, expected = session.to_device(vector(0)), session.empty((8,), np.float32), vector(0)
    for call in range(8):
        x[2:4] = call
        expected[2:4] = call
        double_into(x, out)
        assert out[3] == 2 * call and np.array_equal(out[:3], 2 * expected[:3])
        x[5] = out[2:3]
        expected[5] = 2 * expected[2]
        out[0] = -1
        assert np.array_equal(np.asarray(out), np.concatenate([[-1], 2 * before(expected, call)[1:]]))


def before(expected: Vector, call: int) -> Vector:
    """What was in ``x`` when the call was made."""
    found = expected.copy()
    found[5] = vector(0)[5] if call == 0 else 2 * (call - 1)
    return found


def test_what_the_host_has_read_is_old_for_all_arrays_over_the_memory(session: Session) -> None:
    double_into = session.load(STORAGE).double_into
    out, results = session.empty((8,), np.float32), []
    for call in range(5):
        results.append(double_into(session.to_device(vector(call)), out))
        for array in (*results, out):  # all of them are the storage
            assert np.array_equal(np.asarray(array), 2 * vector(call))
    out[...] = 1
    assert all(np.array_equal(array, np.ones(8)) for array in results)
    results[0][3] = 5
    assert out[3] == 5 and np.asarray(results[1])[3] == 5


def test_what_a_call_does_with_memory(session: Session) -> None:
    double_into = session.load(STORAGE).double_into
    x, out = session.to_device(vector(0)), session.empty((8,), np.float32)
    for _ in range(4):
        double_into(x, out)
    with session.explain(double_into) as explanation:
        double_into(x, out=out)
        assert explanation.updated == ("input1",) and explanation.results[0].lies_in == "input1"
        assert explanation.allocated == explanation.reserved == explanation.copied == 0
        double_into(vector(1), out=out)
        assert "keep it on the device with session.to_device" in str(explanation)
    for seed in range(3):
        assert np.array_equal(np.asarray(double_into(vector(seed), out)), 2 * vector(seed))
    assert explanation.calls == 2
