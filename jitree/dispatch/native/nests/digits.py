"""Digits of indices: what shows that two nests touch the same elements where their counters are the same.

An index ``base + upper + factor * counter + lower`` with ``0 <= lower < factor``, whose upper part is a
multiple of ``factor * extent``, has the counter as a digit: every element belongs to one iteration of that
loop, in each nest whose index has the same digit.
"""

from __future__ import annotations

from typing import NamedTuple

from jitree.dispatch.native.nests.guard import NARROW_BITS, SYMBOL_BITS
from jitree.dispatch.native.nests.polynomials import Polynomial
from jitree.dispatch.native.nests.reading import Level
from jitree.dispatch.native.nests.recognise import ElementAccess, Structure
from jitree.dispatch.native.ssa import Value

_ZERO = Polynomial.constant(0)


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
    lower: Polynomial
    """What the counters below reach: less than the factor, as a guard has to check where it is no number."""


def count_of(level: Level) -> Polynomial | None:
    """The number of iterations; None if it is no polynomial."""
    if level.extent is not None:
        return Polynomial.constant(level.extent)
    return level.bound - level.initial if level.step == 1 else None


def read_digit(structure: Structure, access: ElementAccess, level: Level) -> Reading | None:
    """None if the counter of a loop is no digit of the access's index."""
    factor, count = access.index.coefficient(level.counter), count_of(level)
    if count is None or (factor.number or 1) <= 0 or not factor.terms:
        return None
    lower = _ZERO
    for other in structure.levels:
        part, times = access.index.coefficient(other.counter), count_of(other)
        if other is level or not part.terms or other.extent == 1:
            continue
        quotient, rest = part.divided(factor * count)
        if quotient.terms and not rest.terms:
            continue
        if times is None or (part.number or 1) <= 0:
            return None
        lower = lower + part * (times - Polynomial.constant(1))
    room = factor - lower
    if room.number is not None and room.number <= 0:
        return None
    if any(polynomial.bits(SYMBOL_BITS) > NARROW_BITS for polynomial in (room, factor * count)):
        return None
    base = access.index.without(structure.counters)
    return Reading(Digit(access.buffer, access.element, base, factor, count), lower)
