"""States the functions of binary32, correctly rounded. The code means the same on every tier, for one value
or a whole vector at a time.

A value is computed in binary64, good for some 40 bits, and rounded. Where its error could decide how it is
rounded (for one argument in forty thousand), a function of :mod:`exact` gives the result. So it
does not matter how the value comes about: :func:`multiply_add` rounds once or twice, as suits the processor.

Decisions are choices between two computed values, and nothing is used but primitives; so plain Python
evaluates these functions as they stand, and :mod:`ir` turns the same code into LLVM IR for any
lane count.

tanh, erf and log10 of binary64 are within 0.8 units of the last place; C libraries are off by up to two. The
other functions of binary64 are the C library's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from jitree.codegen.numbers import (
    INVALID_NAN,
    choose,
    divide,
    f32,
    f32_of_bits,
    f32_to_bits,
    f64,
    f64_to_bits,
    lookup,
    multiply_add,
    rarely,
)
from jitree.codegen.vector_math.exact import (
    atan2_exact,
    atan_exact,
    cos_exact,
    erf_exact,
    exact_product,
    exact_sum,
    exp2_exact,
    exp_exact,
    expm1_exact,
    log1p_exact,
    log2_exact,
    log10_exact,
    log10_wide,
    log_exact,
    pow_exact,
    sin_exact,
    tanh_exact,
)
from jitree.codegen.vector_math.tables import (
    BIASED_ROUNDING_F64,
    ERF_LIMIT,
    ERF_MASK,
    ERF_STEP,
    HALF_PI,
    INFINITY,
    LN2,
    LOG2_E,
    LOG10_E,
    PI,
    POSITIVE_NAN,
    ROUNDING_F64,
    SHORT_LOG_COEFFICIENTS,
    TANH_LIMIT,
    TANH_MASK,
    TANH_STEP,
    arc_tangent,
    bend_of_erf,
    biased_power_of_two,
    clamp,
    defined_from,
    erf_rests,
    erf_slopes,
    erf_values,
    exp_reduced,
    expm1_reduced,
    expm1_reduced_exactly,
    log1p_reduced,
    polynomial,
    power_of_two,
    products_of_quarter_turns,
    split,
    tanh_rests,
    tanh_values,
)

SIGN: Final = -0x80000000
MAGNITUDE: Final = 0x7FFFFFFF
ROUNDING_F32: Final = 12582912.0
"""1.5 * 2**23: added and taken away it rounds to an integer, which the low bits of the sum hold."""

TOLERANCE: Final = 2.0**-40
"""What is rounded is nearer to the exact value, in relation to it."""
NEAR: Final = 2**12
"""The same in units of binary64."""
NEAR_OFFSET: Final = NEAR - 2**28
NEAR_MASK: Final = 2**29 - 2 * NEAR

TWO_OVER_PI: Final = 0.6366197723675814
HALF_PI_PARTS: Final = (
    float.fromhex("0x1.921fb54p+0"), float.fromhex("0x1.10b46118p-30"),
    float.fromhex("0x1.313198a2e0370p-61"),
)  # fmt: skip
"""Two of 30 bits, and the rest."""
TURNS_LIMIT: Final = 4194304.0
"""Quarter turns in less have 22 bits, so that products with the parts above are exact."""
SIN_COEFFICIENTS: Final = (
    0.9999999999999954, -0.16666666666614832, 0.00833333332363791, -0.0001984126318914029,
    2.7555251596859637e-06, -2.475523827444278e-08,
)  # fmt: skip
"""sin(r) / r in r**2 for abs(r) <= pi / 4: 2**-47."""
COS_COEFFICIENTS: Final = (
    0.9999999999999999, -0.4999999999999915, 0.041666666666453724, -0.0013888888868702944,
    2.480157814191548e-05, -2.755517696452949e-07, 2.062738818693324e-09,
)  # fmt: skip
"""cos(r) in r**2 for abs(r) <= pi / 4: 2**-54."""

TANH_RATE: Final = f32(1.0 / TANH_STEP)
TANH_SECOND: Final = 2.0 / 3.0 + 0.83 * 2.0 / 15.0 * (TANH_STEP / 2.0) ** 2
"""The second derivative's constant; the small part stands for the fourth derivative."""
ERF_THIRD, ERF_TENTH, ERF_TWO_THIRDS = f32(1.0 / 3.0), f32(0.1), f32(2.0 / 3.0)

