"""Intervals of polynomials in unbounded integers: they decide what a polynomial says about a number.

A program computes modulo 2**64, and so do polynomials. That a value and its polynomial are the same modulo
2**64 is enough for an address, and for equality. An order is another matter: ``i * 2**62`` is negative where
``i`` is 2. So nothing is concluded from a polynomial (no comparison settled, no division simplified, no range
narrowed) unless its interval lies within the signed range: only then is it the number that the program has.
What is not known to lie there is left as it is, or proved by the guard.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from jitree.base.records import NamedTuple
from jitree.dispatch.native.nests.polynomials import Polynomial
from jitree.dispatch.native.ssa import Value

SYMBOL_BITS: Final = 31
"""Magnitude that values from outside and numbers of iterations may have; one with more fails the guard."""
NARROW_BITS: Final = 60
"""What a sum of a few numbers may each have in i64 without overflow."""
WIDE_BITS: Final = 124
"""The same in i128."""
GREATEST_SYMBOL: Final = (1 << SYMBOL_BITS) - 1


class Interval(NamedTuple):
    """Least and greatest value, as unbounded integers."""

    low: int
    high: int

    @property
    def is_signed(self) -> bool:
        """Whether all of it are numbers of 64 bits: the polynomial is then the program's number."""
        return self.low >= -(1 << 63) and self.high < 1 << 63


def interval_of(polynomial: Polynomial, greatest: Callable[[Value], int]) -> Interval:
    """The interval of a polynomial whose symbols lie between 0 and what ``greatest`` says of each."""
    low = high = 0
    for monomial, number in polynomial.terms.items():
        reach = number
        for symbol in monomial:
            reach *= greatest(symbol)
        low += min(reach, 0) if monomial else number
        high += max(reach, 0) if monomial else number
    return Interval(low, high)


def is_narrow(polynomial: Polynomial) -> bool:
    """Whether its value has at most 60 bits, whatever its symbols are, if the guard lets them pass. Such a
    polynomial is the program's number, and so are sums of a few."""
    return polynomial.bits(SYMBOL_BITS) <= NARROW_BITS


def is_wide(polynomial: Polynomial) -> bool:
    """Whether the guard can compute its value without overflow."""
    return polynomial.bits(SYMBOL_BITS) <= WIDE_BITS
