"""Describes a nest: its loops, accesses with polynomial indices, predicates.

Indices are polynomials over loop counters and values from outside. The arithmetic of the instructions wraps
modulo 2**64, and so does that of the coefficients. That a value and its polynomial are the same modulo 2**64
is enough for an address, and for equality. An order is another matter: ``i * 2**62`` is negative where ``i``
is 2. So nothing is concluded from a polynomial (no comparison settled, no division simplified, no range
narrowed) unless its interval, in unbounded integers, lies within the signed range: only then is it the number
that the program has. What is not known to lie there is left as it is, or proved by the guard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import chain
from operator import attrgetter
from typing import Final

from jitree.base.records import NamedTuple
from jitree.dispatch.native.ssa import PHI, SsaInstruction, SsaLoop, Value

Monomial = tuple["Value", ...]
"""A product of values, ordered by number. A loop's counter is represented by its header's parameter."""


_NUMBER: Final = attrgetter("number")
_HALF: Final = 1 << 63
_ALL: Final = (1 << 64) - 1
SYMBOL_BITS: Final = 31
"""Magnitude that values from outside and numbers of iterations may have; one with more fails the guard."""
NARROW_BITS: Final = 60
"""What a sum of a few numbers may each have in i64 without overflow."""
WIDE_BITS: Final = 124
"""The same in i128."""
GREATEST_SYMBOL: Final = (1 << SYMBOL_BITS) - 1
GREATEST_COUNT: Final = 1 << SYMBOL_BITS


def _wrap(number: int) -> int:
    return ((number + _HALF) & _ALL) - _HALF


class Polynomial:
    """Sums monomials with integer coefficients, none of them 0.

    The empty monomial is the constant. It never changes, so it keeps the answers that the terms alone decide:
    some are asked for in each loop.
    """

    __slots__ = ("_bits", "_coefficients", "_symbols", "number", "terms")

    def __init__(self, terms: Mapping[Monomial, int]) -> None:
        self.terms = terms
        self.number: int | None = None
        """Its value, if it is a constant."""
        if not terms:
            self.number = 0
        elif len(terms) == 1:
            self.number = terms.get(())
        self._symbols: frozenset[Value] | None = None
        self._coefficients: dict[Value, Polynomial] = {}
        self._bits: dict[int, int] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Polynomial) and self.terms == other.terms

    __hash__ = None  # type: ignore[assignment]

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
            total = terms.get(monomial, 0) + sign * number
            if not -_HALF <= total < _HALF:
                total = _wrap(total)
            if total:
                terms[monomial] = total
            else:
                terms.pop(monomial, None)
        return Polynomial(terms)

    def __mul__(self, other: Polynomial) -> Polynomial:
        for one, factor in ((self, other.number), (other, self.number)):
            if factor is not None:
                return one if factor == 1 else one._scaled(factor)
        return _polynomial(
            (tuple(sorted((*left, *right), key=_NUMBER)), a * b)
            for left, a in self.terms.items()
            for right, b in other.terms.items()
        )

    def _scaled(self, factor: int) -> Polynomial:
        terms: dict[Monomial, int] = {}
        for monomial, number in self.terms.items():
            product = number * factor
            if not -_HALF <= product < _HALF:
                product = _wrap(product)
            if product:
                terms[monomial] = product
        return Polynomial(terms)

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

    def coefficient(self, counter: Value) -> Polynomial:
        """What a value is multiplied by; of its square, the value itself."""
        known = self._coefficients.get(counter)
        if known is None:
            found: dict[Monomial, int] = {}
            for monomial, number in self.terms.items():
                if counter in monomial:
                    at = monomial.index(counter)
                    found[monomial[:at] + monomial[at + 1 :]] = number
            known = self._coefficients[counter] = Polynomial(found) if found else ZERO
        return known

    def divided(self, divisor: Polynomial) -> tuple[Polynomial, Polynomial]:
        """Divides by a positive constant or product, term by term: (quotient, rest); else (0, itself)."""
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
        known = self._bits.get(of_symbols)
        if known is None:
            total = 0
            for monomial, number in self.terms.items():
                total += abs(number) << of_symbols * len(monomial)
            known = self._bits[of_symbols] = total.bit_length()
        return known

    def symbols(self) -> frozenset[Value]:
        known = self._symbols
        if known is None:
            known = self._symbols = frozenset(chain.from_iterable(self.terms))
        return known

    def degree(self, counters: Iterable[Value]) -> int:
        """The largest number of the counters that stand in one product."""
        is_counted, most = frozenset(counters).__contains__, 0
        for monomial in self.terms:
            most = max(most, sum(map(is_counted, monomial)))
        return most


ZERO: Final = Polynomial({})
ONE: Final = Polynomial({(): 1})


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


class Interval(NamedTuple):
    """Holds the least and the greatest value, as unbounded integers."""

    low: int
    high: int

    @property
    def is_signed(self) -> bool:
        """Whether all of it are numbers of 64 bits: the polynomial is then the program's number."""
        return self.low >= -(1 << 63) and self.high < 1 << 63


