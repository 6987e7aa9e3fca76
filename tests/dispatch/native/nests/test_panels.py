"""Products with a transposed matrix that is put into panels: memory is what the instructions leave."""

from __future__ import annotations

from collections.abc import Callable

import llvmlite.binding as llvm
import pytest

from jitree.codegen.image.generated import Pipeline
from jitree.dispatch.native.lower import lower
from jitree.dispatch.native.nests import ahead, memory, planner, tiles, writer
from jitree.dispatch.native.source import from_program
from jitree.vmfb.decode import BytecodeModule
from tests.dispatch.native.nests.checking import check, check_one_of_many, some_memory
from tests.dispatch.native.nests.harness import Compiled, as_kernels, quick
from tests.dispatch.native.nests.programs import (
    Body,
    Bound,
    Level,
    Text,
    argument,
    module,
    only_nest,
    program,
)


@pytest.fixture(autouse=True, params=[8, 64], ids=["blocks of 8", "one block"])
def _blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Iterations of a block, of elements with 4 bytes."""
    monkeypatch.setattr(tiles, "PANEL_BYTES", 4 * 16 * request.param)


@pytest.fixture(autouse=True, params=[(16, 4), (6, 6)], ids=["32 registers", "16 registers"])
def _tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of processors with AVX-512, and of others: which of them makes panels depends on the rows."""
    accumulators, copies = request.param
    monkeypatch.setattr(planner, "accumulators", lambda: accumulators)
    monkeypatch.setattr(planner, "copies", lambda: copies)
    monkeypatch.setattr(tiles, "has_masks", lambda: False)  # test_panels_beside.py is about those


def product(columns: int, depth: int, start: int) -> Body:
    """Rows times a transposed matrix, which begins at an element of its buffer."""

    def body(text: Text, at: list[str]) -> None:
        row, column, k = at
        out = text.index(7, (row, columns), (column, 1))
        left = text.load("f32", 1, text.index(0, (row, depth), (k, 1)))
        right = text.load("f32", 2, text.index(start, (column, depth), (k, 1)))
        text.store("f32", 0, out, text.op("fma.f32", left, right, text.load("f32", 0, out)))

    return body


@pytest.mark.parametrize(
    "rows,columns,depth", [(17, 16, 24), (16, 35, 21), (9, 20, 16), (20, 33, 19), (19, 5, 40)]
)
@pytest.mark.parametrize("dynamic", [False, True])
def test_product(rows: int, columns: int, depth: int, dynamic: bool) -> None:
    """Columns that fill no vector, a depth that is no multiple of a square or of a block."""

    sizes = (rows, columns, depth)
    bounds: list[Bound] = [argument(number) if dynamic else size for number, size in enumerate(sizes)]
    function = program([Level(bound) for bound in bounds], product(columns, depth, 3))
    assert len(only_nest(function).plan.packed) == 1
    check_one_of_many(function, sizes)


@pytest.mark.parametrize("pipeline_of", [as_kernels, quick])
def test_the_bits_are_those_of_all_pipelines(pipeline_of: Callable[[str], Pipeline]) -> None:
    """So that most of many nests need no more than the quick one."""
    check(program([Level(9), Level(20), Level(16)], product(20, 16, 3)), pipeline_of=pipeline_of)


@pytest.mark.parametrize("element", ["i8.s", "i8.u", "i16.s", "i32", "f64"])
def test_element_types(element: str) -> None:
    """Sums of narrow integers wrap where they wait between blocks."""
    kind = element.split(".")[0]

    def body(text: Text, at: list[str]) -> None:
        row, column, k = at
        out = text.index(0, (row, 18), (column, 1))
        left = text.load(element, 1, text.index(0, (row, 19), (k, 1)))
        right = text.load(element, 2, text.index(0, (column, 19), (k, 1)))
        wide = kind if kind in ("i32", "f64") else "i32"
        text.store(kind, 0, out, text.op(f"fma.{wide}", left, right, text.load(element, 0, out)))

    function = program([Level(10), Level(18), Level(19)], body)
    assert only_nest(function).plan.packed
    check(function)


def test_two_reductions() -> None:
    """A sum of products: panels belong to one iteration of the outer one."""

    def body(text: Text, at: list[str]) -> None:
        row, column, part, k = at
        out = text.index(0, (row, 20), (column, 1))
        left = text.load("f32", 1, text.index(0, (row, 60), (part, 17), (k, 1)))
        right = text.load("f32", 2, text.index(0, (column, 60), (part, 18), (k, 1)))
        text.store("f32", 0, out, text.op("fma.f32", left, right, text.load("f32", 0, out)))

    function = program([Level(18), Level(20), Level(3), Level(17)], body)
    assert only_nest(function).plan.packed
    check(function)


