"""Sums whose columns fill no whole number of vectors: the last vector of a tile begins earlier, and computes
some of them twice."""

from __future__ import annotations

import numpy as np
import pytest

from jitree.dispatch.native.nests import planner
from tests.dispatch.native.nests.checking import check, check_one_of_many, some_memory
from tests.dispatch.native.nests.programs import Body, Level, Text, argument, only_nest, program


def product(columns: int, depth: int, element: str = "f32") -> Body:
    """Added to what memory holds: a column that were added twice would show."""

    def body(text: Text, at: list[str]) -> None:
        row, column, k = at
        out = text.index(0, (row, columns), (column, 1))
        left = text.load(element, 1, text.index(0, (row, depth), (k, 1)))
        right = text.load(element, 2, text.index(0, (k, columns), (column, 1)))
        text.store(element, 0, out, text.op(f"fma.{element}", left, right, text.load(element, 0, out)))

    return body


@pytest.mark.parametrize("tiles", [(16, 4), (6, 6)], ids=["32 registers", "16 registers"])
@pytest.mark.parametrize("columns", [17, 31, 33, 40, 47, 56, 63, 65, 81, 96, 120])
@pytest.mark.parametrize("rows", [1, 3, 9])
def test_product(columns: int, rows: int, tiles: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "accumulators", lambda: tiles[0])
    monkeypatch.setattr(planner, "copies", lambda: tiles[1])
    check_one_of_many(program([Level(size) for size in (rows, columns, 6)], product(columns, 6)))


def test_the_rest_is_a_vector_of_the_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    """40 columns are three vectors at once, and not two and then a half: so few sums wait for each other."""
    monkeypatch.setattr(planner, "accumulators", lambda: 16)
    monkeypatch.setattr(planner, "copies", lambda: 4)
    found = only_nest(program([Level(size) for size in (8, 40, 6)], product(40, 6))).plan
    assert (found.vectors, found.copies) == (3, 4)
    found = only_nest(program([Level(size) for size in (8, 24, 6)], product(24, 6))).plan
    assert (found.vectors, found.copies) == (1, 8)


@pytest.mark.parametrize("depth", [6, 300])
@pytest.mark.parametrize("columns", [17, 49, 56, 65, 113, 196])
@pytest.mark.parametrize("rows", [2, 9])
def test_few_lanes_at_the_end_are_half_a_vector(
    rows: int, columns: int, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes half the time where a register of 512 bits is two: 49 columns are three and a half vectors."""
    monkeypatch.setattr(planner, "accumulators", lambda: 16)
    monkeypatch.setattr(planner, "copies", lambda: 4)
    monkeypatch.setattr(planner, "SHARED_BYTES", 16 << 10)
    function = program([Level(size) for size in (rows, columns, depth)], product(columns, depth))
    found = only_nest(function).plan
    assert found.narrow == columns % 16 and bool(found.block) == (depth == 300 and rows > 4)
    memory = [np.resize(given, 1 << 18) for given in some_memory(function)]
    check_one_of_many(function, memory=memory)


@pytest.mark.parametrize("columns", [8, 16, 25, 32, 40 * 16 + 1, argument(0)])
def test_other_ends_are_whole_vectors(columns: int | str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "accumulators", lambda: 16)
    monkeypatch.setattr(planner, "copies", lambda: 4)
    assert only_nest(program([Level(8), Level(columns), Level(6)], product(640, 6))).plan.narrow == 0


@pytest.mark.parametrize("element", ["i32", "f64"])
def test_elements(element: str) -> None:
    check(program([Level(size) for size in (5, 45, 6)], product(45, 6, element)))


@pytest.mark.parametrize("columns", [1, 15, 16, 17, 32, 33, 47, 48, 49, 63, 64, 80, 97, 112, 121])
@pytest.mark.parametrize("rows", [1, 5])
def test_columns_that_only_the_call_knows(columns: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two vectors at a time end the loop, and one, of which some lanes may not exist."""
    monkeypatch.setattr(planner, "accumulators", lambda: 16)
    monkeypatch.setattr(planner, "copies", lambda: 4)
    function = program([Level(rows), Level(argument(0)), Level(6)], product(121, 6))
    assert only_nest(function).plan.vectors == 4
    check_one_of_many(function, (columns,))


@pytest.mark.parametrize("depth", [7, 8, 9, 31])
@pytest.mark.parametrize("columns", [16, 40, 70, argument(0)])
def test_blocks_of_the_depth(depth: int, columns: int | str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What all rows share runs in parts that fit the cache: sums wait in memory, and keep their order."""
    monkeypatch.setattr(planner, "SHARED_BYTES", 1024)
    function = program([Level(9), Level(columns), Level(depth)], product(70, depth))
    found = only_nest(function).plan
    width = 4 * found.vectors * found.lanes
    assert found.block == (-(-depth // -(-depth * width // 1024)) if depth * width > 1024 else 0)
    check(function, (70,))


def test_blocks_are_for_what_is_shared() -> None:
    """One row meets each element of the other matrix once; a few rows are one tile."""
    for rows, columns, depth in ((1, 64, 1000), (4, 64, 1000), (64, 64, 192)):
        function = program([Level(rows), Level(columns), Level(depth)], product(columns, depth))
        assert only_nest(function).plan.block == 0
    assert only_nest(program([Level(64), Level(64), Level(4000)], product(64, 4000))).plan.block > 100
