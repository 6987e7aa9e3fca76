"""Gives vector math what its functions share: tables, ranges reduced, polynomials, powers of two.

All is in binary64. The polynomials are minimax ones (Remez); the error stands beside each. Tables are what
``tables.tsv`` has: the same bits everywhere.

Integers compute them (:mod:`computed`), those of erf in a tenth of a second, and a program that waits for its
first machine code would wait for that. So ``python -m jitree.codegen.vector_math.computed`` writes a file.

A function of rows or values stands for its table; its name is the table's, in the file and in machine code.
"""

from __future__ import annotations

import functools
import os
import struct
from collections.abc import Mapping
from typing import Final

from jitree.codegen.numbers import (
    choose,
    divide,
    f32_of_bits,
    f32_to_bits,
    f64,
    f64_of_bits,
    f64_to_bits,
    i64,
    lookup,
    multiply_add,
)

TANH_STEP: Final = 37.0 / 8192.0
TANH_MASK: Final = 2047
ERF_STEP: Final = 1.0 / 256.0
ERF_MASK: Final = 2047
TANH_LIMIT: Final = 9.125
ERF_LIMIT: Final = 3.9375
"""tanh and erf of more round to 1 in binary32."""

PIECE_BITS: Final = 28
FIRST_PIECE_BITS: Final = 26
"""Bits of a piece, and of the first one, after the point."""
PIECES: Final = 5
FIRST_EXPONENT: Final = 96
"""The exponent of the first row of quarter turns, as binary32 counts: 2**-31."""

TANH_OFFSET: Final = 0.66015625
TANH_SHIFT: Final = 20
ERF_OFFSET: Final = 1.41015625
ERF_SHIFT: Final = 19
"""Bits of a number plus the offset that begin at the shift tell the row of :func:`tanh_pieces` and of
:func:`erf_pieces` that holds it."""
PIECE_NUMBERS: Final = 10
"""Numbers in a row of these."""

Values = tuple[float, ...]
Rows = tuple[Values, ...]
Pairs = tuple[tuple[float, float], ...]

FILE: Final = os.path.join(os.path.dirname(__file__), "tables.tsv")
"""A line for each table: its name, and its numbers one after the other, each as the hexadecimal digits of its
64 bits."""


@functools.cache
def tanh_values() -> Values:
    """tanh of all multiples of the step."""
    return _values("tanh_values")


@functools.cache
def tanh_rests() -> Values:
    """What these lack."""
    return _values("tanh_rests")


@functools.cache
def erf_slopes() -> Values:
    """2 / sqrt(pi) * exp(-c**2) for all multiples c of the step."""
    return _values("erf_slopes")


@functools.cache
def erf_values() -> Values:
    """erf of all multiples of the step."""
    return _values("erf_values")


@functools.cache
def erf_rests() -> Values:
    """What these lack."""
    return _values("erf_rests")


@functools.cache
def exponential_rows() -> Pairs:
    """1 / n! from 24 to 1."""
    return _pairs("exponential_rows")


@functools.cache
def sine_rows() -> Pairs:
    """Coefficients of sin(r) / r in r**2, the last first."""
    return _pairs("sine_rows")


@functools.cache
def cosine_rows() -> Pairs:
    """Coefficients of cos(r) in r**2, the last first."""
    return _pairs("cosine_rows")


@functools.cache
def quarter_turns() -> Values:
    """Tabulates 2**(e - 150) * 2 / pi modulo 4 in pieces. Exponents are counted as binary32 does; a piece has
    28 bits."""
    return _values("quarter_turns")


@functools.cache
def powers_of_two() -> Pairs:
    """2**(n / 32), and what that lacks, in relation to it."""
    return _pairs("powers_of_two")


@functools.cache
def tanh_pieces() -> Rows:
    """Polynomials in place of tanh; see :mod:`pieces`."""
    return _rows("tanh_pieces")


@functools.cache
def erf_pieces() -> Rows:
    return _rows("erf_pieces")


@functools.cache
def tanh_centres() -> Pairs:
    """A number in each piece, and its tanh; see :mod:`pairs`."""
    return _pairs("tanh_centres")


def _values(name: str) -> Values:
    data = bytes.fromhex(_lines()[name])
    return struct.unpack(f">{len(data) // 8}d", data)


def _pairs(name: str) -> Pairs:
    values = _values(name)
    return tuple(zip(values[::2], values[1::2], strict=True))


