"""Indices that are computed for each element, as those of resized images: memory is what the instructions
leave, and the guard holds for what lies in its buffer alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitree.dispatch.native.nests import folds
from jitree.dispatch.native.ssa import SsaFunction, Value
from tests.dispatch.native.nests.checking import check
from tests.dispatch.native.nests.harness import Bytes, Compiled
from tests.dispatch.native.nests.interpreter import interpret
from tests.dispatch.native.nests.programs import Level, Text, argument, only_nest, program, refusals

Position = Callable[[Text, str], str]
"""Of a variable."""


def clamped(text: Text, value: str, least: float, greatest: float) -> str:
    """As the compiler writes the greater and the smaller one of two numbers."""
    low, high = text.constant(least, "f32"), text.constant(greatest, "f32")
    value = text.op("select.f32", text.op("cmp.lt.f32.u", low, value), value, low)
    return text.op("select.f32", text.op("cmp.lt.f32.u", value, high), value, high)


def nearest(factor: float, last: int) -> Position:
    """The pixel of a smaller image."""

    def position(text: Text, variable: str) -> str:
        real = text.op("cast.si64.f32", variable)
        real = text.op("floor.f32", text.op("div.f32", real, text.constant(factor, "f32")))
        return text.op("cast.f32.si64", clamped(text, real, 0, last))

    return position


def middle(scale: float, last: int) -> Position:
    """… by the middle of pixels, rounded to even."""

    def position(text: Text, variable: str) -> str:
        half = text.constant(0.5, "f32")
        real = text.op("add.f32", text.op("cast.si64.f32", variable), half)
        real = text.op("mul.f32", real, text.constant(scale, "f32"))
        real = text.op("round.f32.even", text.op("sub.f32", real, half))
        real = text.op("max.f32", real, text.constant(0, "f32"))
        return text.op("cast.f32.si64", text.op("min.f32", real, text.constant(last, "f32")))

    return position


POSITIONS = {"nearest": nearest(2, 19), "thirds": nearest(3, 12), "middle": middle(0.5, 19)}


@pytest.mark.parametrize("name", POSITIONS)
@pytest.mark.parametrize("columns", [7, 16, 40, 64])
def test_resized_rows(name: str, columns: int) -> None:
    """A row that is the same for all lanes, columns that lie anywhere."""
    position = POSITIONS[name]

    def body(text: Text, at: list[str]) -> None:
        channel, y, x = at
        place = text.index(3, (channel, 400), (position(text, y), 20), (position(text, x), 1))
        out = text.index(0, (channel, 5 * columns), (y, columns), (x, 1))
        text.store("f32", 0, out, text.op("add.f32", text.load("f32", 1, place), text.load("f32", 2, out)))

    check(program([Level(3), Level(5), Level(columns)], body))


@pytest.mark.parametrize("columns", [5, 16, 33])
def test_resized_columns_alone(columns: int) -> None:
    """Lanes that lie together, in a row that is computed; or apart."""
    for stride in (1, 2, 7):

        def body(text: Text, at: list[str], stride: int = stride) -> None:
            y, x = at
            place = text.index(3, (nearest(4, 2)(text, y), 300), (x, stride))
            text.store("f32", 0, text.index(0, (y, columns), (x, 1)), text.load("f32", 1, place))

        check(program([Level(11), Level(columns)], body))


def _flat(text: Text, at: list[str]) -> None:
    """64 elements of an image of 12 x 10 x 10, from one of 12 x 5 x 5, with the number of the workgroup."""
    ten = text.constant(10)
    whole = text.index(at[0], (argument(0), 64))
    x, rows = text.op("rem.i64.s", whole, ten), text.op("div.i64.s", whole, ten)
    y, channel = text.op("rem.i64.s", rows, ten), text.op("div.i64.s", rows, ten)
    place = text.index(1, (channel, 25), (nearest(2, 4)(text, y), 5), (nearest(2, 4)(text, x), 1))
    text.store("f32", 0, whole, text.load("f32", 1, place))


@pytest.mark.parametrize("workgroup", [0, 1, 17])
def test_a_loop_that_is_not_split(workgroup: int) -> None:
    check(program([Level(64)], _flat), (workgroup,))


def test_part_lanes_and_reductions() -> None:
    """Sums over what is computed from the reduction, and a condition around the load."""

    def body(text: Text, at: list[str]) -> None:
        y, x, k = at
        inside = text.op("cmp.lt.i64.s", text.index(0, (y, 1), (k, 1)), text.constant(9))

        def load() -> str:
            part = text.op("div.i64.s", text.index(0, (x, 1), (k, 1)), text.constant(3))
            return text.load("f32", 1, text.index(2, (y, 40), (part, 1)))

        value = text.when(inside, load, text.constant(0, "f32"))
        out = text.index(0, (y, 20), (x, 1))
        text.store("f32", 0, out, text.op("add.f32", text.load("f32", 0, out), value))

    check(program([Level(6), Level(20), Level(7)], body))


def test_in_order() -> None:
    """What is stored is read where a computed index says."""

    def body(text: Text, at: list[str]) -> None:
        part = text.op("div.i64.s", at[0], text.constant(2))
        text.store("f32", 0, text.index(40, (at[0], 1)), text.load("f32", 0, text.index(0, (part, 1))))

    function = program([Level(60)], body)
    check(function)
    check(program([Level(argument(0))], body), (90,))


@pytest.mark.parametrize("element", ["f32", "i32"])
@pytest.mark.parametrize("factor", [-3, -1, 1, 2, 3])
@pytest.mark.parametrize("period", [3, 11, 16, 19, 40, 70])
def test_lanes_near_each_other(period: int, factor: int, element: str) -> None:
    """Some vectors have theirs in two rows, some in more, at the buffer's start and its end."""
    first = 2 if factor > 0 else 1 - factor * (period - 1)

    def body(text: Text, at: list[str]) -> None:
        index = text.index(at[0], (argument(0), 64))
        steps = text.op("rem.i64.s", index, text.constant(period))
        place = text.index(first, (steps, factor))
        text.store(element, 0, index, text.load(element, 1, place))

    function = program([Level(64)], body)
    assert ("vpermi2var" in Compiled(only_nest(function)).text) == folds.has_masks()
    check(function, (1,), ends={1: 4 * (1 + max(first, first + factor * (period - 1)))})
    check(function, (2,))


