"""Digits of indices: what shows that two nests touch the same elements where their counters are the same.

An index ``base + upper + factor * counter + lower`` with ``0 <= lower < factor``, whose upper part is a
multiple of a period that is at least ``factor * extent``, has the counter as a digit: every element belongs
to one iteration of that loop, in each nest whose index has the same digit.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Final

from jitree.base.records import NamedTuple
from jitree.dispatch.native.nests.polynomials import Polynomial, is_narrow
from jitree.dispatch.native.nests.structure import ElementAccess, Level, Structure
from jitree.dispatch.native.ssa import Value

_ZERO: Final = Polynomial.constant(0)
_ONE: Final = Polynomial.constant(1)


class Digit(NamedTuple):
    """A loop's counter as a digit of the indices of a buffer."""

    buffer: Value
    element: str
    base: Polynomial
    factor: Polynomial
    extent: Polynomial


class Reading(NamedTuple):
    """An access that has a digit if the numbers allow it."""

    digit: Digit
    rooms: tuple[Polynomial, ...]
    """What has to be positive for that: what is left between lower part and factor, and up to the period."""


def extent_of(level: Level) -> Polynomial | None:
    """The number of iterations; None if it is no polynomial."""
    if level.extent is not None:
        return Polynomial.constant(level.extent)
    return level.distance if level.step == 1 else None


def read_digit(structure: Structure, access: ElementAccess, level: Level) -> Reading | None:
    """None if the counter of a loop is no digit of the access's index."""
    factor, extent = access.index.coefficient(level.counter), extent_of(level)
    if extent is None or (factor.number or 1) <= 0 or not factor.terms or not _is_exact(structure, access):
        return None
    others = [
        (part, other)
        for other in structure.levels
        if other is not level
        and other.extent != 1
        and (part := access.index.coefficient(other.counter)).terms
    ]
    period = _period(factor, extent, [part for part, _ in others])
    lower = _ZERO
    for part, other in others:
        quotient, rest = part.divided(period)
        if quotient.terms and not rest.terms:
            continue
        times = extent_of(other)
        if times is None or (part.number or 1) <= 0:
            return None
        lower = lower + part * (times - _ONE)
    rooms = (factor - lower, period - factor * extent + _ONE)
    if any(room.number is not None and room.number <= 0 for room in rooms):
        return None
    if not all(map(is_narrow, (*rooms, period))):
        return None
    base = access.index.without(structure.counters)
    return Reading(Digit(access.buffer, access.element, base, factor, extent), rooms)


def _is_exact(structure: Structure, access: ElementAccess) -> bool:
    """Whether factors times numbers of iterations do not wrap."""
    return not access.computed and is_narrow(access.index - access.index.without(structure.counters))


def _period(factor: Polynomial, extent: Polynomial, others: Sequence[Polynomial]) -> Polynomial:
    """Where rows have room for more iterations than there are, what all larger factors are multiples of."""
    numbers = [part.number for part in others]
    if factor.number is not None and None not in numbers:
        upper = gcd(*(number for number in numbers if number is not None and number > factor.number))
        if upper and upper % factor.number == 0:
            return Polynomial.constant(upper)
    return factor * extent


def is_counted_alike(level: Level) -> bool:
    """Whether each loop of that number of iterations runs as often: also of one that is negative, and where
    a bound is a number from outside and some more, which may wrap."""
    initial = level.initial.number
    return initial is not None and (level.extent is not None or (initial == 0 and not level.unsigned))


Stride = tuple[Polynomial, Polynomial]
"""By how many elements a loop goes on, and how often it runs."""


def elements(structure: Structure, access: ElementAccess) -> tuple[Polynomial, list[Stride]] | None:
    """Which elements an access touches in all iterations: the first one, and the strides from there, constant
    loops that go on where others end as one. Equal ones are the same elements, also on the interpreter, after
    a guard has failed: whatever the numbers from outside are, if loops are counted alike. None if they are
    not known."""
    found: list[Stride] = []
    if not _is_exact(structure, access):
        return None
    for level in structure.levels:
        factor, extent = access.index.coefficient(level.counter), extent_of(level)
        if extent is None:
            return None
        if factor.terms and level.extent != 1:
            found.append((factor, extent))
    while (pair := _in_a_row(found)) is not None:
        outer, inner = pair
        found.remove(outer)
        found[found.index(inner)] = (inner[0], inner[1] * outer[1])
    return access.index.without(structure.counters), sorted(found, key=_order)


def _order(stride: Stride) -> list[tuple[tuple[int, ...], int]]:
    terms = (item for polynomial in stride for item in polynomial.terms.items())
    return [(tuple(value.number for value in monomial), number) for monomial, number in terms]


def _in_a_row(found: Sequence[Stride]) -> tuple[Stride, Stride] | None:
    for outer in found:
        for inner in found:
            are_constant = None not in (outer[1].number, inner[1].number)
            if are_constant and outer[0] == inner[0] * inner[1]:
                return outer, inner
    return None
