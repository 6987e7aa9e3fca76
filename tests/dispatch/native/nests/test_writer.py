"""What the writer of nests puts in front of loops, and what it writes once."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jitree.dispatch.native.nests.writer import Writer
from tests.dispatch.native.nests.harness import Compiled
from tests.dispatch.native.nests.programs import Level, Text, only_nest, program


@pytest.fixture
def writer() -> Writer:
    return Writer(cast("Any", SimpleNamespace(prefix="n7.")))


def lines_of(writer: Writer) -> list[str]:
    return [line.strip() for line in writer.text().splitlines()]


def place(writer: Writer, name: str) -> int:
    """The number of the line that defines a value."""
    return next(n for n, line in enumerate(lines_of(writer)) if line.startswith(f"{name} = "))


def start(writer: Writer, counter: str) -> int:
    """The number of the line with the label of a counter's loop."""
    return lines_of(writer).index(f"{counter.removeprefix('%').removesuffix('.counter')}:")


def test_what_changes_in_no_loop_stands_in_front_of_all(writer: Writer) -> None:
    with writer.loop("0", "%n", 1, []) as outer, writer.loop("0", "8", 1, []):
        name = writer.let("mul i64 %outside, 20")
    assert place(writer, name) < start(writer, outer.counter)


def test_what_changes_in_an_outer_loop_stands_in_front_of_the_inner_one(writer: Writer) -> None:
    with writer.loop("0", "%n", 1, []) as outer, writer.loop("0", "8", 1, []) as inner:
        first = writer.let(f"urem i64 {outer.counter}, 20")
        second = writer.let(f"getelementptr i8, ptr %base, i64 {first}")
        third = writer.let(f"add i64 {first}, {inner.counter}")
    assert start(writer, outer.counter) < place(writer, first) < place(writer, second)
    assert place(writer, second) < start(writer, inner.counter) < place(writer, third)


@pytest.mark.parametrize(
    "expression",
    [
        "call float @llvm.arithmetic.fence.f32(float 6.0)",
        "call <16 x float> @llvm.fma.v16f32(<16 x float> %a, <16 x float> %b, <16 x float> %c)",
        "call i64 @llvm.smin.i64(i64 %n, i64 64)",
        "udiv i64 %n, 20",
    ],
)
def test_functions_of_numbers_alone_stand_in_front(writer: Writer, expression: str) -> None:
    with writer.loop("0", "%n", 1, []) as loop:
        name, again = (writer.let(expression) for _ in range(2))
    assert name == again and place(writer, name) < start(writer, loop.counter)


def test_what_is_carried_from_one_iteration_to_the_next_stays(writer: Writer) -> None:
    with writer.loop("0", "%n", 1, [("i64", "0")]) as loop:
        name = writer.let(f"add i64 {loop.values[0]}, 1")
        loop.next = [name]
    assert place(writer, name) > start(writer, loop.counter)


@pytest.mark.parametrize(
    "expression",
    [
        "load i64, ptr %place, align 1",
        "udiv i64 %n, %unknown",
        "srem i64 %n, -1",
        "call i64 @look(ptr %place)",
        "call <16 x float> @llvm.masked.load.v16f32.p0(ptr %p, i32 1, <16 x i1> %m, <16 x float> %z)",
        "call ptr @llvm.stacksave.p0()",
    ],
)
def test_what_may_trap_or_reads_memory_stays(writer: Writer, expression: str) -> None:
    with writer.loop("0", "%n", 1, []) as loop:
        names = [writer.let(expression) for _ in range(2)]
    assert names[0] != names[1]
    assert all(place(writer, name) > start(writer, loop.counter) for name in names)


def test_a_condition_holds_back_what_is_defined_under_it_alone(writer: Writer) -> None:
    with writer.loop("0", "%n", 1, []) as loop, writer.maybe("%condition", []):
        read = writer.let("load i64, ptr %place, align 1")
        sum_ = writer.let(f"add i64 {read}, 1")
        product = writer.let("mul i64 %n, 3")
    assert start(writer, loop.counter) < place(writer, read) < place(writer, sum_)
    assert place(writer, product) < start(writer, loop.counter)


def test_a_loop_knows_nothing_of_what_is_in_front_of_one_that_has_ended(writer: Writer) -> None:
    with writer.loop("0", "%n", 1, []) as first:
        one = writer.let("mul i64 %outside, 20")
    with writer.loop("0", "%n", 1, []) as second:
        other = writer.let("mul i64 %outside, 20")
    assert one != other
    assert place(writer, one) < start(writer, first.counter) < place(writer, other)
    assert place(writer, other) < start(writer, second.counter)


def test_a_value_of_a_loop_that_has_ended_stays_in_front_of_the_next_one(writer: Writer) -> None:
    with writer.loop("0", "%n", 1, []), writer.loop("0", "8", 1, []) as inner:
        last = writer.let(f"add i64 {inner.counter}, 5")
    with writer.loop("0", "%n", 1, []) as second:
        name = writer.let(f"mul i64 {last}, 2")
    assert place(writer, last) < place(writer, name)
    assert place(writer, name) > start(writer, second.counter)


def test_a_block_computes_the_same_once(writer: Writer) -> None:
    first, again = (writer.let("add i64 %n, 4") for _ in range(2))
    assert first == again
    writer.label("next")
    assert writer.let("add i64 %n, 4") != first  # whether one block comes before the other is not known


def test_a_block_that_only_one_leads_to_knows_what_that_one_has_computed(writer: Writer) -> None:
    first = writer.let("add i64 %n, 4")
    writer.go_on("next")
    assert writer.let("add i64 %n, 4") == first


def test_text_that_is_taken_is_no_part_of_what_follows(writer: Writer) -> None:
    name = writer.let("add i64 %n, 4")
    assert name in writer.taken()
    assert writer.let("add i64 %n, 4") != name


@pytest.mark.parametrize("stride", [2, 3, 4])
def test_each_shuffle_of_lanes_that_lie_apart_adds_a_row(stride: int) -> None:
    """Their registers are what windows are short of."""

    def body(text: Text, at: list[str]) -> None:
        value = text.load("f32", 1, text.index(0, (at[0], stride)))
        text.store("f32", 0, text.index(0, (at[0], 1)), value)

    text = Compiled(only_nest(program([Level(160)], body))).text
    pairs = re.findall(r"shufflevector <\d+ x float> (%\S+), <\d+ x float> (%\S+),", text)
    assert pairs and all(left != right for left, right in pairs)
