"""What a nest is taken for holds of all that its loops touch: all tiers leave the same memory."""

from __future__ import annotations

import pytest

from jitree.dispatch.native import nests
from jitree.dispatch.native.build import build
from jitree.dispatch.native.source import from_program
from jitree.vmfb.decode import BytecodeModule
from tests.dispatch.harness import compile_here
from tests.dispatch.native.nests.programs import (
    SIZES,
    Body,
    Level,
    Sum,
    Text,
    argument,
    as_module,
    digits,
    module,
)
from tests.fuzz.nests import APART, LENGTH, TIERS, outcome

FACTORS = (1_299_314, 3_124_327, 4_544_113)
"""Their product is 2**64 - 2."""


def _same_on_all_tiers(
    loaded: BytecodeModule, sizes: tuple[int, ...] = (), places: tuple[int, ...] = APART
) -> object:
    """How the calls end."""
    assert compile_here(loaded).refusals == {}
    found = nests.find(build(from_program(loaded.program), 0))
    assert any(isinstance(nest, nests.Nest) for nest in found), found
    numbers = (*sizes, *[0] * SIZES)[:SIZES]
    ends = [outcome(loaded, tier, numbers, places) for tier in TIERS]
    assert ends[1:] == ends[:1] * (len(TIERS) - 1)
    return ends[0][0]


def _loaded(levels: list[Level], body: Body) -> BytecodeModule:
    return BytecodeModule.load(module(levels, body).build())


# -- numbers of iterations -------------------------------------------------------------------------------


def test_a_product_of_bounds_that_wraps_to_a_few_iterations() -> None:
    """A negative number of rows, and two iterations."""

    def body(text: Text, at: list[str]) -> None:
        *_, last = digits(text, at[0], [argument(0), argument(1), argument(2)])
        text.store("i8", 0, last, text.constant(7, "i32"))

    bound = (argument(0), (argument(1), argument(2)))
    rows, columns, depth = FACTORS
    assert _same_on_all_tiers(_loaded([Level(bound)], body), (-rows, columns, depth)) == "done"


def _divides_between_loops(inner: int) -> BytecodeModule:
    """``place = (row * 2**40) / (rows * 2**40)``, in front of an inner loop of so many iterations."""
    text = Text()
    rows, factor, zero, one = argument(0), text.constant(2**40), text.constant(0), text.constant(1)
    row, column, divisor = text.pair(), text.pair(), text.op("mul.i64", rows, factor)
    text.enter("^rows", zero, row)
    text.lines.append("^rows:")
    more = text.op("cmp.lt.i64.s", row, rows)
    text.lines += [f"cond_br {more}, ^row, ^end", "^row:"]
    place = text.op("div.i64.s", text.op("mul.i64", row, factor), divisor)
    text.enter("^columns", zero, column)
    text.lines.append("^columns:")
    more = text.op("cmp.lt.i64.s", column, text.constant(inner))
    text.lines += [f"cond_br {more}, ^column, ^row_end", "^column:"]
    text.store("i32", 0, text.index(0, (place, 1), (row, 4), (column, 1)), text.constant(7, "i32"))
    text.lines += [f"{column} = add.i64 {column}, {one}", "br ^columns", "^row_end:"]
    text.lines += [f"{row} = add.i64 {row}, {one}", "br ^rows", "^end:", "return []"]
    return BytecodeModule.load(as_module(text).build())


@pytest.mark.parametrize("inner", [0, 3])
@pytest.mark.parametrize("rows", [3, 2**24])
def test_a_divisor_that_wraps_to_zero_in_front_of_a_loop(inner: int, rows: int) -> None:
    """Also where that has no iterations."""
    end = _same_on_all_tiers(_divides_between_loops(inner), (rows,))
    assert end == ("done" if rows == 3 else ("INVALID_ARGUMENT", "integer division by zero"))


