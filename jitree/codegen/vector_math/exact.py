"""Computes vector math where 40 bits do not decide the rounding.

Numbers are pairs of binary64 numbers, a value and what it lacks: some 100 bits. Each step rounds by itself.
The functions come from two series, of exp and of sine and cosine: a logarithm or an angle is an approximation
plus what the series says it lacks. One value at a time: this is rare.
"""

from __future__ import annotations

from typing import Final

from jitree.codegen.numbers import (
    accumulate,
    choose,
    divide,
    f32,
    f32_of_bits,
    f32_to_bits,
    f64,
    f64_of_bits,
    f64_to_bits,
    i64,
    lookup,
)
from jitree.codegen.vector_math.tables import (
    ERF_MASK,
    ERF_STEP,
    HALF_PI,
    LN2,
    LOG2_E,
    LOG10_E,
    PI,
    ROUNDING_F64,
    arc_tangent,
    bend_of_erf,
    cosine_rows,
    erf_rests,
    erf_values,
    exponential_rows,
    log1p_reduced,
    power_of_two,
    products_of_quarter_turns,
    sine_rows,
    split,
)

Pair = tuple[float, float]
"""A number and what it lacks, which is at most half a unit in its last place."""

SPLITTER: Final = 134217729.0
"""2**27 + 1."""
ONE: Final = (1.0, 0.0)
LN2_HIGH: Final = float.fromhex("0x1.62e42fefa2p-1")
"""40 bits: products with exponents are exact."""
LN2_LOW: Final = (float.fromhex("0x1.9ef35793c7673p-41"), float.fromhex("0x1.f97b57a079a19p-103"))
TWO_OVER_ROOT_PI: Final = (float.fromhex("0x1.20dd750429b6dp+0"), float.fromhex("0x1.1ae3a914fed80p-56"))

SMALLEST_NORMAL: Final = 2.0**-1022
TWO_POWER_54: Final = 2.0**54
SMALL_ANGLE: Final = 2.0**-26
"""The fifth power is nothing in 100 bits."""
LATTICE: Final = 1.5 * 2.0**27
"""Added and taken away it rounds to 25 bits."""
INDISTINGUISHABLE: Final = 2.0**-90
"""A power this near to a number of 25 bits is that number."""


def exp_exact(x: float) -> float:
    fraction, power = _exponential((f64(x), 0.0))
    return _rounded(_add(ONE, fraction), power)


def exp2_exact(x: float) -> float:
    shifted = f64(x) + ROUNDING_F64
    fraction = _expm1(_scale(LN2, f64(x) - (shifted - ROUNDING_F64)))
    return _rounded(_add(ONE, fraction), power_of_two(shifted))


def expm1_exact(x: float) -> float:
    fraction, power = _exponential((f64(x), 0.0))
    return _rounded(_add((power - 1.0, 0.0), _scale(fraction, power)), 1.0)


def tanh_exact(x: float) -> float:
    """tanh of a positive number: d / (d + 2) where d is exp(2x) - 1."""
    fraction, power = _exponential((f64(x) * 2.0, 0.0))
    d = _add((power - 1.0, 0.0), _scale(fraction, power))
    return _rounded(_divide(d, _add(d, (2.0, 0.0))), 1.0)


def log_exact(x: float) -> float:
    return _rounded(_logarithm(x), 1.0)


def log2_exact(x: float) -> float:
    exponent, f = split(f64(x))
    return _rounded(_add((exponent, 0.0), _multiply(_log1p((f, 0.0)), LOG2_E)), 1.0)


def log10_exact(x: float) -> float:
    return _rounded(_multiply(_logarithm(x), LOG10_E), 1.0)


def log10_wide(x: float) -> float:
    """log10 of a positive binary64 number, within 0.51 units of the last place."""
    subnormal = x < SMALLEST_NORMAL
    exponent, f = split(choose(subnormal, x * TWO_POWER_54, x))
    exponent = exponent - choose(subnormal, 54.0, 0.0)
    natural = _add(_exponents_logarithm(exponent), _log1p((f, 0.0)))
    return _multiply(natural, LOG10_E)[0]


