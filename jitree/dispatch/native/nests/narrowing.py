"""Indices of loads that run only under a condition, such as the elements inside a padded edge.

Where a predicate says ``0 <= f < n`` and the index holds a multiple of ``f``, that part of the index
is known to lie between 0 and the multiple of ``n - 1``, however far the counters go. That holds of numbers,
not modulo 2**64: of what may wrap, nothing is narrowed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from jitree.base.records import NamedTuple
from jitree.dispatch.native.nests.intervals import is_narrow
from jitree.dispatch.native.nests.polynomials import Polynomial
from jitree.dispatch.native.nests.recognise import ElementAccess, Literal, Structure
from jitree.dispatch.native.ssa import Value

_ONE: Final = Polynomial.constant(1)


class Narrowed(NamedTuple):
    """An index in two parts."""

    rest: Polynomial
    """What is left of the index."""
    highest: Polynomial
    """Greatest value of the other part, if no limit is negative; the least one is 0."""
    limits: tuple[Polynomial, ...]
    """What the predicate compares that part with."""
    parts: tuple[Polynomial, ...]
    """What the predicate says this of."""

    @property
    def polynomials(self) -> tuple[Polynomial, ...]:
        """What the guard computes with, or relies on."""
        return self.rest, self.highest, *self.limits, *self.parts


def narrowed(access: ElementAccess, structure: Structure) -> Narrowed:
    """The index of an access without what its predicate bounds."""
    index, highest = access.index, Polynomial.constant(0)
    limits: list[Polynomial] = []
    parts: list[Polynomial] = []
    for literal in sorted(access.predicate, key=lambda literal: literal[0].number):
        for polynomial, limit in _ranges(literal, structure):
            factor = _factor(index, polynomial, structure.counters)
            if factor is None or not is_narrow(polynomial.times(factor)):
                continue
            higher = highest.sum(limit.distance(_ONE).times(factor))
            if not is_narrow(higher):
                continue
            index, highest = index - polynomial * Polynomial.constant(factor), higher
            limits.append(limit)
            parts.append(polynomial)
    return Narrowed(index, highest, tuple(limits), tuple(parts))


def _ranges(literal: Literal, structure: Structure) -> Iterator[tuple[Polynomial, Polynomial]]:
    """(f, n) of each condition ``0 <= f < n`` that has to hold."""
    condition, holds = literal
    if not holds:
        return
    if condition.operation == "and.i32":
        for operand in condition.operands:
            yield from _ranges((operand, True), structure)
    elif condition.operation in ("cmp.lt.i64.u", "cmp.lt.i64.s"):
        polynomial, limit = (structure.conditions.get(operand) for operand in condition.operands)
        if polynomial is None or limit is None or limit.symbols() & set(structure.counters):
            return
        if (limit.number or 0) < 0 or not (is_narrow(polynomial) and is_narrow(limit)):
            return
        if condition.operation == "cmp.lt.i64.u" or _never_negative(polynomial, structure):
            yield polynomial, limit


def _never_negative(polynomial: Polynomial, structure: Structure) -> bool:
    """Counters and constants only, none of them taken away; of what is narrow, that is enough."""
    negative = any(number < 0 for number in polynomial.terms.values())
    return not negative and polynomial.symbols() <= set(structure.counters)


def _factor(index: Polynomial, polynomial: Polynomial, counters: tuple[Value, ...]) -> int | None:
    """The positive number that the index multiplies the counters of ``polynomial`` by, if all have one."""
    found: set[int] = set()
    for counter in counters:
        part, whole = polynomial.coefficient(counter).number, index.coefficient(counter).number
        if part is None or whole is None:
            return None
        if part:
            if whole % part:
                return None
            found.add(whole // part)
    factor = found.pop() if len(found) == 1 else 0
    return factor if factor > 0 else None
