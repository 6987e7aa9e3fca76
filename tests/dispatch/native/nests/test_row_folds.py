"""Lanes that run over rows: memory is what the instructions leave, whatever the rows' number and length."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pytest

from jitree.base.platform import processor
from jitree.dispatch.native import nests
from jitree.dispatch.native.build import build
from jitree.dispatch.native.nests import folds, passes, planner
from jitree.dispatch.native.nests.body import Body as Written
from jitree.dispatch.native.nests.cutting import best_cut
from jitree.dispatch.native.nests.loops import LoopRange
from jitree.dispatch.native.nests.writer import Writer
from jitree.dispatch.native.source import from_program
from jitree.dispatch.native.ssa import SsaFunction
from jitree.vmfb.decode import BytecodeModule
from tests.dispatch.native.nests.checking import check, some_memory
from tests.dispatch.native.nests.harness import Compiled
from tests.dispatch.native.nests.programs import Body, Level, LoopText, Text, as_module, only_nest, program

masks_of_processor = folds.has_masks.__wrapped__


@pytest.fixture(autouse=True)
def _processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code for masks runs on others, too, where it is not made."""
    monkeypatch.setattr(folds, "has_masks", lambda: True)
    monkeypatch.setattr(planner, "accumulators", lambda: 16)
    monkeypatch.setattr(planner, "copies", lambda: 4)


def convolution(rows: int, columns: int, gap: int, element: str = "f32", start: int = 0) -> Body:
    """A filter of 3 by 3 over eight channels of an image whose rows are longer than those of the result."""
    pitch = columns + gap

    def body(text: Text, at: list[str]) -> None:
        feature, row, column, channel, high, wide = at
        out = text.index(5, (feature, rows * columns), (row, columns), (column, 1))
        image = ((channel, (rows + 2) * pitch), (row, pitch), (high, pitch), (column, 1), (wide, 1))
        filters = text.index(0, (feature, 72), (channel, 9), (high, 3), (wide, 1))
        left, right = text.load(element, 1, filters), text.load(element, 2, text.index(start, *image))
        text.store(element, 0, out, text.op(f"fma.{element}", left, right, text.load(element, 0, out)))

    return body


def levels(features: int, rows: int, columns: int) -> list[Level]:
    return [Level(size) for size in (features, rows, columns, 8, 3, 3)]


@pytest.mark.parametrize(("rows", "columns"), [(13, 4), (5, 5), (7, 7), (10, 10), (2, 17), (3, 20), (5, 27)])
@pytest.mark.parametrize("features", [5, 7])
def test_convolution(features: int, rows: int, columns: int) -> None:
    """Whole tiles, vectors that overlap in the last one, and few lanes that are left."""
    function = program(levels(features, rows, columns), convolution(rows, columns, 2))
    assert only_nest(function).plan.fold is not None
    check(function)


