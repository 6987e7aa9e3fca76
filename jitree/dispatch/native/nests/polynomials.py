"""Polynomials over loop counters and values from outside a nest: what indices and bounds are read as.

The arithmetic of the instructions wraps modulo 2**64, and so does that of the coefficients: a polynomial is
congruent to the program's number. ``intervals.py`` says when it is that number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from jitree.dispatch.native.ssa import Value

Monomial = tuple["Value", ...]
"""A product of values, ordered by number. A loop's counter is represented by its header's parameter."""


_NUMBER: Final = attrgetter("number")
_HALF: Final = 1 << 63
_ALL: Final = (1 << 64) - 1


def _wrap(number: int) -> int:
    return ((number + _HALF) & _ALL) - _HALF


@dataclass(frozen=True, slots=True)
class Polynomial:
    """A sum of monomials with integer coefficients, none of them 0; the empty monomial is the constant."""

    terms: Mapping[Monomial, int]

    @staticmethod
    @cache
    def constant(number: int) -> Polynomial:
        number = _wrap(number)
        return Polynomial({(): number} if number else {})

    @staticmethod
    def symbol(value: Value) -> Polynomial:
        return Polynomial({(value,): 1})

    def __add__(self, other: Polynomial) -> Polynomial:
        return self._plus(other, 1) if other.terms else self

    def __sub__(self, other: Polynomial) -> Polynomial:
        return self._plus(other, -1) if other.terms else self

    def _plus(self, other: Polynomial, sign: int) -> Polynomial:
        terms = dict(self.terms)
        for monomial, number in other.terms.items():
            total = _wrap(terms.get(monomial, 0) + sign * number)
            if total:
                terms[monomial] = total
            else:
                terms.pop(monomial, None)
        return Polynomial(terms)

    def __mul__(self, other: Polynomial) -> Polynomial:
        for one, factor in ((self, other.number), (other, self.number)):
            if factor is not None:
                return one if factor == 1 else _polynomial((m, a * factor) for m, a in one.terms.items())
        return _polynomial(
            (tuple(sorted((*left, *right), key=_NUMBER)), a * b)
            for left, a in self.terms.items()
            for right, b in other.terms.items()
        )

    def sum(self, other: Polynomial) -> Polynomial:
        """The sum in unbounded integers: its coefficients do not wrap, nor do those of the next two."""
        terms = dict(self.terms)
        for monomial, number in other.terms.items():
            terms[monomial] = terms.get(monomial, 0) + number
        return Polynomial({monomial: number for monomial, number in terms.items() if number})

    def times(self, factor: int) -> Polynomial:
        """So many times this, in unbounded integers."""
        return Polynomial({monomial: number * factor for monomial, number in self.terms.items() if factor})

    def distance(self, other: Polynomial) -> Polynomial:
        """The difference in unbounded integers."""
        return self.sum(other.times(-1))

    @property
    def number(self) -> int | None:
        """Its value, if it is a constant."""
        if not self.terms:
            return 0
        return self.terms.get(()) if len(self.terms) == 1 else None

    def coefficient(self, counter: Value) -> Polynomial:
        """What a value is multiplied by; of its square, the value itself."""
        return Polynomial({
            monomial[: (at := monomial.index(counter))] + monomial[at + 1 :]: number
            for monomial, number in self.terms.items()
            if counter in monomial
        })  # fmt: skip

    def divided(self, divisor: Polynomial) -> tuple[Polynomial, Polynomial]:
        """(quotient, rest) by a positive constant, a value or a product of them, term by term; else (0,
        itself)."""
        factors, number = next(iter(divisor.terms.items()), ((), 0))
        if number <= 0 or len(divisor.terms) != 1:
            return Polynomial({}), self
        quotients = ((_without(monomial, factors), count // number) for monomial, count in self.terms.items())
        quotient = _polynomial((monomial, count) for monomial, count in quotients if monomial is not None)
        return quotient, self - quotient * divisor

    def without(self, counters: Iterable[Value]) -> Polynomial:
        """The terms in which none of the counters stands."""
        excluded = set(counters)
        return Polynomial({m: number for m, number in self.terms.items() if excluded.isdisjoint(m)})

    def bits(self, of_symbols: int) -> int:
        """Bits that its magnitude can have when symbols have this many."""
        return sum(abs(number) << of_symbols * len(m) for m, number in self.terms.items()).bit_length()

    def symbols(self) -> set[Value]:
        return {value for monomial in self.terms for value in monomial}

    def degree(self, counters: Iterable[Value]) -> int:
        """The largest number of the counters that stand in one product."""
        counted = set(counters)
        return max((sum(value in counted for value in m) for m in self.terms), default=0)


def _without(monomial: Monomial, factors: Monomial) -> Monomial | None:
    """A product divided by another; None where that leaves a rest."""
    left = list(monomial)
    for factor in factors:
        if factor not in left:
            return None
        left.remove(factor)
    return tuple(left)


def _polynomial(terms: Iterable[tuple[Monomial, int]]) -> Polynomial:
    sums: dict[Monomial, int] = {}
    for monomial, number in terms:
        sums[monomial] = _wrap(sums.get(monomial, 0) + number)
    return Polynomial({monomial: number for monomial, number in sums.items() if number})
