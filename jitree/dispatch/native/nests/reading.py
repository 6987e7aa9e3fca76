"""Reads indices and bounds as polynomials over the counters of a nest.

These are sums, products with constants, and the ways in which the compiler writes divisions by constants and
clamps, where the ranges of the counters decide them.

What is not known of values from outside is assumed where that helps: that they are not negative, as sizes and
workgroup numbers are. The guard checks each assumption. Nothing is concluded from what may wrap
(``structure.py``).
Parts of indices that are computed for each element are symbols: quotients and remainders where no loop can be
split by the divisor, and positions in floating-point numbers, as those of images that are made larger. Such a
part is a remainder, or falls nowhere: rounding, too, leaves numbers in their order. So what it is where the
counters are least and greatest bounds it, and the guard computes both, by the instructions themselves.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Final

from jitree.base.records import NamedTuple
from jitree.codegen.ir_text import llvm_type
from jitree.dispatch.native.nests.operations import emit, is_pure
from jitree.dispatch.native.nests.structure import (
    GREATEST_SYMBOL,
    ZERO,
    Interval,
    Level,
    NotANest,
    Polynomial,
    Split,
    interval_of,
    is_wide,
    known,
)
from jitree.dispatch.native.ssa import PHI, SsaLoop, Value

if TYPE_CHECKING:
    from jitree.dispatch.native.nests.writer import Writer


DIVISIONS: Final = ("div.i64.s", "div.i64.u", "rem.i64.s", "rem.i64.u")
BITS: Final = 31
"""Magnitude of such a part, and of what is divided in it."""

_ROUNDED: Final = ("floor.f32", "ceil.f32", "round.f32", "round.f32.even")
_SHIFTED: Final = {"add.f32": (0, 1), "sub.f32": (0,)}
"""Operands that may change where the other is a constant."""
_SCALED: Final = {"mul.f32": (0, 1), "div.f32": (0,), "fma.f32": (0, 1), "fma.f32.fused": (0, 1)}
"""… where the other is a positive constant; what is added is a constant, too."""
_COMPARISONS: Final = (
    "cmp.lt.f32.o", "cmp.lt.f32.u", "cmp.lte.f32.o", "cmp.lte.f32.u", "cmp.lt.i64.s"
)  # fmt: skip
_EXTREMES: Final = ("min.f32", "max.f32", "min.i64.s", "max.i64.s")
_SELECTS: Final = ("select.f32", "select.i64")


def is_bounded(value: Value, is_linear: Callable[[Value], bool]) -> bool:
    """Whether a value is one that this knows to bound. ``is_linear`` tells the integers that are polynomials,
    such parts among their symbols."""

    def is_known(value: Value) -> bool:
        return is_linear(value) if value.type == "i64" else is_bounded(value, is_linear)

    operation, operands = value.operation, value.operands
    if operation in DIVISIONS:
        return _divisor(value) is not None and is_linear(operands[0])
    if operation == "cast.si64.f32":
        return is_linear(operands[0])
    if operation in _SELECTS:
        return _is_extreme(value) and all(map(is_known, operands[1:]))
    if operation in _EXTREMES:
        return all(map(is_known, operands))
    if operation == "cast.f32.si64" or operation in _ROUNDED:
        return is_bounded(operands[0], is_linear)
    if operation in _SHIFTED or operation in _SCALED:
        changing = _changing(value)
        return changing is not None and is_bounded(changing, is_linear)
    number = constant_f32(value)
    return number is not None and isfinite(number)


def _divisor(value: Value) -> int | None:
    divisor = value.operands[1]
    number = divisor.literals[0] if divisor.operation == "const.i64" else 0
    return number if 0 < number < 1 << BITS else None


def constant_f32(value: Value) -> float | None:
    """The number of a constant."""
    if value.operation == "const.f32.zero":
        return 0.0
    if value.operation != "const.f32":
        return None
    return float(struct.unpack("<f", struct.pack("<I", value.literals[0] & 0xFFFFFFFF))[0])


def _changing(value: Value) -> Value | None:
    """Returns the one varying operand that the value rises with."""
    numbers = [constant_f32(operand) for operand in value.operands]
    if numbers.count(None) != 1 or not all(number is None or isfinite(number) for number in numbers):
        return None
    at, scales = numbers.index(None), value.operation in _SCALED
    if at not in (_SCALED if scales else _SHIFTED)[value.operation]:
        return None
    factor = numbers[1 - at] if scales else 1.0
    return value.operands[at] if factor is not None and factor > 0 else None


def _is_extreme(value: Value) -> bool:
    """Whether a choice takes the smaller or greater of its comparison."""
    condition, *chosen = value.operands
    return condition.operation in _COMPARISONS and (
        condition.operands == chosen or condition.operands == chosen[::-1]
    )


def emit_part(w: Writer, mnemonic: str, n: int, operands: list[str]) -> str:
    """Writes an instruction that is a part of an index: lanes of 64 have no division. Where no
    element is, numbers may not fit: LLVM would take them for poison, and masks that they decide for true."""
    wide, narrow = llvm_type("i64", n), llvm_type("i32", n)
    if mnemonic == "cast.f32.si64":  # rounds halves away from zero
        rounded = w.intrinsic("round", "f32", n, operands)
        integer = w.let(f"fptosi {llvm_type('f32', n)} {rounded} to {narrow}")
        integer = w.let(f"freeze {narrow} {integer}")
        return w.let(f"sext {narrow} {integer} to {wide}")
    if mnemonic not in DIVISIONS:
        return emit(w, mnemonic, n, operands)
    left, right = (w.let(f"trunc {wide} {operand} to {narrow}") for operand in operands)
    operation = "udiv" if mnemonic.startswith("div") else "urem"
    result = w.let(f"{operation} {narrow} {left}, {right}")
    return w.let(f"zext {narrow} {result} to {wide}")


class Extremes(NamedTuple):
    """Holds the least and the greatest value: LLVM operands."""

    low: str
    high: str


class BoundWriter:
    """Writes bounds in front of a nest."""

    def __init__(
        self,
        writer: Writer,
        constant: Callable[[Value], str],
        linear: Callable[[Value], Extremes],
        require: Callable[[str], None],
    ) -> None:
        """``linear`` bounds integers that are polynomials; ``require`` adds a comparison of the guard."""
        self._writer = writer
        self._constant = constant
        self._linear = linear
        self._require = require
        self._known: dict[Value, Extremes] = {}

    def part(self, value: Value) -> Extremes:
        """Of a part of an index, which is small then."""
        known = self._known.get(value)
        if known is None:
            known = self._known[value] = self._of(value)
            self.require_small(known)
        return known

    def require_small(self, bounds: Extremes) -> None:
        """That numbers between these have few bits."""
        self._require_within(bounds, -(1 << BITS))

    def _require_within(self, bounds: Extremes, least: int) -> None:
        for bound in bounds:
            shifted = self._writer.let(f"sub i64 {bound}, {least}")
            self._require(f"icmp ult i64 {shifted}, {(1 << BITS) - least}")

    def _of(self, value: Value) -> Extremes:
        operation, operands = value.operation, value.operands
        if operation in DIVISIONS:
            return self._division(value)
        if operation in _SELECTS:
            return self._choice(value)
        if operation.startswith("const."):
            text = self._constant(value)
            return Extremes(text, text)
        bounds = [self._operand(operand) for operand in operands]
        low = emit(self._writer, operation, 1, [bound.low for bound in bounds])
        return Extremes(low, emit(self._writer, operation, 1, [bound.high for bound in bounds]))

    def _operand(self, value: Value) -> Extremes:
        return self._linear(value) if value.type == "i64" else self._of(value)

    def _division(self, value: Value) -> Extremes:
        """Of what is not negative and has few bits, as the lanes divide it."""
        bounds, divisor = self._linear(value.operands[0]), _divisor(value) or 1
        self._require_within(bounds, 0)
        if value.operation.startswith("rem"):
            return Extremes("0", self._writer.intrinsic("umin", "i64", 1, [bounds.high, str(divisor - 1)]))
        low, high = (self._writer.let(f"udiv i64 {bound}, {divisor}") for bound in bounds)
        return Extremes(low, high)

    def _choice(self, value: Value) -> Extremes:
        condition, *chosen = value.operands
        bounds = {operand: self._operand(operand) for operand in chosen}
        found = []
        for end in range(2):
            compared = [bounds[operand][end] for operand in condition.operands]
            bit = emit(self._writer, condition.operation, 1, compared)
            texts = [bounds[operand][end] for operand in chosen]
            found.append(emit(self._writer, value.operation, 1, [bit, *texts]))
        return Extremes(*found)


def separated(
    index: Polynomial, parts: set[Value]
) -> tuple[Polynomial, tuple[tuple[Value, int], ...]] | None:
    """An index without its computed parts, and these with their factors; None if a factor is no number."""
    found: list[tuple[Value, int]] = []
    for monomial, number in index.terms.items():
        if not parts.intersection(monomial):
            continue
        if len(monomial) != 1:
            return None
        found.append((monomial[0], number))
    return index.without(part for part, _ in found), tuple(found)


_ARITHMETIC: Final = ("add.i64", "sub.i64", "mul.i64", "fma.i64", "shl.i64")


class PolynomialReader:
    """Reads values of one nest; each once."""

    def __init__(self, loop: SsaLoop) -> None:
        self._loop = loop
        self.levels: dict[Value, Level] = {}
        """The levels of the nest by counter, from the outermost to the innermost."""
        self.variables: dict[Value, Polynomial] = {}
        """What the program's variables are in terms of counters; quotients and remainders of them that are
        such polynomials, too, and what other indices are computed from."""
        self.splits: list[Split] = []
        self.limits: list[Value] = []
        """Conditions of loops that are split with a rest."""
        self.products: list[Polynomial] = []
        """Bounds of loops that are split without one: as numbers, not modulo 2**64."""
        self.proved: list[Polynomial] = []
        """What has been concluded from although it may wrap: the guard proves that it does not."""
        self._polynomials: dict[Value, Polynomial] = {}
        self.not_negative: set[Value] = set()
        """Values from outside that are assumed to be so."""
        self._invariant: dict[Value, bool] = {}
        self.hoisted: set[Value] = set()
        """Loads that are made in front of the nest, because indices need them."""
        self.computed: set[Value] = set()
        """Symbols that are computed for each element; the guard bounds them."""
        self.inner: list[Polynomial] = []
        """The polynomials that these symbols are computed from."""

    def add(self, variable: Value, level: Level) -> None:
        """The next loop inwards."""
        self.levels[level.counter] = level
        step = Polynomial.constant(level.step)
        self._define(variable, level.initial + Polynomial.symbol(level.counter) * step)

    def add_split(self, variable: Value, whole: Level, levels: Sequence[Level]) -> None:
        """The next loop inwards as several: their counters are the digits of its variable."""
        position = ZERO
        for level in levels:
            self.levels[level.counter] = level
            position = position * level.bound + Polynomial.symbol(level.counter)
        self._define(variable, position)
        inner = levels[-1]
        splits: list[Split] = []
        for outer in reversed(levels[1:-1]):
            both = Level(outer.counter, ZERO, outer.bound * inner.bound, 1, whole.unsigned)
            splits.append(Split(both, outer, inner))
            inner = both
        self.splits += (*splits, Split(whole, levels[0], inner))

    def _define(self, variable: Value, polynomial: Polynomial) -> None:
        self.variables[variable] = self._polynomials[variable] = polynomial

    def is_outside(self, value: Value) -> bool:
        """Computed in front of the nest."""
        return value.block not in self._loop.blocks

    def is_invariant(self, value: Value) -> bool:
        """Whether a value is from outside the nest, or computed from such values alone."""
        if value.block not in self._loop.blocks or value in self.hoisted:
            return True
        known = self._invariant.get(value)
        if known is None:
            known = (
                value.operation != PHI
                and is_pure(value)
                and all(self.is_invariant(operand) for operand in value.operands)
            )
            self._invariant[value] = known
        return known

    def read(self, value: Value) -> Polynomial:
        """NotANest for an index that is neither linear in the counters nor invariant."""
        polynomial = self._polynomials.get(value)
        if polynomial is None:
            polynomial = self._polynomials[value] = self._read(value)
        return polynomial

    def try_read(self, value: Value) -> Polynomial | None:
        try:
            return self.read(value)
        except NotANest:
            return None

    def _read(self, value: Value) -> Polynomial:
        operation, operands = value.operation, value.operands
        if operation == "const.i64":
            return Polynomial.constant(value.literals[0])
        if operation == "const.i64.zero":
            return Polynomial.constant(0)
        if operation in _ARITHMETIC:
            polynomial = self._arithmetic(operation, operands)
            if polynomial is not None and polynomial.degree(self.levels) <= 1:
                return polynomial
        if self.is_invariant(value):
            return Polynomial.symbol(value)
        if operation == "select.i64":
            chosen = self._truth(operands[0])
            if chosen is not None:
                return self.read(operands[1] if chosen else operands[2])
        if operation in DIVISIONS:
            divided = self._division(operation, self.read(operands[0]), self.read(operands[1]))
            if divided is not None:
                self.variables[value] = divided
                return divided
        loads = self._loads_in_front(value)
        if loads is None and is_bounded(value, self._is_linear):
            self.computed.add(value)
            return Polynomial.symbol(value)
        if loads is None:
            raise NotANest(f"an index through '{operation}'")
        self.hoisted |= loads
        self._invariant.clear()
        return Polynomial.symbol(value)

    def _is_linear(self, value: Value) -> bool:
        """Whether it is a polynomial, in which what is computed has constant factors."""
        polynomial = self.try_read(value)
        if polynomial is None:
            return False
        self.inner.append(polynomial)
        if not (polynomial.symbols() & self.computed or self.is_invariant(value)):
            self.variables[value] = polynomial
        return separated(polynomial, self.computed) is not None

    def _loads_in_front(self, value: Value) -> set[Value] | None:
        """The loads to hoist for a value to be known in front; None if it changes in the nest."""
        if self.is_invariant(value):
            return set()
        load = value.operation.startswith("buffer.load.") and self.is_outside(value.operands[0])
        if not load and (value.operation == PHI or not is_pure(value)):
            return None
        found = {value} if load else set()
        for operand in value.operands[1:] if load else value.operands:
            needed = self._loads_in_front(operand)
            if needed is None:
                return None
            found |= needed
        return found

    def _arithmetic(self, operation: str, operands: list[Value]) -> Polynomial | None:
        if operation == "shl.i64":
            if operands[1].operation != "const.i32":
                return None
            return self.read(operands[0]) * Polynomial.constant(1 << (operands[1].literals[0] & 63))
        polynomials = [self.read(operand) for operand in operands]
        if operation == "add.i64":
            return polynomials[0] + polynomials[1]
        if operation == "sub.i64":
            return polynomials[0] - polynomials[1]
        product = polynomials[0] * polynomials[1]
        return product + polynomials[2] if operation == "fma.i64" else product

    def _truth(self, condition: Value) -> bool | None:
        """Whether a comparison always or never holds, None if neither is known."""
        operation, operands = condition.operation, condition.operands
        if operation == "cmp.lt.i64.s":
            less, than = map(self.read, operands)
            interval = self._interval(less.distance(than))
            if interval is None or interval.low < 0 <= interval.high or not self._assume(less, than):
                return None
            return interval.high < 0
        if operation == "cmp.nz.i32":
            return self._truth(operands[0])
        if operation == "and.i32":
            truths = [self._truth(operand) for operand in operands]
            return False if False in truths else True if None not in truths else None
        if operation == "cmp.ne.i32":
            left, right = (self._truth(operand) for operand in operands)
            return None if left is None or right is None else left != right
        if operation in ("cmp.ne.i64", "cmp.eq.i64"):
            number = (self.read(operands[0]) - self.read(operands[1])).number
            return None if number is None else (number != 0) == (operation == "cmp.ne.i64")
        return None

    def _interval(self, polynomial: Polynomial) -> Interval | None:
        """If values from outside are not negative; None of what is computed for each element."""
        if polynomial.symbols() & self.computed:
            return None
        return interval_of(polynomial, self._greatest)

    def _greatest(self, symbol: Value) -> int:
        level = self.levels.get(symbol)
        if level is not None:
            return max(level.most - 1, 0)
        return min(max(known(symbol).high, 0), GREATEST_SYMBOL)

    def _assume(self, *polynomials: Polynomial) -> bool:
        """Whether something may be concluded from the order of polynomials: they are the program's numbers.
        The guard checks that their values from outside are not negative, and, where it depends on these or
        on numbers of iterations, that nothing wraps."""
        wrapping = []
        for polynomial in polynomials:
            interval = self._interval(polynomial)
            if interval is None:
                return False
            if not interval.is_signed:
                wrapping.append(polynomial)
        if not all(self._is_left_to_guard(polynomial) for polynomial in wrapping):
            return False
        self.proved += wrapping
        for polynomial in polynomials:
            self.not_negative |= polynomial.symbols() - set(self.levels)
        return True

    def _is_left_to_guard(self, polynomial: Polynomial) -> bool:
        """Whether the call decides if it wraps."""
        levels = (self.levels.get(symbol) for symbol in polynomial.symbols())
        return is_wide(polynomial) and any(level is None or level.extent is None for level in levels)

    def _division(self, operation: str, polynomial: Polynomial, divisor: Polynomial) -> Polynomial | None:
        """Divides ``divisor * quotient + rest`` where nothing is negative. The rest lies from 0 to the
        divisor."""
        quotient, rest = polynomial.divided(divisor)
        interval = self._interval(polynomial)
        if interval is None or interval.low < 0 or not self._is_rest(rest, divisor):
            return None
        if not self._assume(polynomial, divisor):
            return None
        return quotient if operation.startswith("div") else rest

    def _is_rest(self, rest: Polynomial, divisor: Polynomial) -> bool:
        if divisor.number is not None:
            interval = self._interval(rest)
            return interval is not None and interval.low >= 0 and interval.high < divisor.number
        for level in self.levels.values():
            factor = rest.coefficient(level.counter)
            if factor * level.bound == divisor and level.initial.number == 0:
                # Loops that run this often; where they do, the divisor is positive.
                return self._is_rest(rest - factor * Polynomial.symbol(level.counter), factor)
        return False