def log1p_exact(x: float) -> float:
    sum, rest = exact_sum(f64(x), 1.0)
    exponent, f = split(sum)
    inverse_power = power_of_two(ROUNDING_F64 - exponent)
    fraction = exact_sum(f, rest * inverse_power)
    small = exponent == 0.0
    high, low = choose(small, f64(x), fraction[0]), choose(small, 0.0, fraction[1])
    return _rounded(_add(_exponents_logarithm(exponent), _log1p((high, low))), 1.0)


def erf_exact(x: float) -> float:
    """Computes erf up to 7 by derivatives at a table's multiple."""
    shifted = f64(x) * (1.0 / ERF_STEP) + ROUNDING_F64
    c = (shifted - ROUNDING_F64) * ERF_STEP
    h = f64(x) - c
    index = f64_to_bits(shifted) & ERF_MASK
    fraction, power = _exponential((-c * c, 0.0))
    slope = _scale(_multiply(TWO_OVER_ROOT_PI, _add(ONE, fraction)), power)
    step = _scale(slope, h)
    value = _add((lookup(erf_values, index), lookup(erf_rests, index)), step)
    return _rounded(_add(value, (step[0] * bend_of_erf(c, h), 0.0)), 1.0)


def sin_exact(x: float) -> float:
    sine, cosine, quarters = _sine_and_cosine(x)
    value = _choose((quarters & 1) == 1, cosine, sine)
    negative = ((quarters & 2) == 2) ^ (x < 0.0)
    return _rounded(_choose(negative, _negative(value), value), 1.0)


def cos_exact(x: float) -> float:
    sine, cosine, quarters = _sine_and_cosine(x)
    value = _choose((quarters & 1) == 1, sine, cosine)
    return _rounded(_choose(((quarters + 1) & 2) == 2, _negative(value), value), 1.0)


def atan_exact(x: float) -> float:
    """atan of a positive number."""
    return atan2_exact(x, f32(1.0))


def atan2_exact(y: float, x: float) -> float:
    """atan2 of a positive y."""
    height, width = f64(y), f64(f32_of_bits(f32_to_bits(x) & 0x7FFFFFFF))
    steep = height > width
    angle = _angle(choose(steep, width, height), choose(steep, height, width))
    angle = _choose(steep, _add(HALF_PI, _negative(angle)), angle)
    angle = _choose(x < 0.0, _add(PI, _negative(angle)), angle)
    return _rounded(angle, 1.0)


def pow_exact(x: float, y: float) -> float:
    """pow of a positive x, for results that are neither infinite nor zero."""
    exponent, f = split(f64(x))
    whole = f64(y) * exponent
    product = _scale(_multiply(_log1p((f, 0.0)), LOG2_E), f64(y))
    shifted = (whole + product[0]) + ROUNDING_F64
    left = _add((whole - (shifted - ROUNDING_F64), 0.0), product)
    high, low = _add(ONE, _expm1(_multiply(left, LN2)))
    # Half-way between two numbers, or one of them: these powers are exact, and decide by themselves.
    near = (high + LATTICE) - LATTICE
    distance = (high - near) + low
    same = (distance < INDISTINGUISHABLE) & (distance > -INDISTINGUISHABLE)
    return _rounded((choose(same, near, high), choose(same, 0.0, low)), power_of_two(shifted))


def _rounded(value: Pair, power: float) -> float:
    """The nearest binary32 number to a value times a power of two.

    The first part is made odd where something is missing, so that it rounds as the sum does.
    """
    high, low = value
    bits = f64_to_bits(high)
    beyond = (low > 0.0) ^ (high < 0.0)
    odd = choose((bits & 1) == 1, bits, choose(beyond, i64(bits + 1), i64(bits - 1)))
    return f32(f64_of_bits(choose(low == 0.0, bits, odd)) * power)


def _exponential(x: Pair) -> tuple[Pair, float]:
    """Returns ``(f, p)`` of exp(x) = (1 + f) * p. p is a power of two."""
    shifted = x[0] * LOG2_E[0] + ROUNDING_F64
    exponent = shifted - ROUNDING_F64
    left = _add((x[0] - exponent * LN2_HIGH, x[1]), _scale(LN2_LOW, -exponent))
    return _expm1(left), power_of_two(shifted)


def _expm1(r: Pair) -> Pair:
    """Computes all digits of exp(r) - 1, below 0.36 in magnitude."""
    return _multiply(accumulate(_horner, exponential_rows, (0.0, 0.0), r), r)