EXP_LOWEST: Final = -104.5
EXP_HIGHEST: Final = 89.0
"""exp of less rounds to 0, of more to infinity."""
EXP_OF_NORMAL: Final = -87.25
"""exp of less may be subnormal."""
POW_EXPONENT_LIMIT: Final = 256.0
"""2 to the power of more is infinite, of its negative is zero."""
ALL_INTEGERS_EVEN: Final = 16777216.0
"""From 2**24 on every binary32 value is an even integer."""


def exp_f32(x: float) -> float:
    reduced, power = _reduced_exponent(f64(clamp(x, EXP_LOWEST, EXP_HIGHEST)))
    value = exp_reduced(reduced, power)
    subnormal = (x < EXP_OF_NORMAL) & (x > EXP_LOWEST)
    return rarely(_nearly_between(value) | subnormal, exp_carefully, (x,), f32(value))


def exp_carefully(x: float) -> float:
    """Computes exp where it might round wrongly or to few digits."""
    reduced, power = _reduced_exponent(f64(clamp(x, EXP_LOWEST, EXP_HIGHEST)))
    return _rounded(exp_reduced(reduced, power), exp_exact, x)


def expm1_f32(x: float) -> float:
    reduced, power = _reduced_exponent(f64(clamp(x, -20.0, 89.0)))
    fraction = expm1_reduced(reduced)
    value = choose(power == 1.0, fraction, multiply_add(fraction, power, power - 1.0))
    return _rounded(value, expm1_exact, x)


def exp2_f32(x: float) -> float:
    argument = f64(clamp(x, -151.0, 129.0))
    shifted = argument + ROUNDING_F64
    power = power_of_two(shifted)
    fraction = (argument - (shifted - ROUNDING_F64)) * LN2[0]
    return _rounded(exp_reduced(fraction, power), exp2_exact, x)


def log_f32(x: float) -> float:
    exponent, f = split(f64(x))
    result = _rounded(multiply_add(exponent, LN2[0], _short_log1p(f)), log_exact, x)
    return defined_from(0.0, x, result, INVALID_NAN)


def log2_f32(x: float) -> float:
    exponent, f = split(f64(x))
    result = _rounded(multiply_add(_short_log1p(f), LOG2_E[0], exponent), log2_exact, x)
    return defined_from(0.0, x, result, INVALID_NAN)


def log10_f32(x: float) -> float:
    exponent, f = split(f64(x))
    result = _rounded(multiply_add(exponent, LN2[0], _short_log1p(f)) * LOG10_E[0], log10_exact, x)
    return defined_from(0.0, x, result, POSITIVE_NAN)


def log1p_f32(x: float) -> float:
    argument = f64(x)
    exponent, f = split(argument + 1.0)
    # The sum has lost digits of a small argument.
    f = choose(exponent == 0.0, argument, f)
    value = multiply_add(exponent, LN2[0], _short_log1p(f))
    result = choose(x == 0.0, _as_arithmetic_takes(x), _rounded(value, log1p_exact, x))
    return defined_from(-1.0, x, result, INVALID_NAN)


def tanh_f32(x: float) -> float:
    """tanh(c + h) with the nearest c of a table, by derivatives in c: they are polynomials in tanh(c)."""
    size = magnitude(x)
    limited = choose(size > TANH_LIMIT, TANH_LIMIT, size)
    shifted = f32(multiply_add(limited, TANH_RATE, ROUNDING_F32))
    h = f64(f32(multiply_add(f32(shifted - ROUNDING_F32), -TANH_STEP, limited)))
    t = lookup(tanh_values, f32_to_bits(shifted) & TANH_MASK)
    slope = multiply_add(-t, t, 1.0)
    third = (slope - 1.0 / 3.0) * t
    factor = multiply_add(h, multiply_add(h, third, TANH_SECOND - slope), -t)
    value = multiply_add(slope * h, multiply_add(h, factor, 1.0), t)
    return with_sign_of(x, rarely(_nearly_between(value), tanh_exact, (size,), f32(value)))


