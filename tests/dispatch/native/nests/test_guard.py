"""The guard: holds for everything that is in range and apart, and only for that."""

from __future__ import annotations

import numpy as np
import pytest

from jitree.dispatch.native.ssa import SsaFunction, Value
from tests.dispatch.native.nests.harness import Bytes, Compiled
from tests.dispatch.native.nests.programs import (
    Bound,
    Level,
    Text,
    argument,
    digits,
    merged,
    only_nest,
    program,
)


def _add(text: Text, at: list[str]) -> None:
    index = text.op("add.i64", at[0], argument(0))
    text.store("f32", 0, index, text.op("add.f32", text.load("f32", 1, index), text.load("f32", 2, index)))


def _sum_rows(text: Text, at: list[str]) -> None:
    value = text.load("f32", 1, text.index(0, (at[0], 8), (at[1], 1)))
    text.store("f32", 0, at[0], text.op("add.f32", value, text.load("f32", 0, at[0])))


def _given(
    function: SsaFunction, buffers: list[Bytes], *sizes: int
) -> tuple[Compiled, dict[Value, float | Bytes]]:
    """The nest, and what it is run with."""
    refs = [value for value in function.arguments if value.type == "ref"]
    others = [value for value in function.arguments if value.type != "ref"]
    spare = np.zeros(4, np.uint8)
    values: dict[Value, float | Bytes] = {
        **dict(zip(refs, [*buffers, *[spare] * len(refs)], strict=False)),
        **dict(zip(others, (*sizes, 0, 0, 0, 0), strict=False)),
    }
    return Compiled(only_nest(function)), values


def _holds(function: SsaFunction, buffers: list[Bytes], *sizes: int) -> bool:
    compiled, values = _given(function, buffers, *sizes)
    before = [buffer.copy() for buffer in buffers]
    taken = compiled.run(values) is not None
    if not taken:
        for buffer, content in zip(buffers, before, strict=True):
            assert (buffer == content).all()
    return taken


def _buffers(*lengths: int) -> list[Bytes]:
    return [np.zeros(length, np.uint8) for length in lengths]


@pytest.mark.parametrize("short", [None, 0, 1, 2])
@pytest.mark.parametrize("by", [1, 4, 60])
def test_short_buffers(short: int | None, by: int) -> None:
    lengths = [4 * 45] * 3
    if short is not None:
        lengths[short] -= by
    assert _holds(program([Level(40)], _add), _buffers(*lengths), 5) == (short is None)


@pytest.mark.parametrize(
    "base,holds",
    [(0, True), (10, True), (-1, False), (11, False), (2**31, False), (2**62, False), (-(2**63), False)],
)
def test_base(base: int, holds: bool) -> None:
    assert _holds(program([Level(40)], _add), _buffers(200, 200, 200), base) == holds


@pytest.mark.parametrize("count,holds", [(40, True), (50, True), (51, False), (2**40, False), (-3, True)])
def test_dynamic_count(count: int, holds: bool) -> None:
    function = program([Level(argument(1))], _add)
    assert _holds(function, _buffers(200, 200, 200), 0, count) == holds


def test_an_unsigned_bound_with_the_high_bit_set() -> None:
    function = program([Level(argument(1), compare="cmp.lt.i64.u")], _add)
    assert not _holds(function, _buffers(200, 200, 200), 0, -3)


@pytest.mark.parametrize(
    "distance,holds",
    [(160, True), (-160, True), (0, True), (4, False), (-4, False), (156, False), (-156, False), (2, False)],
)
def test_overlap(distance: int, holds: bool) -> None:
    """In place is fine; anything else that overlaps is not. Bytes apart, the whole range of 160."""
    memory = np.zeros(1000, np.uint8)
    out, other = memory[400:600], np.zeros(200, np.uint8)
    assert (
        _holds(program([Level(40)], _add), [out, memory[400 + distance : 600 + distance], other], 0) == holds
    )