@pytest.mark.parametrize("first", [5, 2**63 - 3, -3])
@pytest.mark.parametrize("compare", ["cmp.lt.i64.s", "cmp.lt.i64.u"])
@pytest.mark.parametrize("columns", [1, 8])
def test_loops_that_are_one_and_do_not_run(columns: int, compare: str, first: int) -> None:
    """Rows and columns, which are counted from a number on. Eight columns may end before they begin: their
    last number wraps, or the first one has no sign."""

    def body(text: Text, at: list[str]) -> None:
        column = text.op("sub.i64", at[1], argument(0))
        text.store("i32", 0, text.index(0, (at[0], columns), (column, 1)), text.constant(7, "i32"))

    levels = [Level(3), Level(Sum(argument(0), columns), argument(0), compare=compare)]
    assert _same_on_all_tiers(_loaded(levels, body), (first,)) == "done"


# -- ranges ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shift", [0, 4, 12, -12, LENGTH])
@pytest.mark.parametrize("is_load", [True, False])
def test_what_predicates_leave_begins_later_than_a_buffer(shift: int, is_load: bool) -> None:
    """Two buffers share memory. Of one, elements are touched from the third on: where that is where the other
    begins, iterations do not touch the same elements."""

    def body(text: Text, at: list[str]) -> None:
        (i,), one = at, text.constant(1, "i32")
        inside = text.op("cmp.lt.i64.u", text.op("add.i64", i, text.constant(-3)), text.constant(64))
        if is_load:
            value = text.when(inside, lambda: text.load("i32", 1, i), text.constant(9, "i32"))
            text.store("i32", 0, i, text.op("add.i32", value, one))
            return
        value, true, end = text.load("i32", 1, i), text.label(), text.label()
        text.lines += [f"cond_br {inside}, {true}, {end}", f"{true}:"]
        text.store("i32", 0, i, text.op("add.i32", value, one))
        text.lines += [f"br {end}", f"{end}:"]

    places = (APART[0] + shift, APART[0], *APART[2:])
    assert _same_on_all_tiers(_loaded([Level(80)], body), places=places) == "done"


# -- accesses --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("condition", [True, False])
def test_loads_that_nothing_needs(condition: bool) -> None:
    """Their places are computed, or depend on a condition, for rows and columns that are one loop else."""

    def body(text: Text, at: list[str]) -> None:
        place = text.index(0, (at[0], 8), (at[1], 1))
        third = text.op("div.i64.s", text.op("add.i64", place, text.constant(1)), text.constant(3))
        if condition:
            inside = text.op("cmp.lt.i64.u", text.op("add.i64", place, text.constant(-3)), text.constant(4))
            text.when(inside, lambda: text.load("i32", 1, place), text.constant(0, "i32"))
        else:
            text.load("i32", 1, third)
        text.store("i32", 0, place, text.constant(7, "i32"))

    assert _same_on_all_tiers(_loaded([Level(4), Level(8)], body)) == "done"


def test_a_sum_that_is_loaded_with_and_without_its_sign() -> None:
    def body(text: Text, at: list[str]) -> None:
        signed, unsigned = (text.load(f"i8.{sign}", 0, at[0]) for sign in "su")
        half = text.op("shr.i32.s", signed, text.constant(1, "i32"))
        quarter = text.op("shr.i32.u", unsigned, text.constant(2, "i32"))
        total = text.op("add.i32", text.op("add.i32", half, quarter), text.constant(91, "i32"))
        text.store("i8", 0, at[0], total)

    assert _same_on_all_tiers(_loaded([Level(40), Level(9)], body)) == "done"


@pytest.mark.parametrize("count", [1, 9])
def test_a_sum_that_is_loaded_as_another_type(count: int) -> None:
    def body(text: Text, at: list[str]) -> None:
        bits = text.op("bitcast.f32.i32", text.load("f32", 0, at[0]))
        text.store("i32", 0, at[0], text.op("add.i32", bits, text.constant(3, "i32")))

    assert _same_on_all_tiers(_loaded([Level(40), Level(count)], body)) == "done"