def test_two_panels() -> None:
    """Two transposed matrices in one sum."""

    def body(text: Text, at: list[str]) -> None:
        row, column, k = at
        out = text.index(0, (row, 20), (column, 1))
        left = text.load("f32", 1, text.index(0, (row, 30), (k, 1)))
        one = text.load("f32", 2, text.index(0, (column, 30), (k, 1)))
        other = text.load("f32", 3, text.index(5, (column, 40), (k, 1)))
        product = text.op("fma.f32", left, one, text.load("f32", 0, out))
        text.store("f32", 0, out, text.op("fma.f32", left, other, product))

    function = program([Level(16), Level(20), Level(30)], body)
    assert len(only_nest(function).plan.packed) == 2
    check(function)


def test_blocks_look_after_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that one tile and its rest take are no loop. A call that ends leaves out later blocks."""
    monkeypatch.setattr(writer, "WORK", 1)

    def run(depth: int, looks: int) -> tuple[int | None, int, bytes]:
        function = program([Level(9), Level(16), Level(depth)], product(16, 40, 3))
        compiled, memory = Compiled(only_nest(function)), some_memory(function)
        refs = [value for value in function.arguments if value.type == "ref"]
        values = dict.fromkeys(function.arguments, 0) | dict(zip(refs, memory, strict=True))
        return compiled.run(values, looks), compiled.looks, memory[0].tobytes()

    if tiles.PANEL_BYTES < 4 * 16 * 40:
        assert run(40, 3) == (-1, 3, run(24, 9)[2])
        assert run(40, 9)[:2] == (9, 4)
    else:
        assert run(40, 9)[:2] == (9, 0)


def test_each_iteration_has_its_own_rows() -> None:
    """A mean over each image: images share a factor of each channel, and nothing to make a panel of."""

    def body(text: Text, at: list[str]) -> None:
        image, channel, k = at
        out = text.index(0, (image, 20), (channel, 1))
        element = text.load("f32", 1, text.index(0, (image, 400), (channel, 20), (k, 1)))
        factor = text.load("f32", 2, text.index(0, (channel, 1)))
        text.store("f32", 0, out, text.op("fma.f32", element, factor, text.load("f32", 0, out)))

    function = program([Level(8), Level(20), Level(20)], body)
    assert not only_nest(function).plan.packed
    check(function)


def test_the_last_rows_end_with_the_buffer() -> None:
    """The last row ends with the buffer. 18 columns do not fill vectors: no lane reads after the buffer."""

    check(program([Level(7), Level(18), Level(11)], product(18, 11, 4096 - 18 * 11)))


def test_the_whole_function_is_valid() -> None:
    """Beside everything else that a module declares."""

    def body(text: Text, at: list[str]) -> None:
        row, column, k = at
        out = text.index(0, (row, 16), (column, 1))
        left = text.load("f32", 1, text.index(0, (row, 16), (k, 1)))
        right = text.load("f32", 2, text.index(0, (column, 16), (k, 1)))
        text.store("f32", 0, out, text.op("fma.f32", left, right, text.load("f32", 0, out)))

    built = BytecodeModule.load(module([Level(18), Level(16), Level(16)], body).build())
    lowered = lower(from_program(built.program), ())
    assert "@llvm.stackrestore" in lowered.text
    asked = lowered.text.count("call void @llvm.prefetch.p0")
    assert asked == 4 * -(-tiles.PANEL_BYTES // 16 // memory.LINE_BYTES)  # 4 rows, of 16 lanes in a panel
    llvm.parse_assembly(lowered.text).verify()


@pytest.mark.parametrize(
    ("rows", "columns", "pitch", "depth", "least", "asked"),
    [
        (1, 64, 128, 30, 1024, True),
        (1, 40, 160, 16, 1024, True),  # columns that do not fill vectors
        (1, 16, 128, 31, 1024, True),
        (4, 16, 128, 20, 1024, True),  # few tiles share them
        (1, 64, 64, 30, 1024, False),  # whole rows are foreseen
        (1, 64, 128, 15, 1024, False),  # few iterations
        (1, 64, 128, 16, 4097, False),  # 4 KiB are near
    ],
)
def test_pieces_of_rows_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, rows: int, columns: int, pitch: int, depth: int, least: int, asked: bool
) -> None:
    """A row by a matrix of longer rows than the nest takes."""
    monkeypatch.setattr(ahead, "LEAST_BYTES", least)
    monkeypatch.setattr(ahead, "ROWS_AHEAD", 8)

    def body(text: Text, at: list[str]) -> None:
        row, column, k = at
        out = text.index(0, (row, columns), (column, 1))
        left = text.load("f32", 1, text.index(0, (row, depth), (k, 1)))
        right = text.load("f32", 2, text.index(0, (k, pitch), (column, 1)))
        text.store("f32", 0, out, text.op("fma.f32", left, right, text.load("f32", 0, out)))

    function = program([Level(rows), Level(columns), Level(depth)], body)
    assert ("@llvm.prefetch" in Compiled(only_nest(function)).text) == asked
    check(function)
