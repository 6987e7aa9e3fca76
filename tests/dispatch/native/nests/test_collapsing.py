"""Loops whose iterations lie one after the other become one; memory is what the instructions leave."""

from __future__ import annotations

import pytest

from tests.dispatch.native.nests.checking import check
from tests.dispatch.native.nests.programs import (
    Bound,
    Level,
    Text,
    argument,
    digits,
    merged,
    only_nest,
    program,
)


@pytest.mark.parametrize("rows,columns", [(5, 5), (3, 16), (1, 9), (9, 1), (1, 1)])
def test_rows_of_an_image(rows: int, columns: int) -> None:
    """A convolution of single elements: rows and columns are one loop, channels and depth are not."""
    size = rows * columns

    def body(text: Text, at: list[str]) -> None:
        channel, y, x, depth = at
        out = text.index(0, (channel, size), (y, columns), (x, 1))
        left = text.load("f32", 1, text.index(2, (depth, size), (y, columns), (x, 1)))
        right = text.load("f32", 2, text.index(0, (channel, 6), (depth, 1)))
        text.store("f32", 0, out, text.op("fma.f32", left, right, text.load("f32", 0, out)))

    function = program([Level(7), Level(rows), Level(columns), Level(6)], body)
    extents = [level.extent for level in only_nest(function).structure.levels]
    assert extents == ([7, size, 6] if size > 1 else [7, 6])
    check(function)


@pytest.mark.parametrize("apart", [0, 1])
def test_rows_with_a_gap_stay(apart: int) -> None:
    """In one of the indices."""

    def body(text: Text, at: list[str]) -> None:
        value = text.load("f32", 1, text.index(0, (at[0], 10 + apart), (at[1], 1)))
        text.store("f32", 0, text.index(3, (at[0], 10), (at[1], 1)), value)

    function = program([Level(6, start=2), Level(10)], body)
    assert len(only_nest(function).structure.levels) == 1 + apart
    check(function)


def test_a_sum_over_two_loops() -> None:
    """The mean of an image: both reductions are one, each sum keeps its order."""

    def body(text: Text, at: list[str]) -> None:
        value = text.load("f32", 1, text.index(0, (at[0], 35), (at[1], 7), (at[2], 1)))
        text.store("f32", 0, at[0], text.op("add.f32", value, text.load("f32", 0, at[0])))

    function = program([Level(20), Level(5), Level(7)], body)
    assert [level.extent for level in only_nest(function).structure.levels] == [20, 35]
    check(function)


@pytest.mark.parametrize("position", [0, 1])
def test_a_variable_that_is_data_stays(position: int) -> None:
    def body(text: Text, at: list[str]) -> None:
        index = text.index(0, (at[0], 9), (at[1], 1))
        number = text.op("cast.si32.f32", text.op("trunc.i64.i32", at[position]))
        text.store("f32", 0, index, text.op("add.f32", number, text.load("f32", 1, index)))

    function = program([Level(4), Level(9)], body)
    assert len(only_nest(function).structure.levels) == 2
    check(function)


def test_a_loop_under_a_condition_stays() -> None:
    """Padding at the end of rows."""

    def body(text: Text, at: list[str]) -> None:
        inside = text.op("cmp.lt.i64.s", at[1], text.constant(6))
        index = text.index(0, (at[0], 9), (at[1], 1))
        value = text.when(inside, lambda: text.load("f32", 1, index), text.constant(0.5, "f32"))
        text.store("f32", 0, index, value)

    function = program([Level(4), Level(9)], body)
    assert len(only_nest(function).structure.levels) == 2
    check(function)


@pytest.mark.parametrize(
    "sizes,extents",
    [((3, 4, 5), [3, 20]), ((3, 4, argument(0)), [3, 4, None]), ((argument(0), 4, 5), [None, 20])],
)
def test_digits_of_one_loop(sizes: tuple[Bound, ...], extents: list[int | None]) -> None:
    """A loop that has been taken apart by divisions is put together where indices allow it."""

    def body(text: Text, at: list[str]) -> None:
        first, second, third = digits(text, at[0], sizes)
        value = text.load("f32", 1, text.index(0, (first, 40), (second, 5), (third, 1)))
        text.store("f32", 0, at[0], value)

    function = program([Level(merged(sizes))], body)
    assert [level.extent for level in only_nest(function).structure.levels] == extents
    check(function, (5,) if sizes[0] == 3 else (3,))
