"""Sums of products of bytes, four at a time: memory is what the instructions leave, whatever the signs, the
layout, and what is left over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import llvmlite.binding as llvm
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jitree.base.platform import processor
from jitree.codegen.image.generated import Pipeline
from jitree.dispatch.native.lower import lower
from jitree.dispatch.native.nests import ahead, planner, reductions, tiles
from jitree.dispatch.native.source import from_program
from jitree.dispatch.native.ssa import SsaFunction
from jitree.vmfb.decode import BytecodeModule
from tests.dispatch.native.nests import programs
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

lanes_of_processor = reductions.dot_lanes.__wrapped__
widens_of_processor = reductions.widens.__wrapped__
SIGNS = [(left, right) for left in "su" for right in "su"]
PROCESSORS = {
    "AVX512-VNNI": (16, 16, 4, "avx512_vnni"),
    "AVX512-VNNI by halves": (8, 16, 4, "avx512_vnni"),
    "AVX-VNNI": (8, 6, 6, "avx_vnni"),
    "AVX2": (8, 6, 6, "avx2"),
    "AArch64": (4, 4, 4, "dotprod"),
    "without": (0, 16, 4, ""),
}
"""Lanes of an instruction, vectors and copies in a tile, and the flag of processors that have it."""


@pytest.fixture(autouse=True, params=PROCESSORS)
def _processor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    lanes, accumulators, copies, flag = PROCESSORS[request.param]
    if flag and flag not in processor.words("flags") | processor.arm_features():
        pytest.skip(f"no {flag}")
    monkeypatch.setattr(reductions, "dot_lanes", lambda: lanes)
    monkeypatch.setattr(reductions, "widens", lambda: flag == "avx2")
    monkeypatch.setattr(planner, "accumulators", lambda: accumulators)
    monkeypatch.setattr(planner, "copies", lambda: copies)
    monkeypatch.setattr(tiles, "WORD_PANEL_BYTES", 64 * 64)


def takes_dots(function: SsaFunction) -> bool:
    """Whether a nest is written with the instruction; never where there is none."""
    found = only_nest(function).plan.product is not None
    assert found <= bool(reductions.dot_lanes())
    return found or not reductions.dot_lanes()


def product(sizes: tuple[int, int, int], signs: tuple[str, str], transposed: bool) -> Body:
    left, right = (partial(_load, sign) for sign in signs)
    return programs.product(sizes, "i32", (left, right), transposed)


def _load(sign: str, text: Text, buffer: int, index: str) -> str:
    return text.load(f"i8.{sign}", buffer, index)


@pytest.mark.parametrize("signs", SIGNS)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("sizes", [(17, 16, 24), (5, 70, 71), (1, 35, 66), (9, 20, 5), (2, 3, 131)])
def test_product(sizes: tuple[int, int, int], transposed: bool, signs: tuple[str, str]) -> None:
    """Sums in memory are large numbers at first, so they wrap; bytes have all values."""
    function = program([Level(size) for size in sizes], product(sizes, signs, transposed))
    is_left = reductions.widens() and sizes[0] == 1 and not transposed  # nothing shares what is widened
    assert only_nest(function).plan.product is None if is_left else takes_dots(function)
    check_one_of_many(function)


@pytest.mark.parametrize("pipeline_of", [as_kernels, quick])
def test_the_bits_are_those_of_all_pipelines(pipeline_of: Callable[[str], Pipeline]) -> None:
    """So that most of many nests need no more than the quick one."""
    sizes = (5, 70, 71)
    function = program([Level(size) for size in sizes], product(sizes, ("s", "u"), True))
    check(function, pipeline_of=pipeline_of)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("sizes", [(17, 16, 24), (20, 33, 3), (1, 18, 67), (3, 65, 130), (6, 2, 1)])
def test_sizes_of_the_call(sizes: tuple[int, int, int], transposed: bool) -> None:
    bounds: list[Bound] = [argument(number) for number in range(3)]
    function = program([Level(bound) for bound in bounds], product(sizes, ("s", "s"), transposed))
    assert takes_dots(function)
    check(function, sizes)


@pytest.mark.parametrize("loaded,extended,signed", [("u", "s", True), ("s", "u", False)])
def test_the_last_extension_decides(loaded: str, extended: str, signed: bool) -> None:
    """As in kernels of the compiler, which extend what they load; product and sum are two instructions."""

    def body(text: Text, at: list[str]) -> None:
        row, column, k = at
        out = text.index(0, (row, 20), (column, 1))
        left = text.op(
            f"ext.i8.i32.{extended}", text.load(f"i8.{loaded}", 1, text.index(0, (row, 9), (k, 1)))
        )
        right = text.load("i8.s", 2, text.index(0, (k, 20), (column, 1)))
        total = text.op("add.i32", text.op("mul.i32", right, left), text.load("i32", 0, out))
        text.store("i32", 0, out, total)

    function = program([Level(6), Level(20), Level(9)], body)
    assert takes_dots(function)
    dot = only_nest(function).plan.product
    assert dot is None or (dot.element_signed, dot.row_signed) == (signed, True)
    check(function)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("depth", [32, 35])
def test_pieces_of_rows_are_asked_for(depth: int, transposed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row by a matrix of which a nest takes some columns, all iterations of an instruction in each line."""
    monkeypatch.setattr(ahead, "LEAST_BYTES", 1024)
    monkeypatch.setattr(ahead, "ROWS_AHEAD", 8)

    def body(text: Text, at: list[str]) -> None:
        column, k = at
        place = ((column, depth), (k, 1)) if transposed else ((k, 160), (column, 1))
        left, right = text.load("i8.s", 1, text.index(0, (k, 1))), text.load("i8.s", 2, text.index(0, *place))
        out = text.index(0, (column, 1))
        text.store("i32", 0, out, text.op("fma.i32", left, right, text.load("i32", 0, out)))

    function = program([Level(70), Level(depth)], body)
    nest = only_nest(function)
    assert bool(nest.plan.streamed) != transposed
    rows = nest.plan.product.group if nest.plan.product else 1
    assert transposed or Compiled(nest).text.count("call void @llvm.prefetch") >= rows
    check(function)


