"""Numbers that are clamped to constants and cast: in one selection and one instruction, with the same bits as
the program's, of NaN, infinities and zeros too."""

from __future__ import annotations

import numpy as np
import pytest

from jitree.dispatch.native.nests import clamps
from jitree.dispatch.native.nests.clamps import bounds, clamp_of, fits, integer_bounds, is_extended
from jitree.dispatch.native.nests.reading import constant_f32
from jitree.dispatch.native.ssa import SsaFunction, Value
from tests.dispatch.native.nests.checking import check, some_memory
from tests.dispatch.native.nests.harness import Compiled
from tests.dispatch.native.nests.programs import Level, Text, only_nest, program
from tests.dispatch.semantics_reference import edge_values

COUNT = 200
QUANTISED = ("lower -128.0", "upper 127.0")


def clamped(text: Text, value: str, step: str) -> str:
    """As the compiler writes it: the constant where the number is NaN."""
    side, number = step.split()
    bound = text.constant(float(number), "f32")
    order = (bound, value) if side == "lower" else (value, bound)
    further = text.op("select.f32", text.op("cmp.lt.f32.u", *order), value, bound)
    return text.op("select.f32", text.op("cmp.nan.f32", value), bound, further)


def body(steps: tuple[str, ...], cast: str = "", rounded: bool = True) -> SsaFunction:
    def write(text: Text, at: list[str]) -> None:
        value = text.load("f32", 1, at[0])
        if rounded:
            value = text.op("round.f32.even", value)
            value = text.op("add.f32", value, text.constant(3.0, "f32"))
        for step in steps:
            value = clamped(text, value, step)
        text.store("i32" if cast else "f32", 0, at[0], text.op(cast, value) if cast else value)

    return program([Level(COUNT)], write)


def stored(function: SsaFunction) -> Value:
    value: Value = only_nest(function).structure.stores[0].stored
    return value


def run(function: SsaFunction) -> None:
    """On edge values, numbers about the bounds, and random bits."""
    random = np.random.default_rng(0)
    near = np.concatenate([np.arange(-140, 140, 3.5), [124.0, 124.5, -131.0, -131.5]])
    noise = np.frombuffer(random.bytes(4 * COUNT), np.float32)
    memory = some_memory(function)
    given = memory[1].view(np.float32)
    for values in (edge_values("f32"), near, noise):
        values = np.resize(values.astype(np.float32), COUNT)
        given[:COUNT] = values
        check(function, memory=memory)


@pytest.mark.parametrize("cast", ["", "cast.f32.si32", "cast.f32.ui32"])
@pytest.mark.parametrize(
    "steps",
    [QUANTISED, QUANTISED[::-1], ("lower 0.0", "upper 255.0"), ("lower -0.0", "upper inf"), ("upper -inf",)],
)
def test_clamps_keep_all_bits(steps: tuple[str, ...], cast: str) -> None:
    for rounded in (False, True):
        function = body(steps, cast, rounded)
        if not cast:
            assert (clamp_of(stored(function)) is None) == (not rounded and "0.0" not in steps[0])
        run(function)


@pytest.mark.parametrize("rounded", [True, False])
@pytest.mark.parametrize(
    "steps", [("lower -1.0",), ("upper 1.0",), ("lower 0.0", "upper 6.0"), ("upper -0.0",), ("lower 1e-40",)]
)
def test_denormal_numbers_stay_or_are_zeros_as_in_selections(steps: tuple[str, ...], rounded: bool) -> None:
    """Where kernels run: comparisons take them for zeros, selections leave their bits."""
    values = np.resize(np.array([1e-40, -1e-40, 0, -0.0, 1e-45, -1e-45, 0.5, -7], np.float32), COUNT)
    expected = values.copy()
    if rounded:
        expected = np.rint(expected) + np.float32(3)
    for step in steps:
        side, text = step.split()
        bound, flushed = np.float32(text), np.where(abs(expected) < 2.0**-126, 0, expected)
        limit = 0 if abs(bound) < 2.0**-126 else bound
        expected = np.where(flushed > limit if side == "lower" else flushed < limit, expected, bound)
    function = body(steps, rounded=rounded)
    refs = [value for value in function.arguments if value.type == "ref"]
    memory = some_memory(function)
    memory[1].view(np.float32)[:COUNT] = values
    given = dict.fromkeys(function.arguments, 0) | dict(zip(refs, memory, strict=True))
    assert Compiled(only_nest(function)).run(given, is_kernel=True) == COUNT
    np.testing.assert_array_equal(memory[0].view(np.uint32)[:COUNT], expected.view(np.uint32))