def test_wide_and_narrow_elements() -> None:
    for kind, operation in (("i8.u", "i8"), ("i16.s", "i16"), ("i64", "i64")):

        def body(text: Text, at: list[str], kind: str = kind, operation: str = operation) -> None:
            part = text.op("rem.i64.u", text.index(5, (at[0], 3)), text.constant(11))
            text.store(operation, 0, at[0], text.load(kind, 1, text.index(20, (part, -1))))

        check(program([Level(50)], body))


def _takes(function: SsaFunction, elements: int, *sizes: int) -> bool:
    """Whether a nest runs on a table of so many elements; it does not where the instructions would fail."""
    compiled = Compiled(only_nest(function))
    refs = [value for value in function.arguments if value.type == "ref"]
    others = [value for value in function.arguments if value.type != "ref"]
    given: list[Bytes] = [np.zeros(16384, np.uint8), np.zeros(4 * elements, np.uint8)]
    values: dict[Value, float | Bytes] = {
        **dict(zip(refs, [*given, *given], strict=False)),
        **dict(zip(others, (*sizes, 0, 0, 0, 0), strict=False)),
    }
    taken = compiled.run(values) is not None
    if taken:
        interpret(compiled.nest.loop, values)
    else:
        assert not given[0].any()
    return taken


def test_the_guard_knows_the_last_element() -> None:
    function = program([Level(64)], _flat)
    assert _takes(function, 1 + 3 * 5 + 5, 0) and not _takes(function, 3 * 5 + 5, 0)
    assert _takes(function, 1 + 12 * 25, 17) and not _takes(function, 1 + 11 * 25 + 24, 17)


@pytest.mark.parametrize("workgroup", [-1, 2**25, 2**31, -(2**63)])
def test_the_guard_refuses_what_does_not_fit(workgroup: int) -> None:
    """What is divided is negative, or has too many bits for the lanes."""
    assert not _takes(program([Level(64)], _flat), 4096, workgroup)


