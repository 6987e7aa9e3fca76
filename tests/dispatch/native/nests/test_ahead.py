"""Tiles prefetch the shared elements that the next tile loads, and what comes after them."""

from __future__ import annotations

import numpy as np
import pytest

from jitree.dispatch.native.nests import ahead, planner, reductions
from tests.dispatch.native.nests.checking import check, some_memory
from tests.dispatch.native.nests.harness import Compiled
from tests.dispatch.native.nests.programs import Body, Level, Text, only_nest, program

ASKS = "call void @llvm.prefetch"


@pytest.fixture(autouse=True, params=[(16, 4), (6, 6)], ids=["32 registers", "16 registers"])
def _tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of processors with AVX-512, and of others."""
    accumulators, copies = request.param
    monkeypatch.setattr(planner, "accumulators", lambda: accumulators)
    monkeypatch.setattr(planner, "copies", lambda: copies)
    monkeypatch.setattr(reductions, "row_lanes", lambda: 16)


def product(columns: int, strides: tuple[int, int]) -> Body:
    """A matrix of filters, whose strides these are, by one of pixels."""

    def body(text: Text, at: list[str]) -> None:
        row, column, k = at
        out = text.index(0, (row, columns), (column, 1))
        left = text.load("f32", 1, text.index(0, (row, strides[0]), (k, strides[1])))
        right = text.load("f32", 2, text.index(0, (k, columns), (column, 1)))
        text.store("f32", 0, out, text.op("fma.f32", left, right, text.load("f32", 0, out)))

    return body


@pytest.mark.parametrize(
    ("rows", "depth", "strides", "least", "asked"),
    [
        (9, 20, (20, 1), 720, True),
        (6, 16, (30, 1), 320, True),  # rows with something between them
        (9, 20, (20, 1), 721, False),  # the first-level cache has room for all
        (9, 15, (15, 1), 256, False),  # few iterations
        (9, 20, (1, 9), 256, False),  # each iteration has lines of its own
        (1, 20, (20, 1), 64, False),  # there is no next row
    ],
)
def test_filters_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, rows: int, depth: int, strides: tuple[int, int], least: int, asked: bool
) -> None:
    monkeypatch.setattr(ahead, "LEAST_BYTES", least)
    monkeypatch.setattr(ahead, "FEW", 0)
    function = program([Level(rows), Level(40), Level(depth)], product(40, strides))
    nest = only_nest(function)
    assert bool(nest.plan.filters) == asked == (ASKS in Compiled(nest).text)
    check(function)


@pytest.mark.parametrize(
    ("rows", "columns", "least", "asked"),
    [
        (8, 160, 160 * 20 * 4, True),
        (2, 200, 200 * 20 * 4, True),  # one tile, or two
        (8, 160, 160 * 20 * 4 + 1, False),  # the first-level cache has room for all
        (13, 160, 256, False),  # more tiles than FEW
        (8, 30, 256, False),  # the next row begins where this piece ends
        (1, 160, 256, False),  # no tiles, which other requests are for
    ],
)
def test_pieces_of_rows_that_few_tiles_share_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, rows: int, columns: int, least: int, asked: bool
) -> None:
    monkeypatch.setattr(ahead, "LEAST_BYTES", least)
    monkeypatch.setattr(ahead, "FEW", 2)
    function = program([Level(rows), Level(columns), Level(20)], product(columns, (20, 1)))
    nest = only_nest(function)
    assert bool(nest.plan.pieces) == asked
    if asked:
        text, plan = Compiled(nest).text, nest.plan
        assert ASKS in text
        assert f"i64 {ahead.PIECES_AHEAD * plan.lanes * plan.vectors}\n" in text
    check(function)


def test_filters_of_a_convolution_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its reductions are one, along which the filter lies."""
    monkeypatch.setattr(ahead, "LEAST_BYTES", 16 * 144 * 4)
    monkeypatch.setattr(planner, "are_rows_worth_it", lambda *_: True)

    def body(text: Text, at: list[str]) -> None:
        feature, row, column, channel, down, right = at
        out = text.index(0, (feature, 100), (row, 10), (column, 1))
        left = text.load("f32", 1, text.index(0, (feature, 144), (channel, 9), (down, 3), (right, 1)))
        place = text.index(0, (channel, 484), (row, 44), (column, 2), (down, 22), (right, 1))
        value = text.load("f32", 2, place)
        text.store("f32", 0, out, text.op("fma.f32", left, value, text.load("f32", 0, out)))

    function = program([Level(16), Level(10), Level(10), Level(16), Level(3), Level(3)], body)
    nest = only_nest(function)
    assert nest.plan.product is not None and nest.plan.product.joined
    assert nest.plan.filters == (nest.plan.product.element,)
    assert ASKS in Compiled(nest).text
    check(function, memory=[np.resize(given, 1 << 17) for given in some_memory(function)])
