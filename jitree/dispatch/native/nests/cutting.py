"""Cuts a workgroup into parts that run at once: ranges of one loop.

The loop is one of the last nest, which alone decides what others see. Every part has scratch buffers of its
own. A nest in front that fills one runs over the same range where the buffer's index has the same digit in
both nests; otherwise each part runs all of it. Nests that store to one buffer of the program need the
same digit, or there are no parts.

An index ``base + upper + factor * counter + lower`` with ``0 <= lower < factor``, whose upper part is a
multiple of a period that is at least ``factor * extent``, has the counter as a *digit*: every element belongs
to one iteration of that loop, in each nest whose index has the same digit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import gcd, lcm, prod
from typing import TYPE_CHECKING, Final

from jitree.base.records import NamedTuple
from jitree.dispatch.native.nests.folds import Fold
from jitree.dispatch.native.nests.plan import Plan
from jitree.dispatch.native.nests.structure import (
    ONE,
    ZERO,
    ElementAccess,
    Level,
    Polynomial,
    Structure,
    is_narrow,
)
from jitree.dispatch.native.ssa import Value, constant

if TYPE_CHECKING:
    from jitree.dispatch.native.nests.passes import Nest

SHARED_ROWS: Final = 32
"""Iterations of a tiled loop that read the rows of a joined reduction: each part makes these anew."""
MOST_PARTS: Final = 255
_UNKNOWN: Final = 256
"""Iterations that a loop is taken for whose number is not known at all."""
LEAST_WORK: Final = 1 << 16
"""Instructions on one element that are too little for two threads: some microseconds in vectors."""
_ENOUGH: Final = 64
"""Parts of which more are no better."""
_FULL: Final = 16
"""How many lanes there are, at least, for each one that is empty."""
_REPEATED: Final = 16
"""A part of a kernel's work that nests which every part repeats may be, at most."""

_WHOLE: Final = 4
"""Bytes of elements that are loaded as they are stored."""

Place = tuple[int, ElementAccess]
"""A nest's number in the kernel, and an access of it."""
Stride = tuple[Polynomial, Polynomial]
"""By how many elements a loop goes on, and how often it runs."""


# -- digits --------------------------------------------------------------------------------------------------


class Digit(NamedTuple):
    """Describes a loop's counter as a digit of the indices of a buffer."""

    buffer: Value
    element: str
    base: Polynomial
    factor: Polynomial
    extent: Polynomial


class Reading(NamedTuple):
    """Describes an access that has a digit if the numbers allow it."""

    level: Level
    digit: Digit
    rooms: tuple[Polynomial, ...]
    """What has to be positive for that: what is left between lower part and factor, and up to the period."""


def _extent(level: Level) -> Polynomial | None:
    """The number of iterations; None if it is no polynomial."""
    if level.extent is not None:
        return Polynomial.constant(level.extent)
    return level.distance if level.step == 1 else None


def _read_digit(structure: Structure, access: ElementAccess, level: Level) -> Reading | None:
    """None if the counter of a loop is no digit of the access's index."""
    factor, extent = access.step(level), _extent(level)
    if extent is None or (factor.number or 1) <= 0 or not factor.terms or not _is_exact(structure, access):
        return None
    others = [
        (part, other)
        for other in structure.levels
        if other is not level and other.extent != 1 and (part := access.step(other)).terms
    ]
    period, lower = _period(factor, extent, [part for part, _ in others]), ZERO
    for part, other in others:
        quotient, rest = part.divided(period)
        if quotient.terms and not rest.terms:
            continue
        times = _extent(other)
        if times is None or (part.number or 1) <= 0:
            return None
        lower = lower + part * (times - ONE)
    rooms = (factor - lower, period - factor * extent + ONE)
    if any(room.number is not None and room.number <= 0 for room in rooms):
        return None
    if not all(map(is_narrow, (*rooms, period))):
        return None
    base = access.index.without(structure.counters)
    return Reading(level, Digit(access.buffer, access.element, base, factor, extent), rooms)


def _is_exact(structure: Structure, access: ElementAccess) -> bool:
    """Whether factors times numbers of iterations do not wrap."""
    return not access.computed and is_narrow(access.index - access.index.without(structure.counters))


