"""Reductions whose lanes lie along a row: greatest and least elements, taken in any order, and sums of
functions over few rows. Memory is what the instructions leave, one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jitree.dispatch.native.nests import writer
from jitree.dispatch.native.nests.plan import Plan
from jitree.dispatch.native.ssa import SsaFunction
from tests.dispatch.native.nests.checking import check
from tests.dispatch.native.nests.harness import Bytes
from tests.dispatch.native.nests.programs import Level, Text, only_nest, program

NUMBERS = [0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf, 1e-40, -1e-40, 1.0, -1.0, 3.5, -3.5]


def further(text: Text, known: str, other: str, is_greatest: bool) -> str:
    """As the compiler writes ``arith.maxnumf`` and ``arith.minnumf``."""
    order = (known, other) if is_greatest else (other, known)
    chosen = text.op("select.f32", text.op("cmp.lt.f32.u", *order), other, known)
    return text.op("select.f32", text.op("cmp.nan.f32", other), known, chosen)


def extremes(rows: int, length: int, is_greatest: bool, step: int = 1, function: str = "") -> SsaFunction:
    """Of each row, into an element for each."""

    def body(text: Text, at: list[str]) -> None:
        row, column = at
        value = text.load("f32", 1, text.index(3, (row, length * step), (column, step)))
        if function:
            value = text.op(function, value)
        found = further(text, text.load("f32", 0, row), value, is_greatest)
        text.store("f32", 0, row, found)

    return program([Level(rows), Level(length)], body)


def memory(results: np.ndarray, values: np.ndarray) -> list[Bytes]:
    spare = np.zeros(64, np.float32)
    return [array.view(np.uint8) for array in (results, values, spare, spare.copy())]


def plan_of(function: SsaFunction) -> Plan:
    return only_nest(function).plan


@pytest.mark.parametrize("work", [writer.WORK, 500], ids=["in one", "in parts"])
@pytest.mark.parametrize("is_greatest", [True, False])
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.sampled_from([1, 3, 17]),
    length=st.sampled_from([96, 97, 128, 191, 207]),
    known=st.sampled_from([np.nan, -np.inf, np.inf, 0.0, -0.0, 1.0]),
    kinds=st.lists(st.sampled_from(NUMBERS), min_size=1, max_size=4),
    seed=st.integers(0, 1 << 30),
)
def test_extremes(
    work: int, is_greatest: bool, rows: int, length: int, known: float, kinds: list[float], seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Few kinds of numbers in a row: often all of them are zeros, or none is a number."""
    monkeypatch.setattr(writer, "WORK", work)
    function = extremes(rows, length, is_greatest)
    assert plan_of(function).folded is not None
    values = np.random.default_rng(seed).choice(np.array(kinds, np.float32), rows * length + 3)
    check(function, memory=memory(np.full(rows, known, np.float32), values))


@pytest.mark.parametrize("is_greatest", [True, False])
@pytest.mark.parametrize("first", [0.0, -0.0])
@pytest.mark.parametrize("at", [0, 1, 5, 17, 40, 63, 64, 70, 127, 128, 139])
def test_the_first_zero_stays(is_greatest: bool, first: float, at: int) -> None:
    """Among elements that are less, or greater, other zeros follow."""
    row = np.full(143, -1.0 if is_greatest else 1.0, np.float32)
    row[3 + at :] = -first
    row[3 + at] = first
    check(extremes(1, 140, is_greatest), memory=memory(np.full(1, np.nan, np.float32), row))


@pytest.mark.parametrize("function", ["tanh.f32", "exp.f32"])
def test_extremes_of_functions(function: str) -> None:
    nest = extremes(20, 112, True, function=function)
    assert plan_of(nest).folded is not None
    values = np.random.default_rng(1).normal(0, 1, 20 * 112 + 3).astype(np.float32)
    check(nest, memory=memory(np.full(20, -np.inf, np.float32), values))


def test_what_is_no_extreme_of_a_row() -> None:
    """Short rows, elements apart, where what is no number stays."""
    assert plan_of(extremes(20, 95, True)).folded is None
    assert plan_of(extremes(20, 112, True, step=2)).folded is None

    def body(text: Text, at: list[str]) -> None:
        value = text.load("f32", 1, text.index(0, (at[0], 112), (at[1], 1)))
        known = text.load("f32", 0, at[0])
        chosen = text.op("select.f32", text.op("cmp.lt.f32.u", value, known), known, value)
        text.store("f32", 0, at[0], text.op("select.f32", text.op("cmp.nan.f32", value), value, chosen))

    function = program([Level(20), Level(112)], body)
    assert plan_of(function).folded is None
    values = np.random.default_rng(1).choice(np.array([np.nan, 0, -0.0, 1], np.float32), 2240)
    check(function, memory=memory(np.zeros(20, np.float32), values))


def test_an_element_that_depends_on_what_is_known_stays_in_order() -> None:
    def body(text: Text, at: list[str]) -> None:
        known = text.load("f32", 0, at[0])
        value = text.load("f32", 1, text.index(0, (at[0], 112), (at[1], 1)))
        text.store("f32", 0, at[0], further(text, known, text.op("sub.f32", value, known), True))

    function = program([Level(3), Level(112)], body)
    assert plan_of(function).folded is None
    values = np.random.default_rng(1).normal(0, 1, 336).astype(np.float32)
    check(function, memory=memory(np.zeros(3, np.float32), values))


@pytest.mark.parametrize("rows", [2, 3, 5, 12, 16, 20, 33])
@pytest.mark.parametrize("length", [16, 21, 90])
def test_sums_of_functions(rows: int, length: int) -> None:
    """Where rows are lanes that are full, they stay that."""

    def body(text: Text, at: list[str]) -> None:
        row, column = at
        value = text.load("f32", 1, text.index(0, (row, length), (column, 1)))
        power = text.op("exp.f32", text.op("sub.f32", value, text.load("f32", 2, row)))
        text.store("f32", 0, row, text.op("add.f32", power, text.load("f32", 0, row)))

    function = program([Level(rows), Level(length)], body)
    plan = plan_of(function)
    assert (plan.vector is None) == (rows not in (16,)), plan
    random = np.random.default_rng(2)
    blocks = [random.normal(0, 1, size).astype(np.float32) for size in (rows, rows * length, rows)]
    check(function, memory=[*(block.view(np.uint8) for block in blocks), np.zeros(64, np.uint8)])
