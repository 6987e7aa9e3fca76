"""How a workgroup is cut into parts that run at the same time: every nest of the kernel over a range of one
of its loops.

The loop is one of the last nest, which alone decides what others see. A nest in front of it that fills a
scratch buffer, of which every part has its own, runs over the same range where the buffer's index has the
same digit (:mod:`digits`) in both, and else as a whole in each part. Nests that store to one buffer of the
program need the same digit, or there are no parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import lcm, prod
from typing import TYPE_CHECKING, Final

from jitree.base.records import NamedTuple
from jitree.dispatch.native.nests.digits import Digit, Reading, elements, is_counted_alike, read_digit
from jitree.dispatch.native.nests.plan import Plan
from jitree.dispatch.native.nests.polynomials import Polynomial
from jitree.dispatch.native.nests.structure import ElementAccess, Level
from jitree.dispatch.native.ssa import Value

if TYPE_CHECKING:
    from jitree.dispatch.native.nests import Nest

MOST_PARTS: Final = 255
_UNKNOWN: Final = 256
"""Iterations that a loop is taken for whose number is not known at all."""
LEAST_WORK: Final = 1 << 16
"""Instructions on one element that are too little for two threads: some microseconds in vectors."""
_FULL: Final = 16
"""How many lanes there are, at least, for each one that is empty."""
_REPEATED: Final = 16
"""A part of a kernel's work that nests which every part repeats may be, at most."""

Place = tuple[int, ElementAccess]
"""A nest's number in the kernel, and an access of it."""


class NestPart(NamedTuple):
    """What a part runs of one nest."""

    nest: Nest
    level: Level | None
    """The loop of which it runs a range; None: it runs all."""


class Cut(NamedTuple):
    """How the nests of a kernel are cut."""

    nests: tuple[NestPart, ...]
    unit: int
    """Iterations that stay together: ranges begin and end at multiples of it."""
    most: int
    """Parts that have something to do."""
    rooms: tuple[tuple[int, Polynomial], ...]
    """What has to be positive, over values from outside of the nest of that number."""
    apart: tuple[tuple[Place, Place], ...]
    """Accesses of different nests that must not touch the same bytes."""
    filled: frozenset[Value]
    """Scratch buffers of which nothing is read that has not been written."""


def best_cut(nests: Sequence[Nest], scratch: set[Value]) -> Cut | None:
    """The cut with the most parts of a kernel that consists of these nests, in their order; ``scratch`` are
    its own buffers. None if there is none."""
    if any(nest.reader.hoisted or nest.structure.is_empty for nest in nests):
        return None
    if sum(map(_work, nests)) < LEAST_WORK:
        return None
    found = [cut for last, level in _candidates(nests) if (cut := _Cutter(nests, scratch, last, level).cut())]
    return max(found, key=_merit, default=None)


def _merit(cut: Cut) -> tuple[int, bool]:
    return min(cut.most, 64), all(part.level in (None, *part.nest.plan.outer) for part in cut.nests)


def _candidates(nests: Sequence[Nest]) -> Iterator[tuple[Nest, Level]]:
    """Loops of the last nest, and parts of them that are loops of others."""
    last = nests[-1]
    for level in last.structure.levels:
        yield last, level
    seen: list[Digit] = []
    for nest in nests[:-1]:
        for access in _accesses(nest):
            own = [item for item in _accesses(last) if item.buffer is access.buffer]
            for level in nest.structure.levels if own else ():
                reading = read_digit(nest.structure, access, level)
                if reading is None or reading.digit in seen:
                    continue
                seen.append(reading.digit)
                parted = _with_digit(last, own[0], reading.digit)
                if parted is not None and parted[0] is not last:
                    yield parted[:2]


def _accesses(nest: Nest) -> tuple[ElementAccess, ...]:
    return (*nest.structure.loads.values(), *nest.structure.stores)


