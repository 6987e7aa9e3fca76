"""exp, tanh, erf, log and pow of binary32: straight-line code that means the same on every tier, one value or
a whole vector at a time.

Each operation is written with its own rounding (``f32(a * b)``, never fused), each decision is a choice
between two computed values, and nothing is used but primitives; so plain Python evaluates these functions as
they stand, and :mod:`jitree.dispatch.vector_math_ir` turns the same code into LLVM IR for any lane count.

Results are within 1 unit in the last place for exp, log and pow, within 6 for tanh and 7 for erf: one
rational function each, where the last units are the price of half the time.

The coefficients are least-squares fits with weights iterated to equal relative errors.
"""

from __future__ import annotations

from typing import Final

from jitree.dispatch.primitives import (
    INVALID_NAN,
    choose,
    divide,
    f32,
    f32_from_integer,
    f32_of_bits,
    f32_to_bits,
    f64,
    f64_of_bits,
    f64_to_bits,
    i32,
    i64,
)

INFINITY: Final = float("inf")


def _rounded(*values: float) -> tuple[float, ...]:
    return tuple(map(f32, values))


ROUNDING_F32: Final = 12582912.0
"""1.5 * 2**23: added and taken away it rounds to an integer, which the low bits of the sum hold."""
ROUNDING_F64: Final = 6755399441055744.0
"""1.5 * 2**52."""
ROUNDING_F64_BITS: Final = 0x4338000000000000

EXP_LOWEST: Final = -104.0
"""exp of less is below half of the smallest subnormal."""
EXP_HIGHEST: Final = 88.72283172607422
"""exp of more is infinite; the last binary32 number below the logarithm of the largest."""
EXP_SMALL: Final = -86.0
TWO_POWER_MINUS_64: Final = 2.0**-64
LOG2_E: Final = 1.44269502162933349609375
LN2_HIGH: Final = 0.693359375
"""ln 2 in 9 bits: products with exponents are exact."""
LN2_LOW: Final = f32(-2.12194440e-4)
EXP_COEFFICIENTS: Final = _rounded(
    0.4999999305037172, 0.1666651478794575, 0.041668456856772125, 0.008369419150437176,
    0.0013813141259033845,
)  # fmt: skip
"""(exp(r) - 1 - r) / r**2 for abs(r) <= 0.35."""

TANH_LIMIT: Final = 9.015625
"""tanh of more rounds to 1."""
TANH_NUMERATOR: Final = _rounded(
    0.9999999791942653, 0.13379674206097233, 0.003493981852699403, 2.0582598450477576e-05,
    1.3317845145717896e-08,
)  # fmt: skip
TANH_DENOMINATOR: Final = _rounded(
    1.0, 0.46712989514026226, 0.025870874471404248, 0.0003283005790953679, 7.761516844935674e-07,
)  # fmt: skip

ERF_LIMIT: Final = 3.9375
"""erf of more rounds to 1."""
ERF_NUMERATOR: Final = _rounded(
    1.128379143934417, 0.19153991754888, 0.05287384187499478, 0.003807652867207836, 0.00028466617920639553,
    2.025857866088244e-06,
)  # fmt: skip
ERF_DENOMINATOR: Final = _rounded(
    1.0, 0.503080510907856, 0.11455512032047674, 0.015054078382209256, 0.0011705834799343243,
    3.783014657889905e-05,
)  # fmt: skip

SMALLEST_NORMAL_F32: Final = 2.0**-126
SQRT_HALF_F32_BITS: Final = 0x3F3504F3
LOG_COEFFICIENTS: Final = _rounded(
    0.33333331708788120, -0.25000821046329830, 0.20001226762270213, -0.16623356870318579, 0.14201760440031522,
    -0.13160189322475113, 0.12761562466204737, -0.07634460097207692,
)  # fmt: skip
"""(log(1 + f) - f + f**2 / 2) / f**3 for 1 + f between sqrt(1/2) and sqrt(2)."""

SQRT_HALF_F64_BITS: Final = 0x3FE6A09E667F3BCD
LOG2_COEFFICIENTS: Final = (
    2.88539008177785, 0.9617966941131811, 0.5770779423895964, 0.41220925064020586, 0.31990575945041466,
    0.282899286524029,
)  # fmt: skip
"""log2((1 + s) / (1 - s)) / s, in s**2."""
EXP2_COEFFICIENTS: Final = (
    0.9999999999616833, 0.6931471807284539, 0.24022651198156617, 0.05550410353427723, 0.009618027253821845,
    0.0013333922579077248, 0.00015469291099696285, 1.5201918092495381e-05,
)  # fmt: skip
POW_EXPONENT_LIMIT: Final = 256.0
"""2 to the power of more is infinite, of its negative is zero."""
ALL_INTEGERS_EVEN: Final = 16777216.0
"""From 2**24 on every binary32 value is an even integer."""


def exp_f32(x: float) -> float:
    clamped = choose(x < EXP_LOWEST, EXP_LOWEST, x)
    shifted = f32(f32(clamped * LOG2_E) + ROUNDING_F32)
    exponent = f32(shifted - ROUNDING_F32)
    r = f32(f32(clamped - f32(exponent * LN2_HIGH)) - f32(exponent * LN2_LOW))
    series = f32(f32(f32(_polynomial_f32(r, EXP_COEFFICIENTS) * f32(r * r)) + r) + 1.0)
    # The exponent is added to the bits of the series; near the smallest numbers 64 too much at first.
    small = x < EXP_SMALL
    shifted = choose(small, f32(shifted + 64.0), shifted)
    scaled = f32_of_bits(i32(f32_to_bits(series) + i32(f32_to_bits(shifted) << 23)))
    scaled = choose(small, f32(scaled * TWO_POWER_MINUS_64), scaled)
    return choose(x <= EXP_HIGHEST, scaled, f32(x + INFINITY))


