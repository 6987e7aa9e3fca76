"""Small arrays that machine code puts on the device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jitree import Session
from jitree.errors import InvalidArgumentError, StatusError
from tests.api.direct import X, direct, needs_machine_code
from tests.api.programs import ARITHMETIC, ECHO

pytestmark = needs_machine_code


@pytest.fixture(params=["local-sync", "local-task"])
def session(request: pytest.FixtureRequest) -> Iterator[Session]:
    with Session(request.param, tier="fast") as session:
        yield session


PLACED = [
    X, X[::-1], np.ones((), np.float32), np.zeros((0, 3), np.int8), np.arange(24).reshape(2, 3, 4).T,
    np.arange(6, dtype=">i4").reshape(2, 3), np.array([True, False]), np.ones((1,) * 10, np.float16),
    np.arange(5, dtype=ml_dtypes.bfloat16), np.arange(4, dtype=np.complex64), np.arange(1 << 15, dtype=float),
]  # fmt: skip


@pytest.mark.parametrize("elements", PLACED, ids=lambda item: f"{item.shape} {item.dtype.str}")
def test_arrays_put_on_the_device_are_copies(session: Session, elements: np.ndarray[Any, Any]) -> None:
    """The same by machine code, which is there once a function is called by it, as before."""
    before = session.to_device(elements)
    direct(session.load(ECHO).e1_f32, X)
    source = elements.copy()
    for _ in range(3):
        array = session.to_device(source)
        assert (array.shape, array.dtype) == (before.shape, before.dtype)
        assert np.array_equal(array, before) and np.array_equal(array.buffer_view.shape, elements.shape)
    source[...] = 0
    assert np.array_equal(array, before)


def test_arrays_put_on_the_device_are_arguments(session: Session) -> None:
    module = session.load(ARITHMETIC)
    add, scale = direct(module.add, X, X), direct(module.scale, np.ones(8, np.float32), 1.0)
    for _ in range(3):
        assert np.array_equal(add(session.to_device(X), add(session.to_device(X), X)), 3 * X)
        wrong = (X[:3], X.astype(np.int32), X.reshape(2, 2), np.ones(8, np.float32))
        for elements in wrong:
            with pytest.raises(StatusError, match="input1"):
                add(X, session.to_device(elements))
    array = session.to_device(np.ones(8, np.float32))
    assert np.all(np.asarray(scale(scale(array, 2.0), 3.0)) == 6)
    session.close()
    assert np.all(np.asarray(array) == 1)
    with pytest.raises(StatusError, match="closed"):
        session.to_device(X)


@pytest.mark.parametrize("uri", ["local-sync", "local-task"])
def test_to_device_copies_wraps_or_refuses_as_it_is_told(uri: str) -> None:
    with Session(uri) as session:
        shared = np.asarray(session.empty((4,), np.float32))
        shared[:] = 1
        wrapped, copied = session.to_device(shared, copy=False), session.to_device(shared, copy=True)
        shared[0] = 5
        assert wrapped[0] == 5 and copied[0] == 1
        assert session.to_device(wrapped) is wrapped is session.to_device(wrapped, copy=False)
        other = session.to_device(wrapped, copy=True)
        shared[1] = 6
        assert other is not wrapped and np.array_equal(other, [5, 1, 1, 1])
        shared.flags.writeable = False
        assert np.array_equal(session.to_device(shared, copy=False), [5, 6, 1, 1])
        room = np.zeros(80, np.uint8)
        start = -room.ctypes.data % 64 + 4
        for refused in (room[start : start + 8], np.asarray(session.empty((4, 4))).T, [1.0], None, "text"):
            with pytest.raises(InvalidArgumentError, match="copy=False"):
                session.to_device(refused, copy=False)
        with pytest.raises(InvalidArgumentError, match="copy: expected"):
            session.to_device(shared, copy="never")  # type: ignore[arg-type]
