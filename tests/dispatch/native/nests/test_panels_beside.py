"""Tiles write the next block's panel while they compute, and sums stay the same."""

from __future__ import annotations

from itertools import pairwise

import pytest

from jitree.dispatch.native.nests import passes, planner, tiles
from jitree.dispatch.native.nests.body import Body as Written
from jitree.dispatch.native.nests.loops import LoopRange
from jitree.dispatch.native.nests.writer import Writer
from tests.dispatch.native.nests.checking import check
from tests.dispatch.native.nests.harness import Compiled
from tests.dispatch.native.nests.programs import Body, Bound, Level, Text, argument, only_nest, program
from tests.dispatch.native.nests.test_panels import product

BLOCK = 8
"""Iterations of a block of four vectors; of one vector 32."""


@pytest.fixture(autouse=True)
def _registers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a processor with AVX-512, on any."""
    monkeypatch.setattr(tiles, "PANEL_BYTES", 4 * 64 * BLOCK)
    monkeypatch.setattr(tiles, "has_masks", lambda: True)
    monkeypatch.setattr(planner, "accumulators", lambda: 16)
    monkeypatch.setattr(planner, "copies", lambda: 4)


def panels(function: Body, bounds: list[Bound]) -> int:
    """Counts the panels for which a nest takes memory; the harness takes some itself."""
    text = Compiled(only_nest(program([Level(bound) for bound in bounds], function))).text
    return text.count("alloca") - 1


@pytest.mark.parametrize("rows", [5, 9, 13, 16, 27])
@pytest.mark.parametrize(
    ("columns", "depth"),
    [(64, 64), (64, 61), (64, 18), (70, 50), (48, 57), (35, 70)],
)
def test_product(rows: int, columns: int, depth: int) -> None:
    """One to six tiles; vectors that fill tiles or do not; a last block with fewer iterations."""
    check_ends(rows, columns, depth)


@pytest.mark.parametrize("rows", [9, 16, 27])
@pytest.mark.parametrize(("columns", "depth"), [(16, 101), (20, 64)])
def test_one_vector(rows: int, columns: int, depth: int) -> None:
    """Tiles of eight rows."""
    check_ends(rows, columns, depth)


def check_ends(rows: int, columns: int, depth: int) -> None:
    """Checks a product of matrices that end with the last element of their buffers."""
    body = product(columns, depth, 0)
    assert panels(body, [rows, columns, depth]) == 2
    function = program([Level(rows), Level(columns), Level(depth)], body)
    check(function, ends={1: 4 * rows * depth, 2: 4 * columns * depth})


@pytest.mark.parametrize("rows", [1, 4, 11, 16, 30])
def test_rows_of_the_call(rows: int) -> None:
    """There may be fewer tiles than write the panel."""
    bounds: list[Bound] = [argument(0), 64, 50]
    function = program([Level(bound) for bound in bounds], product(64, 50, 0))
    assert panels(product(64, 50, 0), bounds) == 2
    check(function, (rows,))


@pytest.mark.parametrize("tiles_of_parts", [(1, 3), (2,), (5,), (4, 5)])
def test_parts(tiles_of_parts: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of the rows write all panels, each for itself, whether they have tiles for it, or only a rest."""
    write = passes._write_loops

    def write_parts(writer: Writer, body: Written, part: LoopRange | None) -> None:
        level = body.nest.plan.tiled
        assert part is None and level is not None
        ends = [0, *(number * body.nest.plan.copies for number in tiles_of_parts), 23]
        for start, end in pairwise(ends):
            write(writer, body, LoopRange(level, str(start), str(end)))

    monkeypatch.setattr(passes, "_write_loops", write_parts)
    check(program([Level(23), Level(80), Level(50)], product(80, 50, 0)))


def test_two_reductions() -> None:
    """Each iteration of the outer loop writes a new first panel."""

    def body(text: Text, at: list[str]) -> None:
        row, column, part, k = at
        out = text.index(0, (row, 64), (column, 1))
        left = text.load("f32", 1, text.index(0, (row, 60), (part, 20), (k, 1)))
        right = text.load("f32", 2, text.index(0, (column, 60), (part, 20), (k, 1)))
        text.store("f32", 0, out, text.op("fma.f32", left, right, text.load("f32", 0, out)))

    assert panels(body, [18, 64, 3, 20]) == 2
    check(program([Level(18), Level(64), Level(3), Level(20)], body))


def test_integers() -> None:
    def body(text: Text, at: list[str]) -> None:
        row, column, k = at
        out = text.index(0, (row, 64), (column, 1))
        left = text.load("i32", 1, text.index(0, (row, 30), (k, 1)))
        right = text.load("i32", 2, text.index(0, (column, 30), (k, 1)))
        text.store("i32", 0, out, text.op("fma.i32", left, right, text.load("i32", 0, out)))

    assert panels(body, [18, 64, 30]) == 2
    check(program([Level(18), Level(64), Level(30)], body))


def test_sums_of_eight_bytes() -> None:
    """Eight lanes have squares of two by two, which are more than iterations: panels come first."""

    def body(text: Text, at: list[str]) -> None:
        row, column, k = at
        out = text.index(0, (row, 64), (column, 1))
        left = text.op("ext.i32.i64.s", text.load("i32", 1, text.index(0, (row, 40), (k, 1))))
        right = text.op("ext.i32.i64.s", text.load("i32", 2, text.index(0, (column, 40), (k, 1))))
        text.store("i64", 0, out, text.op("fma.i64", left, right, text.load("i64", 0, out)))

    assert panels(body, [18, 64, 40]) == 1
    check(program([Level(18), Level(64), Level(40)], body))


@pytest.mark.parametrize("what", ["few registers", "a depth of the call", "less than two blocks"])
def test_others_write_panels_in_front_of_tiles(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    depth: Bound = argument(0) if what == "a depth of the call" else 30
    columns = 20 if what == "less than two blocks" else 64
    if what == "few registers":
        monkeypatch.setattr(tiles, "has_masks", lambda: False)
    bounds: list[Bound] = [18, columns, depth]
    assert panels(product(columns, 30, 0), bounds) == 1
    check(program([Level(bound) for bound in bounds], product(columns, 30, 0)), (30,))
