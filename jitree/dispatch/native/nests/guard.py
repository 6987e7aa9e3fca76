"""What is checked once in front of a nest: that each access stays in its buffer, and that nothing which is
stored overlaps what other accesses touch. Also computes what the nest needs of values from outside.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from jitree.base.records import NamedTuple
from jitree.dispatch.native.nests.body import Body
from jitree.dispatch.native.nests.computed import BoundWriter, Extremes, separated
from jitree.dispatch.native.nests.plan import Order, PlannedNest
from jitree.dispatch.native.nests.polynomials import NARROW_BITS, SYMBOL_BITS, Polynomial, is_narrow, is_wide
from jitree.dispatch.native.nests.reading import PolynomialReader
from jitree.dispatch.native.nests.rewrites import narrowed
from jitree.dispatch.native.nests.structure import ELEMENT_LLVM, ElementAccess, Level, NotANest, Structure
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
    for access in (*structure.loads.values(), *structure.stores):
        if not all(map(is_wide, (access.index, *narrowed(access, structure).polynomials))):
            raise NotANest("an index with large factors")


def _parts(access: ElementAccess) -> Polynomial:
    """The computed parts of an index."""
    return Polynomial({(part,): number for part, number in access.computed})


class Range(NamedTuple):
    """First and last element of an access, and their addresses (the last one's end)."""

    start: str
    end: str


def are_apart(writer: Writer, left: Range, right: Range) -> str:
    before = writer.let(f"icmp ule i64 {left.end}, {right.start}")
    after = writer.let(f"icmp ule i64 {right.end}, {left.start}")
    return writer.let(f"or i1 {before}, {after}")


class Guard:
    """Writes the checks; :meth:`write` ends with a new block in which the nest may run."""

    def __init__(self, writer: Writer, nest: PlannedNest, body: Body) -> None:
        self._writer = writer
        self._structure = nest.structure
        self._reader = nest.reader
        self._plan = nest.plan
        self._invariants = nest.dependence.invariants
        self._body = body
        self._conditions: list[str] = []
        self._narrowed = {access: narrowed(access, nest.structure) for access in nest.structure.accesses}
        self._bounds = BoundWriter(writer, body.invariant, self._linear, self._require)
        self.ranges: dict[ElementAccess, Range] = {}
        """What accesses touch, after :meth:`gather`."""

    def write(self) -> None:
        writer, context = self._writer, self._writer.context
        accesses = list(self._narrowed)
        self._begin()
        self._go_on_if_all(context.deopt)
        self._live_outs()
        for level in self._structure.levels:
            if level.extent is None:
                self._conditions.append(writer.let(f"icmp sgt i64 {self._body.places.extents[level]}, 0"))
        self._go_on_if_all(context.done)
        ranges = {access: self._range(access) for access in accesses}
        self._require_apart(ranges)
        for store, order in self._plan.injective.items():
            self._require_injective(store, order)
        self._go_on_if_all(context.deopt)
        for access in accesses:
            self._pointer(access)

    def gather(self) -> tuple[str, str]:
        """As :meth:`write`, in one block: whether the nest may run, and whether it has iterations."""
        self._begin()
        fits = self._taken()
        self._live_outs()
        for level in self._structure.levels:
            if level.extent is None:
                extent = self._body.places.extents[level]
                self._conditions.append(self._writer.let(f"icmp sgt i64 {extent}, 0"))
        runs = self._taken()
        ranges = self.ranges = {access: self._range(access) for access in self._narrowed}
        self._require_apart(ranges)
        for store, order in self._plan.injective.items():
            self._require_injective(store, order)
        inside = self._taken()
        for access in ranges:
            self._pointer(access)
        if runs != "true":
            empty = self._writer.let(f"xor i1 {runs}, true")
            inside = self._writer.let(f"or i1 {empty}, {inside}")
        return self._writer.let(f"and i1 {fits}, {inside}"), runs

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

    def _require(self, condition: str) -> None:
        self._conditions.append(condition)

    def _taken(self) -> str:
        """All conditions so far, which are done with."""
        result = self._all() if self._conditions else "true"
        self._conditions = []
        return result

    def _go_on_if_all(self, otherwise: str) -> None:
        if self._conditions:
            label = self._writer.fresh("fits")
            self._writer.branch(self._all(), label, otherwise)
            self._writer.go_on(label)
            self._conditions = []

    def _all(self) -> str:
        result = self._conditions[0]
        for condition in self._conditions[1:]:
            result = self._writer.let(f"and i1 {result}, {condition}")
        return result

    def _require_numbers(self, accesses: Collection[ElementAccess]) -> None:
        """That polynomials are the program's numbers wherever something has been concluded from them."""
        self._require_small(accesses)
        self._require_limits(accesses)
        self._require_products()
        self._extents()
        self._require_proved()

    def _require_small(self, accesses: Iterable[ElementAccess]) -> None:
        polynomials = [access.index for access in accesses]
        polynomials += [item for access in accesses for item in self._narrowed[access].polynomials]
        levels = (self._structure.outermost, *self._reader.levels.values())
        polynomials += [polynomial for level in levels for polynomial in (level.initial, level.bound)]
        polynomials += self._reader.inner
        polynomials += self._reader.products
        symbols = {symbol for item in polynomials for symbol in item.symbols()}
        symbols -= self._reader.computed.union(self._structure.counters)
        symbols |= self._reader.not_negative
        for symbol in sorted(symbols, key=lambda value: value.number):
            name, limit = self._symbol(symbol), 1 << SYMBOL_BITS
            if symbol not in self._reader.not_negative:
                name, limit = self._writer.let(f"add i64 {name}, {limit}"), 2 * limit
            self._conditions.append(self._writer.let(f"icmp ult i64 {name}, {limit}"))

    def _require_limits(self, accesses: Iterable[ElementAccess]) -> None:
        """What predicates compare with is not negative: then what passes them lies between 0 and that."""
        for limit in (limit for access in accesses for limit in self._narrowed[access].limits):
            if limit.number is None:
                self._conditions.append(self._writer.let(f"icmp sge i64 {self._polynomial(limit, 'i64')}, 0"))

    def _require_products(self) -> None:
        """Extremes of split loops are the products of what they are split into."""
        for product in self._reader.products:
            if not is_narrow(product):
                value = self._polynomial(product, "i128")
                self._require_narrow(Extremes(value, value))

    def _require_proved(self) -> None:
        """What orders have been concluded from does not wrap in any iteration."""
        for polynomial in self._reader.proved:
            levels = self._reader.levels.values()
            self._require_narrow(self._reach_of(polynomial, Polynomial.constant(0), "i128", levels))

    def _require_narrow(self, bounds: Extremes) -> None:
        """That numbers of 128 bits between these have few."""
        self._require(self._writer.let(f"icmp sgt i128 {bounds.low}, {-1 << NARROW_BITS}"))
        self._require(self._writer.let(f"icmp slt i128 {bounds.high}, {1 << NARROW_BITS}"))

    def _symbol(self, value: Value) -> str:
        return self._body.invariant(value)

    def _extents(self) -> None:
        for level in self._structure.levels:
            extent = self._body.places.extents[level] = self._extent(level)
            if level.extent is None:
                self._conditions.append(self._writer.let(f"icmp sle i64 {extent}, {1 << SYMBOL_BITS}"))
        for level in self._reader.levels.values():  # also of those that have become one
            for polynomial in (level.initial, level.bound) if level.unsigned else ():
                if polynomial.number is None:  # else an unsigned comparison means another one
                    value = self._polynomial(polynomial, "i64")
                    self._conditions.append(self._writer.let(f"icmp sge i64 {value}, 0"))

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
                name = self._symbol(symbol)
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
        low, high = self._reach(without.rest, without.highest, kind)
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
        self._conditions.append(writer.let(f"icmp sge {kind} {low}, 0"))
        self._conditions.append(writer.let(f"icmp slt {kind} {high}, {self._widened(elements, kind)}"))
        address = writer.let(f"ptrtoint ptr {buffer.address} to i64")
        return Range(
            self._address(address, low, kind, access, 0),
            self._address(address, high, kind, access, access.bytes),
        )

    def _reach(self, polynomial: Polynomial, highest: Polynomial, kind: str) -> Extremes:
        """Least and greatest value over all iterations, where ``highest`` may be added or not."""
        return self._reach_of(polynomial, highest, kind, self._structure.levels)

    def _reach_of(
        self, polynomial: Polynomial, highest: Polynomial, kind: str, levels: Collection[Level]
    ) -> Extremes:
        writer = self._writer
        base = polynomial.without(level.counter for level in levels)
        low, high = self._polynomial(base, kind), self._polynomial(base.sum(highest), kind)
        for level in levels:
            coefficient = polynomial.coefficient(level.counter)
            if not coefficient.terms:
                continue
            last = self._last(level, kind)
            value = self._polynomial(coefficient, kind)
            span = self._product(value, last, kind)
            if coefficient.number is None:
                self._conditions.append(writer.let(f"icmp sge {kind} {value}, 0"))
            if (coefficient.number or 1) > 0:
                high = self._sum(high, span, kind)
            else:
                low = self._sum(low, span, kind)
        return Extremes(low, high)

    def _linear(self, value: Value) -> Extremes:
        """Of a polynomial in a computed part of an index."""
        found = separated(self._reader.read(value), self._reader.computed)
        assert found is not None
        bounds = self._reach(found[0], Polynomial.constant(0), "i64")
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
        return (
            name
            if kind == "i64" or not name.startswith("%")
            else self._writer.let(f"sext i64 {name} to i128")
        )

    def _last(self, level: Level, kind: str) -> str:
        number = level.extent
        if number is not None:
            return str(number - 1)
        return self._writer.let(f"sub {kind} {self._widened(self._extent(level), kind)}, 1")

    def _product(self, value: str, last: str, kind: str) -> str:
        if value.startswith("%"):
            return self._writer.let(f"mul {kind} {value}, {last}")
        if last.startswith("%"):
            return self._writer.let(f"mul {kind} {last}, {value}")
        return str(int(value) * int(last))

    def _sum(self, left: str, right: str, kind: str) -> str:
        if left.startswith("%"):
            return self._writer.let(f"add {kind} {left}, {right}")
        return (
            self._writer.let(f"add {kind} {right}, {left}")
            if right.startswith("%")
            else str(int(left) + int(right))
        )

    def _address(self, address: str, element: str, kind: str, access: ElementAccess, extra: int) -> str:
        writer = self._writer
        if kind == "i128":
            element = writer.let(f"trunc i128 {element} to i64")
        offset = writer.let(f"mul i64 {element}, {access.bytes}")
        start = writer.let(f"add i64 {address}, {offset}")
        return writer.let(f"add i64 {start}, {extra}") if extra else start

    def _require_apart(self, ranges: dict[ElementAccess, Range]) -> None:
        """A store and another access share no byte, or are the same element in each iteration. Where the
        order of accesses is kept, this concerns only loads that have been made in front."""
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
        """Each factor exceeds what the smaller ones reach together, or belongs to a loop of one iteration."""
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
        writer = self._writer
        counters = self._structure.counters
        base = self._polynomial(access.index.without(counters), "i64")
        for level in self._structure.levels:
            coefficient = access.index.coefficient(level.counter)
            if coefficient.terms:
                self._body.places.coefficients[access, level] = self._polynomial(coefficient, "i64")
        address = writer.context.buffer(access.buffer).address
        kind = ELEMENT_LLVM[access.element]
        self._body.places.pointers[access] = writer.let(f"getelementptr {kind}, ptr {address}, i64 {base}")
