"""Numbers that vector math looks up, computed by integers when first needed: the same bits everywhere.

A function of rows or values stands for its table; its name is the table's in machine code.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Final

BITS: Final = 160
"""Bits after the point of the integers here."""
ONE: Final = 1 << BITS

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

Rows = tuple[tuple[float, float], ...]


@functools.cache
def tanh_pairs() -> Rows:
    """tanh of all multiples of the step, and what that lacks."""
    decay = exponential(-2 * Fraction(TANH_STEP))
    values, power = [], ONE
    for _ in range(TANH_MASK + 1):
        values.append(_pair(ONE - power, ONE + power))
        power = power * decay >> BITS
    return tuple(values)


@functools.cache
def tanh_values() -> tuple[float, ...]:
    return tuple(high for high, _ in tanh_pairs())


@functools.cache
def tanh_rests() -> tuple[float, ...]:
    return tuple(low for _, low in tanh_pairs())


@functools.cache
def erf_slopes() -> tuple[float, ...]:
    """2 / sqrt(pi) * exp(-c**2) for all multiples c of the step."""
    quotient = exponential(-2 * Fraction(ERF_STEP) ** 2)
    factor, slope = exponential(-(Fraction(ERF_STEP) ** 2)), _two_over_root_pi()
    slopes = []
    for _ in range(ERF_MASK + 1):
        slopes.append(float(Fraction(slope, ONE)))
        slope, factor = slope * factor >> BITS, factor * quotient >> BITS
    return tuple(slopes)


@functools.cache
def erf_pair(n: int) -> tuple[float, float]:
    """erf of a multiple of the step, and what that lacks."""
    return _pair(error_function(n * Fraction(ERF_STEP)), ONE)


class _ErfTable(Sequence[float]):
    """A column of these, each computed when it is needed: all of them take a quarter of a second, in which
    a call could not end."""

    def __init__(self, column: int) -> None:
        self._column = column

    def __len__(self) -> int:
        return ERF_MASK + 1

    def __getitem__(self, n: Any) -> Any:
        return erf_pair(range(ERF_MASK + 1)[n])[self._column]


@functools.cache
def erf_values() -> Sequence[float]:
    return _ErfTable(0)


@functools.cache
def erf_rests() -> Sequence[float]:
    return _ErfTable(1)


def error_function(x: Fraction) -> int:
    """erf by Taylor's series."""
    power = int(ONE * x)
    square, total, n = power * power >> BITS, 0, 0
    while power:
        total += power // (2 * n + 1)
        n += 1
        power = -(power * square >> BITS) // n
    return total * _two_over_root_pi() >> BITS


def slope_of_error_function(x: Fraction) -> int:
    return exponential(-x * x) * _two_over_root_pi() >> BITS


@functools.cache
def exponential_rows() -> Rows:
    """1 / n! from 24 to 1."""
    return tuple(_pair(1, math.factorial(n)) for n in range(24, 0, -1))


@functools.cache
def sine_rows() -> Rows:
    """Coefficients of sin(r) / r in r**2, the last first."""
    return tuple(_pair((-1) ** n, math.factorial(2 * n + 1)) for n in range(15, -1, -1))


@functools.cache
def cosine_rows() -> Rows:
    """Coefficients of cos(r) in r**2, the last first."""
    return tuple(_pair((-1) ** n, math.factorial(2 * n)) for n in range(16, -1, -1))


@functools.cache
def quarter_turns() -> tuple[float, ...]:
    """2**(e - 150) * 2 / pi modulo 4, for exponents as binary32 counts them, in pieces of 28 bits each."""
    precision = 400
    pieces = []
    for exponent in range(FIRST_EXPONENT, 255):
        scale = precision + exponent - 150
        turns = (2 << scale + precision) // _pi(precision) % (4 << precision)
        place = precision
        for piece in range(PIECES):
            place -= PIECE_BITS if piece else FIRST_PIECE_BITS
            pieces.append(float(turns >> place) * 2.0 ** (place - precision))
            turns &= (1 << place) - 1
    return tuple(pieces)


def _pair(numerator: int, denominator: int) -> tuple[float, float]:
    """A quotient, and what that lacks: Python rounds both correctly."""
    high = numerator / denominator
    over, under = high.as_integer_ratio()
    return high, (numerator * under - over * denominator) / (denominator * under)


def exponential(x: Fraction) -> int:
    """exp of a small number."""
    argument, term, total, n = int(x * ONE), ONE, 0, 0
    while abs(term) > 1:
        total += term
        n += 1
        term = (term * argument >> BITS) // n
    return total


@functools.cache
def _two_over_root_pi() -> int:
    return math.isqrt((4 << 3 * BITS) // _pi(BITS))


@functools.cache
def _pi(precision: int) -> int:
    """Pi by Machin's formula."""
    guard = 16
    one = 1 << precision + guard
    return 4 * (4 * _inverse_tangent(5, one) - _inverse_tangent(239, one)) >> guard


def _inverse_tangent(inverse: int, one: int) -> int:
    """atan(1 / inverse)."""
    term, total, n = one // inverse, 0, 0
    while term:
        total += term // (2 * n + 1) * (-1) ** n
        term //= inverse * inverse
        n += 1
    return total
