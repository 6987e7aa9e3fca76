"""The values of a nest's body as LLVM IR: each one on demand, for given counters, once per block.

A value that is the same for all lanes is computed as a scalar.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from jitree.dispatch.native.nests.dependence import Dependence
from jitree.dispatch.native.nests.forms import Form
from jitree.dispatch.native.nests.operations import EMITTERS, condition, uses_library
from jitree.dispatch.native.nests.plan import Plan
from jitree.dispatch.native.nests.reading import FormReader, Level
from jitree.dispatch.native.nests.recognise import Access, Predicate, Structure
from jitree.dispatch.native.nests.transpose import transpose
from jitree.dispatch.native.nests.writer import Writer
from jitree.dispatch.native.ssa import Value
from jitree.dispatch.vector_math_ir import llvm_type

ELEMENT_LLVM: Final = {"i8": "i8", "i16": "i16", "i32": "i32", "i64": "i64", "f32": "float", "f64": "double"}

Offsets = dict[Level, int]
"""How far the copy of the body that is being written is from the counters of its block; absent is 0."""


class Operand(NamedTuple):
    """A computed value: a scalar for all lanes, or a vector."""

    text: str
    lanes: int


@dataclass(slots=True)
class Places:
    """What the emitted loops use: names and constants."""

    extents: dict[Level, str] = field(default_factory=dict)
    coefficients: dict[tuple[Access, Level], str] = field(default_factory=dict)
    """Factors of counters in indices, in elements."""
    pointers: dict[Access, str] = field(default_factory=dict)
    """The element that an access touches when all counters are 0."""


@dataclass(slots=True)
class Region:
    """A block that is being written: what the counters are in it, and what has been computed in it."""

    counters: dict[Level, str]
    mask: str | None
    """Lanes that exist, as a vector of i1; None: all."""
    squares: bool
    """Whole squares can be loaded and transposed."""
    accumulators: dict[tuple[object, ...], Operand] = field(default_factory=dict)
    """By store and copy."""
    known: dict[tuple[object, ...], Operand] = field(default_factory=dict)
    rows: dict[tuple[object, ...], list[str]] = field(default_factory=dict)
    pointers: dict[tuple[object, ...], str] = field(default_factory=dict)


class Body:
    """Computes values of one nest."""

    def __init__(
        self, writer: Writer, structure: Structure, reader: FormReader, plan: Plan, dependence: Dependence
    ) -> None:
        self._writer = writer
        self._structure = structure
        self._reader = reader
        self._plan = plan
        self._dependence = dependence
        self._invariants: dict[Value, str] = {}
        self.places = Places()
        self._levels = {level.counter: level for level in structure.levels}

    def invariant(self, value: Value) -> str:
        """A scalar that does not change in the nest. First asked for in front of it."""
        known = self._invariants.get(value)
        if known is None:
            known = self._invariants[value] = self._compute_invariant(value)
        return known

    def _compute_invariant(self, value: Value) -> str:
        if value.operation.startswith("const."):
            return literal(value)
        if value.block not in self._structure.loop.blocks:
            return self._writer.context.value(value)
        operands = [Operand(self.invariant(operand), 1) for operand in value.operands]
        return self._operation(value, operands).text

    def value(self, region: Region, value: Value, offsets: Offsets) -> Operand:
        if self._reader.is_invariant(value):
            return Operand(self.invariant(value), 1)
        access = self._structure.loads.get(value)
        if access is not None and value in self._plan.accumulators:
            return region.accumulators[self.copy(self._plan.accumulators[value], offsets)]
        key = (value, *(offsets.get(self._levels[c], 0) for c in self._ordered(value)))
        known = region.known.get(key)
        if known is None:
            if value in self._reader.variables:
                known = self._variable(region, self._reader.variables[value], offsets)
            elif access is not None:
                known = self._load(region, access, value, offsets)
            elif value in self._structure.choices:
                known = self._choice(region, value, offsets)
            else:
                known = self._operation(value, [self.value(region, o, offsets) for o in value.operands])
            region.known[key] = known
        return known

    def copy(self, store: Access, offsets: Offsets) -> tuple[object, ...]:
        """The name of an accumulator: those of a tile differ in these offsets."""
        tile = (self._plan.tiled, self._plan.vector)
        return (store, *(offsets.get(level, 0) for level in tile if level is not None))

    def first(self, region: Region, load: Value, offsets: Offsets) -> Operand:
        """What an accumulator starts with: the element in memory."""
        access = self._structure.loads[load]
        operand = self._load(region, access, load, offsets)
        return Operand(self.widened(operand, load.type, self._plan.lanes), self._plan.lanes)

    def kept(self, load: Value, operand: Operand) -> Operand:
        """What the next iteration would load if this were stored."""
        access, lanes = self._structure.loads[load], self._plan.lanes
        text = self.widened(operand, load.type, lanes)
        if access.element in ("i8", "i16"):
            narrow = access.element if lanes == 1 else f"<{lanes} x {access.element}>"
            stored = self._writer.let(f"trunc {llvm_type('i32', lanes)} {text} to {narrow}")
            text = self._extended(access, stored, lanes)
        return Operand(text, lanes)

    def _ordered(self, value: Value) -> list[Value]:
        of = self._dependence.of(value)
        return [counter for counter in self._structure.counters if counter in of]

    def _variable(self, region: Region, form: Form, offsets: Offsets) -> Operand:
        """A variable of the program, from the counters."""
        writer, vector, lanes = self._writer, self._plan.vector, self._plan.lanes
        total = "0"
        for monomial, number in form.terms.items():
            product = str(number)
            for symbol in monomial:
                level = self._levels.get(symbol)
                factor = self.invariant(symbol) if level is None else region.counters[level]
                if level is not None and offsets.get(level, 0):
                    factor = writer.let(f"add i64 {factor}, {offsets[level]}")
                product = writer.let(f"mul i64 {factor}, {product}")
            total = writer.let(f"add i64 {total}, {product}")
        step = form.coefficient(vector.counter) if vector is not None else Form({})
        if not step.terms:
            return Operand(total, 1)
        numbers = "<" + ", ".join(f"i64 {lane}" for lane in range(lanes)) + ">"
        factor = str(step.number) if step.number is not None else self.invariant(*step.symbols())
        distances = writer.let(f"mul <{lanes} x i64> {writer.splat('i64', factor, lanes)}, {numbers}")
        return Operand(
            writer.let(f"add <{lanes} x i64> {writer.splat('i64', total, lanes)}, {distances}"), lanes
        )

    def _choice(self, region: Region, value: Value, offsets: Offsets) -> Operand:
        (chosen, holds), true, false = self._structure.choices[value]
        if not holds:
            true, false = false, true
        operands = [self.value(region, operand, offsets) for operand in (chosen, true, false)]
        lanes = max(operand.lanes for operand in operands)
        texts = [
            self.widened(operand, kind, lanes)
            for operand, kind in zip(operands, ("i32", value.type, value.type), strict=True)
        ]
        return Operand(EMITTERS[f"select.{value.type}"](self._writer, lanes, texts), lanes)

    def _operation(self, value: Value, operands: list[Operand]) -> Operand:
        lanes = max((operand.lanes for operand in operands), default=1)
        kinds = [operand.type for operand in value.operands]
        texts = [self.widened(operand, kind, lanes) for operand, kind in zip(operands, kinds, strict=True)]
        if uses_library(value):
            return Operand(self._library(value, lanes, kinds, texts), lanes)
        return Operand(EMITTERS[value.operation](self._writer, lanes, texts), lanes)

    def _library(self, value: Value, lanes: int, kinds: list[str], texts: list[str]) -> str:
        """Calls a C function for each lane."""
        writer, function = self._writer, self._writer.context.math(value.operation)
        scalar, vector = llvm_type(value.type, 1), llvm_type(value.type, lanes)
        types = [llvm_type(kind, 1) for kind in kinds]
        if lanes == 1:
            arguments = ", ".join(f"{t} {text}" for t, text in zip(types, texts, strict=True))
            return writer.let(f"call {scalar} {function}({arguments})")
        result = "poison"
        for lane in range(lanes):
            elements = [
                writer.let(f"extractelement {llvm_type(kind, lanes)} {text}, i64 {lane}")
                for kind, text in zip(kinds, texts, strict=True)
            ]
            arguments = ", ".join(f"{t} {text}" for t, text in zip(types, elements, strict=True))
            one = writer.let(f"call {scalar} {function}({arguments})")
            result = writer.let(f"insertelement {vector} {result}, {scalar} {one}, i64 {lane}")
        return result

    def widened(self, operand: Operand, kind: str, lanes: int) -> str:
        """The operand in this many lanes."""
        return operand.text if operand.lanes == lanes else self._writer.splat(kind, operand.text, lanes)

    # Memory.

    def pointer(self, region: Region, access: Access, offsets: Offsets) -> str:
        """Of the element of the first lane."""
        writer = self._writer
        moving = [level for level in self._structure.levels if (access, level) in self.places.coefficients]
        fixed = 0
        key: list[object] = [access]
        for level in moving:
            coefficient, offset = self.places.coefficients[access, level], offsets.get(level, 0)
            if coefficient.startswith("%"):
                key.append(offset)
            else:
                fixed += int(coefficient) * offset
        base = region.pointers.get(tuple(key))
        kind = ELEMENT_LLVM[access.element]
        if base is None:
            base = self.places.pointers[access]
            for level in moving:
                coefficient, counter = self.places.coefficients[access, level], region.counters[level]
                if coefficient.startswith("%") and offsets.get(level, 0):
                    counter = writer.let(f"add i64 {counter}, {offsets[level]}")
                if counter == "0":
                    continue
                distance = counter if coefficient == "1" else writer.let(f"mul i64 {counter}, {coefficient}")
                base = writer.let(f"getelementptr {kind}, ptr {base}, i64 {distance}")
            region.pointers[tuple(key)] = base
        return writer.let(f"getelementptr {kind}, ptr {base}, i64 {fixed}") if fixed else base

    def _load(self, region: Region, access: Access, value: Value, offsets: Offsets) -> Operand:
        vector = self._plan.vector
        lanes = self._plan.lanes
        if vector is None or (access, vector) not in self.places.coefficients:
            text, lanes = self._load_scalar(region, access, offsets)
        elif value in self._plan.transposed and region.squares and region.mask is None:
            text = self._load_transposed(region, access, self._plan.transposed[value], offsets)
        else:
            mask = self.mask(region, access.predicate, offsets)
            if self.places.coefficients[access, vector] == "1":
                text = self._load_row(region, access, offsets, mask)
            else:
                text = self._gather(region, access, offsets, mask)
        return Operand(self._extended(access, text, lanes), lanes)

    def _load_scalar(self, region: Region, access: Access, offsets: Offsets) -> tuple[str, int]:
        """One element; if its predicate depends on the lane, in each of them."""
        writer, kind = self._writer, access.element
        pointer = self.pointer(region, access, offsets)
        if not access.predicate:
            return writer.let(f"load {ELEMENT_LLVM[kind]}, ptr {pointer}, align 1{writer.context.access}"), 1
        bit = self.predicate(region, access.predicate, offsets)
        one = bit.text
        if bit.lanes > 1:
            one = writer.let(f"call i1 @llvm.vector.reduce.or.v{bit.lanes}i1(<{bit.lanes} x i1> {bit.text})")
            writer.context.declare(f"declare i1 @llvm.vector.reduce.or.v{bit.lanes}i1(<{bit.lanes} x i1>)")
        mask = writer.let(f"insertelement <1 x i1> poison, i1 {one}, i64 0")
        loaded = self._masked_load(pointer, access, mask, 1)
        return writer.let(f"extractelement <1 x {ELEMENT_LLVM[kind]}> {loaded}, i64 0"), 1

    def _load_row(self, region: Region, access: Access, offsets: Offsets, mask: str | None) -> str:
        writer, lanes = self._writer, self._plan.lanes
        pointer = self.pointer(region, access, offsets)
        if mask is not None:
            return self._masked_load(pointer, access, mask, lanes)
        vector = f"<{lanes} x {ELEMENT_LLVM[access.element]}>"
        return writer.let(f"load {vector}, ptr {pointer}, align 1{writer.context.access}")

    def _masked_load(self, pointer: str, access: Access, mask: str, lanes: int) -> str:
        writer, element = self._writer, access.element
        vector = f"<{lanes} x {ELEMENT_LLVM[element]}>"
        name = f"@llvm.masked.load.v{lanes}{element}.p0"
        writer.context.declare(f"declare {vector} {name}(ptr, i32, <{lanes} x i1>, {vector})")
        return writer.let(
            f"call {vector} {name}(ptr {pointer}, i32 1, <{lanes} x i1> {mask}, {vector} zeroinitializer)"
        )

    def _places_of_lanes(self, region: Region, access: Access, offsets: Offsets) -> str:
        writer, lanes = self._writer, self._plan.lanes
        assert self._plan.vector is not None
        pointer = self.pointer(region, access, offsets)
        coefficient = self.places.coefficients[access, self._plan.vector]
        numbers = "<" + ", ".join(f"i64 {lane}" for lane in range(lanes)) + ">"
        factor = writer.splat("i64", coefficient, lanes)
        distances = writer.let(f"mul <{lanes} x i64> {factor}, {numbers}")
        kind = ELEMENT_LLVM[access.element]
        return writer.let(f"getelementptr {kind}, ptr {pointer}, <{lanes} x i64> {distances}")

    def _gather(self, region: Region, access: Access, offsets: Offsets, mask: str | None) -> str:
        writer, lanes, element = self._writer, self._plan.lanes, access.element
        places = self._places_of_lanes(region, access, offsets)
        vector = f"<{lanes} x {ELEMENT_LLVM[element]}>"
        name = f"@llvm.masked.gather.v{lanes}{element}.v{lanes}p0"
        writer.context.declare(f"declare {vector} {name}(<{lanes} x ptr>, i32, <{lanes} x i1>, {vector})")
        mask = mask or "splat (i1 true)"
        return writer.let(
            f"call {vector} {name}(<{lanes} x ptr> {places}, i32 1, <{lanes} x i1> {mask}, "
            f"{vector} zeroinitializer)"
        )

    def _load_transposed(self, region: Region, access: Access, along: Level, offsets: Offsets) -> str:
        """A column of a square of rows: its rows lie along the other loop, one for each lane."""
        writer, lanes = self._writer, self._plan.lanes
        assert self._plan.vector is not None
        at = {**offsets, along: 0}
        key = (access, *(at.get(level, 0) for level in self._structure.levels))
        columns = region.rows.get(key)
        if columns is None:
            vector = f"<{lanes} x {ELEMENT_LLVM[access.element]}>"
            first = at.get(self._plan.vector, 0)
            rows = []
            for lane in range(lanes):
                pointer = self.pointer(region, access, {**at, self._plan.vector: first + lane})
                rows.append(writer.let(f"load {vector}, ptr {pointer}, align 1{writer.context.access}"))
            columns = region.rows[key] = transpose(writer, vector, rows)
        return columns[offsets.get(along, 0)]

    def _extended(self, access: Access, text: str, lanes: int) -> str:
        """Narrow integers as the i32 that the load gives."""
        if access.element not in ("i8", "i16"):
            return text
        signed = "sext" if access.instruction.mnemonic.endswith(".s") else "zext"
        narrow = access.element if lanes == 1 else f"<{lanes} x {access.element}>"
        return self._writer.let(f"{signed} {narrow} {text} to {llvm_type('i32', lanes)}")

    def predicate(self, region: Region, predicate: Predicate, offsets: Offsets) -> Operand:
        """All of its conditions as i1."""
        writer = self._writer
        bits: list[Operand] = []
        for chosen, holds in sorted(predicate, key=lambda literal: literal[0].number):
            operand = self.value(region, chosen, offsets)
            bit = condition(writer, operand.lanes, operand.text)
            if not holds:
                true = writer.splat("i1", "true", operand.lanes)
                bit = writer.let(f"xor {llvm_type('i1', operand.lanes)} {bit}, {true}")
            bits.append(Operand(bit, operand.lanes))
        lanes = max(bit.lanes for bit in bits)
        result = self.widened(bits[0], "i1", lanes)
        for bit in bits[1:]:
            result = writer.let(f"and {llvm_type('i1', lanes)} {result}, {self.widened(bit, 'i1', lanes)}")
        return Operand(result, lanes)

    def mask(self, region: Region, predicate: Predicate, offsets: Offsets) -> str | None:
        """The lanes in which an access happens; None: all."""
        if not predicate:
            return region.mask
        lanes = self._plan.lanes
        bits = self.widened(self.predicate(region, predicate, offsets), "i1", lanes)
        if region.mask is None:
            return bits
        return self._writer.let(f"and <{lanes} x i1> {bits}, {region.mask}")

    def store(self, region: Region, access: Access, value: Operand, offsets: Offsets) -> None:
        writer, lanes, element = self._writer, self._plan.lanes, access.element
        text = self.widened(value, access.stored.type, lanes)
        kind = ELEMENT_LLVM[element] if lanes == 1 else f"<{lanes} x {ELEMENT_LLVM[element]}>"
        if element in ("i8", "i16"):
            text = writer.let(f"trunc {llvm_type('i32', lanes)} {text} to {kind}")
        vector = self._plan.vector
        if vector is None and access.predicate:
            bit = self.predicate(region, access.predicate, offsets).text
            mask = writer.let(f"insertelement <1 x i1> poison, i1 {bit}, i64 0")
            one = f"<1 x {kind}>"
            text = writer.let(f"insertelement {one} poison, {kind} {text}, i64 0")
            self._masked_store(self.pointer(region, access, offsets), access, text, mask, 1)
            return
        mask = self.mask(region, access.predicate, offsets) if vector is not None else None
        if vector is not None and self.places.coefficients[access, vector] != "1":
            name = f"@llvm.masked.scatter.v{lanes}{element}.v{lanes}p0"
            writer.context.declare(f"declare void {name}({kind}, <{lanes} x ptr>, i32, <{lanes} x i1>)")
            places = self._places_of_lanes(region, access, offsets)
            writer.line(
                f"call void {name}({kind} {text}, <{lanes} x ptr> {places}, i32 1, "
                f"<{lanes} x i1> {mask or 'splat (i1 true)'})"
            )
        elif mask is not None:
            self._masked_store(self.pointer(region, access, offsets), access, text, mask, lanes)
        else:
            pointer = self.pointer(region, access, offsets)
            writer.line(f"store {kind} {text}, ptr {pointer}, align 1{writer.context.access}")

    def _masked_store(self, pointer: str, access: Access, text: str, mask: str, lanes: int) -> None:
        writer, element = self._writer, access.element
        vector = f"<{lanes} x {ELEMENT_LLVM[element]}>"
        name = f"@llvm.masked.store.v{lanes}{element}.p0"
        writer.context.declare(f"declare void {name}({vector}, ptr, i32, <{lanes} x i1>)")
        writer.line(f"call void {name}({vector} {text}, ptr {pointer}, i32 1, <{lanes} x i1> {mask})")


def float_literal(bits: int) -> str:
    """LLVM writes binary32 constants as the binary64 number of the same value."""
    sign, exponent, fraction = bits >> 31 & 1, bits >> 23 & 0xFF, bits & 0x7FFFFF
    if exponent == 0xFF:
        return f"0x{sign << 63 | 0x7FF << 52 | fraction << 29:016X}"
    (value,) = struct.unpack("<f", struct.pack("<I", bits & 0xFFFFFFFF))
    (wide,) = struct.unpack("<Q", struct.pack("<d", value))
    return f"0x{wide:016X}"


def literal(value: Value) -> str:
    """A constant in LLVM's notation."""
    number = value.literals[0] if value.literals else 0
    if value.type == "f64":
        return f"0x{number & (1 << 64) - 1:016X}"
    if value.type == "f32":
        return float_literal(number)
    return str(number)