def erf_f32(x: float) -> float:
    """As tanh; the derivatives are a second table times polynomials in c, which binary32 is enough for."""
    size = magnitude(x)
    limited = choose(size > ERF_LIMIT, ERF_LIMIT, size)
    shifted = f32(f32(limited * (1.0 / ERF_STEP)) + ROUNDING_F32)
    index = f32_to_bits(shifted) & ERF_MASK
    c = f32(f32(shifted - ROUNDING_F32) * ERF_STEP)
    h = f32(limited - c)
    square = f32(c * c)
    third = f32(f32(c * 0.5) - f32(f32(square * c) * ERF_THIRD))
    second = f32(f32(square * ERF_TWO_THIRDS) - ERF_THIRD)
    factor = f32(f32(h * f32(f32(h * ERF_TENTH) + third)) + second)
    factor = f64(f32(h * f32(f32(h * factor) - c)))
    step = lookup(erf_slopes, index) * f64(h)
    value = lookup(erf_values, index) + multiply_add(step, factor, step)
    return with_sign_of(x, _rounded(value, erf_exact, size))


def sin_f32(x: float) -> float:
    return _rounded_turning(x, _sine(*_turned(x)), sin_exact, sin_far)


def cos_f32(x: float) -> float:
    return _rounded_turning(x, _cosine(*_turned(x)), cos_exact, cos_far)


def sin_far(x: float) -> float:
    """sin of a large number."""
    value = _sine(*_turned_far(x))
    return _rounded(choose(x < 0.0, -value, value), sin_exact, x)


def cos_far(x: float) -> float:
    """cos of a large number."""
    return _rounded(_cosine(*_turned_far(x)), cos_exact, x)


def atan_f32(x: float) -> float:
    size = magnitude(x)
    wide = f64(size)
    steep = wide > 1.0
    angle = arc_tangent(choose(steep, 1.0, wide), choose(steep, wide, 1.0))
    angle = choose(steep, HALF_PI[0] - angle, angle)
    return with_sign_of(x, _rounded(angle, atan_exact, size))


def atan2_f32(y: float, x: float) -> float:
    height, width = magnitude(y), magnitude(x)
    n, d = f64(height), f64(width)
    steep = n > d
    angle = arc_tangent(choose(steep, d, n), choose(steep, n, d))
    angle = choose(steep, HALF_PI[0] - angle, angle)
    angle = choose(f32_to_bits(x) < 0, PI[0] - angle, angle)
    angle = choose((n == 0.0) & (d == 0.0), choose(f32_to_bits(x) < 0, PI[0], 0.0), angle)
    angle = choose(x != x, f64(x), angle)
    return choose(x != x, x, with_sign_of(y, _rounded(angle, atan2_exact, height, x)))


def pow_f32(x: float, y: float) -> float:
    """As C's ``powf``: 1 for y = 0 and for x = 1, NaN or not. Of two NaNs the first one; an odd power of a
    negative NaN is positive."""
    x = _as_arithmetic_takes(x)
    size, wide = magnitude(x), f64(y)
    exponent, f = split(f64(size))
    logarithm = multiply_add(log1p_reduced(f), LOG2_E[0], exponent)
    logarithm = choose(size == 0.0, -INFINITY, choose(size == INFINITY, INFINITY, logarithm))
    product = choose(size == 1.0, 0.0, wide * logarithm)
    product = clamp(product, -POW_EXPONENT_LIMIT, POW_EXPONENT_LIMIT)
    shifted = product + ROUNDING_F64
    power = power_of_two(shifted)
    value = exp_reduced((product - (shifted - ROUNDING_F64)) * LN2[0], power)
    result = _rounded(value, pow_exact, size, y)

    moved = wide + ROUNDING_F64
    large = (wide >= ALL_INTEGERS_EVEN) | (wide <= -ALL_INTEGERS_EVEN)
    integral = (moved - ROUNDING_F64 == wide) | large
    odd = integral & ((f64_to_bits(moved) & 1) == 1) & (large ^ True)
    turned = odd & (f32_to_bits(x) < 0)
    result = choose(turned, -result, result)
    undefined = (x < 0.0) & (x > -INFINITY) & (integral ^ True)
    result = choose(undefined, INVALID_NAN, result)
    result = choose(y != y, y, result)
    result = choose(x != x, choose(turned, -x, x), result)
    return choose((x == 1.0) | (y == 0.0), 1.0, result)


