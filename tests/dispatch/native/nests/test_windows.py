"""Windows of few elements, as of depthwise convolutions: memory is what the instructions leave."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from jitree.dispatch.native.nests import planner, tiles
from tests.dispatch.native.nests.checking import check
from tests.dispatch.native.nests.programs import Body, Level, Text, argument, only_nest, program


@pytest.fixture(autouse=True, params=[(16, 4), (6, 6)], ids=["32 registers", "16 registers"])
def _tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of processors with AVX-512, and of others."""
    accumulators, copies = request.param
    monkeypatch.setattr(planner, "accumulators", lambda: accumulators)
    monkeypatch.setattr(planner, "copies", lambda: copies)


def depthwise(
    sizes: Sequence[int],
    window: Sequence[int],
    stride: int = 1,
    dilation: int = 1,
    operation: str = "fma.f32",
) -> Body:
    """Channels by rows by columns, each a sum over a window of the same channel; or the greatest of it."""
    _, rows, columns = sizes
    height, width = window
    row = (columns - 1) * stride + (width - 1) * dilation + 1
    image = row * ((rows - 1) * stride + (height - 1) * dilation + 1)

    def body(text: Text, at: list[str]) -> None:
        channel, y, x, i, j = at
        out = text.index(0, (channel, rows * columns), (y, columns), (x, 1))
        place = ((channel, image), (y, stride * row), (x, stride), (i, dilation * row), (j, dilation))
        one = text.load("f32", 1, text.index(3, *place))
        before = text.load("f32", 0, out)
        if operation == "fma.f32":
            factor = text.load("f32", 2, text.index(1, (channel, height * width), (i, width), (j, 1)))
            text.store("f32", 0, out, text.op(operation, one, factor, before))
        else:
            text.store("f32", 0, out, text.op(operation, before, one))

    return body


@pytest.mark.parametrize(
    "sizes",
    [(3, 4, 16), (2, 5, 40), (3, 1, 20), (1, 6, 7), (2, 3, 33)],
    ids=lambda sizes: "x".join(map(str, sizes)),
)
@pytest.mark.parametrize(
    "window", [(3, 3), (5, 5), (2, 4), (1, 3), (7, 1)], ids=lambda size: f"{size[0]}x{size[1]}"
)
def test_convolution(sizes: tuple[int, int, int], window: tuple[int, int]) -> None:
    """Rows that are no multiple of a tile, columns that fill no vector."""
    function = program([Level(size) for size in (*sizes, *window)], depthwise(sizes, window))
    assert only_nest(function).plan.is_window == (min(window) > 1)
    check(function)


@pytest.mark.parametrize("stride,dilation", [(2, 1), (1, 2), (2, 3)])
def test_strides(stride: int, dilation: int) -> None:
    sizes, window = (2, 5, 24), (3, 3)
    check(program([Level(size) for size in (*sizes, *window)], depthwise(sizes, window, stride, dilation)))


def test_greatest() -> None:
    """As of pooling, where an operation with NaN depends on the order."""
    sizes, window = (2, 6, 20), (3, 3)
    function = program(
        [Level(size) for size in (*sizes, *window)], depthwise(sizes, window, 2, operation="max.f32")
    )
    assert only_nest(function).plan.is_window
    check(function)


def test_tiles_are_rows_of_an_image() -> None:
    """They share the filter; channels, of which there may be any number, share nothing."""
    sizes, window = (3, 6, 20), (3, 3)
    levels = [Level(argument(0)), *(Level(size) for size in (*sizes[1:], *window))]
    function = program(levels, depthwise(sizes, window))
    tiled = only_nest(function).plan.tiled
    assert tiled is not None and tiled.extent == 6
    check(function, (3,))


def test_each_element_keeps_its_order() -> None:
    """Whatever the order of the rows: iterations of one copy come as the program has them."""
    sizes, window = (1, 8, 16), (3, 5)
    nest = only_nest(program([Level(size) for size in (*sizes, *window)], depthwise(sizes, window)))
    tiled, reductions = nest.plan.tiled, nest.plan.reductions
    assert tiled is not None
    copies = [{tiled: number} for number in range(nest.plan.copies)]
    order = list(tiles.iterations(nest.structure, nest.plan, copies))
    assert len(order) == 15 * len(copies)
    assert [copy for _, copy in order] != sorted(copy for _, copy in order)
    for number in range(len(copies)):
        own = [tuple(step[level] for level in reductions) for step, copy in order if copy == number]
        assert own == sorted(own) and len(set(own)) == 15


def test_a_window_that_runs_backwards() -> None:
    """Rows in descending order cannot be read in the order of memory; sums keep theirs."""

    def body(text: Text, at: list[str]) -> None:
        y, x, i, j = at
        out = text.index(0, (y, 20), (x, 1))
        one = text.load("f32", 1, text.index(60, (y, 22), (x, 1), (i, -22), (j, 1)))
        factor = text.load("f32", 2, text.index(0, (i, 3), (j, 1)))
        text.store("f32", 0, out, text.op("fma.f32", one, factor, text.load("f32", 0, out)))

    function = program([Level(6), Level(20), Level(3), Level(3)], body)
    assert only_nest(function).plan.is_window
    check(function)


def test_large_windows_stay_loops() -> None:
    sizes, window = (1, 8, 32), (15, 15)
    function = program([Level(size) for size in (*sizes, *window)], depthwise(sizes, window))
    assert not only_nest(function).plan.is_window
