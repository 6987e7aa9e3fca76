"""The functions of binary32 by integers, to 200 bits and more: what the others are checked against.

Nothing here is shared with the package: series of fixed-point integers, rounded once from a fraction.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable
from fractions import Fraction
from typing import Final

BITS: Final = 600
"""After the point; the smallest results of binary32 still have 450."""
ONE: Final = 1 << BITS

Function = Callable[[Fraction], Fraction]


def rounded(value: Fraction) -> float:
    """The nearest binary32 number, the even one of two; infinite above all."""
    if value == 0:
        return 0.0
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if size < _power_of_two(exponent):
        exponent -= 1
    unit = _power_of_two(max(exponent, -126) - 23)
    nearest = round(size / unit) * unit  # halves to even
    result = math.inf if nearest >= 2**128 else float(nearest)
    return math.copysign(result, value)


def distance_from_midpoint(value: Fraction) -> float:
    """How far a value is from the nearest place where the rounding changes, in units of the last place."""
    size = abs(value)
    _, exponent = math.frexp(float(size))
    units = size / _power_of_two(max(exponent - 1, -126) - 23)
    return float(abs(units - math.floor(units) - Fraction(1, 2)))


def exp(x: Fraction) -> Fraction:
    exponent = round(x / Fraction(_ln2(), ONE))
    left = _fixed(x) - exponent * _ln2()
    return Fraction(_exponential(left), ONE) * _power_of_two(exponent)


def exp2(x: Fraction) -> Fraction:
    exponent = round(x)
    return Fraction(_exponential(_fixed((x - exponent) * _ln2() / ONE)), ONE) * _power_of_two(exponent)


def expm1(x: Fraction) -> Fraction:
    return exp(x) - 1


def tanh(x: Fraction) -> Fraction:
    if abs(x) > 100:  # 1 - tanh(100) is 1e-87
        return Fraction(1 if x > 0 else -1) * (1 - Fraction(1, 10**87))
    d = expm1(2 * x)
    return d / (d + 2)


def log(x: Fraction) -> Fraction:
    exponent = x.numerator.bit_length() - x.denominator.bit_length()
    mantissa = x / _power_of_two(exponent)
    return Fraction(exponent * _ln2() + 2 * _area_tangent((mantissa - 1) / (mantissa + 1)), ONE)


def log2(x: Fraction) -> Fraction:
    exponent = x.numerator.bit_length() - x.denominator.bit_length()
    return exponent + log(x / _power_of_two(exponent)) * ONE / _ln2()


def log10(x: Fraction) -> Fraction:
    return log(x) / log(Fraction(10))


def log1p(x: Fraction) -> Fraction:
    return log(1 + x)


def erf(x: Fraction) -> Fraction:
    if abs(x) > 8:  # 1 - erf(8) is 1e-29
        return Fraction(1 if x > 0 else -1) * (1 - Fraction(1, 10**29))
    term = total = _fixed(x)
    square, n = _fixed(x * x), 0
    while term not in (0, -1):
        n += 1
        term = (term * square >> BITS) * 2 // (2 * n + 1)
        total += term
    root = math.isqrt(_pi() << BITS)
    return Fraction(2 * total, root) * exp(-x * x)


def sin(x: Fraction) -> Fraction:
    quarters, left = _turned(x)
    value = _sine(left) if quarters % 2 == 0 else _cosine(left)
    return Fraction(-value if quarters % 4 >= 2 else value, ONE)


def cos(x: Fraction) -> Fraction:
    quarters, left = _turned(x)
    value = _cosine(left) if quarters % 2 == 0 else _sine(left)
    return Fraction(-value if quarters % 4 in (1, 2) else value, ONE)


def atan(x: Fraction) -> Fraction:
    if x < 0:
        return -atan(-x)
    if x > 1:
        return Fraction(_pi(), 2 * ONE) - atan(1 / x)
    if x > Fraction(3, 5):
        half = Fraction(1, 2)
        return Fraction(_alternating(half), ONE) + atan((x - half) / (1 + x * half))
    return Fraction(_alternating(x), ONE)


def atan2(y: Fraction, x: Fraction) -> Fraction:
    """Of numbers that are not both 0."""
    if x == 0:
        return Fraction(_pi(), 2 * ONE) * (1 if y > 0 else -1)
    angle = atan(y / x)
    if x > 0:
        return angle
    return angle + Fraction(_pi(), ONE) * (1 if y >= 0 else -1)


def pow(x: Fraction, y: Fraction) -> Fraction:
    """Of a positive x. Exact where the result is a number of a few bits."""
    approximation = exp(y * log(x))
    exponent = approximation.numerator.bit_length() - approximation.denominator.bit_length()
    unit = _power_of_two(exponent - 40)
    near = round(approximation / unit) * unit
    return near if abs(approximation - near) < near * _power_of_two(-300) else approximation


FUNCTIONS: Final[dict[str, Function]] = {
    "exp.f32": exp, "exp2.f32": exp2, "expm1.f32": expm1, "log.f32": log, "log2.f32": log2,
    "log10.f32": log10, "log1p.f32": log1p, "tanh.f32": tanh, "erf.f32": erf, "sin.f32": sin,
    "cos.f32": cos, "atan.f32": atan,
}  # fmt: skip


def of_bits(bits: int) -> float:
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


def _fixed(x: Fraction) -> int:
    return (x.numerator << BITS) // x.denominator


def _power_of_two(exponent: int) -> Fraction:
    return Fraction(1 << exponent) if exponent >= 0 else Fraction(1, 1 << -exponent)


def _exponential(x: int) -> int:
    term = total = ONE
    n = 0
    while term not in (0, -1):
        n += 1
        term = (term * x >> BITS) // n
        total += term
    return total


def _area_tangent(x: Fraction) -> int:
    power = total = _fixed(x)
    square, n = _fixed(x * x), 1
    while power not in (0, -1):
        power, n = power * square >> BITS, n + 2
        total += power // n
    return total


def _alternating(x: Fraction) -> int:
    """atan of a small number."""
    power = total = _fixed(x)
    square, n = _fixed(x * x), 1
    while power not in (0, -1):
        power, n = -(power * square >> BITS), n + 2
        total += power // n
    return total


def _sine(x: int) -> int:
    term = total = x
    square, n = x * x >> BITS, 1
    while term not in (0, -1):
        n += 2
        term = -(term * square >> BITS) // (n * (n - 1))
        total += term
    return total


def _cosine(x: int) -> int:
    term = total = ONE
    square, n = x * x >> BITS, 0
    while term not in (0, -1):
        n += 2
        term = -(term * square >> BITS) // (n * (n - 1))
        total += term
    return total


def _turned(x: Fraction) -> tuple[int, int]:
    """Quarter turns, and what is left without them."""
    quarter = Fraction(_pi(), 2 * ONE)
    quarters = round(x / quarter)
    return quarters, _fixed(x - quarters * quarter)


@functools.cache
def _ln2() -> int:
    return 2 * _area_tangent(Fraction(1, 3))


@functools.cache
def _pi() -> int:
    return 4 * (4 * _alternating(Fraction(1, 5)) - _alternating(Fraction(1, 239)))