_ANY: Final = Interval(-(1 << 63), (1 << 63) - 1)
_EXTENDED: Final = {
    "ext.i32.i64.s": Interval(-(1 << 31), (1 << 31) - 1), "ext.i32.i64.u": Interval(0, (1 << 32) - 1),
}  # fmt: skip
_COUNTED: Final = frozenset((
    "add.i64", "sub.i64", "mul.i64", "fma.i64", "min.i64.s", "max.i64.s", "div.i64.s", "rem.i64.s",
))  # fmt: skip


def interval_of(polynomial: Polynomial, greatest: Callable[[Value], int]) -> Interval:
    """Computes a polynomial's interval from the greatest value of each symbol."""
    low = high = 0
    for monomial, number in polynomial.terms.items():
        reach = number
        for symbol in monomial:
            reach *= greatest(symbol)
        low += min(reach, 0) if monomial else number
        high += max(reach, 0) if monomial else number
    return Interval(low, high)


def known_interval(polynomial: Polynomial) -> Interval:
    """Bounds a polynomial whatever numbers come from outside, without a guard."""
    return bounded(polynomial, known)


def bounded(polynomial: Polynomial, interval: Callable[[Value], Interval]) -> Interval:
    """Bounds a polynomial, in unbounded integers, by the intervals of its symbols."""
    low = high = 0
    for monomial, number in polynomial.terms.items():
        reach = Interval(number, number)
        for symbol in monomial:
            reach = _product(reach, interval(symbol))
        low, high = low + reach.low, high + reach.high
    return Interval(low, high)


def known(value: Value, depth: int = 8) -> Interval:
    """Bounds a number of the program from so many levels of operands: what may wrap is any number."""
    if value.known is None and depth:
        value.known = _known(value, depth)
    return Interval(*value.known) if value.known is not None else _ANY


def _known(value: Value, depth: int) -> Interval:
    operation = value.operation
    if operation == "const.i64":
        return Interval(value.literals[0], value.literals[0])
    if operation in _EXTENDED:
        return _EXTENDED[operation]
    if operation == "select.i64":
        one, other = (known(operand, depth - 1) for operand in value.operands[1:])
        return Interval(min(one.low, other.low), max(one.high, other.high))
    if operation not in _COUNTED:
        return _ANY
    one, other, *third = (known(operand, depth - 1) for operand in value.operands)
    if operation in ("min.i64.s", "max.i64.s"):
        choose = min if operation == "min.i64.s" else max
        return Interval(choose(one.low, other.low), choose(one.high, other.high))
    if operation in ("div.i64.s", "rem.i64.s"):
        return _divided(operation, one, other)
    if operation == "add.i64":
        made = Interval(one.low + other.low, one.high + other.high)
    elif operation == "sub.i64":
        made = Interval(one.low - other.high, one.high - other.low)
    else:
        made = _product(one, other)
        made = Interval(made.low + sum(o.low for o in third), made.high + sum(o.high for o in third))
    return made if made.is_signed else _ANY