def _period(factor: Polynomial, extent: Polynomial, others: Sequence[Polynomial]) -> Polynomial:
    """Gives the divisor of all larger factors, for rows with spare room."""
    numbers = [part.number for part in others]
    if factor.number is not None and None not in numbers:
        upper = gcd(*(number for number in numbers if number is not None and number > factor.number))
        if upper and upper % factor.number == 0:
            return Polynomial.constant(upper)
    return factor * extent


def _elements(structure: Structure, access: ElementAccess) -> tuple[Polynomial, list[Stride]] | None:
    """Which elements an access touches in all iterations: the first one, and the strides from there, constant
    loops that go on where others end as one. Equal ones are the same elements, once the guards have passed.
    None if they are not known."""
    found: list[Stride] = []
    if not _is_exact(structure, access):
        return None
    for level in structure.levels:
        factor, extent = access.step(level), _extent(level)
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
    pairs = ((outer, inner) for outer in found for inner in found)
    return next(
        (
            (outer, inner)
            for outer, inner in pairs
            if None not in (outer[1].number, inner[1].number) and outer[0] == inner[0] * inner[1]
        ),
        None,
    )


# -- cuts ----------------------------------------------------------------------------------------------------


class NestPart(NamedTuple):
    """Says what a part runs of one nest."""

    nest: Nest
    level: Level | None
    """The loop of which it runs a range; None: it runs all."""


class Start(NamedTuple):
    """Says what sums in a scratch buffer begin with.

    A nest would store it first, and nothing else."""

    buffer: Value
    constant: Value
    """What that nest stores."""
    storing: int
    """Its number."""
    summing: int


class Cut(NamedTuple):
    """Says how the nests of a kernel are cut."""

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
    """Scratch buffers of which loops read nothing that they have not written, once the guards have passed."""
    starts: tuple[Start, ...] = ()


def best_cut(nests: Sequence[Nest], scratch: set[Value]) -> Cut | None:
    """Gives the cut of a kernel's nests that makes most parts; ``scratch`` are its own buffers. None if there
    is none."""
    if any(nest.reader.hoisted or nest.structure.is_empty for nest in nests):
        return None
    if sum(map(_work, nests)) < LEAST_WORK:
        return None
    best: Cut | None = None
    whole = sum(map(_time, nests))

    def merit(cut: Cut) -> tuple[float, bool]:
        share = min(whole / sum(_time(part.nest) for part in cut.nests), 1)
        is_outer = all(part.level in (None, *part.nest.plan.outer) for part in cut.nests)
        return min(cut.most, _ENOUGH) * share, is_outer

    def may_be_better(parts: int) -> bool:
        return best is None or merit(best) < (min(parts, _ENOUGH), True)

    for last, level in _candidates(nests, may_be_better):
        cut = _Cutter(nests, scratch, last, level).cut()
        if cut is not None and (best is None or merit(cut) > merit(best)):
            best = cut
    return best


