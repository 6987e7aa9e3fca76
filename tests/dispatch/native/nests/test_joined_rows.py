"""Sums of binary32 products whose reductions are one: memory is what the instructions leave."""

from __future__ import annotations

import numpy as np
import pytest

from jitree.dispatch.native.nests import Nest, folds, joining, planner, reductions, tiles
from jitree.dispatch.native.nests.cutting import best_cut
from jitree.vmfb.words import STRICT
from tests.dispatch.native.nests.checking import check, check_one_of_many, some_memory
from tests.dispatch.native.nests.programs import Body, Bound, Level, Text, argument, only_nest, program

FEATURES = 9
Sizes = tuple[int, int, int, int]
"""Rows and columns of the result, channels, rows and columns of the filter."""


@pytest.fixture(autouse=True, params=[(16, 4), (6, 6)], ids=["32 registers", "16 registers"])
def _tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of processors with AVX-512, and of others, whose panels have few rows."""
    accumulators, copies = request.param
    monkeypatch.setattr(planner, "accumulators", lambda: accumulators)
    monkeypatch.setattr(planner, "copies", lambda: copies)
    monkeypatch.setattr(folds, "has_masks", lambda: accumulators == 16)
    monkeypatch.setattr(reductions, "row_lanes", lambda: 16)
    monkeypatch.setattr(tiles, "WORD_PANEL_BYTES", 64 * 80)


def convolution(sizes: Sizes, stride: int = 1, start: int = 0) -> Body:
    """A filter over planes, which begins at an element of its buffer."""
    rows, columns, channels, filtered = sizes
    pitch = stride * (columns - 1) + filtered
    plane = (stride * (rows - 1) + filtered) * pitch

    def body(text: Text, at: list[str]) -> None:
        feature, row, column, channel, high, wide = at
        out = text.index(3, (feature, rows * columns), (row, columns), (column, 1))
        place = ((channel, plane), (row, stride * pitch), (high, pitch), (column, stride), (wide, 1))
        window = ((channel, filtered**2), (high, filtered), (wide, 1))
        left = text.load("f32", 1, text.index(start, (feature, channels * filtered**2), *window))
        right = text.load("f32", 2, text.index(0, *place))
        text.store("f32", 0, out, text.op("fma.f32", left, right, text.load("f32", 0, out)))

    return body


def levels(sizes: Sizes, features: int = FEATURES) -> list[Level]:
    rows, columns, channels, filtered = sizes
    return [Level(size) for size in (features, rows, columns, channels, filtered, filtered)]


def is_joined(nest: Nest) -> bool:
    product = nest.plan.product
    return product is not None and product.group == 1 and bool(product.joined)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are made wherever that is possible."""
    monkeypatch.setattr(planner, "are_rows_worth_it", lambda *_: True)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("stride", [1, 2, 3, 4, 8])
@pytest.mark.parametrize(
    "sizes", [(7, 7, 6, 3), (2, 20, 3, 3), (5, 13, 5, 2), (3, 3, 1, 7), (2, 33, 8, 1), (1, 37, 5, 3)]
)
def test_convolution(sizes: Sizes, stride: int) -> None:
    """Lanes that end in a row and in the middle of one, blocks that end in the filter's last channel."""
    function = program(levels(sizes), convolution(sizes, stride, 2))
    nest = only_nest(function)
    has_rows = sizes[0] > 1 and (stride > 1 or sizes[3] > 1)
    assert is_joined(nest) and (nest.plan.fold is not None) == has_rows
    check_one_of_many(function, memory=[np.resize(given, 1 << 17) for given in some_memory(function)])


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("features", [9, 12, 17])
def test_features_that_are_left(features: int) -> None:
    function = program(levels((5, 10, 4, 3), features), convolution((5, 10, 4, 3), 2))
    assert is_joined(only_nest(function))
    check(function)


@pytest.mark.usefixtures("always")
def test_arithmetic_of_the_program() -> None:
    """Products are rounded before they are added, if the program's are."""
    function = program(levels((5, 10, 4, 3)), convolution((5, 10, 4, 3), 2), STRICT)
    assert is_joined(only_nest(function))
    check(function)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("columns", [1, 16, 21, 70])
