"""Arrays for parameters whose type is not declared (buffer views), as machine code passes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from jitree import Function, Session
from jitree.errors import InvalidArgumentError
from jitree.hal.fence import Fence
from jitree.types import ELEMENT_TYPES
from tests.api import producers
from tests.api.direct import direct, live, needs_machine_code
from tests.api.programs import ALIASES, CACHES
from tests.api.test_large_arrays import COUNT, MAKERS, X, python_calls
from tests.assembler import Assembler

pytestmark = needs_machine_code


@pytest.fixture(params=["local-sync", "local-task"])
def session(request: pytest.FixtureRequest) -> Iterator[Session]:
    with Session(request.param, tier="fast") as session:
        session.load(ALIASES)
        yield session


@pytest.fixture
def echo(session: Session) -> Function:
    """Gives its argument back, whatever that is."""
    module = session.load(Assembler("echo").function("f", "0r_r", "return [%R0]").build())
    return direct(module.f, X)


def test_no_python_runs(session: Session) -> None:
    put_into = direct(session["aliases.put_into"], X, session.empty(COUNT))
    view = direct(
        session.load(CACHES).view, np.ones(8, np.float32), 0, session.to_device(np.ones((16, 8), "f4"))
    )
    for value in (X, X[::-1], session.to_device(X), *(make(X.copy()) for make in MAKERS[:2])):
        target = session.empty(COUNT)
        for _ in range(2):
            put_into(value, target)
        assert not python_calls(put_into, value, target)
        assert np.array_equal(put_into(value, target), np.asarray(target))
        assert np.array_equal(
            target, 2 * np.asarray(value.array if isinstance(value, producers.Tensor) else value)
        )
    cache = session.to_device(np.zeros((16, 8), np.float32))
    for step in range(3):
        view(np.full(8, step, np.float32), step, cache)
    assert not python_calls(view, np.full(8, 3, np.float32), 3, cache)
    assert np.asarray(cache)[:5, 0].tolist() == [0, 1, 2, 3, 0]


def test_elements_of_any_type(echo: Function) -> None:
    dtypes = {row.dtype for row in ELEMENT_TYPES if row.bits % 8 == 0} | {np.dtype(ml_dtypes.bfloat16)}
    for dtype in dtypes:
        for shape in ((), (3,), (0, 2), (2, 1, 3), (1, 2, 1, 1, 3, 1, 1), (1,) * 9):
            numbers = np.arange(np.prod(shape)).astype(np.uint8)
            array: npt.NDArray[Any] = numbers.reshape(shape).astype(dtype)
            for _ in range(2):
                result = echo(array)
                expected = Function(echo.session, echo.vm_function, echo.signature).call_slowly((array,), {})
                assert (result.dtype, result.shape) == (expected.dtype, expected.shape) == (dtype, shape)
                assert result.buffer_view.element_type == expected.buffer_view.element_type
                assert np.asarray(result).tobytes() == array.tobytes()


def test_arrays_of_other_libraries(echo: Function) -> None:
    foreign = producers.new_type()
    for dtype in (np.int8, np.uint16, np.float64, np.complex64, np.bool_, ml_dtypes.bfloat16):
        for _ in range(2):
            array = np.arange(6).astype(dtype).reshape(2, 3)
            result = echo(foreign(array))
            assert result.dtype == dtype and np.array_equal(result, array)
            assert np.array_equal(echo(foreign(array.T)), array.T)
            assert not np.shares_memory(np.asarray(result), array)


def test_what_is_no_array_is_the_slow_paths(session: Session, echo: Function) -> None:
    given: tuple[Any, ...] = (
        np.arange(6)[::2].astype(">i4"),
        np.float32(3),
        session.to_device(X).buffer_view,
    )
    for value in given:
        assert np.array_equal(echo(value), np.asarray(value if not hasattr(value, "buffer") else X))
    assert echo(None) is None and echo([1, 2]) == [1, 2]
    for refused in ("text", 5, np.ma.masked_array(X), np.array(["a"])):
        with pytest.raises(InvalidArgumentError, match="input0: expected"):
            echo(refused)
    with Session("local-sync", tier="fast") as other:
        assert np.array_equal(echo(other.to_device(X)), X)
    pending = session.to_device(X)
    gate = Fence.create(session.device)
    pending._compute_until(gate)
    gate.signal()
    assert np.array_equal(echo(pending), X)


def test_nothing_is_kept(session: Session) -> None:
    put_into = direct(session["aliases.put_into"], X, session.empty(COUNT))
    target, source = session.empty(COUNT), session.to_device(X)
    put_into(X, target), put_into(source, target)
    before = live(session)
    for _ in range(50):
        result = put_into(X, target)
        result = put_into(source, result)
    del result
    assert live(session) == before


def test_what_earlier_calls_write_to_is_not_this_calls(session: Session) -> None:
    """A submitted call notes arrays that it may still write to; one that gets a copy has none."""
    into: Any = direct(session["aliases.into_view$async"], X, session.empty(COUNT))
    target = session.empty(COUNT)
    into.submit(X, target)
    target.wait()
    seen = target.fence
    for _ in range(3):
        assert np.array_equal(into.submit(X, X), 2 * X)
        assert target.fence is seen
    assert np.array_equal(X, np.arange(COUNT)) and np.array_equal(target, 2 * X)