def _divided(operation: str, one: Interval, other: Interval) -> Interval:
    """Of a quotient, rounded towards zero, or a remainder; by a positive constant."""
    divisor = other.low
    if divisor != other.high or divisor <= 0:
        return _ANY
    if operation == "div.i64.s":
        low, high = (abs(end) // divisor * (1 if end > 0 else -1) for end in one)
        return Interval(low, high)
    return Interval(max(min(one.low, 0), 1 - divisor), min(max(one.high, 0), divisor - 1))


def _product(one: Interval, other: Interval) -> Interval:
    ends = [left * right for left in one for right in other]
    return Interval(min(ends), max(ends))


def is_narrow(polynomial: Polynomial) -> bool:
    """Whether a value has at most 60 bits once the guard passes. Such a polynomial is the program's number,
    and so are sums of a few."""
    return polynomial.bits(SYMBOL_BITS) <= NARROW_BITS


def is_wide(polynomial: Polynomial) -> bool:
    """Whether the guard can compute its value without overflow."""
    return polynomial.bits(SYMBOL_BITS) <= WIDE_BITS


ELEMENT_LLVM: Final = {"i8": "i8", "i16": "i16", "i32": "i32", "i64": "i64", "f32": "float", "f64": "double"}
_BYTES: Final = {"i8": 1, "i16": 2, "i32": 4, "f32": 4, "i64": 8, "f64": 8}
_UNKNOWN: Final = 1 << 30

Literal = tuple[Value, bool]
"""A condition and whether it has to hold."""
Predicate = frozenset[Literal]
"""All of them have to hold; empty where the code runs in each iteration."""


class NotANest(Exception):
    """Says why a loop is not taken, to people who read the tier report."""


class Level:
    """Describes a loop, whose counter runs from 0 in steps of 1.

    The program's variable is ``initial + step * counter``.
    """

    __slots__ = (
        "_interval",
        "bound",
        "count",
        "counter",
        "distance",
        "extent",
        "initial",
        "step",
        "unsigned",
    )

    def __init__(
        self, counter: Value, initial: Polynomial, bound: Polynomial, step: int, unsigned: bool
    ) -> None:
        self.counter = counter
        """What stands for the counter in polynomials: the parameter of the loop's header, or a new value."""
        self.initial = initial
        self.bound = bound
        self.distance = bound - initial
        self.step = step
        self.unsigned = unsigned
        """Whether the counter is compared with the bound as an unsigned number."""
        distance = self.distance.number
        self.extent = None if distance is None else -(-distance // step)
        """The number of iterations, if it is constant."""
        self.count = _UNKNOWN if self.extent is None else self.extent
        """The same, a large one where it is not known."""
        self._interval: Interval | None = None

    @property
    def interval(self) -> Interval:
        """Bounds the distance as a number of the program, without a guard: any where it may wrap."""
        if self._interval is None:
            interval = known_interval(self.distance)
            self._interval = interval if interval.is_signed else _ANY
        return self._interval

    @property
    def most(self) -> int:
        """The greatest number of iterations, if the guard passes."""
        if self.extent is not None:
            return self.extent
        return min(max(-(-self.interval.high // self.step), 0), GREATEST_COUNT)


def new_level(number: int, like: Value, bound: Polynomial, step: int = 1, unsigned: bool = False) -> Level:
    """Makes a loop from 0 whose counter, of a negative number, no function has."""
    counter = Value(number, "i64", PHI, [], (), like.pc, like.block)
    return Level(counter, ZERO, bound, step, unsigned)


class Split(NamedTuple):
    """Names a loop that became two; the inner one may be split again."""

    whole: Level
    outer: Level
    inner: Level


class ElementAccess:
    """Describes a load or store."""

    __slots__ = ("buffer", "bytes", "computed", "element", "index", "instruction", "position", "predicate")

    def __init__(
        self, instruction: SsaInstruction, element: str, buffer: Value, index: Polynomial,
        predicate: Predicate, position: int, computed: tuple[tuple[Value, int], ...],
    ) -> None:  # fmt: skip
        self.instruction = instruction
        self.element = element
        """``i8 i16 i32 f32 i64 f64``"""
        self.bytes = _BYTES[element]
        self.buffer = buffer
        self.index = index
        """The index of the element, over counters and values from outside."""
        self.predicate = predicate
        self.position = position
        """The position in the body."""
        self.computed = computed
        """What is added to the index for each element, and its factors (``reading.py``); of loads alone."""

    def at(self, index: Polynomial) -> ElementAccess:
        """The same one with another index."""
        place = self.buffer, index, self.predicate, self.position, self.computed
        return ElementAccess(self.instruction, self.element, *place)

    @property
    def stored(self) -> Value:
        return self.instruction.operands[2]

    def step(self, level: Level) -> Polynomial:
        """How many elements it is from one iteration of a loop to the next."""
        return self.index.coefficient(level.counter)


class Structure(NamedTuple):
    """Describes a recognised nest."""

    loop: SsaLoop
    outermost: Level
    """The whole outermost loop, also where it is split."""
    levels: tuple[Level, ...]
    """Levels from the outermost to the innermost."""
    loads: dict[Value, ElementAccess]
    """What is read, by the value that it gives."""
    stores: tuple[ElementAccess, ...]
    choices: dict[Value, tuple[Literal, Value, Value]]
    """By parameter where two branches meet: the condition, its value if that holds, and if not."""
    conditions: dict[Value, Polynomial]
    """What is compared in predicates, where it is a polynomial."""
    counters: tuple[Value, ...]

    @property
    def accesses(self) -> tuple[ElementAccess, ...]:
        return (*self.loads.values(), *self.stores)

    def over(self, levels: tuple[Level, ...], index: Callable[[Polynomial], Polynomial]) -> Structure:
        """Puts the nest over other levels; ``index`` says what becomes of indices."""
        return self._replace(
            levels=levels,
            loads={value: load.at(index(load.index)) for value, load in self.loads.items()},
            stores=tuple(store.at(index(store.index)) for store in self.stores),
            counters=tuple(level.counter for level in levels),
        )

    @property
    def is_empty(self) -> bool:
        """Whether a loop is known to have no iterations."""
        return any(level.extent is not None and level.extent < 1 for level in self.levels)
