"""Reductions that are one: memory is what the instructions leave, whatever words, lanes and blocks have."""

from __future__ import annotations

import numpy as np
import pytest

from jitree.base.platform import processor
from jitree.dispatch.native.nests import folds, planner, reductions, tiles
from jitree.dispatch.native.nests.cutting import best_cut
from tests.dispatch.native.nests.checking import check, check_one_of_many, some_memory
from tests.dispatch.native.nests.programs import Body, Bound, Level, Text, argument, only_nest, program

SIGNS = [(left, right) for left in "su" for right in "su"]
FEATURES = 9


PROCESSORS = {
    "AVX512-VNNI": (16, 16, 4, {"avx512_vnni"}),
    "AVX-VNNI": (8, 6, 6, {"avx512_vnni", "avx_vnni"}),
    "AVX2": (8, 6, 6, {"avx2"}),
}
"""Lanes of an instruction, vectors and copies in a tile, and flags of processors that have it."""


@pytest.fixture(autouse=True, params=PROCESSORS)
def _processor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Panels of few words: reductions run in blocks."""
    lanes, accumulators, copies, flags = PROCESSORS[request.param]
    if not flags & processor.words("flags"):
        pytest.skip(f"none of {flags}")
    monkeypatch.setattr(reductions, "dot_lanes", lambda: lanes)
    monkeypatch.setattr(reductions, "widens", lambda: request.param == "AVX2")
    monkeypatch.setattr(folds, "has_masks", lambda: accumulators == 16)
    monkeypatch.setattr(planner, "accumulators", lambda: accumulators)
    monkeypatch.setattr(planner, "copies", lambda: copies)
    monkeypatch.setattr(tiles, "WORD_PANEL_BYTES", 64 * 64)


def convolution(
    sizes: tuple[int, int, int, int], stride: int = 1, signs: tuple[str, str] = ("s", "s")
) -> Body:
    """A filter of so many channels and columns over planes, for rows of so many columns."""
    rows, columns, channels, filtered = sizes
    pitch = stride * (columns - 1) + filtered
    plane = (stride * (rows - 1) + filtered) * pitch

    def body(text: Text, at: list[str]) -> None:
        feature, row, column, channel, high, wide = at
        out = text.index(0, (feature, rows * columns), (row, columns), (column, 1))
        place = ((channel, plane), (row, stride * pitch), (high, pitch), (column, stride), (wide, 1))
        window = ((channel, filtered**2), (high, filtered), (wide, 1))
        left = text.load(f"i8.{signs[0]}", 1, text.index(0, (feature, channels * filtered**2), *window))
        right = text.load(f"i8.{signs[1]}", 2, text.index(0, *place))
        text.store("i32", 0, out, text.op("fma.i32", left, right, text.load("i32", 0, out)))

    return body


def levels(sizes: tuple[int, int, int, int]) -> list[Level]:
    rows, columns, channels, filtered = sizes
    return [Level(size) for size in (FEATURES, rows, columns, channels, filtered, filtered)]


@pytest.mark.parametrize("signs", SIGNS)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(
    "sizes",
    [(7, 7, 6, 3), (2, 20, 3, 3), (5, 13, 9, 2), (3, 3, 1, 7), (2, 33, 8, 1), (1, 37, 5, 3), (4, 16, 4, 3)],
)
def test_convolution(sizes: tuple[int, int, int, int], stride: int, signs: tuple[str, str]) -> None:
    """Words across rows and channels of the filter, and one that is not full; tiles across rows."""
    function = program(levels(sizes), convolution(sizes, stride, signs))
    plan = only_nest(function).plan
    if sizes[3] > 1 or stride > 1:
        assert plan.product is not None and plan.product.joined
        is_even = sizes[1] % (plan.lanes * plan.vectors) == 0
        assert (plan.fold is not None) == (sizes[0] > 1 and not is_even)
    check_one_of_many(function)


@pytest.mark.parametrize("stride", [3, 4])
def test_columns_further_apart(stride: int) -> None:
    function = program(levels((2, 18, 2, 3)), convolution((2, 18, 2, 3), stride))
    check(function)


@pytest.mark.parametrize("columns", [1, 16, 21, 70])
def test_columns_of_the_call(columns: int) -> None:
    sizes = (2, 70, 3, 3)
    bounds: list[Bound] = [FEATURES, 2, argument(0), 3, 3, 3]
    function = program([Level(bound) for bound in bounds], convolution(sizes))
    plan = only_nest(function).plan
    assert plan.product is not None and plan.product.joined and plan.fold is None
    check(function, (columns,))


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("sizes", [(3, 7, 3, 3), (1, 19, 3, 5)])
def test_no_byte_after_the_last_one(sizes: tuple[int, int, int, int], stride: int) -> None:
    """The filter ends with a part of a word, the image with the last lane."""
    rows, columns, channels, filtered = sizes
    function = program(levels(sizes), convolution(sizes, stride))
    image = (stride * (rows - 1) + filtered) * (stride * (columns - 1) + filtered) * channels
    check(function, ends={1: FEATURES * channels * filtered**2, 2: image})


def test_largest_bytes() -> None:
    """-128 by -128 and 255 by 255: nothing saturates, and what is moved is taken off."""
    sizes = (3, 9, 15, 3)
    for signs, byte in [(("s", "s"), 0x80), (("u", "u"), 0xFF), (("u", "s"), 0x80), (("s", "u"), 0x80)]:
        function = program(levels(sizes), convolution(sizes, 1, signs))
        check(function, memory=[np.full(1 << 14, byte, np.uint8) for _ in some_memory(function)])


def test_no_part_has_some_of_a_joined_loop() -> None:
    """Parts have rows or features."""
    nest = only_nest(program(levels((56, 56, 8, 3)), convolution((56, 56, 8, 3))))
    cut = best_cut([nest], set())
    assert nest.plan.fold is not None and cut is not None
    assert cut.nests[0].level in (nest.plan.fold.rows, nest.plan.tiled)


@pytest.mark.parametrize(
    "what", ["channels side by side", "few features", "a filter that is turned", "short"]
)
def test_others_stay_as_they_are(what: str) -> None:
    features = 2 if what == "few features" else FEATURES
    channels, filtered = (1, 2) if what == "short" else (20, 3)

    def body(text: Text, at: list[str]) -> None:
        feature, column, channel, wide = at
        out = text.index(0, (feature, 30), (column, 1))
        window = ((channel, 3), (wide, 1))
        if what == "channels side by side":
            window = ((channel, 1), (wide, 20))
        elif what == "a filter that is turned":
            window = ((channel, 5), (wide, 2))
        left = text.load("i8.s", 1, text.index(0, (feature, 60), *window))
        right = text.load("i8.s", 2, text.index(0, (channel, 40), (column, 1), (wide, 1)))
        text.store("i32", 0, out, text.op("fma.i32", left, right, text.load("i32", 0, out)))

    function = program([Level(size) for size in (features, 30, channels, filtered)], body)
    plan = only_nest(function).plan
    assert plan.product is None or not plan.product.joined
    check(function)