def _rows(name: str) -> Rows:
    values = _values(name)
    return tuple(values[start : start + PIECE_NUMBERS] for start in range(0, len(values), PIECE_NUMBERS))


@functools.cache
def _lines() -> Mapping[str, str]:
    with open(FILE, encoding="ascii") as file:
        return dict(line.rstrip("\n").split("\t") for line in file)


INFINITY: Final = float("inf")
POSITIVE_NAN: Final = float("nan")
"""log10 of negative numbers, as in the official runtime; INVALID_NAN is what other invalid numbers give."""
ROUNDING_F64: Final = 6755399441055744.0
"""1.5 * 2**52: added and taken away it rounds to an integer, which the low bits of the sum hold."""
ROUNDING_F64_BITS: Final = 0x4338000000000000
BIASED_ROUNDING_F64: Final = ROUNDING_F64 + 1023.0
"""The same with the bias of exponents: the low bits are a power of two as soon as they are shifted."""

LN2: Final = (float.fromhex("0x1.62e42fefa39efp-1"), float.fromhex("0x1.abc9e3b39803fp-56"))
LOG2_E: Final = (float.fromhex("0x1.71547652b82fep+0"), float.fromhex("0x1.777d0ffda0d24p-56"))
LOG10_E: Final = (float.fromhex("0x1.bcb7b1526e50ep-2"), float.fromhex("0x1.95355baaafad3p-57"))
PI: Final = (float.fromhex("0x1.921fb54442d18p+1"), float.fromhex("0x1.1a62633145c07p-53"))
HALF_PI: Final = (float.fromhex("0x1.921fb54442d18p+0"), float.fromhex("0x1.1a62633145c07p-54"))
"""The nearest numbers, and what they lack."""

EXP_COEFFICIENTS: Final = (
    0.9999999999999889, 0.4999999999979732, 0.16666666666944588, 0.041666666891859404, 0.008333333230690052,
    0.0013888821445809014, 0.00019841372120851884, 2.4876312966025695e-05, 2.755733902982783e-06,
)  # fmt: skip
"""(exp(r) - 1) / r for abs(r) <= 0.347: 2**-43.5."""

LOG_COEFFICIENTS: Final = (
    2.0, 0.6666666666666666, 0.4000000000000756, 0.28571428568801127, 0.22222222679416434,
    0.18181773551681696, 0.15387168651755, 0.1324859646769978, 0.1326356205093031,
)  # fmt: skip
"""log((1 + s) / (1 - s)) / s in s**2, for (1 + s) / (1 - s) between sqrt(1/2) and sqrt(2): 2**-66."""
SHORT_LOG_COEFFICIENTS: Final = (
    1.9999999999999467, 0.6666666667967944, 0.3999999486316889, 0.2857216900049529, 0.22174134221766417,
    0.1960973309371593,
)  # fmt: skip
"""The same: 2**-45."""
SQRT_HALF_BITS: Final = 0x3FE6A09E667F3BCD
FRACTION: Final = 0xFFFFFFFFFFFFF

ATAN_COEFFICIENTS: Final = (
    0.9999999999999991, -0.33333333333224735, 0.19999999978890773, -0.14285712690665445, 0.11111049698928056,
    -0.09089543806161286, 0.0767366874613773, -0.0650673081272817, 0.05027023754765264, -0.025344968005924597,
)  # fmt: skip
"""atan(q) / q in q**2 for abs(q) <= 0.4143: 2**-50."""
MANTISSA_F32: Final = 0x7FFFFF
TWO_POWER_23_BITS: Final = 0x4B000000

TAN_OF_EIGHTH: Final = 0.414213562373095
"""tan(pi / 8)."""
QUARTER_PI: Final = 0.7853981633974483


def polynomial(x: float, coefficients: tuple[float, ...]) -> float:
    """Horner's scheme; the constant term comes first."""
    value = coefficients[-1]
    for coefficient in coefficients[-2::-1]:
        value = multiply_add(x, value, coefficient)
    return value


def polynomial_in_halves(x: float, coefficients: tuple[float, ...]) -> float:
    """Even and odd powers side by side: one multiplication more, but the chain of steps that wait for each
    other is half as long."""
    square = x * x
    return multiply_add(polynomial(square, coefficients[1::2]), x, polynomial(square, coefficients[::2]))