@pytest.mark.parametrize("columns", [5, 18])
def test_convolution(columns: int) -> None:
    """Rows and columns of the filter: channels are added up innermost, wherever their loop stands."""

    def body(text: Text, at: list[str]) -> None:
        row, column, feature, channel, high, wide = at
        out = text.index(0, (row, columns * 20), (column, 20), (feature, 1))
        image = text.index(0, (row, 200), (high, 200), (column, 7), (wide, 7), (channel, 1))
        filters = text.index(0, (high, 3 * 140), (wide, 140), (channel, 20), (feature, 1))
        left, right = text.load("i8.s", 1, image), text.load("i8.s", 2, filters)
        text.store("i32", 0, out, text.op("fma.i32", left, right, text.load("i32", 0, out)))

    levels = [Level(2), Level(columns), Level(20), Level(7), Level(3), Level(3)]
    function = program(levels, body)
    assert takes_dots(function)
    check(function)


@pytest.mark.parametrize("columns", [7, 20, 37])
@pytest.mark.parametrize("signs", SIGNS)
def test_convolution_of_planes(columns: int, signs: tuple[str, str]) -> None:
    """What all lanes share lies apart along the channels. Vectors of a row overlap."""

    def body(text: Text, at: list[str]) -> None:
        feature, row, column, channel, high, wide = at
        out = text.index(0, (feature, 2 * columns), (row, columns), (column, 1))
        image = text.index(0, (channel, 200), (row, columns + 2), (high, columns + 2), (column, 1), (wide, 1))
        filters = text.index(0, (feature, 54), (channel, 9), (high, 3), (wide, 1))
        left, right = text.load(f"i8.{signs[0]}", 1, filters), text.load(f"i8.{signs[1]}", 2, image)
        text.store("i32", 0, out, text.op("fma.i32", left, right, text.load("i32", 0, out)))

    levels = [Level(9), Level(2), Level(columns), Level(6), Level(3), Level(3)]
    function = program(levels, body)
    assert takes_dots(function)
    check(function)


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("signs", SIGNS)
def test_convolution_of_each_plane(signs: tuple[str, str], step: int) -> None:
    """Each plane has a filter of its own: what the lanes have differs from row to row and plane to plane."""

    def body(text: Text, at: list[str]) -> None:
        row, column, plane, high, wide = at
        out = text.index(0, (plane, 6 * 16), (row, 16), (column, 1))
        image = text.index(0, (plane, 16 * 20), (row, step * 20), (high, 20), (column, 1), (wide, 1))
        filters = text.index(0, (plane, 25), (high, 5), (wide, 1))
        left, right = text.load(f"i8.{signs[0]}", 1, filters), text.load(f"i8.{signs[1]}", 2, image)
        text.store("i32", 0, out, text.op("fma.i32", left, right, text.load("i32", 0, out)))

    function = program([Level(6), Level(16), Level(3), Level(5), Level(5)], body)
    assert takes_dots(function) or reductions.widens()
    check(function)


@dataclass(frozen=True)
class Case:
    sizes: tuple[int, int, int]
    gaps: tuple[int, int, int]
    """Elements between rows, of what is stored and of both factors."""
    signs: tuple[str, str]
    transposed: bool
    apart: int
    """From one of the elements that all lanes share to the next."""
    order: tuple[int, ...]
    """Of the loops, from the outermost."""
    dynamic: tuple[bool, ...]


