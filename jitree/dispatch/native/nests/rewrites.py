"""Rewrites the loops of a nest: splits, joins and parts them, narrows indices.

``passes.py`` says when. In their order:

* *splitting*, while loops are read: the compiler merges parallel loops, and finds the tile that an element
  lies in, by dividing a loop's variable. A loop over ``n`` becomes one over the quotients and one over the
  remainders, and so on for divisors of the divisor. Where ``n`` is no multiple of it, the last iterations of
  the inner loop are none of the program's: its accesses then happen under the loop's own condition.
* *collapsing* makes one loop of two whose iterations lie one after the other in every index: rows and columns
  of an image that is read and written as it lies in memory. Lanes then run over the ends of rows: of 5 rows
  with 5 elements each, 25 lanes are used instead of 5 times 5.
* *parting*, its opposite, where a kernel is cut by a loop of another nest.
* *narrowing*, for the guard, of accesses that happen only under a condition, such as the elements inside a
  padded edge: where a predicate says ``0 <= f < n`` and the index holds a multiple of ``f``, that part of the
  index lies between 0 and the multiple of ``n - 1``, however far the counters go. That holds of numbers, not
  modulo 2**64: of what may wrap, nothing is narrowed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from itertools import pairwise
from typing import Final

from jitree.base.records import NamedTuple
from jitree.dispatch.native.nests.reading import PolynomialReader
from jitree.dispatch.native.nests.structure import (
    ONE,
    ZERO,
    ElementAccess,
    Level,
    Literal,
    NotANest,
    Polynomial,
    Split,
    Structure,
    is_narrow,
    new_level,
)
from jitree.dispatch.native.ssa import SsaLoop, Value

_MOST_LEVELS: Final = 8
_WIDEST_TILE: Final = 64
"""Divisors up to which a loop of an unknown number of iterations is split with a rest: where it has only
one, the inner loop makes as many. Tiles of compiled models have up to 32 elements."""
_LARGEST: Final = 1 << 31


# -- splitting -----------------------------------------------------------------------------------------------


def add_level(reader: PolynomialReader, loop: SsaLoop, level: Level) -> None:
    """Adds the next loop inwards, as several where that makes divisions disappear."""
    variable = loop.header.parameters[0]
    first, unsigned = -_MOST_LEVELS * variable.number - 1, level.unsigned
    divisors = list(_divisors(loop, level)) if level.initial.number == 0 and level.step == 1 else []
    exact = list(_digits(level.bound, divisors))
    if exact:
        sizes = (level.bound, *exact)
        bounds = [*(size.divided(divisor)[0] for size, divisor in pairwise(sizes)), exact[-1]]
        levels = [
            new_level(first - part, variable, bound, unsigned=unsigned) for part, bound in enumerate(bounds)
        ]
        reader.add_split(variable, level, levels)
        reader.products.append(level.bound)
        for divisor in exact:  # two negative factors make a positive product
            reader.not_negative |= divisor.symbols()
    elif divisors and (tile := _tile(divisors[0], level)):
        outer = new_level(first, variable, level.bound, tile, unsigned)
        inner = new_level(first - 1, variable, divisors[0], 1, unsigned)
        reader.add_split(variable, level, (outer, inner))
        reader.limits.append(loop.header.terminator.operands[0])
    else:
        reader.add(variable, level)


def _tile(divisor: Polynomial, level: Level) -> int | None:
    """The divisor if few iterations of its inner loop are none of the program's."""
    number = divisor.number
    return None if number is None or (level.extent is None and number > _WIDEST_TILE) else number


def _digits(bound: Polynomial, divisors: Sequence[Polynomial]) -> Iterator[Polynomial]:
    """The divisors, from the largest, that divide the one before without a rest."""
    for divisor in sorted(divisors, key=_size, reverse=True)[: _MOST_LEVELS - 1]:
        if divisor != bound and not bound.divided(divisor)[1].terms:
            yield divisor
            bound = divisor


def _size(divisor: Polynomial) -> tuple[int, int]:
    """By which a divisor comes before those that divide it."""
    return max(map(len, divisor.terms), default=0), max(divisor.terms.values(), default=0)