def _with_digit(nest: Nest, access: ElementAccess, digit: Digit) -> tuple[Nest, Level, Reading] | None:
    """The nest's loop whose counter is that digit of an access, if need be after a loop has been parted."""
    found = _loop_of(nest, access, digit)
    if found is not None:
        return nest, *found
    factor, count = digit.factor.number, digit.extent.number
    if factor is None or count is None:
        return None
    for level in nest.structure.levels:
        own, extent = access.index.coefficient(level.counter).number, level.extent
        if own is None or own <= 0 or extent is None or factor % own or extent % (count * (factor // own)):
            continue
        inner = factor // own
        counts = [number for number in (extent // (count * inner), count, inner) if number > 1]
        parted = nest.parted(level, counts)
        if parted is None:
            continue
        same = next(item for item in _accesses(parted) if item.instruction is access.instruction)
        found = _loop_of(parted, same, digit)
        if found is not None:
            return parted, *found
    return None


def _loop_of(nest: Nest, access: ElementAccess, digit: Digit) -> tuple[Level, Reading] | None:
    for level in nest.structure.levels:
        reading = read_digit(nest.structure, access, level)
        if reading is not None and reading.digit == digit:
            return level, reading
    return None


class _Cutter:
    """Follows one loop of the last nest back through the others."""

    def __init__(self, nests: Sequence[Nest], scratch: set[Value], last: Nest, level: Level) -> None:
        self._nests = [*nests[:-1], last]
        self._scratch = scratch
        self._level = level
        self._needs: dict[Value, Digit | None] = {}
        """The digit by which a part reads the elements of a buffer; None: it reads all."""
        self._own: dict[Value, Digit | None] = {}
        """The digit that is the part's, of each buffer of the program that the last nest stores to."""
        self._rooms: list[tuple[int, Polynomial]] = []

    def cut(self) -> Cut | None:
        last = self._nests[-1]
        if self._unit(last, self._level) is None:
            return None
        for store in last.structure.stores:
            reading = read_digit(last.structure, store, self._level)
            self._own[store.buffer] = None if reading is None else reading.digit
        parts: list[NestPart] = []
        for number in reversed(range(len(self._nests))):
            level = self._level if number == len(self._nests) - 1 else self._level_of(number)
            nest = self._nests[number]  # which may have been parted
            if level is not None and self._is_repeated(number, nest, level):
                level = None
            if level is None and any(store.buffer not in self._scratch for store in nest.structure.stores):
                return None
            if level is not None and self._unit(nest, level) is None:
                return None
            self._need(number, nest, level)
            parts.insert(0, NestPart(nest, level))
        apart = self._apart(parts)
        units = [self._unit(nest, level) or 1 for nest, level in parts if level is not None]
        unit = lcm(*units)
        most = min(-(-_greatest(self._level) // unit), MOST_PARTS)
        if apart is None or most < 2 or not _is_worth_it(parts):
            return None
        filled = frozenset(buffer for buffer in self._scratch if self._is_filled(parts, buffer))
        return Cut(tuple(parts), unit, most, tuple(_distinct(self._rooms)), apart, filled)

    def _is_filled(self, parts: Sequence[NestPart], buffer: Value) -> bool:
        """Whether the first nest that touches a buffer writes all elements that others touch, unread."""
        touching = [
            (number, part.nest.structure, access)
            for number, part in enumerate(parts)
            for access in _accesses(part.nest)
            if access.buffer is buffer
        ]
        if not touching:
            return True
        nests = {number: parts[number].nest for number, *_ in touching}.values()
        if not all(map(_is_counted_alike, nests)):
            return False
        first, structure, fill = touching[0]
        if fill.instruction.results or fill.predicate or [number for number, *_ in touching].count(first) > 1:
            return False
        if any(not fill.index.coefficient(level.counter).terms for level in structure.levels):
            return False  # perhaps it runs no iteration of that loop
        known = elements(structure, fill)
        return known is not None and all(
            elements(structure, access) == known and access.element == fill.element
            for _, structure, access in touching[1:]
        )

    def _unit(self, nest: Nest, level: Level) -> int | None:
        """Iterations of a loop that the plan takes together; None if they are not parallel."""
        plan = nest.plan
        if plan.in_order or level in plan.reductions:
            return None
        if plan.fold is not None and level is plan.fold.columns:
            return None
        return lcm(*(_together(one, level) for one in (plan, plan.alternative) if one is not None))

    def _is_repeated(self, number: int, nest: Nest, level: Level) -> bool:
        """Whether each part runs all of a nest, so little work that it is not to decide how large parts are:
        sums that are cleared, many at once."""
        if number == len(self._nests) - 1 or self._unit(nest, level) in (None, 1):
            return False
        is_own = all(store.buffer in self._scratch for store in nest.structure.stores)
        return is_own and _work(nest) * MOST_PARTS <= sum(map(_work, self._nests))

    def _level_of(self, number: int) -> Level | None:
        """The loop by which an earlier nest is cut; None: it is not."""
        nest = self._nests[number]
        found: list[tuple[Level, Reading]] = []
        for store in nest.structure.stores:
            digits = self._needs if store.buffer in self._scratch else self._own
            digit = digits.get(store.buffer)
            if digit is None or nest.plan.in_order:
                return None
            known = _with_digit(nest, store, digit)
            if known is None or (found and known[0] is not nest):
                return None
            nest = self._nests[number] = known[0]
            found.append((known[1], known[2]))
        if len({level.counter for level, _ in found}) != 1 or self._unit(nest, found[0][0]) is None:
            return None
        self._rooms += [(number, room) for _, reading in found for room in reading.rooms]
        return found[0][0]

    def _need(self, number: int, nest: Nest, level: Level | None) -> None:
        """Notes which elements of scratch buffers the nest's part reads."""
        for load in nest.structure.loads.values():
            if load.buffer not in self._scratch:
                continue
            reading = None if level is None else read_digit(nest.structure, load, level)
            digit = None if reading is None else reading.digit
            if reading is not None:
                self._rooms += [(number, room) for room in reading.rooms]
            if self._needs.setdefault(load.buffer, digit) != digit:
                self._needs[load.buffer] = None

    def _apart(self, parts: Sequence[NestPart]) -> tuple[tuple[Place, Place], ...] | None:
        """What other nests touch of what is stored to the program's buffers; None if it is the same."""
        found: list[tuple[Place, Place]] = []
        places = [
            (number, access)
            for number, part in enumerate(parts)
            for access in _accesses(part.nest)
            if access.buffer not in self._scratch
        ]
        for number, store in places:
            for other, access in places:
                if (
                    store.instruction.results
                    or number == other
                    or (not access.instruction.results and other < number)
                ):
                    continue
                if store.buffer is not access.buffer:
                    found.append(((number, store), (other, access)))
                elif not (self._is_own(parts[number], store) and self._is_own(parts[other], access)):
                    return None
                else:
                    self._check(number, parts[number], store)
                    self._check(other, parts[other], access)
        return tuple(found)

    def _is_own(self, part: NestPart, access: ElementAccess) -> bool:
        """Whether a part touches nothing but its own elements."""
        digit = self._own.get(access.buffer)
        reading = None if part.level is None else read_digit(part.nest.structure, access, part.level)
        return reading is not None and reading.digit == digit

    def _check(self, number: int, part: NestPart, access: ElementAccess) -> None:
        assert part.level is not None
        reading = read_digit(part.nest.structure, access, part.level)
        assert reading is not None
        self._rooms += [(number, room) for room in reading.rooms]


def _is_counted_alike(nest: Nest) -> bool:
    """Whether its loops, also those that have become one, run as often as others of the same numbers, where a
    guard fails too: the product of digits may wrap there."""
    levels, products = nest.reader.levels.values(), nest.reader.products
    return all(map(is_counted_alike, levels)) and all(product.number is not None for product in products)


def _together(plan: Plan, level: Level) -> int:
    """Iterations of a parallel loop that a tile or its lanes take."""
    if level is plan.vector:
        return plan.lanes * (plan.vectors if plan.tiled is not None else 1)
    if plan.fold is not None and level is plan.fold.rows:
        return _full_rows(plan.fold.width, plan.lanes)
    return plan.copies if level is plan.tiled else 1


def _full_rows(width: int, lanes: int) -> int:
    """Rows that share vectors and leave few lanes of the last one empty."""
    return next(
        rows
        for rows in range(1, lanes + 1)
        if -(-rows * width // lanes) * lanes * _FULL <= rows * width * (_FULL + 1)
    )


def _distinct(rooms: Sequence[tuple[int, Polynomial]]) -> Iterator[tuple[int, Polynomial]]:
    """What is not known to be positive, once each."""
    for position, room in enumerate(rooms):
        if room[1].number is None and room not in rooms[:position]:
            yield room


def _greatest(level: Level) -> int:
    """A number of iterations that is not exceeded, as far as it is known."""
    if level.extent is not None:
        return level.extent
    symbols = level.distance.symbols()
    limits = [
        operand.literals[0]
        for symbol in symbols
        if symbol.operation.startswith("min.i64") and len(symbols) == 1
        for operand in symbol.operands
        if operand.operation == "const.i64"
    ]
    return min(limits, default=_UNKNOWN)


def _is_worth_it(parts: Sequence[NestPart]) -> bool:
    """There is enough to share, and what all parts do once more is little."""
    whole = sum(_work(nest) for nest, level in parts if level is None)
    return max(whole * _REPEATED, LEAST_WORK) <= sum(
        _work(nest) for nest, level in parts if level is not None
    )


def _work(nest: Nest) -> int:
    return prod(_greatest(level) for level in nest.structure.levels) * max(nest.dependence.weight, 1)