@pytest.mark.parametrize(("columns", "together"), [(7, 2), (10, 4), (17, 8), (20, 4), (24, 2)])
def test_parts_have_rows_that_fill_vectors(columns: int, together: int) -> None:
    """Single rows of 20 columns would take twice the time in parts."""
    nest = only_nest(program(levels(7, 63, columns), convolution(63, columns, 2)))
    cut = best_cut([nest], set())
    assert nest.plan.fold is not None and cut is not None
    assert cut.nests[0].level is nest.plan.fold.rows
    assert cut.unit == together and cut.most == -(-63 // together)


@pytest.mark.parametrize("gap", [1, 9, 40])
@pytest.mark.parametrize("element", ["f32", "i32"])
def test_rows_far_apart(element: str, gap: int) -> None:
    function = program(levels(5, 4, 18), convolution(4, 18, gap, element))
    assert only_nest(function).plan.fold is not None
    check(function)


@pytest.mark.parametrize("extension", ["s", "u"])
@pytest.mark.parametrize("columns", [7, 17, 20])
def test_elements_of_16_bits(columns: int, extension: str) -> None:
    """Whole vectors and few lanes, of numbers that are extended after the load."""
    rows = 5

    def body(text: Text, at: list[str]) -> None:
        feature, row, column, k, high = at
        out = text.index(5, (feature, rows * columns), (row, columns), (column, 1))
        image = text.index(1, (row, columns + 7), (high, columns + 7), (column, 1), (k, 1))
        filters = text.index(0, (feature, 72), (k, 9), (high, 1))
        left, right = (
            text.op(f"ext.i16.i32.{extension}", text.load(f"i16.{extension}", number, index))
            for number, index in ((1, filters), (2, image))
        )
        text.store("i32", 0, out, text.op("fma.i32", left, right, text.load("i32", 0, out)))

    function = program([Level(size) for size in (6, rows, columns, 8, 9)], body)
    assert only_nest(function).plan.fold is not None
    check(function)


def padded(rows: int, columns: int, gap: int, element: str) -> SsaFunction:
    """Values of many instructions, of rows that follow each other, stored to longer ones, each with its own
    number of a plane."""

    def body(text: Text, at: list[str]) -> None:
        plane, row, column = at
        pitch = columns + gap
        value = text.load("f32", 1, text.index(3, (plane, rows * columns), (row, columns), (column, 1)))
        value = text.op("mul.f32", value, text.load("f32", 2, text.index(0, (plane, 1))))
        for number in range(32):
            value = text.op("mul.f32" if number % 3 else "add.f32", value, text.constant(1.25, "f32"))
        if element != "f32":
            value = text.op("cast.f32.si32", value)
        out = text.index(7, (plane, (rows + 2) * pitch), (row, pitch), (column, 1))
        text.store(element, 0, out, value)

    return program([Level(size) for size in (3, rows, columns)], body)


SHAPES = [(25, 5), (3, 5), (2, 6), (7, 7), (6, 11), (28, 28), (5, 20), (9, 9)]


@pytest.mark.parametrize("gap", [1, 30])
@pytest.mark.parametrize("element", ["f32", "i32", "i16", "i8"])
@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_stores_in_longer_rows(rows: int, columns: int, element: str, gap: int) -> None:
    """Nothing between the rows is touched, nor after the last one."""
    function = padded(rows, columns, gap, element)
    plan = only_nest(function).plan
    assert plan.fold is not None and plan.fold.width == plan.fold.pitch
    size, pitch = {"i8": 1, "i16": 2}.get(element, 4), columns + gap
    end = size * (7 + 2 * (rows + 2) * pitch + (rows - 1) * pitch + columns)
    memory = [np.resize(given, 1 << 16) for given in some_memory(function)]
    check(function, memory=memory, ends={0: end})


@pytest.mark.parametrize("ends", [(1, 3), (2,), (6, 20, 24)])
def test_parts_of_stores(ends: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges of rows, whatever vectors they fill."""
    write = passes._write_loops

    def write_parts(writer: Writer, body: Written, part: LoopRange | None) -> None:
        fold = body.nest.plan.fold
        assert part is None and fold is not None
        for start, end in pairwise((0, *ends, 25)):
            write(writer, body, LoopRange(fold.rows, str(start), str(end)))

    monkeypatch.setattr(passes, "_write_loops", write_parts)
    check(padded(25, 5, 2, "i8"))


def test_parts_leave_few_lanes_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product of planes of 25 by 5, then rows of a padded image: parts of rows would be 25, of 5 lanes each
    in the product, parts of features are 16 of whole planes."""
    monkeypatch.setattr(folds, "has_masks", lambda: False)
    text = Text()

    def nest(sizes: tuple[int, ...], body: Body) -> None:
        start, step = text.constant(0), text.constant(1)
        loops = [LoopText("cmp.lt.i64.s", start, text.constant(size), step) for size in sizes]
        text.nest(loops, lambda at: body(text, at))

    def product(text: Text, at: list[str]) -> None:
        out = text.index(0, (at[0], 125), (at[1], 1))
        left = text.load("i8.s", 1, text.index(0, (at[0], 64), (at[2], 1)))
        right = text.load("i8.s", 2, text.index(0, (at[2], 125), (at[1], 1)))
        text.store("i32", 3, out, text.op("fma.i32", left, right, text.load("i32", 3, out)))

    def pad(text: Text, at: list[str]) -> None:
        value = text.load("i32", 3, text.index(0, (at[0], 125), (at[1], 5), (at[2], 1)))
        text.store("i8", 0, text.index(0, (at[0], 189), (at[1], 7), (at[2], 1)), value)

    nest((64, 125, 64), product)
    nest((64, 25, 5), pad)
    text.lines.append("return []")
    function = build(from_program(BytecodeModule.load(as_module(text).build()).program), 0)
    found = [nest for nest in nests.find(function) if isinstance(nest, nests.Nest)]
    cut = best_cut(found, {found[0].structure.stores[0].buffer})
    assert cut is not None and [part.level.extent for part in cut.nests if part.level] == [64, 64]


def test_few_instructions_are_stored_row_by_row() -> None:
    def body(text: Text, at: list[str]) -> None:
        value = text.load("f32", 1, text.index(0, (at[0], 5), (at[1], 1)))
        text.store("f32", 0, text.index(0, (at[0], 7), (at[1], 1)), value)

    assert only_nest(program([Level(25), Level(5)], body)).plan.fold is None


@pytest.mark.parametrize("rows", [2, 5, 16])
@pytest.mark.parametrize("columns", [17, 24])
def test_no_element_after_the_last_one(rows: int, columns: int) -> None:
    """The image ends with the last element that the last window needs."""
    function = program(levels(4, rows, columns), convolution(rows, columns, 2))
    memory = [np.resize(given, 1 << 15) for given in some_memory(function)]
    check(function, memory=memory, ends={2: 4 * 8 * (rows + 2) * (columns + 2)})


@pytest.mark.parametrize(
    "what",
    ["rows that fill vectors", "long rows", "short rows", "every other element", "no masks", "rows as data"],
)
def test_others_stay_as_they_are(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {"rows that fill vectors": 32, "long rows": 40, "short rows": 13}.get(what, 20)
    monkeypatch.setattr(folds, "has_masks", lambda: what != "no masks")

    def body(text: Text, at: list[str]) -> None:
        feature, row, column, k, high = at
        out = text.index(0, (feature, 3 * columns), (row, columns), (column, 1))
        apart = 2 if what == "every other element" else 1
        image = text.index(0, (row, 70), (column, apart), (k, 1), (high, 70))
        right = text.load("f32", 2, image)
        if what == "rows as data":
            right = text.op("mul.f32", right, text.op("cast.si64.f32", row))
        left = text.load("f32", 1, text.index(0, (feature, 20), (k, 2), (high, 1)))
        text.store("f32", 0, out, text.op("fma.f32", left, right, text.load("f32", 0, out)))

    function = program([Level(size) for size in (6, 3, columns, 9, 9)], body)
    assert only_nest(function).plan.fold is None
    check(function)


def test_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    for flags, masks in {("avx2", "fma"): False, ("avx2", "avx512f"): True}.items():
        monkeypatch.setattr(processor, "words", lambda _, flags=flags: frozenset(flags))
        assert masks_of_processor() is masks


def test_addresses_begin_with_what_the_outermost_loop_adds() -> None:
    """Else what it adds is added again in each iteration of the inner loops: a twentieth of their time."""
    text = Compiled(only_nest(program(levels(8, 4, 20), convolution(4, 20, 2)))).text
    loops = re.findall(r"(?s)^(\S*loop\.\d+):\n((?:(?!loop\.\d+:\n).)*?)^\1\.latch:", text, re.MULTILINE)
    assert loops
    for label, inside in loops:
        counters = set(re.findall(r"getelementptr .*i64 (%\S*loop\.\d+\.counter)$", inside, re.MULTILINE))
        assert counters <= {f"%{label}.counter"}