def _as_arithmetic_takes(x: float) -> float:
    """The number; in kernels, where subnormal ones count as zeros, a zero of its sign for one of these. What
    chooses it, or looks at its bits, would see the number itself, unlike what computes with it."""
    return choose(x == 0.0, f32_of_bits(f32_to_bits(x) & SIGN), x)


def _nearly_between(value: float) -> bool:
    """Whether a value might be rounded wrongly; of what is no subnormal number in binary32."""
    return ((f64_to_bits(value) + NEAR_OFFSET) & NEAR_MASK) == 0


def _rounded(value: float, exact: Callable[..., float], *arguments: float) -> float:
    """The value as binary32, or where it might be rounded wrongly what ``exact`` says."""
    low, high = f32(multiply_add(value, -TOLERANCE, value)), f32(multiply_add(value, TOLERANCE, value))
    # The high one has the sign of a zero.
    return rarely((low < high) | (low > high), exact, arguments, high)


def _reduced_exponent(x: float) -> tuple[float, float]:
    """``(r, 2**k)``: x is k * log(2) + r."""
    shifted = multiply_add(x, LOG2_E[0], BIASED_ROUNDING_F64)
    return multiply_add(shifted - BIASED_ROUNDING_F64, -LN2[0], x), biased_power_of_two(shifted)


def _short_log1p(f: float) -> float:
    """log(1 + f) of what :func:`split` gives, within 2**-43."""
    s = _quotient(f, f + 2.0)
    return polynomial(s * s, SHORT_LOG_COEFFICIENTS) * s


def _quotient(n: float, d: float) -> float:
    """n / d within 2**-46, of numbers of usual size; a division of binary64 takes twice as long."""
    inverse = f64(f32(divide(f32(1.0), f32(d))))
    error = multiply_add(-d, inverse, 1.0)
    estimate = n * inverse
    return multiply_add(estimate, error, estimate)


def _turned(x: float) -> tuple[float, int]:
    """Returns x without quarter turns, and these as low bits."""
    argument = f64(x)
    shifted = multiply_add(argument, TWO_OVER_PI, ROUNDING_F64)
    r = argument
    for part in HALF_PI_PARTS:
        r = multiply_add(shifted - ROUNDING_F64, -part, r)
    return r, f64_to_bits(shifted)


def _turned_far(x: float) -> tuple[float, int]:
    """The same of the magnitude of a large number."""
    products = products_of_quarter_turns(x)
    shifted = (products[0] + products[1]) + ROUNDING_F64
    left = (((products[0] - (shifted - ROUNDING_F64)) + products[1]) + products[2]) + products[3]
    return left * HALF_PI[0], f64_to_bits(shifted)


def _sine(r: float, quarters: int) -> float:
    square = r * r
    sine, cosine = polynomial(square, SIN_COEFFICIENTS) * r, polynomial(square, COS_COEFFICIENTS)
    value = choose((quarters & 1) == 1, cosine, sine)
    return choose((quarters & 2) == 2, -value, value)


def _cosine(r: float, quarters: int) -> float:
    return _sine(r, quarters + 1)


def _rounded_turning(x: float, value: float, exact: Callable[..., float], far: Callable[..., float]) -> float:
    size = magnitude(x)
    low, high = f32(multiply_add(value, -TOLERANCE, value)), f32(multiply_add(value, TOLERANCE, value))
    result = rarely(((low < high) | (low > high)) & (size < TURNS_LIMIT), exact, (x,), high)
    result = rarely((size >= TURNS_LIMIT) & (size < INFINITY), far, (x,), result)
    return choose(size == INFINITY, INVALID_NAN, choose(x != x, x, result))


