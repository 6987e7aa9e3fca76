"""The functions of binary32 are correctly rounded with the same bits in vectors, scalars and plain Python.

``python -m tests.exhaustive`` looks at all numbers; this at many, and at those that are hardest to round.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from fractions import Fraction
from types import ModuleType
from typing import Any, cast

import numpy as np
import pytest

from jitree.base.platform import processor
from jitree.codegen.numbers import f32
from jitree.codegen.primitives import call_kernel
from jitree.codegen.vector_math import functions, ir, pairs, registers, tables
from jitree.dispatch.semantics import SEMANTICS
from tests import exact_functions
from tests.dispatch.vector_functions import LANES, Array, Wide, avx2_target, compiled, plain_target
from tests.dispatch.vector_math_cases import HARD, HARD_PAIRS, POWERS

MNEMONICS = sorted(name for name in ir.FUNCTIONS if name.endswith(".f32"))
WIDE = sorted(ir.FUNCTIONS.keys() - set(MNEMONICS))
OF_THE_LIBRARY = sorted(
    f"{name.removesuffix('.f32')}.f64" for name in MNEMONICS if f"{name.removesuffix('.f32')}.f64" not in WIDE
)
UNARY = sorted(exact_functions.FUNCTIONS)
EDGES = np.array(
    [0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 2, -2, 0.5, -0.5, 3, -3, 1e-40, -1e-40, 1.2e-38, 3e38, -3e38,
     16777215, 16777216, -16777217, 88.72283, 88.72283173, 88.72284, 88.8, -86, -87.4,
     -103.9, -104, -150, 9, 9.1, 3.9, 4, 128, -149, -150.1, 4194304, 1e22],
    np.float32,
)  # fmt: skip
LIBRARY: dict[str, Callable[..., float]] = {
    mnemonic: getattr(math, mnemonic.removesuffix(".f32"), lambda x: 2.0**x) for mnemonic in MNEMONICS
}
DOUBT = 2.0**-44
"""Relative error that the C library's binary64 functions stay below."""


@pytest.mark.parametrize(
    ("lanes", "way"), [(1, None), (LANES, None), (LANES, registers.FUNCTIONS["exp.f32"])]
)
def test_images_share_the_rare_ways_of_an_exponential(lanes: int, way: Callable[..., float] | None) -> None:
    texts = ir.calling_shared(ir.function_texts("exp.f32", "@f", lanes, "internal", way))
    defined = [text for text in texts if text.startswith("define") and " @f(" not in text]
    assert all(".in_memory" in text and " br " not in text for text in defined), defined


def _arguments(mnemonic: str) -> list[Array]:
    """Edge values (pairs of them), random bits, and random values of usual size, whole vectors in all."""
    random = np.random.default_rng(5)
    count = len(SEMANTICS[mnemonic].argument_types)
    edges = [array.ravel() for array in np.meshgrid(*[EDGES] * count)]
    columns = [
        np.concatenate([
            edge,
            random.integers(0, 2**32, 3000, np.uint32).view(np.float32),
            random.normal(0, 6, 3000).astype(np.float32),
            random.integers(-30, 30, 500).astype(np.float32),
        ])
        for edge in edges
    ]  # fmt: skip
    return [_whole_vectors(column) for column in columns]