def tanh_f32(x: float) -> float:
    clamped = _clamp(x, -TANH_LIMIT, TANH_LIMIT)
    return _clamp(_odd_rational(clamped, TANH_NUMERATOR, TANH_DENOMINATOR), -1.0, 1.0)


def erf_f32(x: float) -> float:
    clamped = _clamp(x, -ERF_LIMIT, ERF_LIMIT)
    return _clamp(_odd_rational(clamped, ERF_NUMERATOR, ERF_DENOMINATOR), -1.0, 1.0)


def log_f32(x: float) -> float:
    subnormal = x < SMALLEST_NORMAL_F32
    scaled = choose(subnormal, f32(x * 8388608.0), x)
    offset = i32(f32_to_bits(scaled) - SQRT_HALF_F32_BITS)
    mantissa = f32_of_bits(i32((offset & 0x7FFFFF) + SQRT_HALF_F32_BITS))
    power = i32(i32(offset >> 23) - choose(subnormal, i32(23), i32(0)))
    exponent = f32_from_integer(power)
    f = f32(mantissa - 1.0)
    square = f32(f * f)
    tail = f32(f32(_polynomial_f32(f, LOG_COEFFICIENTS) * f) * square)
    tail = f32(f32(tail + f32(exponent * LN2_LOW)) - f32(square * 0.5))
    result = f32(f32(exponent * LN2_HIGH) + f32(f + tail))
    result = choose(x > 0.0, result, INVALID_NAN)
    result = choose(x == 0.0, -INFINITY, result)
    return choose(x < INFINITY, result, x)


def pow_f32(x: float, y: float) -> float:
    """In binary64, rounded once. As C's ``powf``: 1 for y = 0 and for x = 1, NaN or not."""
    base, exponent = f64(x), f64(y)
    magnitude = choose(base < 0.0, -base, base)
    product = choose(magnitude == 1.0, 0.0, exponent * _log2(magnitude))
    result = _exp2(_clamp(product, -POW_EXPONENT_LIMIT, POW_EXPONENT_LIMIT))
    shifted = exponent + ROUNDING_F64
    integral = (shifted - ROUNDING_F64 == exponent) | (exponent >= ALL_INTEGERS_EVEN)
    integral = integral | (exponent <= -ALL_INTEGERS_EVEN)
    odd = integral & ((f64_to_bits(shifted) & 1) == 1)
    odd = odd & (exponent < ALL_INTEGERS_EVEN) & (exponent > -ALL_INTEGERS_EVEN)
    result = choose(odd & (f32_to_bits(x) < 0), -result, result)
    undefined = (base < 0.0) & (base > -INFINITY) & (integral ^ True)
    result = choose(undefined, INVALID_NAN, result)
    result = choose(base != base, base, result)
    result = choose(exponent != exponent, exponent, result)
    return f32(choose((base == 1.0) | (exponent == 0.0), 1.0, result))


def _clamp(x: float, lowest: float, highest: float) -> float:
    """NaN stays NaN."""
    x = choose(x < lowest, lowest, x)
    return choose(x > highest, highest, x)


def _polynomial_f32(x: float, coefficients: tuple[float, ...]) -> float:
    """Horner's scheme; the constant term comes first."""
    value = coefficients[-1]
    for coefficient in coefficients[-2::-1]:
        value = f32(f32(x * value) + coefficient)
    return value


def _polynomial_f64(x: float, coefficients: tuple[float, ...]) -> float:
    value = coefficients[-1]
    for coefficient in coefficients[-2::-1]:
        value = x * value + coefficient
    return value


def _odd_rational(x: float, numerator: tuple[float, ...], denominator: tuple[float, ...]) -> float:
    square = f32(x * x)
    product = f32(x * _polynomial_f32(square, numerator))
    return f32(divide(product, _polynomial_f32(square, denominator)))


def _log2(x: float) -> float:
    """Of a binary32 value that is not negative, as binary64; good for 40 bits."""
    offset = i64(f64_to_bits(x) - SQRT_HALF_F64_BITS)
    mantissa = f64_of_bits(i64((offset & 0xFFFFFFFFFFFFF) + SQRT_HALF_F64_BITS))
    s = divide(mantissa - 1.0, mantissa + 1.0)
    fraction = _polynomial_f64(s * s, LOG2_COEFFICIENTS) * s
    exponent = f64_of_bits(i64(i64(offset >> 52) + ROUNDING_F64_BITS)) - ROUNDING_F64
    result = exponent + fraction
    result = choose(x == 0.0, -INFINITY, result)
    return choose(x == INFINITY, INFINITY, result)


def _exp2(x: float) -> float:
    """Of a value from -1000 to 1000, as binary64; good for 34 bits."""
    shifted = x + ROUNDING_F64
    fraction = x - (shifted - ROUNDING_F64)
    power = f64_of_bits(i64(i64(f64_to_bits(shifted) + 1023) << 52))
    return _polynomial_f64(fraction, EXP2_COEFFICIENTS) * power
