"""Sums of products of bfloat16 numbers, two at a time: memory is what the instructions leave, whatever the
numbers, the layout, and what is left over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import llvmlite.binding as llvm
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jitree.base.platform import processor
from jitree.dispatch.native.build import build
from jitree.dispatch.native.lower import lower
from jitree.dispatch.native.nests import reductions, tiles, writer
from jitree.dispatch.native.nests.products import PairRanges
from jitree.dispatch.native.source import from_program
from jitree.dispatch.native.ssa import SsaFunction
from jitree.vmfb.decode import BytecodeModule
from jitree.vmfb.words import ARITHMETICS
from tests.dispatch.native.nests import programs
from tests.dispatch.native.nests.checking import ELEMENTS, check, check_one_of_many
from tests.dispatch.native.nests.harness import Bytes, Compiled
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

lanes_of_processor = reductions.pair_lanes.__wrapped__
EXPONENTS = (100, 140)
"""Of usual numbers, as their bits have them: 2**-27 to 2**13."""


@pytest.fixture(autouse=True)
def _processor(monkeypatch: pytest.MonkeyPatch) -> None:
    if "avx512_bf16" not in processor.words("flags"):
        pytest.skip("no avx512_bf16")
    monkeypatch.setattr(tiles, "WORD_PANEL_BYTES", 64 * 64)
    monkeypatch.setattr(reductions, "LEAST_USES", 1)


def numbers(random: np.random.Generator, exponents: Sequence[int], count: int) -> Bytes:
    """bfloat16 numbers, of which some are zero."""
    exponent = random.integers(exponents[0], exponents[1] + 1, count)
    bits = exponent << 7 | random.integers(0, 128, count) | random.integers(0, 2, count) << 15
    return np.where(random.random(count) < 0.1, bits & 0x8000, bits).astype(np.uint16).view(np.uint8)


def sums(random: np.random.Generator, exponents: Sequence[int]) -> Bytes:
    """What sums begin with."""
    exponent = random.integers(exponents[0], exponents[1] + 1, ELEMENTS)
    bits = exponent << 23 | random.integers(0, 1 << 23, ELEMENTS) | random.integers(0, 2, ELEMENTS) << 31
    return np.where(random.random(ELEMENTS) < 0.2, bits & 1 << 31, bits).astype(np.uint32).view(np.uint8)


def memory(
    left: Sequence[int] = EXPONENTS, right: Sequence[int] = EXPONENTS, total: Sequence[int] = EXPONENTS
) -> list[Bytes]:
    random = np.random.default_rng(0)
    factors = [numbers(random, exponents, 4 * ELEMENTS) for exponents in (left, right)]
    return [sums(random, total), *factors, factors[0].copy()]


def number(text: Text, buffer: int, index: str, kind: str = "u") -> str:
    """As kernels of the compiler load one."""
    bits = text.op(f"ext.i16.i32.{kind}", text.load(f"i16.{kind}", buffer, index))
    return text.op("bitcast.i32.f32", text.op("shl.i32", bits, text.constant(16, "i32")))


def product(sizes: tuple[int, int, int], transposed: bool, kind: str = "u", apart: int = 1) -> Body:
    load = partial(number, kind=kind)
    return programs.product(sizes, "f32", (load, load), transposed, apart)


def takes_pairs(function: SsaFunction) -> bool:
    alternative = only_nest(function).plan.alternative
    product = None if alternative is None else alternative.product
    return product is not None and product.group == 2


@pytest.fixture(params=["asked", "always"])
def _choice(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second way shows that the instruction is what gives the bits, where all numbers are usual."""
    if request.param == "always":
        monkeypatch.setattr(PairRanges, "are_normal", lambda _: "true")


SIZES = [(17, 16, 24), (5, 70, 71), (1, 35, 66), (9, 20, 8), (2, 3, 131), (4, 64, 64)]


@pytest.mark.usefixtures("_choice")
@pytest.mark.parametrize("kind", ["u", "s"])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("sizes", SIZES)
def test_product(sizes: tuple[int, int, int], transposed: bool, kind: str) -> None:
    function = program([Level(size) for size in sizes], product(sizes, transposed, kind))
    assert takes_pairs(function)
    check_one_of_many(function, memory=memory())


@pytest.mark.usefixtures("_choice")
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("sizes", [(17, 16, 24), (20, 33, 3), (1, 18, 67), (3, 65, 130), (6, 2, 1)])
def test_sizes_of_the_call(sizes: tuple[int, int, int], transposed: bool) -> None:
    bounds: list[Bound] = [argument(number) for number in range(3)]
    function = program([Level(bound) for bound in bounds], product(sizes, transposed))
    assert takes_pairs(function)
    check(function, sizes, memory())