def clamp(x: float, lowest: float, highest: float) -> float:
    """NaN stays NaN."""
    x = choose(x < lowest, lowest, x)
    return choose(x > highest, highest, x)


def power_of_two(shifted: float) -> float:
    """Returns 2 to an integer power from -1022 to 1023. ROUNDING_F64 was added to the integer."""
    return f64_of_bits(i64(i64(f64_to_bits(shifted) + 1023) << 52))


def biased_power_of_two(shifted: float) -> float:
    """Returns 2 to an integer power from -1022 to 1023. BIASED_ROUNDING_F64 was added to the integer."""
    return f64_of_bits(i64(f64_to_bits(shifted) << 52))


def expm1_reduced(r: float) -> float:
    """exp(r) - 1 for abs(r) <= 0.347."""
    return polynomial_in_halves(r, EXP_COEFFICIENTS) * r


def exp_reduced(r: float, power: float) -> float:
    """exp(r) * power for abs(r) <= 0.347."""
    return multiply_add(polynomial_in_halves(r, EXP_COEFFICIENTS), r * power, power)


def expm1_reduced_exactly(r: float) -> float:
    """The same with each step rounded by itself."""
    value = EXP_COEFFICIENTS[-1]
    for coefficient in EXP_COEFFICIENTS[-2::-1]:
        value = r * value + coefficient
    return value * r


def split(x: float) -> tuple[float, float]:
    """Splits a positive number 2**exponent * (1 + f): ``(exponent, f)``. 1 + f lies from sqrt(1/2) to
    sqrt(2)."""
    offset = i64(f64_to_bits(x) - SQRT_HALF_BITS)
    mantissa = f64_of_bits(i64((offset & FRACTION) + SQRT_HALF_BITS))
    exponent = f64_of_bits(i64(i64(offset >> 52) + ROUNDING_F64_BITS)) - ROUNDING_F64
    return exponent, mantissa - 1.0


def log1p_reduced(f: float) -> float:
    """log(1 + f) of what :func:`split` gives, within two units of the last place."""
    s = divide(f, f + 2.0)
    return polynomial(s * s, LOG_COEFFICIENTS) * s


def arc_tangent(n: float, d: float) -> float:
    """atan(n / d) for 0 <= n <= d, infinities too; 0 for 0 / 0."""
    equal = n == d
    steep = (n > d * TAN_OF_EIGHTH) | (equal & (n > 0.0))
    over = choose(steep, choose(equal, 0.0, n - d), n)
    under = choose(equal, 1.0, choose(steep, n + d, d))
    q = divide(over, under)
    return multiply_add(polynomial(q * q, ATAN_COEFFICIENTS), q, choose(steep, QUARTER_PI, 0.0))


def bend_of_erf(c: float, h: float) -> float:
    """Computes ``(erf(c + h) - erf(c)) / (h * s) - 1``. s is the slope in c, abs(h) <= 1 / 512: 2**-59."""
    square = c * c
    fifth = c * (((8.0 / 45.0) * square - 8.0 / 9.0) * square + 2.0 / 3.0) * -0.25
    fourth = ((2.0 / 15.0) * square - 0.4) * square + 0.1
    third = c * (0.5 - square * (1.0 / 3.0))
    second = square * (2.0 / 3.0) - 1.0 / 3.0
    return h * (h * (h * (h * (h * fifth + fourth) + third) + second) - c)


def defined_from(lowest: float, x: float, result: float, undefined: float) -> float:
    """The logarithm of ``x - lowest``, where it is a number, infinite, or undefined."""
    result = choose(x > lowest, result, undefined)
    result = choose(x == lowest, -INFINITY, result)
    return choose(x < INFINITY, result, x)


def products_of_quarter_turns(x: float) -> tuple[float, ...]:
    """Multiplies the magnitude of x by 2 / pi, modulo 4. x is from 2**-31 up: exact products, the largest
    first. One value at a time."""
    bits = f32_to_bits(x)
    mantissa = f64(f32_of_bits((bits & MANTISSA_F32) | TWO_POWER_23_BITS))
    exponent = ((bits >> 23) & 0xFF) - FIRST_EXPONENT
    row = choose(exponent < 0, 0, exponent) * PIECES
    products = []
    for piece in range(PIECES):
        products.append(mantissa * lookup(quarter_turns, row + piece))
    return tuple(products)