SELECTIONS = {
    "relu": lambda text, value, zero: text.op(
        "select.f32", text.op("cmp.lt.f32.u", zero, value), value, zero
    ),
    "turned": lambda text, value, zero: text.op(
        "select.f32", text.op("cmp.lt.f32.u", value, zero), zero, value
    ),
    "least": lambda text, value, zero: text.op(
        "select.f32", text.op("cmp.lt.f32.u", value, zero), value, zero
    ),
}


@pytest.mark.parametrize("bound", [0.0, 6.0, -0.0, 1e-40])
@pytest.mark.parametrize("scale", [0.5, -0.5, 1e-30])
@pytest.mark.parametrize("name", SELECTIONS)
def test_one_selection_is_a_clamp_of_scaled_integers(name: str, scale: float, bound: float) -> None:
    """Where neither is -0, denormal or NaN."""

    def write(text: Text, at: list[str]) -> None:
        number = text.op("cast.si32.f32", text.load("i32", 1, at[0]))
        value = text.op("mul.f32", number, text.constant(scale, "f32"))
        value = SELECTIONS[name](text, value, text.constant(bound, "f32"))
        upper = text.constant(9.0, "f32")
        text.store(
            "f32", 0, at[0], text.op("select.f32", text.op("cmp.lt.f32.u", upper, value), upper, value)
        )

    function = program([Level(COUNT)], write)
    assert (clamp_of(stored(function)) is not None) == (scale == 0.5 and str(bound) in ("0.0", "6.0"))
    memory = some_memory(function)
    memory[1].view(np.int32)[:COUNT] = np.resize(np.arange(-9, 30), COUNT)
    check(function, memory=memory)


def test_extensions_of_what_fits_are_nothing() -> None:
    """Of a clamped number, and of that less a zero point in 16 bits; not of one in eight bits."""

    def write(text: Text, at: list[str]) -> None:
        value = text.op("round.f32.even", text.load("f32", 1, at[0]))
        for step in QUANTISED:
            value = clamped(text, value, step)
        narrow = text.op("ext.i8.i32.s", text.op("cast.f32.si32", value))
        less = text.op("sub.i32", narrow, text.constant(3, "i32"))
        both = text.op("add.i32", text.op("ext.i16.i32.s", less), text.op("ext.i8.i32.s", less))
        text.store("i32", 0, at[0], both)

    function = program([Level(COUNT)], write)
    wide, short = stored(function).operands
    assert is_extended(wide) and not is_extended(short)
    assert integer_bounds(wide) == (-131, 124) and integer_bounds(short) == (-128, 127)
    run(function)


def test_casts_that_fit() -> None:
    assert fits(stored(body(QUANTISED, "cast.f32.si32")))
    assert fits(stored(body(QUANTISED[::-1], "cast.f32.ui32")))
    (number,) = stored(body(QUANTISED, "cast.f32.si32")).operands
    assert bounds(number) == (-128, 127)


OTHERS = {
    "halves": (QUANTISED, False),
    "one bound": (QUANTISED[:1], True),
    "a bound that is no whole number": (("lower -128.0", "upper 127.5"), True),
    "bounds near 32 bits": (("lower 0.0", "upper 4e9"), True),
    "infinite bounds": (("lower -inf", "upper inf"), True),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_casts_are_whole_ones(name: str) -> None:
    steps, rounded = OTHERS[name]
    function = body(steps, "cast.f32.si32", rounded)
    assert not fits(stored(function))
    run(function)


def test_a_constant_that_is_no_number_is_no_bound() -> None:
    function = body(("lower nan",))
    assert clamp_of(stored(function)) is None
    run(function)


def test_the_other_constant_is_no_clamp() -> None:
    """Where NaN becomes another number than the bound, both selections stay."""

    def write(text: Text, at: list[str]) -> None:
        value, bound = text.load("f32", 1, at[0]), text.constant(2.0, "f32")
        further = text.op("select.f32", text.op("cmp.lt.f32.u", bound, value), value, bound)
        other = text.op("select.f32", text.op("cmp.nan.f32", value), text.constant(5.0, "f32"), further)
        text.store("f32", 0, at[0], other)

    function = program([Level(COUNT)], write)
    assert clamp_of(stored(function)) is None
    run(function)


@pytest.mark.parametrize("times", [12, 40])
def test_an_operand_of_many_is_looked_at_once(times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each doubled number has the one before as both operands."""

    def write(text: Text, at: list[str]) -> None:
        value = text.op("round.f32.even", text.load("f32", 1, at[0]))
        for _ in range(times):
            value = text.op("add.f32", value, value)
        for step in QUANTISED:
            value = clamped(text, value, step)
        text.store("i32", 0, at[0], text.op("cast.f32.si32", value))

    looks: list[Value] = []

    def looked(value: Value) -> float | None:
        looks.append(value)
        return constant_f32(value)

    monkeypatch.setattr(clamps, "constant_f32", looked)
    assert fits(stored(program([Level(COUNT)], write)))
    assert len(looks) < 3 * times + 30