def test_parts_of_one_allocation() -> None:
    """Accessed ranges count, not whole buffers."""

    def body(text: Text, at: list[str]) -> None:
        text.store("f32", 0, at[0], text.load("f32", 1, text.index(40, (at[0], 1))))

    memory = np.zeros(400, np.uint8)
    assert _holds(program([Level(40)], body), [memory, memory])


def test_a_reduction_does_not_run_in_place() -> None:
    """The sums would be read back while they grow."""
    memory = np.zeros(400, np.uint8)
    function = program([Level(10), Level(8)], _sum_rows)
    assert _holds(function, [memory[320:], memory])
    assert not _holds(function, [memory[:40], memory])


def test_rows_that_run_into_each_other() -> None:
    """The stride of the stored rows is an argument: less than a row is not parallel."""

    def body(text: Text, at: list[str]) -> None:
        out = text.index(0, (at[0], argument(0)), (at[1], 1))
        text.store("f32", 0, out, text.load("f32", 1, text.index(0, (at[0], 16), (at[1], 1))))

    function = program([Level(3), Level(16)], body)
    assert _holds(function, _buffers(400, 400), 16)
    assert _holds(function, _buffers(400, 400), 20)
    assert not _holds(function, _buffers(400, 400), 15)
    assert not _holds(function, _buffers(400, 400), 0)
    assert not _holds(function, _buffers(400, 400), -16)


def test_large_strides_do_not_overflow() -> None:
    def body(text: Text, at: list[str]) -> None:
        value = text.load("f32", 1, text.index(0, (at[0], argument(0)), (at[1], argument(1))))
        text.store("f32", 0, text.index(0, (at[0], 20), (at[1], 1)), value)

    function = program([Level(argument(2)), Level(20)], body)
    assert _holds(function, _buffers(1600, 4000), 20, 1, 10)
    for stride in (2**31 - 1, 2**31, 2**33, -(2**31), 2**63 - 1):
        assert not _holds(function, _buffers(1600, 4000), stride, 1, 10)
        assert not _holds(function, _buffers(1600, 4000), 20, stride, 10)
        assert not _holds(function, _buffers(1600, 4000), 20, 1, stride) or stride < 0


def test_a_load_after_the_store_of_the_same_element() -> None:
    """It has to see what was stored, through whatever reference."""

    def body(text: Text, at: list[str]) -> None:
        text.store("f32", 0, at[0], text.load("f32", 2, at[0]))
        text.store("f32", 3, at[0], text.load("f32", 1, at[0]))

    memory, source, out = _buffers(160, 160, 160)
    assert _holds(program([Level(40)], body), [memory, np.zeros(160, np.uint8), source, out])
    assert not _holds(program([Level(40)], body), [memory, memory, source, out])


def test_negative_factors_of_a_merged_bound() -> None:
    """-3 rows of -4 columns are 12 iterations; that is left to the interpreter."""

    def body(text: Text, at: list[str]) -> None:
        row, column = text.op("div.i64.s", at[0], argument(0)), text.op("rem.i64.s", at[0], argument(0))
        text.store("f32", 0, text.index(0, (row, 8), (column, 1)), text.load("f32", 1, at[0]))

    function = program([Level((argument(0), argument(1)))], body)
    assert _holds(function, _buffers(400, 400), 4, 3)
    assert not _holds(function, _buffers(400, 400), -4, -3)
    assert not _holds(function, _buffers(400, 400), 9, 3)


def test_merged_bounds_do_not_overflow() -> None:
    """2**30 * 2**30 * 16 iterations are none modulo 2**64; so many cannot be tried, but taken for what they
    are not."""
    bounds: list[Bound] = [argument(0), argument(1), argument(2)]

    def body(text: Text, at: list[str]) -> None:
        place = digits(text, at[0], bounds)[2]
        total = text.op("add.f32", text.load("f32", 0, place), text.load("f32", 1, place))
        text.store("f32", 0, place, total)

    function = program([Level(merged(bounds))], body)
    assert _holds(function, _buffers(400, 400), 2, 3, 16)
    assert not _holds(function, _buffers(400, 400), 1 << 30, 1 << 30, 16)
    assert not _holds(function, _buffers(400, 400), 1 << 30, 1 << 29, 16)


