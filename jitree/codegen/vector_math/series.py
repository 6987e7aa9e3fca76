"""Functions by integers, with 160 bits after the point: what the tables of vector math are computed from."""

from __future__ import annotations

import functools
import math
from fractions import Fraction
from typing import Final

BITS: Final = 160
"""Bits after the point of the integers here."""
ONE: Final = 1 << BITS


def error_function(x: Fraction) -> int:
    """erf by Taylor's series."""
    power = int(ONE * x)
    square, total, n = power * power >> BITS, 0, 0
    while power:
        total += power // (2 * n + 1)
        n += 1
        power = -(power * square >> BITS) // n
    return total * two_over_root_pi() >> BITS


def slope_of_error_function(x: Fraction) -> int:
    return exponential(-x * x) * two_over_root_pi() >> BITS


def exponential(x: Fraction) -> int:
    """exp of a small number."""
    argument, term, total, n = int(x * ONE), ONE, 0, 0
    while abs(term) > 1:
        total += term
        n += 1
        term = (term * argument >> BITS) // n
    return total


@functools.cache
def two_over_root_pi() -> int:
    return math.isqrt((4 << 3 * BITS) // pi(BITS))


@functools.cache
def pi(precision: int) -> int:
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