def _divisors(loop: SsaLoop, level: Level) -> Iterator[Polynomial]:
    """Lists divisors of the variable that are below the iterations."""
    probe = PolynomialReader(loop)
    probe.add(loop.header.parameters[0], level)
    for block in sorted(loop.blocks, key=lambda block: block.order):
        for instruction in block.instructions:
            if not instruction.mnemonic.startswith(("div.i64", "rem.i64")):
                continue
            try:
                dividend, divisor = map(probe.read, instruction.operands)
            except NotANest:
                continue
            if dividend != Polynomial.symbol(level.counter) or level.bound == divisor:
                continue
            number, count = divisor.number, level.extent
            if number is None or (number > 1 and (count is None or count > number)):
                yield divisor


# -- collapsing ----------------------------------------------------------------------------------------------


def collapsed(structure: Structure, reader: PolynomialReader, used: set[Value]) -> Structure:
    """The nest with as few loops as possible. ``used`` are the counters that its values depend on other than
    through indices; their loops stay. The reader's splits follow."""
    while True:
        pair = next((pair for pair in pairwise(structure.levels) if _is_one(structure, *pair, used)), None)
        if pair is None:
            return structure
        structure = _joined(structure, reader, *pair)


def _is_one(structure: Structure, outer: Level, inner: Level, used: set[Value]) -> bool:
    first, second = outer.extent, inner.extent
    if first is None or second is None or min(first, second) < 1 or first * second > _LARGEST:
        return False
    if outer.counter in used or inner.counter in used:
        return False
    if 1 in (first, second):
        return True
    count = Polynomial.constant(second)
    return all(access.step(outer) == access.step(inner) * count for access in structure.accesses)


def _joined(structure: Structure, reader: PolynomialReader, outer: Level, inner: Level) -> Structure:
    number = min(0, *(counter.number for counter in structure.counters)) - 1
    count = Polynomial.constant((outer.extent or 0) * (inner.extent or 0))
    level = new_level(number, inner.counter, count)
    faster = outer if inner.extent == 1 else inner

    def index(polynomial: Polynomial) -> Polynomial:
        rest = polynomial.without([outer.counter, inner.counter])
        return rest + polynomial.coefficient(faster.counter) * Polynomial.symbol(level.counter)

    reader.splits = _splits(reader.splits, outer, inner, level)
    at = structure.levels.index(outer)
    return structure.over((*structure.levels[:at], level, *structure.levels[at + 2 :]), index)


def _splits(splits: Sequence[Split], outer: Level, inner: Level, level: Level) -> list[Split]:
    """Keeps splits that two joined loops leave valid. Where these were the inner ones, the joined one is
    added."""
    found: list[Split] = []
    whole = None
    for split in splits:
        if split.outer is outer and split.inner is inner:
            whole = split.whole
        elif split.inner is whole and whole is not None:
            found.append(split._replace(inner=level))
        elif split.outer not in (outer, inner) and split.inner not in (outer, inner):
            found.append(split)
    return found


def parted(
    structure: Structure, reader: PolynomialReader, level: Level, counts: Sequence[int]
) -> tuple[Structure, PolynomialReader]:
    """Parts one loop of a nest into several, outermost first. No value may depend on the loop's counter other
    than through indices."""
    number = min(0, *(counter.number for counter in structure.counters)) - 1
    old, levels, position = level.counter, [], ZERO
    for offset, count in enumerate(map(Polynomial.constant, counts)):
        levels.append(new_level(number - offset, old, count))
        position = position * count + Polynomial.symbol(levels[-1].counter)

    def index(polynomial: Polynomial) -> Polynomial:
        return polynomial.without([old]) + polynomial.coefficient(old) * position

    at = structure.levels.index(level)
    found = structure.over((*structure.levels[:at], *levels, *structure.levels[at + 1 :]), index)
    other = copy(reader)
    other.splits = [split for split in reader.splits if level not in (split.outer, split.inner)]
    return found, other


# -- narrowing -----------------------------------------------------------------------------------------------


class Narrowed(NamedTuple):
    """Holds an index in two parts."""

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
    found = Narrowed(access.index, ZERO, (), ())
    for literal in sorted(access.predicate, key=lambda literal: literal[0].number):
        for part, limit in _ranges(literal, structure):
            factor = _factor(found.rest, part, structure.counters)
            if factor is None or not is_narrow(part.times(factor)):
                continue
            highest = found.highest.sum(limit.distance(ONE).times(factor))
            if is_narrow(highest):
                rest = found.rest - part * Polynomial.constant(factor)
                found = Narrowed(rest, highest, (*found.limits, limit), (*found.parts, part))
    return found


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
    """Returns the index's positive factor of all counters of ``polynomial``."""
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
