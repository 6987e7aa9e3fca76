"""Checks buffers and overlaps once in front of a nest.

Each access stays in its buffer, and nothing which is stored overlaps what other accesses touch. It also
computes what the nest needs of values from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from jitree.base.records import NamedTuple
from jitree.dispatch.native.nests.body import Body
from jitree.dispatch.native.nests.plan import Order, PlannedNest
from jitree.dispatch.native.nests.reading import BoundWriter, Extremes, PolynomialReader, separated
from jitree.dispatch.native.nests.rewrites import narrowed
from jitree.dispatch.native.nests.structure import (
    ELEMENT_LLVM,
    GREATEST_COUNT,
    GREATEST_SYMBOL,
    NARROW_BITS,
    SYMBOL_BITS,
    ZERO,
    ElementAccess,
    Interval,
    Level,
    NotANest,
    Polynomial,
    Structure,
    bounded,
    is_narrow,
    is_wide,
    known,
)
from jitree.dispatch.native.nests.writer import Writer
from jitree.dispatch.native.ssa import Value


def require_sizes(structure: Structure, reader: PolynomialReader) -> None:
    """NotANest if the guard could not compute ranges, or products of bounds, without overflow."""
    if not all(map(is_wide, reader.products)):
        raise NotANest("a bound of many factors")
    parts = map(_parts, structure.loads.values())
    if not all(map(is_narrow, (*reader.inner, *parts))):
        raise NotANest("a computed index with large factors")
    for level in reader.levels.values():
        if not (is_narrow(level.initial) and is_narrow(level.bound)):
            raise NotANest("a bound with large factors")
        if (level.extent or 0) > 1 << SYMBOL_BITS:
            raise NotANest("more than 2**31 iterations")
    for access in structure.accesses:
        if not all(map(is_wide, (access.index, *narrowed(access, structure).polynomials))):
            raise NotANest("an index with large factors")


def _parts(access: ElementAccess) -> Polynomial:
    """The computed parts of an index."""
    return Polynomial({(part,): number for part, number in access.computed})


class Range(NamedTuple):
    """Holds the first and last element of an access and its buffer's address."""

    buffer: Value
    address: str
    low: str
    high: str
    bytes: int

    def start(self, writer: Writer) -> str:
        return self._at(writer, self.low, 0)

    def end(self, writer: Writer) -> str:
        return self._at(writer, self.high, self.bytes)

    def _at(self, writer: Writer, element: str, extra: int) -> str:
        address = writer.let(f"ptrtoint ptr {self.address} to i64")
        if not element.startswith("%"):
            return writer.let(f"add i64 {address}, {int(element) * self.bytes + extra}")
        offset = writer.let(f"mul i64 {element}, {self.bytes}")
        start = writer.let(f"add i64 {address}, {offset}")
        return writer.let(f"add i64 {start}, {extra}") if extra else start


def are_apart(writer: Writer, left: Range, right: Range) -> str:
    before = writer.let(f"icmp ule i64 {left.end(writer)}, {right.start(writer)}")
    after = writer.let(f"icmp ule i64 {right.end(writer)}, {left.start(writer)}")
    return writer.let(f"or i1 {before}, {after}")


def never_overlap(left: Value, right: Value, bindings: Callable[[Value], bool]) -> bool:
    """Whether buffers are different memory: one is made here, and the other one too, or comes from outside.

    ``bindings`` tells a list in which nothing that is made here can be.
    """
    made = [value for value in (left, right) if value.operation == "buffer.alloc"]
    if left is right or not made:
        return False
    (other,) = {left, right} - {made[0]}
    return other.operation in ("buffer.alloc", "const.ref.rodata") or (
        other.operation == "list.get.ref" and bindings(other.operands[0])
    )


def all_of(writer: Writer, conditions: Iterable[str]) -> str:
    """Whether all conditions (i1) hold."""
    result = "true"
    for condition in dict.fromkeys(conditions):
        if condition != "true":
            result = condition if result == "true" else writer.let(f"and i1 {result}, {condition}")
    return result


