"""Calls where machine code does not know the interpreter's objects: Python makes rows, and enters it once.

These tests run in a process of their own, in which the objects' layouts are hidden from the start.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from jitree import Array, Function, Session
from jitree.api.calls.native import cpython_layout
from jitree.dispatch.context import Context
from jitree.errors import InvalidArgumentError, StatusError
from tests.api.direct import CALLS, X, live, prepare_calls
from tests.api.programs import ARITHMETIC, ECHO
from tests.ways import ROOT

hidden = pytest.mark.skipif(cpython_layout.is_supported(), reason="runs in a process of its own")


@pytest.mark.skipif(not cpython_layout.is_supported(), reason="runs them")
@pytest.mark.skipif(not cpython_layout.has_c_interface(), reason="machine code calls CPython")
def test_where_layouts_are_hidden() -> None:
    command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "tests.unknown_interpreter", __file__]
    interrupted = f"{Path(__file__).parent}/test_interrupted_calls.py::test_an_interrupt_anywhere_in_a_call"
    command += [
        f"{interrupted}[{case}]" for case in ("arrays-local-sync-Alarm", "asynchronous-local-sync-Failure")
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout
    assert " passed, 1 skipped" in done.stdout


@pytest.fixture(params=["local-sync", "local-task"])
def session(request: pytest.FixtureRequest) -> Iterator[Session]:
    prepare_calls()
    with Session(request.param, tier="fast") as session:
        yield session


def rows(function: Function, *arguments: object) -> Function:
    """The function, of whose arguments rows are made from now on."""
    for _ in range(CALLS):
        function(*arguments)
    assert function.is_settled
    return function


@hidden
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_go_in_rows(session: Session, monkeypatch: pytest.MonkeyPatch, order: str) -> None:
    add = rows(session.load(ARITHMETIC).add, X, X)
    monkeypatch.setattr(Context, "invoke", None)  # nothing but machine code begins the program
    scattered = np.zeros((4, 2), np.float32, order="C" if order == "C" else "F")[:, 0]
    scattered[:] = X
    fixed = X.copy()
    fixed.flags.writeable = False
    there = session.to_device(X)
    for one in (X, scattered, fixed, there, add(X, X), list(X)):
        for other in (X, there):
            result = add(one, other)
            assert type(result) is Array
            assert np.array_equal(result, np.asarray(one) + X)
            assert result.shape == (4,)
            assert result.dtype == np.float32
            assert np.shares_memory(np.asarray(result), np.asarray(result))


@hidden
def test_memory_is_given_back(session: Session) -> None:
    echo = rows(session.load(ECHO).e1_f32, X)
    before = live(session)
    kept = [np.asarray(echo(X)) for _ in range(100)]
    assert session.context.table.live_count >= before + 100
    assert all(np.array_equal(each, X) for each in kept)  # arrays of numpy keep the memory
    del kept
    assert live(session) == before


@hidden
def test_results_outlive_their_session() -> None:
    prepare_calls()
    with Session("local-sync", tier="fast") as session:
        result = rows(session.load(ARITHMETIC).add, X, X)(X, X)
    assert np.array_equal(result, X + X)


@hidden
def test_what_dies_after_its_session_is_given_back() -> None:
    """No call comes that would do it: handles and memory stayed as long as the process."""
    prepare_calls()
    with Session("local-sync", tier="fast") as session:
        echo = rows(session.load(ECHO).e1_f32, X)
        kept = [echo(X) for _ in range(10)]
    table = session.context.table
    assert table.live_count >= 10
    del kept, echo
    assert not table.deferred and table.live_count == 0


@hidden
def test_refused_arguments_are_named(session: Session) -> None:
    add = rows(session.load(ARITHMETIC).add, X, X)
    before = live(session)
    for wrong in (np.zeros(5, np.float32), np.zeros(4, np.float64), None, "text"):
        with pytest.raises((InvalidArgumentError, StatusError), match="input1"):
            add(session.to_device(X), wrong)
        assert np.array_equal(add(X, X), X + X)
    assert live(session) == before


@hidden
def test_numbers_and_shapes_go_in_rows(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    module = session.load(ARITHMETIC)
    numbers = np.arange(4, dtype=np.int64)
    sums = rows(module.sums, numbers, -(1 << 40))
    scale = rows(module.scale, np.ones(8, np.float32), 1.5)
    twice, square, large = (
        rows(module.twice, np.ones((2, 3), np.float32)),
        rows(module.square, np.float32(3)),
        rows(module.large, np.ones(1 << 16, np.float32)),
    )
    monkeypatch.setattr(Context, "invoke", None)
    for number in (5, -7, (1 << 63) - 1, -(1 << 63)):
        array, same, converted = sums(numbers, number)
        assert (same, converted) == (number, np.float32(number))
        assert np.array_equal(array, numbers + np.int64(number))
    assert np.array_equal(scale(np.ones(8, np.float32), -0.25), np.full(8, -0.25, np.float32))
    for count in (1, 5, 3, 0):
        given = np.arange(3 * count, dtype=np.float32).reshape(count, 3)
        assert np.array_equal(twice(given), given + given)
        assert twice(given).shape == (count, 3)
    assert square(np.float32(-3)).item() == 9
    many = np.arange(1 << 16, dtype=np.float32)
    assert np.array_equal(large(many), many + many)
