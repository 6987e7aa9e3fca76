"""What the writer of nests puts in front of loops, and what it writes once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from jitree.dispatch.native.nests.writer import Writer


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


def test_text_that_is_taken_is_no_part_of_what_follows(writer: Writer) -> None:
    name = writer.let("add i64 %n, 4")
    assert name in writer.taken()
    assert writer.let("add i64 %n, 4") != name