@pytest.mark.usefixtures("_choice")
@pytest.mark.parametrize("columns", [5, 18])
def test_convolution(columns: int) -> None:
    """The channels are the innermost loop, so products are added in the order of the program."""

    def body(text: Text, at: list[str]) -> None:
        row, column, feature, high, wide, channel = at
        out = text.index(0, (row, columns * 20), (column, 20), (feature, 1))
        image = text.index(0, (row, 200), (high, 200), (column, 9), (wide, 9), (channel, 1))
        filters = text.index(0, (high, 3 * 180), (wide, 180), (channel, 20), (feature, 1))
        left, right = number(text, 1, image), number(text, 2, filters)
        text.store("f32", 0, out, text.op("fma.f32", left, right, text.load("f32", 0, out)))

    levels = [Level(2), Level(columns), Level(20), Level(3), Level(3), Level(9)]
    function = program(levels, body)
    assert takes_pairs(function)
    check(function, memory=memory())


RANGES = {
    "usual": (EXPONENTS, EXPONENTS, EXPONENTS),
    "products that are just normal": ((61, 71), (81, 90), (24, 40)),
    "products that are just too small": ((60, 60), (81, 81), (24, 40)),
    "very small products": ((50, 60), (70, 80), (1, 10)),
    "denormal elements": ((0, 0), (200, 210), (24, 40)),
    "denormal rows": ((200, 210), (0, 0), (24, 40)),
    "denormal sums": ((61, 71), (81, 90), (0, 0)),
    "sums with bits below all products": ((61, 71), (81, 90), (20, 30)),
    "great products": ((185, 189), (185, 189), (200, 254)),
    "infinite products": ((190, 254), (190, 254), EXPONENTS),
    "infinity and NaN among elements": ((250, 255), (120, 130), EXPONENTS),
    "infinity and NaN among rows": ((120, 130), (250, 255), EXPONENTS),
    "infinity and NaN among sums": (EXPONENTS, EXPONENTS, (250, 255)),
}


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("name", RANGES)
def test_ranges(name: str, transposed: bool) -> None:
    sizes = (6, 35, 24)
    function = program([Level(size) for size in sizes], product(sizes, transposed))
    check(function, memory=memory(*RANGES[name]))


def differs_without_the_look(
    function: SsaFunction, given: list[Bytes], monkeypatch: pytest.MonkeyPatch
) -> bool:
    monkeypatch.setattr(PairRanges, "are_normal", lambda _: "true")
    try:
        check(function, memory=given)
    except AssertionError:
        return True
    return False