class Guard:
    """Writes the checks of one nest.

    :meth:`write` ends with a new block in which it may run.
    """

    def __init__(self, writer: Writer, nest: PlannedNest, body: Body) -> None:
        self._writer = writer
        self._structure = nest.structure
        self._reader = nest.reader
        self._plan = nest.plan
        self._invariants = nest.dependence.invariants
        self._body = body
        self._conditions: list[str] = []
        self._narrowed = {access: narrowed(access, nest.structure) for access in nest.structure.accesses}
        self._levels = {level.counter: level for level in nest.structure.levels} | nest.reader.levels
        self._bounds = BoundWriter(writer, body.invariant, self._linear, self._require)
        self.ranges: dict[ElementAccess, Range] = {}
        """What accesses touch, when the guard is written."""

    def write(self) -> None:
        context = self._writer.context
        for _, otherwise in zip(self._stages(), (context.deopt, context.done, context.deopt), strict=True):
            self._go_on_if_all(otherwise)

    def gather(self) -> tuple[str, str]:
        """As :meth:`write`, in one block: whether the nest may run, and whether it has iterations."""
        fits, runs, inside = [self._taken() for _ in self._stages()]
        if "true" not in (runs, inside):
            empty = self._writer.let(f"xor i1 {runs}, true")
            inside = self._writer.let(f"or i1 {empty}, {inside}")
        return all_of(self._writer, (fits, inside)), runs

    def _stages(self) -> Iterator[None]:
        """Writes the conditions of a program's numbers, of iterations, and of ranges; then pointers."""
        self._begin()
        yield
        self._live_outs()
        for level in self._structure.levels:
            if level.extent is None and level.interval.low <= 0:
                self._require(f"icmp sgt i64 {self._body.places.extents[level]}, 0")
        yield
        self.ranges = {access: self._range(access) for access in self._narrowed}
        self._require_apart(self.ranges)
        for store, order in self._plan.injective.items():
            self._require_injective(store, order)
        yield
        for access in self.ranges:
            self._pointer(access)

    def _begin(self) -> None:
        for value in self._invariants:
            self._body.invariant(value)
        self._require_numbers(list(self._narrowed))

    def positive(self, polynomial: Polynomial) -> str:
        """Whether the value of a polynomial over values from outside is."""
        return self._writer.let(f"icmp sgt i64 {self._polynomial(polynomial, 'i64')}, 0")

    def write_empty(self) -> None:
        """Writes a nest that a loop without iterations is in. Loops around that one run, and may divide."""
        self._require_numbers(())
        self._go_on_if_all(self._writer.context.deopt)
        self._live_outs()

    def _live_outs(self) -> None:
        """The variable of the outermost loop, as the loop leaves it."""
        writer, outermost = self._writer, self._structure.outermost
        for value in writer.context.live_outs:
            count = writer.intrinsic("smax", "i64", 1, [self._extent(outermost), "0"])
            distance = writer.let(f"mul i64 {count}, {outermost.step}")
            writer.do(f"{value.name} = add i64 {distance}, {self._polynomial(outermost.initial, 'i64')}")

    def _require(self, comparison: str) -> None:
        self._conditions.append(self._writer.let(comparison))

    def _taken(self) -> str:
        """All conditions so far, which are done with."""
        conditions, self._conditions = self._conditions, []
        return all_of(self._writer, conditions)

    def _go_on_if_all(self, otherwise: str) -> None:
        if self._conditions:
            label = self._writer.fresh("fits")
            self._writer.branch(self._taken(), label, otherwise)
            self._writer.go_on(label)

    def _interval(self, value: Value) -> Interval:
        """Of a value from outside or a counter, where the guard passes."""
        level = self._levels.get(value)
        if level is not None:
            return Interval(0, max(level.most - 1, 0))
        low, high = known(value)
        least = 0 if value in self._reader.not_negative else -GREATEST_COUNT
        return Interval(max(low, least), min(high, GREATEST_SYMBOL))

    def _is_known_narrow(self, polynomial: Polynomial) -> bool:
        interval = bounded(polynomial, self._interval)
        return interval.low > -1 << NARROW_BITS and interval.high < 1 << NARROW_BITS

    def _require_numbers(self, accesses: Collection[ElementAccess]) -> None:
        """That polynomials are the program's numbers wherever something has been concluded from them."""
        self._require_small(accesses)
        for limit in (limit for access in accesses for limit in self._narrowed[access].limits):
            if limit.number is None:  # then what passes the predicate lies between 0 and that
                self._require(f"icmp sge i64 {self._polynomial(limit, 'i64')}, 0")
        for product in self._reader.products:  # of what loops are split into: their extremes
            if not (is_narrow(product) or self._is_known_narrow(product)):
                value = self._polynomial(product, "i128")
                self._require_narrow(Extremes(value, value))
        self._extents()
        levels = tuple(self._reader.levels.values())
        for polynomial in self._reader.proved:  # does not wrap in any iteration
            if not self._is_known_narrow(polynomial):
                self._require_narrow(self._reach(polynomial, ZERO, "i128", levels))

    def _require_small(self, accesses: Collection[ElementAccess]) -> None:
        """That values from outside are."""
        reader, structure = self._reader, self._structure
        polynomials = [access.index for access in accesses]
        polynomials += [item for access in accesses for item in self._narrowed[access].polynomials]
        levels = (structure.outermost, *reader.levels.values())
        polynomials += [polynomial for level in levels for polynomial in (level.initial, level.bound)]
        polynomials += reader.inner + reader.products
        symbols = {symbol for item in polynomials for symbol in item.symbols()}
        symbols -= reader.computed.union(structure.counters)
        for symbol in sorted(symbols | reader.not_negative, key=lambda value: value.number):
            if known(symbol) == self._interval(symbol):
                continue
            name, limit = self._body.invariant(symbol), 1 << SYMBOL_BITS
            if symbol not in reader.not_negative:
                name, limit = self._writer.let(f"add i64 {name}, {limit}"), 2 * limit
            self._require(f"icmp ult i64 {name}, {limit}")

    def _require_narrow(self, bounds: Extremes) -> None:
        """That numbers of 128 bits between these have few."""
        self._require(f"icmp sgt i128 {bounds.low}, {-1 << NARROW_BITS}")
        self._require(f"icmp slt i128 {bounds.high}, {1 << NARROW_BITS}")

    def _extents(self) -> None:
        for level in self._structure.levels:
            extent = self._body.places.extents[level] = self._extent(level)
            if level.extent is None and level.interval.high > GREATEST_COUNT:
                self._require(f"icmp sle i64 {extent}, {GREATEST_COUNT}")
        for level in self._reader.levels.values():  # also of those that have become one
            for polynomial in (level.initial, level.bound) if level.unsigned else ():
                if polynomial.number is None:  # else an unsigned comparison means another one
                    value = self._polynomial(polynomial, "i64")
                    self._require(f"icmp sge i64 {value}, 0")

    def _extent(self, level: Level) -> str:
        writer, number = self._writer, level.extent
        if number is not None:
            return str(number)
        distance = self._polynomial(level.distance, "i64")
        if level.step == 1:
            return distance
        rounded = writer.let(f"add i64 {distance}, {level.step - 1}")
        return writer.let(f"sdiv i64 {rounded}, {level.step}")

    def _polynomial(self, polynomial: Polynomial, kind: str) -> str:
        """The value of a polynomial over values from outside, in i64 or i128."""
        total = ""
        for monomial, number in polynomial.terms.items():
            term = str(number)
            for symbol in monomial:
                name = self._body.invariant(symbol)
                if kind == "i128":
                    name = self._writer.let(f"sext i64 {name} to i128")
                term = name if term == "1" else self._writer.let(f"mul {kind} {name}, {term}")
            total = self._writer.let(f"add {kind} {total}, {term}") if total else term
        return total or "0"

    def _range(self, access: ElementAccess) -> Range:
        """Checks that it lies in the buffer."""
        writer = self._writer
        without = self._narrowed[access]
        kind = self._kind(access)
        low, high = self._reach(without.rest, without.highest, kind, self._structure.levels)
        if access.computed:
            parts = self._sum_of_parts(access.computed)
            self._bounds.require_small(parts)
            low, high = (
                self._sum(self._widened(part, kind), end, kind)
                for part, end in zip(parts, (low, high), strict=True)
            )
        buffer = writer.context.buffer(access.buffer)
        room = buffer.length if access.instruction.results else buffer.room
        elements = writer.let(f"lshr i64 {room}, {access.bytes.bit_length() - 1}")
        if low.startswith("%") or int(low) < 0:
            self._require(f"icmp sge {kind} {low}, 0")
        self._require(f"icmp slt {kind} {high}, {self._widened(elements, kind)}")
        low, high = self._narrow(low, kind), self._narrow(high, kind)
        return Range(access.buffer, buffer.address, low, high, access.bytes)

    def _reach(
        self, polynomial: Polynomial, highest: Polynomial, kind: str, levels: tuple[Level, ...]
    ) -> Extremes:
        """Least and greatest value over all iterations, where ``highest`` may be added or not."""
        base = polynomial.without(level.counter for level in levels)
        low, high = self._polynomial(base, kind), self._polynomial(base.sum(highest), kind)
        for level in levels:
            coefficient = polynomial.coefficient(level.counter)
            if not coefficient.terms:
                continue
            last = self._last(level, kind)
            value = self._polynomial(coefficient, kind)
            span = self._product(value, last, kind)
            if coefficient.number is None and bounded(coefficient, self._interval).low < 0:
                self._require(f"icmp sge {kind} {value}, 0")
            if (coefficient.number or 1) > 0:
                high = self._sum(high, span, kind)
            else:
                low = self._sum(low, span, kind)
        return Extremes(low, high)

    def _linear(self, value: Value) -> Extremes:
        """Of a polynomial in a computed part of an index."""
        found = separated(self._reader.read(value), self._reader.computed)
        assert found is not None
        bounds = self._reach(found[0], ZERO, "i64", self._structure.levels)
        if not found[1]:
            return bounds
        parts = self._sum_of_parts(found[1])
        return Extremes(self._sum(parts.low, bounds.low, "i64"), self._sum(parts.high, bounds.high, "i64"))

    def _sum_of_parts(self, parts: Sequence[tuple[Value, int]]) -> Extremes:
        low = high = "0"
        for part, factor in parts:
            bounds = self._bounds.part(part)
            self._body.places.bounded.add(part)
            ends = [self._product(bound, str(factor), "i64") for bound in bounds]
            least, greatest = ends if factor > 0 else ends[::-1]
            low, high = self._sum(low, least, "i64"), self._sum(high, greatest, "i64")
        return Extremes(low, high)

    def _kind(self, access: ElementAccess) -> str:
        """i64 where the numbers cannot overflow it, whatever the values from outside are."""
        without = self._narrowed[access]
        polynomials = (access.index, without.rest, without.highest, _parts(access))
        return "i64" if all(map(is_narrow, polynomials)) else "i128"

    def _widened(self, name: str, kind: str) -> str:
        if kind == "i64" or not name.startswith("%"):
            return name
        return self._writer.let(f"sext i64 {name} to i128")

    def _last(self, level: Level, kind: str) -> str:
        number = level.extent
        if number is not None:
            return str(number - 1)
        return self._writer.let(f"sub {kind} {self._widened(self._extent(level), kind)}, 1")

    def _product(self, left: str, right: str, kind: str) -> str:
        if "1" in (left, right):
            return right if left == "1" else left
        if "0" in (left, right):
            return "0"
        return self._folded("mul", left, right, kind) or str(int(left) * int(right))

    def _sum(self, left: str, right: str, kind: str) -> str:
        if "0" in (left, right):
            return right if left == "0" else left
        return self._folded("add", left, right, kind) or str(int(left) + int(right))

    def _folded(self, operation: str, left: str, right: str, kind: str) -> str:
        """The result of an instruction; empty where both operands are constants."""
        if not left.startswith("%"):
            left, right = right, left
        return self._writer.let(f"{operation} {kind} {left}, {right}") if left.startswith("%") else ""

    def _narrow(self, element: str, kind: str) -> str:
        if kind == "i64" or not element.startswith("%"):
            return element
        return self._writer.let(f"trunc i128 {element} to i64")

    def _require_apart(self, ranges: dict[ElementAccess, Range]) -> None:
        """Requires a store and an access to be disjoint or the same. Where the order of accesses is kept,
        this concerns only loads that have been made in front."""
        stores = self._structure.stores
        hoisted = {self._structure.loads[value] for value in self._reader.hoisted}
        for number, store in enumerate(stores):
            for access in (*self._structure.loads.values(), *stores[number + 1 :]):
                same_index = (
                    access.index == store.index and access.bytes == store.bytes and not access.computed
                )
                if access not in hoisted and (
                    self._plan.in_order or (same_index and access.buffer is store.buffer)
                ):
                    continue
                if never_overlap(access.buffer, store.buffer, self._writer.context.is_bindings):
                    continue
                apart = are_apart(self._writer, ranges[access], ranges[store])
                forwards = self._plan.forwards and access not in hoisted and access not in stores
                if forwards and same_index and access.position < store.position:
                    # Not the starts of their ranges: what a predicate leaves of one may begin later.
                    buffers = map(self._writer.context.buffer, (access.buffer, store.buffer))
                    left, right = (buffer.address for buffer in buffers)
                    same = self._writer.let(f"icmp eq ptr {left}, {right}")
                    apart = self._writer.let(f"or i1 {apart}, {same}")
                self._conditions.append(apart)

    def _require_injective(self, store: ElementAccess, order: Order) -> None:
        """Requires each factor to exceed what smaller ones reach together. A loop of one iteration passes
        too."""
        writer = self._writer
        kind = self._kind(store)
        reach = "0"
        for factor, level in order:
            number = factor.number
            value = str(abs(number)) if number is not None else self._polynomial(factor, kind)
            if value.startswith("%") or reach.startswith("%"):
                left, right = (value, reach) if value.startswith("%") else (reach, value)
                relation = "sgt" if left is value else "slt"
                exceeds = writer.let(f"icmp {relation} {kind} {left}, {right}")
                if level.extent is None:
                    once = writer.let(f"icmp eq {kind} {self._last(level, kind)}, 0")
                    exceeds = writer.let(f"or i1 {exceeds}, {once}")
                self._conditions.append(exceeds)
            reach = self._sum(self._product(value, self._last(level, kind), kind), reach, kind)

    def _pointer(self, access: ElementAccess) -> None:
        base = self._polynomial(access.index.without(self._structure.counters), "i64")
        for level in self._structure.levels:
            coefficient = access.step(level)
            if coefficient.terms:
                self._body.places.coefficients[access, level] = self._polynomial(coefficient, "i64")
        address = self._writer.context.buffer(access.buffer).address
        pointer = self._writer.at(ELEMENT_LLVM[access.element], address, base)
        self._body.places.pointers[access] = pointer