def _whole_vectors(values: Array) -> Array:
    return np.resize(values, -(-len(values) // LANES) * LANES)


def _bits(*patterns: int) -> Array:
    return _whole_vectors(np.array(patterns, np.uint32).view(np.float32))


def _plain(mnemonic: str, arguments: list[Array]) -> Array:
    rows = zip(*(column.tolist() for column in arguments), strict=True)
    return np.array([SEMANTICS[mnemonic].function(*row) for row in rows], np.float32)


def _assert_same_bits(arguments: list[Array], actual: Array, expected: Array) -> None:
    same = (actual.view(np.uint32) == expected.view(np.uint32)) | (np.isnan(actual) & np.isnan(expected))
    wrong = np.flatnonzero(~same)[:3]
    assert not len(wrong), [(a[wrong], actual[wrong], expected[wrong]) for a in arguments]


@pytest.mark.parametrize("mnemonic", MNEMONICS)
def test_vectors_equal_plain_python(mnemonic: str) -> None:
    arguments = _arguments(mnemonic)
    plain = _plain(mnemonic, arguments)
    _assert_same_bits(arguments, compiled(mnemonic)(*arguments), plain)
    _assert_same_bits(arguments, compiled(mnemonic, plain_target())(*arguments), plain)


def _library(mnemonic: str, row: tuple[float, ...]) -> float:
    """In binary64, errors as C gives them; NaN where only the exact value tells."""
    try:
        return LIBRARY[mnemonic](*row)
    except OverflowError:
        negative = mnemonic == "pow.f32" and row[0] < 0 and row[1] % 2 == 1
        return -math.inf if negative else math.inf
    except ValueError:
        pole = {"log1p.f32": -1.0}.get(mnemonic, 0.0)
        if mnemonic.startswith("log") and row[0] == pole:
            return -math.inf
        if mnemonic == "pow.f32" and row[0] == 0.0:
            return math.copysign(math.inf, row[0]) if row[1] % 2 == 1 else math.inf
        return math.nan


def _correct(mnemonic: str, row: tuple[float, ...]) -> float:
    """The exact value rounded; the library's where it is beyond doubt."""
    value = _library(mnemonic, row)
    with np.errstate(over="ignore"):
        low, high = np.float32(value * (1.0 - DOUBT)), np.float32(value * (1.0 + DOUBT))
    if low == high or low != low:
        return float(low)
    return _exact(mnemonic, row)


def _exact(mnemonic: str, row: tuple[float, ...]) -> float:
    function = getattr(exact_functions, mnemonic.removesuffix(".f32"))
    if mnemonic == "pow.f32" and row[0] < 0.0:
        result = exact_functions.rounded(function(-Fraction(row[0]), Fraction(row[1])))
        return -result if row[1] % 2 == 1 else result
    return exact_functions.rounded(function(*map(Fraction, row)))


@pytest.mark.parametrize("mnemonic", MNEMONICS)
def test_correct_rounding(mnemonic: str) -> None:
    arguments = _arguments(mnemonic)
    if mnemonic in UNARY:  # every 65521st number, from both zeros to NaN
        dense = np.arange(0, 2**32, 65521, dtype=np.int64).astype(np.uint32).view(np.float32)
        arguments = [_whole_vectors(np.concatenate([arguments[0], dense]))]
    rows = zip(*(column.tolist() for column in arguments), strict=True)
    expected = np.array([_correct(mnemonic, row) for row in rows], np.float32)
    _assert_same_bits(arguments, compiled(mnemonic)(*arguments), expected)


def test_subnormal_powers_are_rarely_computed_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """That takes a thousand times as long, and sigmoids of numbers near 100 are full of them."""
    arguments = [np.linspace(-104.4, -87.3, 64 * LANES, dtype=np.float32)]
    expected = np.array([_correct("exp.f32", (x,)) for x in arguments[0].tolist()], np.float32)
    _assert_same_bits(arguments, compiled("exp.f32")(*arguments), expected)
    exactly: list[float] = []

    def exp_exact(x: float) -> float:
        exactly.append(x)
        return _exact("exp.f32", (x,))

    monkeypatch.setattr(functions, "exp_exact", exp_exact)
    _assert_same_bits(arguments, _plain("exp.f32", arguments), expected)
    assert len(exactly) <= 3


def test_subnormal_powers_are_zeros_in_kernels() -> None:
    arguments = np.linspace(-110, -87.2, 64 * LANES, dtype=np.float32)
    results, function = np.empty_like(arguments), cast("Any", compiled("exp.f32"))
    run = function.engine.get_function_address("run")
    call_kernel(run, arguments.ctypes.data, results.ctypes.data, len(arguments))
    expected = np.array([_correct("exp.f32", (x,)) for x in arguments.tolist()], np.float32)
    expected[expected < np.finfo(np.float32).smallest_normal] = 0
    _assert_same_bits([arguments], results, expected)


@pytest.mark.parametrize("mnemonic", UNARY)
def test_arguments_that_are_hard_to_round(mnemonic: str) -> None:
    arguments = [_bits(*HARD[mnemonic])]
    expected = np.array([_exact(mnemonic, (x,)) for x in arguments[0].tolist()], np.float32)
    _assert_same_bits(arguments, _plain(mnemonic, arguments), expected)
    _assert_same_bits(arguments, compiled(mnemonic)(*arguments), expected)


@pytest.mark.parametrize("mnemonic", ["atan2.f32", "pow.f32"])
def test_pairs_that_are_hard_to_round(mnemonic: str) -> None:
    arguments = [_bits(*column) for column in zip(*HARD_PAIRS[mnemonic], strict=True)]
    rows = zip(*(column.tolist() for column in arguments), strict=True)
    expected = np.array([_exact(mnemonic, row) for row in rows], np.float32)
    _assert_same_bits(arguments, _plain(mnemonic, arguments), expected)
    _assert_same_bits(arguments, compiled(mnemonic)(*arguments), expected)


def test_the_angle_of_no_number_keeps_its_sign() -> None:
    """As the C library's, whose sum of both keeps the first NaN."""
    heights = _bits(0xBF800000, 0x3F800000, 0xFF800000, 0x80000000, 0xFFC00000)
    for pattern in (0x7FC00000, 0xFFC00000):
        widths = np.full(len(heights), pattern, np.uint32).view(np.float32)
        angles = compiled("atan2.f32")(heights, widths)
        assert (angles.view(np.uint32) == pattern).all()


NAN, NEGATIVE_NAN = 0x7FC00123, 0xFFC00123
POWERS_OF_NO_NUMBER = [
    (NAN, 0xFFC00456, NAN), (NEGATIVE_NAN, 0x7FC00456, NEGATIVE_NAN), (0x40000000, 0xFFC00456, 0xFFC00456),
    (NAN, 0x3F800000, NAN), (NEGATIVE_NAN, 0x3F800000, NAN), (NEGATIVE_NAN, 0xBF800000, NAN),
    (NEGATIVE_NAN, 0x40400000, NAN), (NEGATIVE_NAN, 0x40000000, NEGATIVE_NAN), (NAN, 0x3F000000, NAN),
    (NEGATIVE_NAN, 0x7F800000, NEGATIVE_NAN), (NEGATIVE_NAN, 0xFF800000, NEGATIVE_NAN),
    (NEGATIVE_NAN, 0, 0x3F800000), (0x3F800000, NEGATIVE_NAN, 0x3F800000),
]  # fmt: skip
"""Base, exponent and what the C library makes of them: the first NaN; an odd power turns a sign."""


def test_powers_of_no_number_are_those_of_the_c_library() -> None:
    bases, exponents, expected = (_bits(*column) for column in zip(*POWERS_OF_NO_NUMBER, strict=True))
    for powers in (compiled("pow.f32")(bases, exponents), _plain("pow.f32", [bases, exponents])):
        assert powers.view(np.uint32).tolist() == expected.view(np.uint32).tolist()


INVALID_OPERANDS = [
    ("log.f32", (0xBF800000,), 0xFFC00000), ("log2.f32", (0xFF800000,), 0xFFC00000),
    ("log10.f32", (0xBF800000,), 0x7FC00000), ("log1p.f32", (0xC0000000,), 0xFFC00000),
    ("sin.f32", (0x7F800000,), 0xFFC00000), ("cos.f32", (0xFF800000,), 0xFFC00000),
    ("pow.f32", (0xC0000000, 0x3F000000), 0xFFC00000),
]  # fmt: skip
"""Function, operands and the NaN they give: the same one on every tier and processor."""


@pytest.mark.parametrize(("mnemonic", "operands", "expected"), INVALID_OPERANDS)
def test_an_invalid_operand_gives_one_nan(mnemonic: str, operands: tuple[int, ...], expected: int) -> None:
    arguments = [_bits(*[operand] * 5) for operand in operands]
    for results in (compiled(mnemonic)(*arguments), _plain(mnemonic, arguments)):
        assert set(results.view(np.uint32).tolist()) == {expected}


def test_powers_half_way_between_two_numbers() -> None:
    """Their binary64 value has 25 bits; the even neighbour is the result."""
    for base, exponent in POWERS:
        expected = np.float32(base**exponent)
        assert SEMANTICS["pow.f32"].function(base, exponent) == expected
        columns = [np.full(LANES, value, np.float32) for value in (base, exponent)]
        assert (compiled("pow.f32")(*columns) == expected).all()


FIRST_TRIES = [(way, name) for way in (registers, pairs) for name in sorted(way.FUNCTIONS)]


@pytest.mark.parametrize(("way", "mnemonic"), FIRST_TRIES)
def test_first_tries(way: ModuleType, mnemonic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What processors with AVX-512 or AVX2 compute at first, on any; it rarely leaves a result open."""
    left: list[float] = []

    def seldom(
        condition: bool, function: Callable[..., float], arguments: tuple[float, ...], value: float
    ) -> float:
        if condition:
            left.extend(arguments)
        return function(*arguments) if condition else value

    monkeypatch.setattr(way, "seldom", seldom)
    random = np.random.default_rng(3)
    usual = np.concatenate([random.normal(0, sigma, 2000) for sigma in (0.001, 0.1, 1, 10)]).astype(
        np.float32
    )
    for x in usual.tolist():
        assert way.FUNCTIONS[mnemonic](x) == SEMANTICS[mnemonic].function(x), x
    assert len(left) < len(usual) // 200
    left.clear()
    for x in (89.0, 100.0, 1e9, math.inf):  # sigmoids of large numbers are full of these
        assert way.FUNCTIONS[mnemonic](x) == SEMANTICS[mnemonic].function(x)
        assert way.FUNCTIONS[mnemonic](-16 * x) == SEMANTICS[mnemonic].function(-16 * x)
    assert not left
    for x in EDGES.tolist():
        result, expected = (
            np.float32(function(x)) for function in (way.FUNCTIONS[mnemonic], SEMANTICS[mnemonic].function)
        )
        assert result.tobytes() == expected.tobytes() or (np.isnan(result) and np.isnan(expected)), x


@pytest.mark.skipif("avx2" not in processor.words("flags"), reason="runs instructions of AVX2")
@pytest.mark.parametrize("mnemonic", sorted(pairs.FUNCTIONS))
def test_vectors_of_avx2(mnemonic: str) -> None:
    """On processors with AVX-512, too; and where subnormal numbers are zeros."""
    dense = np.arange(0, 2**32, 65521, dtype=np.int64).astype(np.uint32).view(np.float32)
    columns = [
        _arguments(mnemonic)[0],
        _bits(*HARD[mnemonic]),
        np.linspace(-110, 90, 2**16, dtype=np.float32),
    ]
    arguments = _whole_vectors(np.concatenate([*columns, dense]))
    expected, function = compiled(mnemonic)(arguments), cast("Any", compiled(mnemonic, avx2_target()))
    _assert_same_bits([arguments], function(arguments), expected)
    results = [np.empty_like(arguments) for _ in range(2)]
    for out, of in zip(results, (function, cast("Any", compiled(mnemonic))), strict=True):
        run = of.engine.get_function_address("run")
        call_kernel(run, arguments.ctypes.data, out.ctypes.data, len(arguments))
    _assert_same_bits([arguments], *results)


def test_centres_of_tanh() -> None:
    """With each the polynomial is within its doubt in its piece; near 9 where two results meet."""
    rows = tables.tanh_centres()
    assert len(rows) == pairs.TANH_LAST - pairs.TANH_FIRST + 1
    starts = np.arange(pairs.TANH_FIRST, pairs.TANH_LAST + 2, dtype=np.int32) << pairs.TANH_SHIFT
    ends = (starts.view(np.float32) - np.float32(pairs.TANH_OFFSET)).tolist()
    for (centre, value), start, end in zip(rows, ends[:-1], ends[1:], strict=True):
        slope = Fraction(f32(1.0 - value * value))
        for x in map(Fraction, (start, (start + end) / 2, end)):
            h = x - Fraction(centre)
            third = Fraction(pairs.TWO_THIRDS) - slope
            found = Fraction(value) + slope * h * (1 + h * (h * third - Fraction(value)))
            if start and start < 8.9:
                assert abs(found - exact_functions.tanh(x)) < Fraction(pairs.TANH_DOUBT) * x, float(x)
    half_way = Fraction(math.atanh(1 - 2.0**-25))
    centre, value = rows[-2]
    slope, h = Fraction(f32(1.0 - value * value)), half_way - Fraction(centre)
    found = Fraction(value) + slope * h * (
        1 + h * (h * (Fraction(pairs.TWO_THIRDS) - slope) - Fraction(value))
    )
    assert abs(found - (1 - Fraction(1, 2**25))) < Fraction(pairs.TANH_DOUBT) * half_way


def test_tanh_of_a_half() -> None:
    result = SEMANTICS["tanh.f32"].function(0.5)
    assert struct.pack("<f", result) == struct.pack("<I", 0x3EEC9A9F)


@pytest.mark.parametrize("mnemonic", ["tanh.f32", "erf.f32"])
def test_bounds(mnemonic: str) -> None:
    """No value beyond 1 on the way to the limit, and 1 from there on."""
    x = np.linspace(2.5, 10, 160000, dtype=np.float32)
    y = compiled(mnemonic)(x)
    assert y.max() == 1.0
    assert (y[x > 9.1] == 1.0).all()
    assert (compiled(mnemonic)(-x) == -y).all()


@pytest.mark.parametrize("mnemonic", WIDE)
def test_binary64_within_a_unit(mnemonic: str) -> None:
    random = np.random.default_rng(7)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 5e-324, -1e-310, 1e-30, 9.0, 9.001, 1.0, 1e300, -1e300]
    chosen = np.concatenate(
        [random.normal(0, 0.1, 100), random.normal(0, 4, 300), random.uniform(0.5, 2, 99)]
    )
    arguments = np.resize(np.concatenate([special, chosen]), 512)
    plain = np.array([SEMANTICS[mnemonic].function(x) for x in arguments.tolist()])
    for target in (None, plain_target()):
        _assert_same_wide_bits(compiled(mnemonic, target)(arguments), plain)
    function = getattr(exact_functions, mnemonic.removesuffix(".f64"))
    for x, result in zip(arguments.tolist(), plain.tolist(), strict=True):
        if (
            math.isfinite(x)
            and x != 0.0
            and (x > 0.0 or not mnemonic.startswith("log"))
            and 1e-100 < abs(x) < 1e100
        ):
            assert abs(Fraction(result) - function(Fraction(x))) <= Fraction(math.ulp(result)) * Fraction(
                4, 5
            ), x


@pytest.mark.parametrize("mnemonic", WIDE)
def test_binary64_of_tiny_numbers_within_a_unit(mnemonic: str) -> None:
    """Down to the least denormal number, where products keep no bits for what they lack."""
    random = np.random.default_rng(13)
    sizes = np.ldexp(random.uniform(1, 2, 1600), np.repeat(np.arange(-1074, -874), 8))
    arguments = np.concatenate([sizes, [5e-324, 1e-310, 2.0**-1022, 2.0**-900] * 8])
    if not mnemonic.startswith("log"):
        arguments[::2] *= -1.0
    plain = np.array([SEMANTICS[mnemonic].function(x) for x in arguments.tolist()])
    for target in (None, plain_target()):
        _assert_same_wide_bits(compiled(mnemonic, target)(arguments), plain)
    function = getattr(exact_functions, mnemonic.removesuffix(".f64"))
    near_zero = Fraction(2) ** -80
    slope = function(near_zero) / near_zero
    for x, result in zip(arguments.tolist(), plain.tolist(), strict=True):
        exact = function(Fraction(x)) if mnemonic.startswith("log") else slope * Fraction(x)
        assert abs(Fraction(result) - exact) <= Fraction(math.ulp(result)) * Fraction(4, 5), x


@pytest.mark.parametrize("mnemonic", OF_THE_LIBRARY)
def test_binary64_of_the_c_library_within_a_unit(mnemonic: str) -> None:
    """What docs/arithmetic.md says. The argument of a logarithm is its magnitude, as that of a power is."""
    random, function = np.random.default_rng(11), SEMANTICS[mnemonic].function
    exact = getattr(exact_functions, mnemonic.removesuffix(".f64"))
    columns = [
        np.concatenate([random.normal(0, sigma, 150) for sigma in (0.1, 4, 40)]).tolist()
        for _ in SEMANTICS[mnemonic].argument_types
    ]
    compared = 0
    for first, *others in zip(*columns, strict=True):
        arguments = (abs(first) if mnemonic.startswith(("log", "pow")) else first, *others)
        result = function(*arguments)
        if 1e-100 < abs(result) < 1e100:
            error = abs(Fraction(result) - exact(*map(Fraction, arguments)))
            assert error <= Fraction(math.ulp(result)), arguments
            compared += 1
    assert compared > 400


def _assert_same_wide_bits(actual: Wide, expected: Wide) -> None:
    same = (actual.view(np.uint64) == expected.view(np.uint64)) | (np.isnan(actual) & np.isnan(expected))
    assert same.all(), (actual[~same][:3], expected[~same][:3])