def magnitude(x: float) -> float:
    return f32_of_bits(f32_to_bits(x) & MAGNITUDE)


def with_sign_of(x: float, magnitude: float) -> float:
    """Gives a magnitude without a sign the sign of a number."""
    return f32_of_bits(f32_to_bits(magnitude) | (f32_to_bits(x) & SIGN))


TANH_TABLE_END: Final = 9.0
TANH_LIMIT_F64: Final = 20.0
"""tanh of more rounds to 1."""
ERF_LIMIT_F64: Final = 6.0
"""erf of more rounds to 1."""
SLOPE_REST: Final = float.fromhex("0x1.1ae3a914fed80p-56")
"""What the slope of erf at 0, 2 / sqrt(pi), lacks in the table."""
ERF_TINY: Final = 2.0**-900
ERF_SCALE: Final = 2.0**512
"""Below the first erf is a line; products of such numbers lose what they lack, scaled ones keep it."""


def tanh_f64(x: float) -> float:
    """Computes tanh(c + h) by addition, c being a table's nearest; 1 - 2 / (exp(2x) + 1) beyond."""
    size = choose(x < 0.0, -x, x)
    limited = choose(size > TANH_TABLE_END, TANH_TABLE_END, size)
    shifted = limited * (1.0 / TANH_STEP) + ROUNDING_F64
    h = limited - (shifted - ROUNDING_F64) * TANH_STEP
    index = f64_to_bits(shifted) & TANH_MASK
    t, rest = lookup(tanh_values, index), lookup(tanh_rests, index)
    square = h * h
    lacking = h * (square * (square * (2.0 / 15.0 - square * (17.0 / 315.0)) - 1.0 / 3.0))
    of_h = h + lacking
    bend = divide(of_h * t * (t + of_h), 1.0 + t * of_h)
    high, low = exact_sum(t, h)
    inside = high + (((rest + lacking) - bend) + low)

    double = choose(size > TANH_LIMIT_F64, TANH_LIMIT_F64, size) * -2.0
    turns = double * LOG2_E[0] + ROUNDING_F64
    power = power_of_two(turns)
    decay = power + power * expm1_reduced_exactly(double - (turns - ROUNDING_F64) * LN2[0])
    beyond = 1.0 - divide(2.0 * decay, 1.0 + decay)
    result = choose(size > TANH_TABLE_END, beyond, inside)
    result = choose(x < 0.0, -result, result)
    return choose(x == 0.0, x, choose(x != x, x, result))


def erf_f64(x: float) -> float:
    """erf(c + h) with the nearest c of a table, by the derivatives: a second table times polynomials in c."""
    size = choose(x < 0.0, -x, x)
    scaled = choose(size < ERF_TINY, size * ERF_SCALE, size)
    limited = choose(scaled > ERF_LIMIT_F64, ERF_LIMIT_F64, scaled)
    shifted = limited * (1.0 / ERF_STEP) + ROUNDING_F64
    c = (shifted - ROUNDING_F64) * ERF_STEP
    h = limited - c
    index = f64_to_bits(shifted) & ERF_MASK
    step, lacking = exact_product(lookup(erf_slopes, index), h)
    lacking = lacking + choose(c == 0.0, h * SLOPE_REST, 0.0)
    high, low = exact_sum(lookup(erf_values, index), step)
    result = high + (((lookup(erf_rests, index) + step * bend_of_erf(c, h)) + lacking) + low)
    result = choose(size < ERF_TINY, result * (1.0 / ERF_SCALE), result)
    result = choose(x < 0.0, -result, result)
    return choose(x == 0.0, x, choose(x != x, x, result))


def log10_f64(x: float) -> float:
    result = rarely((x > 0.0) & (x < INFINITY), log10_wide, (x,), x)
    return defined_from(0.0, x, result, POSITIVE_NAN)