def test_large_counts_do_not_overflow() -> None:
    """The range would be 2**64 bytes and look empty."""

    def body(text: Text, at: list[str]) -> None:
        index = text.index(0, (at[0], 64))
        text.store("f32", 0, index, text.load("f32", 1, index))

    function = program([Level((argument(0), 1 << 28))], body)
    for count in (1, 1 << 5, 1 << 30, (1 << 31) - 1):
        assert not _holds(function, _buffers(400, 400), count)
    assert _holds(function, _buffers(400, 400), -1)


@pytest.mark.parametrize("compare", ["cmp.lt.i64.u", "cmp.lt.i64.s"])
def test_limits_of_conditions_do_not_overflow(compare: str) -> None:
    """Loads happen below an argument; a large or negative one says nothing about the index."""

    def body(text: Text, at: list[str]) -> None:
        below = text.op(compare, at[0], argument(0))
        zero = text.constant(0.0, "f32")
        text.store(
            "f32", 0, at[0], text.when(below, lambda: text.load("f32", 1, text.index(0, (at[0], 8))), zero)
        )

    function = program([Level(40)], body)
    assert _holds(function, _buffers(160, 160), 5)
    for limit in (6, 40, 1 << 31, 1 << 58, 1 << 61, 1 << 62, (1 << 63) - 1, -1, -(1 << 63)):
        assert not _holds(function, _buffers(160, 160), limit)


def test_an_index_that_is_loaded_in_front() -> None:
    """A row of a table: its number has to be in range, and not to change while the nest runs."""

    def body(text: Text, at: list[str]) -> None:
        row = text.op("ext.i32.i64.s", text.load("i32", 2, argument(0)))
        text.store("f32", 0, at[0], text.load("f32", 1, text.index(0, (row, 20), (at[0], 1))))

    function = program([Level(20)], body)
    numbers = np.array([2, 0, 3, -1, 2**30], np.int32).view(np.uint8)
    for position, holds in enumerate([True, True, False, False, False]):
        assert _holds(function, [*_buffers(80, 240), numbers], position) == holds
    for position in (5, -1, 2**40, -(2**63)):
        assert not _holds(function, [*_buffers(80, 240), numbers], position)
    memory = np.zeros(400, np.uint8)
    assert not _holds(function, [memory[:80], np.zeros(240, np.uint8), memory[40:60]], 3)
    assert _holds(function, [memory[:80], np.zeros(240, np.uint8), memory[80:100]], 3)


def test_what_runs_for_long_looks_after_signals() -> None:
    """And so does a loop that has no other inside; what is short never does."""
    most = (1 << 31) - 1

    def body(text: Text, at: list[str]) -> None:
        text.store("f32", 0, text.index(0, (at[0], 0)), text.load("f32", 1, text.index(0, (at[1], 0))))

    for levels, sizes in (
        ([Level(argument(0)), Level(argument(1)), Level(2)], (most, most)),
        ([Level(argument(0)), Level(2), Level(argument(1))], (1, most)),
        ([Level(most), Level(most)], ()),
        ([Level(2), Level(most)], ()),
    ):
        compiled, given = _given(program(levels, body), _buffers(4, 4), *sizes)
        assert (compiled.run(given, 3), compiled.looks) == (-1, 3)
    for levels, sizes in (
        ([Level(argument(0)), Level(argument(1))], (300, 200)),
        ([Level(300), Level(9)], ()),
    ):
        compiled, given = _given(program(levels, body), _buffers(4, 4), *sizes)
        assert (compiled.run(given, 3), compiled.looks) == (300, 0)