def test_the_guard_of_positions() -> None:
    def body(text: Text, at: list[str]) -> None:
        real = text.op("mul.f32", text.op("cast.si64.f32", at[0]), text.constant(1e9, "f32"))
        part = text.op("cast.f32.si64", text.op("mul.f32", real, text.constant(1e-9, "f32")))
        text.store("f32", 0, at[0], text.load("f32", 1, part))

    function = program([Level(argument(0))], body)
    assert _takes(function, 50, 50) and not _takes(function, 49, 50)

    def far(text: Text, at: list[str]) -> None:
        real = text.op("mul.f32", text.op("cast.si64.f32", at[0]), text.constant(1e30, "f32"))
        text.store("f32", 0, at[0], text.load("f32", 1, text.op("cast.f32.si64", real)))

    assert _takes(program([Level(argument(0))], far), 50, 1) and not _takes(function, 1, 3)
    assert not _takes(program([Level(argument(0))], far), 50, 2)


@pytest.mark.parametrize("factor", [-1.0, 0.0, float("nan"), float("inf")])
def test_what_may_fall_is_refused(factor: float) -> None:
    def body(text: Text, at: list[str]) -> None:
        real = text.op("mul.f32", text.op("cast.si64.f32", at[0]), text.constant(factor, "f32"))
        text.store("f32", 0, at[0], text.load("f32", 1, text.op("cast.f32.si64", real)))

    assert refusals(program([Level(8)], body)) == ["an index through 'cast.f32.si64'"]


def test_a_place_to_store_to_is_refused() -> None:
    def body(text: Text, at: list[str]) -> None:
        place = text.op("rem.i64.s", text.index(3, (at[0], 2)), text.constant(40))
        text.store("f32", 0, place, text.load("f32", 1, at[0]))

    assert "computed for each element" in refusals(program([Level(50)], body))[0]


def test_a_bound_is_refused() -> None:
    """A loop that runs as often as a computed number says."""

    def body(text: Text, at: list[str]) -> None:
        header, inside, end, variable = text.label(), text.label(), text.label(), text.pair()
        bound = text.op("div.i64.s", text.index(9, (at[0], 2)), text.constant(3))
        one = text.constant(1)
        text.enter(header, text.constant(0), variable)
        text.lines.append(f"{header}:")
        text.lines.append(f"cond_br {text.op('cmp.lt.i64.s', variable, bound)}, {inside}, {end}")
        text.lines.append(f"{inside}:")
        place = text.index(0, (at[0], 20), (variable, 1))
        text.store("f32", 0, place, text.load("f32", 1, place))
        text.lines.append(f"{variable} = add.i64 {variable}, {one}")
        text.lines.append(f"br {header}")
        text.lines.append(f"{end}:")

    assert "bounds depend on an outer loop" in refusals(program([Level(8)], body))[0]


STEPS: dict[str, Position] = {
    "quotient": lambda text, value: text.op("div.i64.s", value, text.constant(7)),
    "rest": lambda text, value: text.op("rem.i64.s", value, text.constant(13)),
    "scaled": lambda text, value: text.index(2, (value, 3)),
    "least": lambda text, value: text.op("min.i64.s", value, text.constant(100)),
    "nearest": nearest(2.5, 200),
    "middle": middle(0.75, 300),
}


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=4),
    counts=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    factors=st.tuples(st.integers(0, 20), st.integers(0, 20)),
    workgroup=st.integers(0, 5),
    sign=st.sampled_from([1, -1]),
)
def test_random_chains(
    steps: list[str], counts: tuple[int, int], factors: tuple[int, int], workgroup: int, sign: int
) -> None:
    """Numbers that go through several such steps, each of which the guard bounds from the one before."""

    def body(text: Text, at: list[str]) -> None:
        value = text.index(0, *zip(at, factors, strict=True), (argument(0), 9))
        for step in steps:
            value = STEPS[step](text, value)
        place = text.index(131_500, (value, sign), (at[1], 1))
        text.store("f32", 0, text.index(0, (at[0], counts[1]), (at[1], 1)), text.load("f32", 1, place))

    memory = [
        np.random.default_rng(0).normal(0, 1, 1 << 18).astype(np.float32).view(np.uint8) for _ in "0123"
    ]
    check(program([Level(count) for count in counts], body), (workgroup,), memory)
