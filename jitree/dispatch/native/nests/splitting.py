"""Takes loops apart whose variable is divided: the compiler's way to merge parallel loops, and to find the
tile that an element lies in.

A loop over ``n`` becomes one over the quotients and one over the remainders of its variable, and so on for
divisors of the divisor. Where ``n`` is no multiple of it, the last iterations of the inner loop are none of
the program's: its accesses then happen under the loop's own condition.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from jitree.dispatch.native.nests.polynomials import Polynomial
from jitree.dispatch.native.nests.reading import Level, NotANest, PolynomialReader
from jitree.dispatch.native.ssa import PHI, SsaLoop, Value

_ZERO: Final = Polynomial.constant(0)
_MOST_LEVELS: Final = 8
_WIDEST_TILE: Final = 64
"""Divisors up to which a loop of an unknown number of iterations is split with a rest: where it has only
one, the inner loop makes as many. Tiles of compiled models have up to 32 elements."""


def add_level(reader: PolynomialReader, loop: SsaLoop, level: Level) -> None:
    """Adds the next loop inwards, as several where that makes divisions disappear."""
    variable = loop.header.parameters[0]
    divisors = list(_divisors(loop, level)) if level.initial.number == 0 and level.step == 1 else []
    exact = list(_digits(level.bound, divisors))
    if exact:
        reader.add_split(variable, level, _exact_levels(variable, level, exact))
        reader.products.append(level.bound)
        for divisor in exact:  # two negative factors make a positive product
            reader.not_negative |= divisor.symbols()
    elif divisors and (tile := _tile(divisors[0], level)):
        outer, inner = _counters(variable, 2)
        levels = (
            Level(outer, _ZERO, level.bound, tile, level.unsigned),
            Level(inner, _ZERO, divisors[0], 1, level.unsigned),
        )
        reader.add_split(variable, level, levels)
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


def _exact_levels(variable: Value, whole: Level, divisors: Sequence[Polynomial]) -> list[Level]:
    """Loops of which the last ones together run as often as each divisor says."""
    sizes = (whole.bound, *divisors)
    bounds = [size.divided(divisor)[0] for size, divisor in pairwise(sizes)]
    counters = _counters(variable, len(sizes))
    return [
        Level(counter, _ZERO, bound, 1, whole.unsigned)
        for counter, bound in zip(counters, (*bounds, divisors[-1]), strict=True)
    ]


def _counters(variable: Value, count: int) -> list[Value]:
    """Values that no function has."""
    first = -_MOST_LEVELS * variable.number - 1
    return [Value(first - part, "i64", PHI, [], (), variable.pc, variable.block) for part in range(count)]


def _divisors(loop: SsaLoop, level: Level) -> Iterator[Polynomial]:
    """What the variable is divided by in the loop, if that can be less than the number of iterations."""
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