def _time(nest: Nest) -> float:
    """The work of a nest, of which empty lanes are a part: a loop that is parted may leave more of them."""
    plan = nest.plan
    count = 0 if plan.vector is None else _greatest(plan.vector)
    vectors = -(-count // plan.lanes) - (0.5 if plan.narrow else 0)
    return _work(nest) * (vectors * plan.lanes / count if count else 1)


def _candidates(nests: Sequence[Nest], may_be_better: Callable[[int], bool]) -> Iterator[tuple[Nest, Level]]:
    """Loops of the last nest, and parts of them that are loops of others.

    Only where so many parts may be better: to part a loop plans its nest anew."""
    last = nests[-1]
    for level in last.structure.levels:
        unit = _unit(last, level)
        if unit is not None and may_be_better(-(-_greatest(level) // unit)):
            yield last, level
    seen: list[Digit] = []
    for nest in nests[:-1]:
        for access in nest.structure.accesses:
            own = [item for item in last.structure.accesses if item.buffer is access.buffer]
            for level in nest.structure.levels if own else ():
                if level.extent is None or not may_be_better(level.extent):
                    continue  # what a loop is parted into are constant numbers
                reading = _read_digit(nest.structure, access, level)
                if reading is None or reading.digit in seen:
                    continue
                seen.append(reading.digit)
                parted = _with_digit(last, own[0], reading.digit)
                if parted is not None and parted[0] is not last:
                    yield parted[0], parted[1].level


def _with_digit(nest: Nest, access: ElementAccess, digit: Digit) -> tuple[Nest, Reading] | None:
    """Returns the loop whose counter is that digit of an access. If need be a loop is parted for it."""
    found = _loop_of(nest, access, digit)
    if found is not None:
        return nest, found
    factor, count = digit.factor.number, digit.extent.number
    if factor is None or count is None:
        return None
    for level in nest.structure.levels:
        own, extent = access.step(level).number, level.extent
        if own is None or own <= 0 or extent is None or factor % own or extent % (count * (factor // own)):
            continue
        inner = factor // own
        counts = [number for number in (extent // (count * inner), count, inner) if number > 1]
        parted = nest.parted(level, counts)
        if parted is None:
            continue
        same = (item for item in parted.structure.accesses if item.instruction is access.instruction)
        found = _loop_of(parted, next(same), digit)
        if found is not None:
            return parted, found
    return None


def _loop_of(nest: Nest, access: ElementAccess, digit: Digit) -> Reading | None:
    readings = (_read_digit(nest.structure, access, level) for level in nest.structure.levels)
    return next((reading for reading in readings if reading is not None and reading.digit == digit), None)


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
        if _unit(last, self._level) is None:
            return None
        for store in last.structure.stores:
            self._own[store.buffer] = self._digit(NestPart(last, self._level), store)
        parts: list[NestPart] = []
        for number in reversed(range(len(self._nests))):
            level = self._level if number == len(self._nests) - 1 else self._level_of(number)
            nest = self._nests[number]  # which may have been parted
            if level is not None and self._is_repeated(number, nest, level):
                level = None
            if level is None and not self._is_scratch(nest):
                return None
            if level is not None and _unit(nest, level) is None:
                return None
            self._need(number, NestPart(nest, level))
            parts.insert(0, NestPart(nest, level))
        apart = self._apart(parts)
        unit = lcm(*(_unit(nest, level) or 1 for nest, level in parts if level is not None))
        most = min(-(-_greatest(self._level) // unit), MOST_PARTS)
        if apart is None or most < 2 or not _is_worth_it(parts):
            return None
        filled = frozenset(buffer for buffer in self._scratch if self._is_filled(parts, buffer))
        starts = tuple(start for buffer in filled for start in _starts(parts, buffer))
        return Cut(tuple(parts), unit, most, tuple(_distinct(self._rooms)), apart, filled, starts)

    def _digit(self, part: NestPart, access: ElementAccess, number: int | None = None) -> Digit | None:
        """That of a part's loop in an access. With the nest's number, what has to be positive is noted."""
        reading = None if part.level is None else _read_digit(part.nest.structure, access, part.level)
        if reading is None:
            return None
        if number is not None:
            self._rooms += [(number, room) for room in reading.rooms]
        return reading.digit

    def _is_scratch(self, nest: Nest) -> bool:
        return all(store.buffer in self._scratch for store in nest.structure.stores)

    def _is_filled(self, parts: Sequence[NestPart], buffer: Value) -> bool:
        """Whether a first nest writes all elements that others touch, unread."""
        touching = _touching(parts, buffer)
        if not touching:
            return True
        first, nest, fill = touching[0]
        if fill.instruction.results or fill.predicate or [number for number, *_ in touching].count(first) > 1:
            return False
        if any(not fill.step(level).terms for level in nest.structure.levels):
            return False  # perhaps it runs no iteration of that loop
        known = _elements(nest.structure, fill)
        return known is not None and all(
            _elements(other.structure, access) == known and access.element == fill.element
            for _, other, access in touching[1:]
        )

    def _is_repeated(self, number: int, nest: Nest, level: Level) -> bool:
        """Whether each part repeats a whole nest of little work. Such a nest does not decide how large parts
        are: sums that are cleared, many at once."""
        if number == len(self._nests) - 1 or _unit(nest, level) in (None, 1):
            return False
        return self._is_scratch(nest) and _work(nest) * MOST_PARTS <= sum(map(_work, self._nests))

    def _level_of(self, number: int) -> Level | None:
        """The loop by which an earlier nest is cut; None: it is not."""
        nest, found = self._nests[number], list[Reading]()
        for store in nest.structure.stores:
            digits = self._needs if store.buffer in self._scratch else self._own
            digit = digits.get(store.buffer)
            if digit is None or nest.plan.in_order:
                return None
            known = _with_digit(nest, store, digit)
            if known is None or (found and known[0] is not nest):
                return None
            nest = self._nests[number] = known[0]
            found.append(known[1])
        if len({reading.level.counter for reading in found}) != 1 or _unit(nest, found[0].level) is None:
            return None
        self._rooms += [(number, room) for reading in found for room in reading.rooms]
        return found[0].level

    def _need(self, number: int, part: NestPart) -> None:
        """Notes which elements of scratch buffers the nest's part reads."""
        for load in part.nest.structure.loads.values():
            if load.buffer in self._scratch:
                digit = self._digit(part, load, number)
                if self._needs.setdefault(load.buffer, digit) != digit:
                    self._needs[load.buffer] = None

    def _apart(self, parts: Sequence[NestPart]) -> tuple[tuple[Place, Place], ...] | None:
        """What other nests touch of what is stored to the program's buffers; None if it is the same."""
        found: list[tuple[Place, Place]] = []
        places = [
            (number, access)
            for number, part in enumerate(parts)
            for access in part.nest.structure.accesses
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
                elif not all(self._is_own(parts, place) for place in ((number, store), (other, access))):
                    return None
        return tuple(found)

    def _is_own(self, parts: Sequence[NestPart], place: Place) -> bool:
        """Whether a part touches nothing but its own elements."""
        number, access = place
        digit = self._digit(parts[number], access, number)
        return digit is not None and digit == self._own.get(access.buffer)


def _touching(parts: Sequence[NestPart], buffer: Value) -> list[tuple[int, Nest, ElementAccess]]:
    """The accesses of a buffer, with the numbers of their nests."""
    return [
        (number, part.nest, access)
        for number, part in enumerate(parts)
        for access in part.nest.structure.accesses
        if access.buffer is buffer
    ]


def _starts(parts: Sequence[NestPart], buffer: Value) -> Iterator[Start]:
    """Finds what sums in a filled buffer begin with: what a nest stores that does nothing else."""
    touching = _touching(parts, buffer)
    if len(touching) < 2 or not any(one.buffer is buffer for one in touching[1][1].structure.stores):
        return  # others that read the constant load it
    (storing, fill, store), (summing, nest, _), *_ = touching
    is_alone = len(fill.structure.accesses) == 1 and store.bytes >= _WHOLE
    if is_alone and constant(store.stored) is not None and nest.plan.loads_sums_once:
        yield Start(buffer, store.stored, storing, summing)


def _unit(nest: Nest, level: Level) -> int | None:
    """Iterations of a loop that the plan takes together; None if they are not parallel."""
    plan = nest.plan
    if plan.in_order or level in plan.reductions:
        return None
    if plan.product is not None and level in plan.product.joined:
        return None
    if plan.fold is not None and level is plan.fold.columns:
        return None
    return lcm(*(_together(one, level) for one in (plan, plan.alternative) if one is not None))


def _together(plan: Plan, level: Level) -> int:
    """Iterations of a parallel loop that a tile or its lanes take."""
    if level is plan.vector:
        return plan.lanes * (plan.vectors if plan.tiled is not None else 1)
    if plan.fold is not None and level is plan.fold.rows:
        return _full_rows(plan.fold, plan.lanes)
    if level is not plan.tiled:
        return 1
    least = SHARED_ROWS if plan.product is not None and plan.product.joined else 1
    return -(-least // plan.copies) * plan.copies


def _full_rows(fold: Fold, lanes: int) -> int:
    """Rows that share vectors and leave few lanes of the last one empty."""
    return next(
        (
            rows
            for rows in range(1, lanes + 1)
            if -(-fold.lanes_of(rows) // lanes) * lanes * _FULL <= fold.lanes_of(rows) * (_FULL + 1)
        ),
        lanes,
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
    whole, shared = (
        sum(_work(nest) for nest, level in parts if (level is None) == is_whole) for is_whole in (True, False)
    )
    return max(whole * _REPEATED, LEAST_WORK) <= shared


def _work(nest: Nest) -> int:
    return prod(_greatest(level) for level in nest.structure.levels) * max(nest.dependence.weight, 1)
