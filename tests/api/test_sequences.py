"""Python numbers and nested lists as tensors: machine code gives the elements that Python gives, and leaves
to it what it refuses."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jitree import Session
from jitree.api.calls import conversion
from jitree.base.copying import ranges
from jitree.errors import InvalidArgumentError
from tests.api.direct import X, direct, live, needs_machine_code
from tests.api.programs import ARITHMETIC, ECHO, KINDS

pytestmark = needs_machine_code

TYPES = {
    "f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "i8": np.int8,
    "i32": np.int32, "i64": np.int64, "ui8": np.uint8, "i1": np.bool_, "f8E5M2": ml_dtypes.float8_e5m2,
    "complex_f32": np.complex64,
}  # fmt: skip


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with Session("local-sync", tier="fast") as session:
        session.load(ARITHMETIC, ECHO)
        yield session


def attempt(function: Any, *arguments: Any) -> Any:
    """The bytes of the result, or what was said against the arguments."""
    try:
        return np.asarray(function(*arguments)).tobytes()
    except InvalidArgumentError as error:
        return str(error)


integers = st.sampled_from(
    [sign * (1 << power) + step for power in (0, 7, 8, 11, 24, 31, 32, 53, 63, 64, 80) for sign in (1, -1)
     for step in (-1, 0, 1)]
)  # fmt: skip
narrow = st.floats(width=16, allow_nan=False).map(float)
near = st.builds(lambda half, step: half * (1 + step * 2.0**-12), narrow, st.integers(-2, 2))
floats = narrow | st.floats() | near
scalars = st.sampled_from(
    [np.float32(1.5), np.float64(0.1), np.int32(7), np.uint8(200), np.int64(-1), np.True_]
)
numbers = integers | floats | st.booleans() | scalars | st.sampled_from([None, "1", [1], 1j])


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(sorted(TYPES)),
    values=st.lists(numbers, min_size=3, max_size=5),
    paired=st.booleans(),
)
@example(name="f32", values=[1, 2.5, -3, 0], paired=False)
@example(name="f16", values=[65519.99, 65520.0, 2**-25, -(2**-26)], paired=True)
@example(name="bf16", values=[3.3961775292304601e38, 1 + 2**-9, 1 + 2**-9 + 2**-40, -0.0], paired=True)
@example(name="ui8", values=[255, 0, -1, 256], paired=False)
@example(name="i64", values=[2**63 - 1, -(2**63), 0, 1], paired=True)
def test_elements(session: Session, name: str, values: list[Any], paired: bool) -> None:
    echo = session[f"module.e1_{name}"]
    if not echo.is_direct:
        direct(echo, np.zeros(4, TYPES[name]))
    given_values: Any = tuple(values) if paired else values
    assert attempt(echo, given_values) == attempt(echo.call_slowly, (given_values,), {})


@pytest.mark.parametrize(
    "value", [5, 5.5, -0.0, math.nan, math.inf, True, np.float32(3), np.float64(3), [5], (), "5"]
)
def test_rank_zero(session: Session, value: Any) -> None:
    echo = direct(session["module.e0_f32"], np.float32(1))
    assert attempt(echo, value) == attempt(echo.call_slowly, (value,), {})


@pytest.mark.parametrize(
    "value",
    [
        [[1, 2, 3]], [[1, 2.5, 3], (4, 5, 6)], ([1, 2, 3],) * 5, [], [[]], [[], []], [[1, 2]],
        [[1, 2, 3], [4, 5]], [[1, 2, 3], [4, 5, 6, 7]], [[1, 2, 3], 4], [1, 2, 3], [[[1], [2], [3]]],
        [X[:3], X[1:]], [[1, 2, None]],
    ],
)  # fmt: skip
def test_nested(session: Session, value: Any) -> None:
    twice = session["arithmetic.twice"]
    if not twice.is_direct:
        direct(twice, np.zeros((1, 3), np.float32))
    assert attempt(twice, value) == attempt(twice.call_slowly, (value,), {})


def test_refused_lists_leave_nothing(session: Session) -> None:
    twice = direct(session["arithmetic.twice"], np.zeros((1, 3), np.float32))
    before = live(session)
    for _ in range(20):
        with pytest.raises(InvalidArgumentError):
            twice([[1.0, 2.0, "x"]])
        with pytest.raises(InvalidArgumentError):
            twice([[1.0, 2.0, 3.0], [4.0]])
    assert live(session) == before


def test_numbers_do_not_reach_python(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    from jitree.api.calls.tensor_packing import TensorPacker

    add = direct(session["arithmetic.add"], X, X)
    monkeypatch.setattr(TensorPacker, "host_array", None)
    assert np.array_equal(add([1, 2.5, 3, 4], (0, 1, 2, -3)), [1, 3.5, 5, 1])


MANY = (1 << 18) + 10
"""More numbers than become elements at once."""


class Boasting(list[float]):
    """A list that says that it is longer than it is."""

    def __len__(self) -> int:
        return 1 << 20


def test_lists_that_another_thread_shortens(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = [1.0] * (MANY + 10)

    def shortening(length: int, step: int) -> Iterator[slice]:
        for place in ranges(length, step):
            yield place
            del numbers[MANY:]

    monkeypatch.setattr(conversion, "ranges", shortening)
    double = session.load(KINDS).double_f64
    assert np.asarray(double(numbers)).tolist() == [2.0] * MANY


def test_lists_that_say_that_they_are_longer(session: Session) -> None:
    array = session.to_device(np.zeros(1 << 20))
    with pytest.raises(InvalidArgumentError, match="assigned a value of shape"):
        array[:] = Boasting([1.5, 2.5])
