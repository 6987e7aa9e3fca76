"""Sums whose columns fill no whole number of vectors: the last vector of a tile begins earlier, and computes
some of them twice."""

from __future__ import annotations

import pytest

from jitree.dispatch.native.nests import plan
from tests.dispatch.native.nests.programs import Body, Level, Text, only_nest, program
from tests.dispatch.native.nests.test_kernels import check


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
    monkeypatch.setattr(plan, "accumulators", lambda: tiles[0])
    monkeypatch.setattr(plan, "copies", lambda: tiles[1])
    check(program([Level(size) for size in (rows, columns, 6)], product(columns, 6)))


def test_the_rest_is_a_vector_of_the_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    """40 columns are three vectors at once, and not two and then a half: so few sums wait for each other."""
    monkeypatch.setattr(plan, "accumulators", lambda: 16)
    monkeypatch.setattr(plan, "copies", lambda: 4)
    found = only_nest(program([Level(size) for size in (8, 40, 6)], product(40, 6))).plan
    assert (found.vectors, found.copies) == (3, 4)
    found = only_nest(program([Level(size) for size in (8, 24, 6)], product(24, 6))).plan
    assert (found.vectors, found.copies) == (1, 8)


@pytest.mark.parametrize("element", ["i32", "f64"])
def test_elements(element: str) -> None:
    check(program([Level(size) for size in (5, 45, 6)], product(45, 6, element)))