@pytest.mark.parametrize("buffer", [0, 1, 2])
@pytest.mark.parametrize("place", ["first", "last"])
def test_one_denormal_number(buffer: int, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The look takes in the first elements and the last ones, those of whole vectors as of what is left."""
    sizes = rows, columns, depth = 9, 37, 72
    function = program([Level(size) for size in sizes], product(sizes, False))
    given = [np.zeros_like(one) for one in memory()]
    start, length = [
        (7, rows * columns),
        (1, (rows - 1) * (depth + 3) + depth),
        (3, (depth - 1) * (columns + 5) + columns),
    ][buffer]
    elements = given[buffer].view(np.uint32 if buffer == 0 else np.uint16)
    elements[start if place == "first" else start + length - 1] = 1
    for other in {1, 2} - {buffer}:
        given[other].view(np.uint16)[:] = 0x7F00 if buffer else 0
    check(function, memory=given)
    assert differs_without_the_look(function, given, monkeypatch)


@pytest.mark.parametrize("both", [141, 142])
def test_what_is_left_of_two_products(both: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """(1 + 2**-7)**2 - (1 + 2**-6) is 2**-14: denormal with the first of these sums of exponents."""
    sizes = rows, columns, depth = 6, 35, 24
    function = program([Level(size) for size in sizes], product(sizes, False))
    given = [np.zeros_like(one) for one in memory()]
    left, right = (given[number].view(np.uint16) for number in (1, 2))
    for row in range(rows):
        left[1 + row * (depth + 3) :][:2] = 60 << 7 | 1, 1 << 15 | 60 << 7
    for k in range(2):
        right[3 + k * (columns + 5) :][:columns] = both - 60 << 7 | k + 1
    check(function, memory=given)
    assert differs_without_the_look(function, given, monkeypatch) == (both == 141)


@pytest.mark.parametrize("columns", [5, 64])
def test_the_look_at_numbers_looks_after_signals(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows that overlap have more iterations than elements. A call that ends leaves out everything."""
    monkeypatch.setattr(writer, "WORK", 1 << 10)
    rows, depth = 8, 320 // columns * 8

    def body(text: Text, at: list[str]) -> None:
        row, column, k = at
        out = text.index(0, (row, columns), (column, 1))
        left, right = number(text, 1, text.index(0, (row, 1), (k, 1))), text.index(0, (column, 1), (k, 1))
        total = text.op("fma.f32", left, number(text, 2, right), text.load("f32", 0, out))
        text.store("f32", 0, out, total)

    function = program([Level(rows), Level(columns), Level(depth)], body)
    assert takes_pairs(function)
    given = memory()
    refs = [value for value in function.arguments if value.type == "ref"]
    values = dict.fromkeys(function.arguments, 0) | dict(zip(refs, given, strict=True))
    before, compiled = given[0].copy(), Compiled(only_nest(function))
    of_numbers = (depth * rows >> 10) + (depth * columns >> 10)
    assert (compiled.run(values, of_numbers), compiled.looks) == (-1, of_numbers)
    assert (given[0] == before).all()


@dataclass(frozen=True)
class Case:
    sizes: tuple[int, int, int]
    transposed: bool
    apart: int
    """From one of the elements that all lanes share to the next."""
    order: tuple[int, ...]
    """Of the loops, from the outermost."""
    dynamic: tuple[bool, ...]
    least: tuple[int, int]
    """Least exponents of sums and of the first factor …"""
    both: int
    """… and of both factors together."""
    span: int


CASES = st.builds(
    Case,
    st.tuples(st.integers(1, 9), st.integers(1, 40), st.integers(1, 75)),
    st.booleans(),
    st.integers(1, 3),
    st.permutations(range(3)).map(tuple),
    st.tuples(st.booleans(), st.booleans(), st.booleans()),
    st.tuples(st.integers(20, 30), st.integers(1, 130)),
    st.integers(138, 146),
    st.integers(0, 6),
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(CASES)
def test_random_products(case: Case) -> None:
    """Where the least numbers are just normal, or just not."""
    bounds: list[Bound] = [
        argument(number) if dynamic else size
        for number, (size, dynamic) in enumerate(zip(case.sizes, case.dynamic, strict=True))
    ]
    body = product(case.sizes, case.transposed, apart=case.apart)

    def ordered(text: Text, at: list[str]) -> None:
        body(text, [at[case.order.index(number)] for number in range(3)])

    total, left = case.least
    ranges = [(least, least + case.span) for least in (left, max(case.both - left, 0), total)]
    function = program([Level(bounds[number]) for number in case.order], ordered)
    check_one_of_many(function, case.sizes, memory(*ranges))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("sizes", [(5, 19, 67), (1, 64, 64), (2, 33, 8)])
def test_no_byte_after_the_last_one(sizes: tuple[int, int, int], transposed: bool) -> None:
    """The look, words and rows end with the buffers."""
    function = program([Level(size) for size in sizes], product(sizes, transposed))
    left, right = programs.product_ends(sizes, transposed)
    check(function, memory=memory(), ends={1: 2 * left, 2: 2 * right})


@pytest.mark.parametrize("what", ["another shift", "a short sum", "a difference", "rows apart", "few uses"])
def test_others_stay_as_they_are(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = rows, columns, depth = 6, 20, 4 if what == "a short sum" else 24
    if what == "few uses":
        monkeypatch.setattr(reductions, "LEAST_USES", 8)

    def body(text: Text, at: list[str]) -> None:
        row, column, k = at
        out = text.index(0, (row, columns), (column, 1))
        left = number(text, 1, text.index(0, (row, depth), (k, 1)))
        apart = 2 if what == "rows apart" else 1
        right = number(text, 2, text.index(0, (k, 2 * columns), (column, apart)))
        if what == "another shift":
            bits = text.load("i16.u", 2, text.index(0, (k, columns), (column, 1)))
            right = text.op("bitcast.i32.f32", text.op("shl.i32", bits, text.constant(15, "i32")))
        total = text.op("fma.f32", left, right, text.load("f32", 0, out))
        text.store("f32", 0, out, text.op("neg.f32", total) if what == "a difference" else total)

    function = program([Level(rows), Level(columns), Level(depth)], body)
    assert not takes_pairs(function)
    check(function, sizes, memory())


def test_a_shift_that_the_program_loads() -> None:
    """What lies 16 bytes after the first of the globals is any number."""
    text, sizes = programs.Text(), (8, 20, 24)
    amount = text.op("global.load.i32", 16)

    def loaded(text: Text, buffer: int, index: str) -> str:
        return text.op("bitcast.i32.f32", text.op("shl.i32", text.load("i16.u", buffer, index), amount))

    body = programs.product(sizes, "f32", (loaded, loaded), False)
    zero, one, *bounds = map(text.constant, (0, 1, *sizes))
    loops = [programs.LoopText("cmp.lt.i64.s", zero, bound, one) for bound in bounds]
    text.nest(loops, lambda at: body(text, at))
    text.lines.append("return []")
    made = programs.as_module(text)
    made.globals_size = 32
    assert not takes_pairs(build(from_program(BytecodeModule.load(made.build()).program), 0))


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
def test_the_whole_function_is_valid(arithmetic: str) -> None:
    """Beside everything else that a module declares; products are exact, whatever the arithmetic."""
    sizes = (18, 64, 64)
    built = BytecodeModule.load(
        module([Level(size) for size in sizes], product(sizes, False)).build(), arithmetic=arithmetic
    )
    lowered = lower(from_program(built.program), ())
    assert "dpbf16ps" in lowered.text
    llvm.parse_assembly(lowered.text).verify()


def test_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the flags of a processor say."""
    known = {("avx512f", "avx512_bf16"): 16, ("avx512f", "avx512_vnni"): 0, ("avx2", "fma"): 0}
    for flags, lanes in known.items():
        monkeypatch.setattr(processor, "words", lambda _, flags=flags: frozenset(flags))
        assert lanes_of_processor() == lanes