def _log1p(f: Pair) -> Pair:
    """log(1 + f): with an approximation y, exp(-y) * (1 + f) is nearly 1."""
    y = log1p_reduced(f[0])
    fraction = _expm1((-y, 0.0))
    high, low = _add(_add(f, fraction), _multiply(f, fraction))
    return _add((y, 0.0), (high, low - high * high * 0.5))


def _logarithm(x: float) -> Pair:
    exponent, f = split(f64(x))
    return _add(_exponents_logarithm(exponent), _log1p((f, 0.0)))


def _exponents_logarithm(exponent: float) -> Pair:
    return _add((exponent * LN2_HIGH, 0.0), _scale(LN2_LOW, exponent))


def _sine_and_cosine(x: float) -> tuple[Pair, Pair, int]:
    """Returns sine and cosine of x's rest, and its quarter turns. Quarter turns are the low bits of a
    number."""
    turns, *others = products_of_quarter_turns(x)
    shifted = (turns + others[0]) + ROUNDING_F64
    left = exact_sum(turns - (shifted - ROUNDING_F64), others[0])
    for product in others[1:]:
        left = _add(left, (product, 0.0))
    return (*_turned(_multiply(left, HALF_PI)), f64_to_bits(shifted))


def _turned(r: Pair) -> tuple[Pair, Pair]:
    """Sine and cosine of less than 1."""
    square = _multiply(r, r)
    sine = _multiply(accumulate(_horner, sine_rows, (0.0, 0.0), square), r)
    return sine, accumulate(_horner, cosine_rows, (0.0, 0.0), square)


def _angle(n: float, d: float) -> Pair:
    """atan(n / d) for 0 < n <= d: turned back by an approximation, what is left is small."""
    y = arc_tangent(n, d)
    sine, cosine = _turned((y, 0.0))
    left = _add(_scale(cosine, n), _scale(sine, -d))
    along = _add(_scale(cosine, d), _scale(sine, n))
    quotient = divide(n, d)
    product, lacking = exact_product(quotient, d)
    rest = divide((n - product) - lacking, d) - quotient * quotient * quotient * (1.0 / 3.0)
    return _choose(quotient < SMALL_ANGLE, (quotient, rest), exact_sum(y, divide(left[0], along[0])))


def _horner(value: Pair, row: Pair, x: Pair) -> Pair:
    return _add(_multiply(value, x), row)


# -- pairs --------------------------------------------------------------------------------------------------


def exact_sum(a: float, b: float) -> Pair:
    """Exact."""
    total = a + b
    share = total - a
    return total, (a - (total - share)) + (b - share)


def _normal(high: float, low: float) -> Pair:
    """Exact, for a smaller second number."""
    total = high + low
    return total, low - (total - high)


def exact_product(a: float, b: float) -> Pair:
    """Exact."""
    product = a * b
    a_high, a_low = _halves(a)
    b_high, b_low = _halves(b)
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def _halves(x: float) -> Pair:
    """The upper 26 bits and the lower."""
    scaled = x * SPLITTER
    high = scaled - (scaled - x)
    return high, x - high


def _add(a: Pair, b: Pair) -> Pair:
    high, high_rest = exact_sum(a[0], b[0])
    low, low_rest = exact_sum(a[1], b[1])
    high, rest = _normal(high, high_rest + low)
    return _normal(high, rest + low_rest)


def _negative(a: Pair) -> Pair:
    return -a[0], -a[1]


def _multiply(a: Pair, b: Pair) -> Pair:
    product, rest = exact_product(a[0], b[0])
    return _normal(product, rest + (a[0] * b[1] + a[1] * b[0]))


def _scale(a: Pair, factor: float) -> Pair:
    product, rest = exact_product(a[0], factor)
    return _normal(product, rest + a[1] * factor)


def _divide(a: Pair, b: Pair) -> Pair:
    first = divide(a[0], b[0])
    left = _add(a, _scale(b, -first))
    second = divide(left[0], b[0])
    left = _add(left, _scale(b, -second))
    return _add(exact_sum(first, second), (divide(left[0], b[0]), 0.0))


def _choose(condition: bool, if_true: Pair, if_false: Pair) -> Pair:
    return choose(condition, if_true[0], if_false[0]), choose(condition, if_true[1], if_false[1])