CASES = st.builds(
    Case,
    st.tuples(st.integers(1, 9), st.integers(1, 40), st.integers(1, 75)),
    st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(0, 9)),
    st.sampled_from(SIGNS),
    st.booleans(),
    st.integers(1, 3),
    st.permutations(range(3)).map(tuple),
    st.tuples(st.booleans(), st.booleans(), st.booleans()),
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(CASES)
def test_random_products(case: Case) -> None:
    _, columns, depth = case.sizes
    bounds: list[Bound] = [
        argument(number) if dynamic else size
        for number, (size, dynamic) in enumerate(zip(case.sizes, case.dynamic, strict=True))
    ]

    def body(text: Text, at: list[str]) -> None:
        row, column, k = (at[case.order.index(number)] for number in range(3))
        out = text.index(0, (row, columns + case.gaps[0]), (column, 1))
        place = ((column, depth + case.gaps[2]), (k, 1))
        if not case.transposed:
            place = ((k, columns + case.gaps[2]), (column, 1))
        stride = depth * case.apart + case.gaps[1]
        left = text.load(f"i8.{case.signs[0]}", 1, text.index(0, (row, stride), (k, case.apart)))
        right = text.load(f"i8.{case.signs[1]}", 2, text.index(0, *place))
        text.store("i32", 0, out, text.op("fma.i32", left, right, text.load("i32", 0, out)))

    check_one_of_many(program([Level(bounds[number]) for number in case.order], body), case.sizes)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("sizes", [(5, 19, 67), (1, 64, 64), (2, 33, 6)])
def test_no_byte_after_the_last_one(sizes: tuple[int, int, int], transposed: bool) -> None:
    """Words and rows end with the buffers."""
    function = program([Level(size) for size in sizes], product(sizes, ("s", "s"), transposed))
    left, right = programs.product_ends(sizes, transposed)
    check(function, ends={1: left, 2: right})


@pytest.mark.parametrize("what", ["rows apart", "a word too short", "a sum of i8", "two rows"])
def test_others_stay_as_they_are(what: str) -> None:
    depth = 3 if what == "a word too short" else 11
    kind = "i8" if what == "a sum of i8" else "i32"

    def body(text: Text, at: list[str]) -> None:
        row, column, k = at
        out = text.index(0, (row, 20), (column, 1))
        apart = 2 if what == "rows apart" else 1
        lanes = 1 if what == "two rows" else 0
        left = text.load("i8.s", 1, text.index(0, (row, 30), (k, 1), (column, lanes)))
        right = text.load("i8.s", 2, text.index(0, (k, 60), (column, apart)))
        before = text.load("i8.s" if kind == "i8" else kind, 0, out)
        text.store(kind, 0, out, text.op("fma.i32", left, right, before))

    function = program([Level(6), Level(20), Level(depth)], body)
    assert only_nest(function).plan.product is None
    check(function)


def test_largest_bytes() -> None:
    """-128 by -128 and 255 by 255, so often that nothing may saturate."""
    for signs, byte in [(("s", "s"), 0x80), (("u", "u"), 0xFF), (("u", "s"), 0x80), (("s", "u"), 0x80)]:
        sizes = (2, 16, 300)
        function = program([Level(size) for size in sizes], product(sizes, signs, True))
        memory = [np.full(1 << 14, byte, np.uint8) for _ in some_memory(function)]
        check(function, memory=memory)


def test_the_whole_function_is_valid() -> None:
    """Beside everything else that a module declares."""
    sizes = (18, 64, 64)
    built = BytecodeModule.load(
        module([Level(size) for size in sizes], product(sizes, ("s", "s"), False)).build()
    )
    lowered = lower(from_program(built.program), ())
    instruction = "neon.sdot" if reductions.dot_lanes() == reductions.NEON else "vpdpbusd"
    if reductions.widens():
        instruction = "pmadd.wd"
    assert (instruction in lowered.text) == bool(reductions.dot_lanes())
    llvm.parse_assembly(lowered.text).verify()


def test_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the flags of a processor say."""
    known = {
        ("avx2", "avx512f", "avx512vl", "avx512_vnni"): (16, False),
        ("avx512f", "avx512_vnni"): (0, False),
        ("avx2", "avx_vnni"): (8, False),
        ("avx2", "fma"): (8, True),
        ("avx", "sse4_1"): (0, False),
    }
    monkeypatch.setattr(processor, "arm_features", frozenset)
    for flags, expected in known.items():
        monkeypatch.setattr(processor, "words", lambda _, flags=flags: frozenset(flags))
        assert (lanes_of_processor(), widens_of_processor()) == expected