def test_columns_of_the_call(columns: int) -> None:
    sizes = (2, 70, 3, 3)
    bounds: list[Bound] = [FEATURES, 2, argument(0), 3, 3, 3]
    function = program([Level(bound) for bound in bounds], convolution(sizes))
    assert is_joined(only_nest(function)) and only_nest(function).plan.fold is None
    check(function, (columns,))


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("sizes", [(3, 7, 3, 3), (1, 19, 3, 5), (2, 32, 8, 1)])
def test_no_element_after_the_last_one(sizes: Sizes, stride: int) -> None:
    """The filter and the image end with the last element that is needed."""
    rows, columns, channels, filtered = sizes
    function = program(levels(sizes), convolution(sizes, stride))
    assert is_joined(only_nest(function))
    image = (stride * (rows - 1) + filtered) * (stride * (columns - 1) + filtered) * channels
    check(function, ends={1: 4 * FEATURES * channels * filtered**2, 2: 4 * image})


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("rows", [1, 20])
def test_parts_have_rows_or_many_features(rows: int) -> None:
    """Each part makes the rows that its features share: eight of them took 2.3 times as long."""
    nest = only_nest(program(levels((rows, 20, 64, 3), 128), convolution((rows, 20, 64, 3))))
    cut = best_cut([nest], set())
    assert cut is not None and is_joined(cut.nests[0].nest)
    if rows == 1:
        assert cut.nests[0].level is nest.plan.tiled and cut.unit >= 32
    else:
        assert nest.plan.fold is not None and cut.nests[0].level is nest.plan.fold.rows


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(
    "what", ["another order", "a filter with gaps", "few features", "a short one", "a number beside"]
)
def test_others_stay_as_they_are(what: str) -> None:
    features = 3 if what == "few features" else FEATURES
    channels = 2 if what == "a short one" else 10

    def body(text: Text, at: list[str]) -> None:
        feature, column, channel, wide = at
        out = text.index(0, (feature, 30), (column, 1))
        window = (channel, 3), (wide, 1)
        if what == "another order":
            window = (channel, 1), (wide, 10)
        elif what == "a filter with gaps":
            window = (channel, 5), (wide, 1)
        left = text.load("f32", 1, text.index(0, (feature, 60), *window))
        right = text.load("f32", 2, text.index(0, (channel, 40), (column, 1), (wide, 1)))
        if what == "a number beside":
            right = text.op("mul.f32", right, text.constant(0.5, "f32"))
        text.store("f32", 0, out, text.op("fma.f32", left, right, text.load("f32", 0, out)))

    function = program([Level(size) for size in (features, 30, channels, 3)], body)
    assert not is_joined(only_nest(function))
    check(function)


@pytest.mark.parametrize(
    ("features", "columns", "stride", "worth_it"),
    [
        (64, 20, 2, True),  # half of the lanes would be empty, and others are picked out of two rows
        (64, 40, 1, True),
        (64, 10, 1, True),
        (64, 16, 1, False),  # rows fill vectors
        (64, 32, 1, False),
        (8, 40, 1, False),  # few sums share a row
        (8, 64, 2, False),
    ],
)
def test_worth_it(features: int, columns: int, stride: int, worth_it: bool) -> None:
    sizes = (16, columns, 32, 3)
    nest = only_nest(program(levels(sizes, features), convolution(sizes, stride)))
    if planner.accumulators() == 6 and (columns, stride) in ((16, 1), (32, 1)):
        worth_it = features == 64  # one long loop in place of three iterations
    if planner.accumulators() == 16 and (columns, stride) == (40, 1):
        worth_it = False  # a vector of half the lanes ends each row
    assert is_joined(nest) == worth_it


@pytest.mark.parametrize("columns", [1, 16, 21, 32, 41, 70])
@pytest.mark.parametrize("features", [3, 8, 19])
def test_elements_that_are_picked_out_meet_many_features(
    monkeypatch: pytest.MonkeyPatch, features: int, columns: int
) -> None:
    """Picking a vector out of two takes as long as loading both: more sums share it, fewer lie beside it."""
    monkeypatch.setattr(planner, "are_rows_worth_it", lambda *_: False)
    sizes = (2, 70, 3, 3)
    bounds: list[Bound] = [features, 2, argument(0), 3, 3, 3]
    function = program([Level(bound) for bound in bounds], convolution(sizes, 2))
    tile = only_nest(function).plan
    assert tile.copies == min(features, 8 if planner.accumulators() == 16 else 6)
    assert tile.vectors == min(planner.accumulators() // tile.copies, 4)
    check(function, (columns,))


def test_a_long_filter_has_no_room() -> None:
    """A panel has all rows and columns of a channel's filter."""
    sizes = (3, 9, 2, 9)
    assert sizes[3] ** 2 > joining.LONGEST_PERIOD
    assert not is_joined(only_nest(program(levels(sizes), convolution(sizes, 2))))
