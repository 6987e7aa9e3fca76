"""Computes the values of a nest's body as LLVM IR, on demand.

Each one is written for given counters, once per block. A value that is the same for all lanes is computed as
a scalar.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import repeat

from jitree.codegen.ir_text import llvm_type
from jitree.dispatch.native.nests import near
from jitree.dispatch.native.nests.clamps import (
    Clamp,
    clamp_of,
    fits,
    is_extended,
    write_cast,
)
from jitree.dispatch.native.nests.memory import Memory, NestOperand, NestRegion, Offsets, Places
from jitree.dispatch.native.nests.operations import LIBRARY, condition, emit, fenced
from jitree.dispatch.native.nests.plan import PlannedNest
from jitree.dispatch.native.nests.quantising import quantised_of
from jitree.dispatch.native.nests.reading import emit_part
from jitree.dispatch.native.nests.structure import (
    ELEMENT_LLVM,
    ZERO,
    ElementAccess,
    Level,
    Polynomial,
    Predicate,
)
from jitree.dispatch.native.nests.writer import Writer
from jitree.dispatch.native.ssa import Value, is_neutral, operand


class Body:
    """Computes values of one nest."""

    def __init__(
        self, writer: Writer, nest: PlannedNest, places: Places, invariants: dict[Value, str]
    ) -> None:
        """``places`` and ``invariants`` are filled in front of the nest."""
        self.nest = nest
        self._writer = writer
        self._structure = nest.structure
        self._reader = nest.reader
        self._dependence = nest.dependence
        plan = self._plan = nest.plan
        self.lanes = plan.lanes
        self._invariants = invariants
        self.memory = Memory(writer, nest.structure, plan, places)
        self.places = places
        self._starts: Mapping[Value, Value] = {}
        self._same: dict[Value, NestOperand] = {}
        """Values that do not change in the nest."""
        self._levels_of: dict[Value, tuple[Level, ...]] = {}
        """The loops that other values change with, in their order."""
        self._end = ""
        """The lanes that exist, where it writes the vector that ends the vector loop."""
        self._tile = tuple(level for level in (plan.tiled, plan.vector) if level is not None)
        self._levels = {level.counter: level for level in self._structure.levels}
        if plan.fold is not None:
            self._levels |= dict.fromkeys(
                (plan.fold.rows.counter, plan.fold.columns.counter), plan.fold.level
            )
        self._ahead, self.folded, self.alternative = (
            None if other is None else Body(writer, nest._replace(plan=other), places, invariants)
            for other in (plan.ahead, plan.folded, plan.alternative)
        )
        self.ending: Body | None = None
        """Writes the vector that ends the vector loop, if that has fewer lanes."""
        if plan.narrow:
            self.ending = Body(writer, nest._replace(plan=plan.ending._replace(narrow=0)), places, invariants)
            self.ending._end = writer.first_lanes(plan.narrow, plan.ending.lanes)

    def invariant(self, value: Value) -> str:
        """A scalar that does not change in the nest. First asked for in front of it, constants aside."""
        if value.operation.startswith("const."):
            text = operand(value)
            return fenced(self._writer, value.type, 1, text) if is_neutral(value) else text
        known = self._invariants.get(value)
        if known is None:
            known = self._invariants[value] = self._compute_invariant(value)
        return known

    def _compute_invariant(self, value: Value) -> str:
        if value.block not in self._structure.loop.blocks:
            return self._writer.context.value(value)
        if value in self._reader.hoisted:
            place = self.invariant(value.operands[1])
            return self.memory.load_in_front(self._structure.loads[value], place)
        operands = [NestOperand(self.invariant(operand), 1) for operand in value.operands]
        return self._operation(value, operands).text

    def value(self, region: NestRegion, value: Value, offsets: Offsets) -> NestOperand:
        same = self._same.get(value)
        if same is not None:
            return same
        levels = self._levels_of.get(value)
        if levels is None:
            if self._reader.is_invariant(value):
                return self._invariant_operand(value)
            levels = self._levels_of[value] = self._ordered(value)
        access = self._structure.loads.get(value)
        if access is not None and value in self._plan.accumulators:
            return region.accumulators[self.copy(self._plan.accumulators[value], offsets)]
        key = (value, *map(offsets.get, levels, repeat(0)))
        known = region.known.get(key)
        if known is None:
            if region.ahead is not None and not self._dependence.reads_stored(value):
                known = self._one_of(region.ahead, value, offsets)
            elif value in self._reader.variables:
                known = self._variable(region, self._reader.variables[value], offsets)
            elif access is not None:
                known = self._load(region, access, value, offsets)
            elif value in self._structure.choices:
                known = self._choice(region, value, offsets)
            elif (clamp := clamp_of(value)) is not None:
                known = self._clamped(clamp, self.value(region, clamp.number, offsets))
            elif (quantised := quantised_of(value)) is not None:
                number = self.value(region, quantised.number, offsets)
                known = NestOperand(quantised.write(self._writer, number.lanes, number.text), number.lanes)
            elif is_extended(value):
                known = self.value(region, value.operands[0], offsets)
            else:
                known = self._operation(value, [self.value(region, o, offsets) for o in value.operands])
            region.known[key] = known
        return known

    def _invariant_operand(self, value: Value) -> NestOperand:
        made = NestOperand(self.invariant(value), 1)
        if not is_neutral(value):  # which each use has a fence around
            self._same[value] = made
        return made

    def _one_of(self, region: NestRegion, value: Value, offsets: Offsets) -> NestOperand:
        """An iteration's value out of those that are computed at once."""
        assert self._ahead is not None
        plan = self._ahead._plan
        assert plan.vector is not None
        at = {level: offset for level, offset in offsets.items() if level is not plan.vector}
        operand = self._ahead.value(region, value, at)
        if operand.lanes == 1:
            return operand
        lane, vector = offsets.get(plan.vector, 0), llvm_type(value.type, operand.lanes)
        return NestOperand(self._writer.let(f"extractelement {vector} {operand.text}, i64 {lane}"), 1)

    def copy(self, store: ElementAccess, offsets: Offsets) -> tuple[object, ...]:
        """The name of an accumulator: those of a tile differ in these offsets."""
        return (store, *map(offsets.get, self._tile, repeat(0)))

    def start_with(self, constants: Mapping[Value, Value]) -> None:
        """Has accumulators of these buffers start with a constant."""
        self._starts = constants
        for other in (self.alternative, self.ending):
            if other is not None:
                other.start_with(constants)

    def first(self, region: NestRegion, load: Value, offsets: Offsets) -> NestOperand:
        """What an accumulator starts with: the element in memory, or a constant that nobody has stored."""
        access, lanes = self._structure.loads[load], self._plan.lanes
        start = self._starts.get(access.buffer)
        if start is not None:
            text = self._writer.splat(start.type, operand(start), lanes)
            return NestOperand(
                fenced(self._writer, start.type, lanes, text) if is_neutral(start) else text, lanes
            )
        made = self._load(region, access, load, offsets)
        return NestOperand(self.widened(made, load.type, lanes), lanes)

    def kept(self, load: Value, operand: NestOperand) -> NestOperand:
        """What the next iteration would load if this were stored."""
        lanes = self._plan.lanes
        text = self.widened(operand, load.type, lanes)
        return NestOperand(self.memory.stored_and_loaded(self._structure.loads[load], text), lanes)

    def _ordered(self, value: Value) -> tuple[Level, ...]:
        of = self._dependence.of(value)
        return tuple(self._levels[counter] for counter in self._structure.counters if counter in of)

    def _variable(self, region: NestRegion, polynomial: Polynomial, offsets: Offsets) -> NestOperand:
        """A variable of the program, from the counters."""
        writer, vector, lanes = self._writer, self._plan.vector, self._plan.lanes

        def factor(symbol: Value) -> str:
            level = self._levels.get(symbol)
            if level is None:
                return self.invariant(symbol)
            counter, offset = region.counters[level], offsets.get(level, 0)
            return writer.let(f"add i64 {counter}, {offset}") if offset else counter

        total = self._sum_of(polynomial, factor)
        step = polynomial.coefficient(vector.counter) if vector is not None else ZERO
        if not step.terms:
            return NestOperand(total, 1)
        kind, first = llvm_type("i64", lanes), self._sum_of(step, self.invariant)
        distances = writer.let(
            f"mul {kind} {writer.splat('i64', first, lanes)}, {writer.numbers('i64', lanes)}"
        )
        return NestOperand(writer.let(f"add {kind} {writer.splat('i64', total, lanes)}, {distances}"), lanes)

    def _sum_of(self, polynomial: Polynomial, factor: Callable[[Value], str]) -> str:
        """The value of a polynomial whose symbols have these names."""
        total = "0"
        for monomial, number in polynomial.terms.items():
            product = str(number)
            for symbol in monomial:
                product = self._writer.let(f"mul i64 {factor(symbol)}, {product}")
            total = self._writer.let(f"add i64 {total}, {product}")
        return total

    def _choice(self, region: NestRegion, value: Value, offsets: Offsets) -> NestOperand:
        (chosen, holds), true, false = self._structure.choices[value]
        if not holds:
            true, false = false, true
        operands = [self.value(region, operand, offsets) for operand in (chosen, true, false)]
        lanes = max(operand.lanes for operand in operands)
        texts = [
            self.widened(operand, kind, lanes)
            for operand, kind in zip(operands, ("i32", value.type, value.type), strict=True)
        ]
        return NestOperand(emit(self._writer, f"select.{value.type}", lanes, texts), lanes)

    def _clamped(self, clamp: Clamp, number: NestOperand) -> NestOperand:
        bound = self.widened(self._invariant_operand(clamp.bound), "f32", number.lanes)
        return NestOperand(clamp.write(self._writer, number.lanes, number.text, bound), number.lanes)

    def _operation(self, value: Value, operands: list[NestOperand]) -> NestOperand:
        lanes = 1
        for made in operands:
            if made.lanes > lanes:
                lanes = made.lanes
        texts = [
            made.text if made.lanes == lanes else self._writer.splat(given.type, made.text, lanes)
            for made, given in zip(operands, value.operands, strict=True)
        ]
        if lanes > 1 and value in self.places.bounded:
            return NestOperand(emit_part(self._writer, value.operation, lanes, texts), lanes)
        if fits(value):
            return NestOperand(write_cast(self._writer, lanes, *texts), lanes)
        if value.operation in LIBRARY:
            return NestOperand(self._library(value, lanes, texts), lanes)
        return NestOperand(emit(self._writer, value.operation, lanes, texts), lanes)

    def _library(self, value: Value, lanes: int, texts: list[str]) -> str:
        """Calls a C function for each lane."""
        kinds = [operand.type for operand in value.operands]
        writer, function = self._writer, self._writer.context.math(value.operation)
        scalar, vector = llvm_type(value.type, 1), llvm_type(value.type, lanes)

        def call(texts: Iterable[str]) -> str:
            arguments = (f"{llvm_type(kind, 1)} {text}" for kind, text in zip(kinds, texts, strict=True))
            return writer.let(f"call {scalar} {function}({', '.join(arguments)})")

        if lanes == 1:
            return call(texts)
        result = "poison"
        for lane in range(lanes):
            one = call(
                writer.let(f"extractelement {llvm_type(kind, lanes)} {text}, i64 {lane}")
                for kind, text in zip(kinds, texts, strict=True)
            )
            result = writer.let(f"insertelement {vector} {result}, {scalar} {one}, i64 {lane}")
        return result

    def widened(self, operand: NestOperand, kind: str, lanes: int) -> str:
        """The operand in this many lanes."""
        return operand.text if operand.lanes == lanes else self._writer.splat(kind, operand.text, lanes)

    def _load(self, region: NestRegion, access: ElementAccess, value: Value, offsets: Offsets) -> NestOperand:
        memory, predicate = self.memory, access.predicate
        if access.computed:
            distance = self._distance(region, access, offsets)
            pointer = memory.pointer(region, access, offsets)
            if distance.lanes > 1:
                return self._gathered(access, pointer, distance, self._mask(region, predicate, offsets))
            pointer = memory.displaced(access, pointer, distance)
        else:
            pointer = memory.pointer(region, access, offsets)
        if memory.is_uniform(access):
            bit = self._any(self._predicate(region, predicate, offsets)) if predicate else None
            return memory.load_element(access, pointer, bit)
        if access in region.panels:
            return memory.load_panel(region, access, offsets)
        if value in self._plan.transposed and region.squares and region.mask is None:
            return memory.load_column(region, access, self._plan.transposed[value], offsets)
        mask = self._mask(region, predicate, offsets)
        if self._plan.fold is not None and access in self._plan.fold.gaps:
            return memory.load_folded(region, access, self._plan.fold, offsets, mask)
        if value in self._plan.prepacked:
            return memory.load_prepacked(region, access, offsets, mask)
        return memory.load_lanes(access, pointer, mask)

    def _gathered(
        self, access: ElementAccess, pointer: str, distance: NestOperand, mask: str | None
    ) -> NestOperand:
        """Elements that lie anywhere, or all near each other."""
        memory, kind, lanes = self.memory, ELEMENT_LLVM[access.element], distance.lanes

        def gather() -> str:
            return memory.gather(access, memory.displaced(access, pointer, distance), mask).text

        if not (near.may_be_near(kind, lanes, mask) and memory.is_uniform(access)):
            return NestOperand(gather(), lanes)
        buffer = self._writer.context.buffer(access.buffer)
        return NestOperand(near.load_near(self._writer, buffer, kind, pointer, distance.text, gather), lanes)

    def _distance(self, region: NestRegion, access: ElementAccess, offsets: Offsets) -> NestOperand:
        """Adds the computed parts of an index, known to be small."""
        writer, total = self._writer, NestOperand("0", 1)
        for part, factor in access.computed:
            operand = self.value(region, part, offsets)
            lanes = max(operand.lanes, total.lanes)
            kind = llvm_type("i64", lanes)
            one, sum_so_far = (self.widened(o, "i64", lanes) for o in (operand, total))
            product = writer.let(f"mul {kind} {one}, {writer.splat('i64', str(factor), lanes)}")
            total = NestOperand(writer.let(f"add {kind} {sum_so_far}, {product}"), lanes)
        if total.lanes == 1:
            return total
        wide, narrow = llvm_type("i64", total.lanes), llvm_type("i32", total.lanes)
        small = writer.let(f"trunc {wide} {total.text} to {narrow}")
        return NestOperand(writer.let(f"sext {narrow} {small} to {wide}"), total.lanes)

    def store(self, region: NestRegion, access: ElementAccess, value: NestOperand, offsets: Offsets) -> None:
        text = self.widened(value, access.stored.type, self._plan.lanes)
        mask = self._mask(region, access.predicate, offsets)
        self.memory.store(region, access, text, offsets, mask)

    def _predicate(self, region: NestRegion, predicate: Predicate, offsets: Offsets) -> NestOperand:
        """All of its conditions as i1."""
        writer = self._writer
        bits: list[NestOperand] = []
        for chosen, holds in sorted(predicate, key=lambda literal: literal[0].number):
            operand = self.value(region, chosen, offsets)
            bit = condition(writer, operand.lanes, operand.text)
            if not holds:
                true = writer.splat("i1", "true", operand.lanes)
                bit = writer.let(f"xor {llvm_type('i1', operand.lanes)} {bit}, {true}")
            bits.append(NestOperand(bit, operand.lanes))
        lanes = max(bit.lanes for bit in bits)
        result = self.widened(bits[0], "i1", lanes)
        for other in bits[1:]:
            result = writer.let(f"and {llvm_type('i1', lanes)} {result}, {self.widened(other, 'i1', lanes)}")
        return NestOperand(result, lanes)

    def _any(self, bits: NestOperand) -> str:
        """Whether a bit is set in any lane."""
        if bits.lanes == 1:
            return bits.text
        return self._writer.reduced("or", "i1", bits.lanes, bits.text)

    def _mask(self, region: NestRegion, predicate: Predicate, offsets: Offsets) -> str | None:
        """The lanes in which an access happens, as a vector; None: all."""
        existing = self._end or None
        if region.mask is not None:
            vector = self._plan.vector
            first = 0 if vector is None else offsets.get(vector, 0)
            existing = region.mask[first // self._plan.lanes]
        if not predicate:
            return existing
        writer, lanes = self._writer, self._plan.lanes
        bits = self._predicate(region, predicate, offsets)
        if lanes == 1:
            return writer.let(f"insertelement <1 x i1> poison, i1 {bits.text}, i64 0")
        mask = self.widened(bits, "i1", lanes)
        return mask if existing is None else writer.let(f"and <{lanes} x i1> {mask}, {existing}")
