"""Makes one loop of two whose iterations lie one after the other in every index: rows and columns of an image
that is read and written as it lies in memory.

Lanes then run over the ends of rows: of 5 rows with 5 elements each, 25 lanes are used instead of 5 times 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from itertools import pairwise
from typing import Final

from jitree.dispatch.native.nests.polynomials import Polynomial
from jitree.dispatch.native.nests.reading import Level, PolynomialReader, Split
from jitree.dispatch.native.nests.recognise import Structure
from jitree.dispatch.native.ssa import PHI, Value

_LARGEST: Final = 1 << 31


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
    return all(
        access.index.coefficient(outer.counter) == access.index.coefficient(inner.counter) * count
        for access in (*structure.loads.values(), *structure.stores)
    )


def _joined(structure: Structure, reader: PolynomialReader, outer: Level, inner: Level) -> Structure:
    variable = inner.counter
    number = min(level.counter.number for level in structure.levels) - 1
    counter = Value(min(number, -1), "i64", PHI, [], (), variable.pc, variable.block)
    count = (outer.extent or 0) * (inner.extent or 0)
    level = Level(counter, Polynomial.constant(0), Polynomial.constant(count), 1, False)
    faster = outer if inner.extent == 1 else inner

    def index(polynomial: Polynomial) -> Polynomial:
        rest = polynomial.without([outer.counter, inner.counter])
        return rest + polynomial.coefficient(faster.counter) * Polynomial.symbol(counter)

    reader.splits = _splits(reader.splits, outer, inner, level)
    at = structure.levels.index(outer)
    return structure.over((*structure.levels[:at], level, *structure.levels[at + 2 :]), index)


def _splits(splits: Sequence[Split], outer: Level, inner: Level, level: Level) -> list[Split]:
    """Those that know nothing of the two loops, and where these were the inner ones, the joined one."""
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
    """The nest with several loops in place of one, which run so often, from the outermost; the opposite of
    :func:`collapsed`. No value may depend on the loop's counter other than through indices."""
    number = min(0, *(other.counter.number for other in structure.levels)) - 1
    old = level.counter
    levels: list[Level] = []
    position = Polynomial.constant(0)
    for offset, count in enumerate(counts):
        counter = Value(number - offset, "i64", PHI, [], (), old.pc, old.block)
        levels.append(Level(counter, Polynomial.constant(0), Polynomial.constant(count), 1, False))
        position = position * Polynomial.constant(count) + Polynomial.symbol(counter)

    def index(polynomial: Polynomial) -> Polynomial:
        return polynomial.without([old]) + polynomial.coefficient(old) * position

    at = structure.levels.index(level)
    found = structure.over((*structure.levels[:at], *levels, *structure.levels[at + 1 :]), index)
    other = copy(reader)
    other.splits = [split for split in reader.splits if level not in (split.outer, split.inner)]
    return found, other
