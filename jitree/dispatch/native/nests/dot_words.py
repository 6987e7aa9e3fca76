"""Writes sums of products (``dots.py``, ``pairs.py``): words of four bytes, or two bfloat16 numbers, out of
rows, and what adds them up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from jitree.codegen.ir_text import llvm_type
from jitree.dispatch.native.nests import registers
from jitree.dispatch.native.nests.dots import BYTES, LANES, DotProduct
from jitree.dispatch.native.nests.memory import Memory, NestOperand, NestRegion, Offsets, Panel
from jitree.dispatch.native.nests.structure import ELEMENT_LLVM, ElementAccess, Level, Structure
from jitree.dispatch.native.nests.transpose import load_columns
from jitree.dispatch.native.nests.writer import Writer
from jitree.dispatch.native.ssa import Value

_TURNED: Final = -0x7F7F7F80
"""The highest bit of each byte of an i32: four times 128, or -128."""


class Dots:
    """Writes the products of one nest."""

    def __init__(
        self, writer: Writer, memory: Memory, structure: Structure, dot: DotProduct, vector: Level
    ) -> None:
        self._writer = writer
        self._memory = memory
        self._structure = structure
        self._dot = dot
        self._vector = vector
        self.group = dot.group
        """Iterations that one instruction takes."""
        self.square = dot.square
        """Iterations in a square of words."""
        self.access = structure.loads[dot.row]
        self.lies_along = self.access.index.coefficient(vector.counter).number != 1
        """The bytes of a lane's word lie side by side."""
        self._levels = [
            level for level in structure.levels if self.access.index.coefficient(level.counter).terms
        ]
        """Those on which the words of a copy depend."""

    def begun(self, copies: Sequence[Offsets], values: list[str]) -> list[str]:
        """The accumulators, and zeros: what moving the elements adds to those of the same words."""
        return values + ["zeroinitializer"] * len(self._rows(copies))

    def ended(self, copies: Sequence[Offsets], values: list[str]) -> list[str]:
        """The accumulators without what moving the elements has added."""
        rows = self._rows(copies)
        return self._less(copies, values[: len(copies)], dict(zip(rows, values[len(copies) :], strict=True)))

    def begun_in_panel(self, copies: Sequence[Offsets], values: list[str], panel: Panel) -> list[str]:
        """The same in front of a block of the reduction, whose panel ends with these sums."""
        rows = self._rows(copies).items()
        added = {row: self._load(panel.sums, str(offsets.get(self._vector, 0))) for row, offsets in rows}
        return self._less(copies, values, added)

    def _less(
        self, copies: Sequence[Offsets], values: list[str], added: dict[tuple[int, ...], str]
    ) -> list[str]:
        if not added:
            return values
        kind = llvm_type("i32", LANES)
        return [
            self._writer.let(f"sub {kind} {value}, {added[self._row(offsets)]}")
            for offsets, value in zip(copies, values, strict=True)
        ]

    def _row(self, offsets: Offsets) -> tuple[int, ...]:
        """Which words a copy has: those of a convolution's other outputs are others, too."""
        return tuple(offsets.get(level, 0) for level in self._levels)

    def _rows(self, copies: Sequence[Offsets]) -> dict[tuple[int, ...], Offsets]:
        """The words for which there are sums to be taken off, with the first copy that has them."""
        found = {self._row(offsets): offsets for offsets in reversed(copies)}
        return found if self._dot.turned else {}

    def step(self, region: NestRegion, copies: Sequence[Offsets], values: list[str], first: int) -> list[str]:
        """The accumulators after the iterations of one instruction."""
        at = {self._dot.along: first}
        result = [
            self.added(value, self._element(region, {**offsets, **at}), self.words(region, {**offsets, **at}))
            for offsets, value in zip(copies, values[: len(copies)], strict=True)
        ]
        for offsets, value in zip(self._rows(copies).values(), values[len(copies) :], strict=False):
            result.append(self.moved(value, self.words(region, {**offsets, **at})))
        return result

    def moved(self, value: str, words: str) -> str:
        """The sum of what moving the elements adds."""
        return self.added(value, f"splat (i32 {_TURNED})", words)

    def added(self, value: str, elements: str, words: str) -> str:
        """A sum and the products of the elements in words."""
        if self._dot.group != BYTES:
            return self._pairs(value, elements, words)
        unsigned, signed = (elements, words) if self._dot.row_signed else (words, elements)
        width = registers.dot_lanes()
        if width == LANES:
            return self._instruction(width, (value, unsigned, signed))
        halves = [
            self._instruction(width, [self._part(text, first) for text in (value, unsigned, signed)])
            for first in range(0, LANES, width)
        ]
        order = ", ".join(f"i32 {lane}" for lane in range(LANES))
        operands = ", ".join(f"<{width} x i32> {half}" for half in halves)
        return self._writer.let(f"shufflevector {operands}, <{LANES} x i32> <{order}>")

    def _part(self, text: str, first: int) -> str:
        kind, width = llvm_type("i32", LANES), registers.dot_lanes()
        order = ", ".join(f"i32 {lane}" for lane in range(first, first + width))
        return self._writer.let(f"shufflevector {kind} {text}, {kind} poison, <{width} x i32> <{order}>")

    def _instruction(self, width: int, operands: Sequence[str]) -> str:
        kind, name = llvm_type("i32", width), f"@llvm.x86.avx512.vpdpbusd.{32 * width}"
        self._writer.context.declare(f"declare {kind} {name}({kind}, {kind}, {kind})")
        return self._writer.let(f"call {kind} {name}({', '.join(f'{kind} {text}' for text in operands)})")

    def _pairs(self, value: str, elements: str, words: str) -> str:
        """A sum of binary32 and two products of bfloat16 numbers in each lane, that of upper halves first."""
        writer, name = self._writer, "@llvm.x86.avx512bf16.dpbf16ps.512"
        kind, halves = llvm_type("f32", LANES), f"<{2 * LANES} x bfloat>"
        writer.context.declare(f"declare {kind} {name}({kind}, {halves}, {halves})")
        left, right = (
            writer.let(f"bitcast {llvm_type('i32', LANES)} {text} to {halves}") for text in (elements, words)
        )
        return writer.let(f"call {kind} {name}({kind} {value}, {halves} {left}, {halves} {right})")

    def _known(
        self, region: NestRegion, load: Value, offsets: Offsets, make: Callable[[ElementAccess], str]
    ) -> str:
        access = self._structure.loads[load]
        levels = [level for level in self._structure.levels if access.index.coefficient(level.counter).terms]
        key = ("word", load, *(offsets.get(level, 0) for level in levels))
        known = region.known.get(key)
        if known is None:
            known = region.known[key] = NestOperand(make(access), LANES)
        return known.text

    def _element(self, region: NestRegion, offsets: Offsets) -> str:
        """A word of elements in all lanes. They are moved as a scalar: LLVM 22 does not end where a vector of
        equal lanes is."""
        writer = self._writer

        def make(access: ElementAccess) -> str:
            text = self._word(region, access, offsets)
            if self._dot.turned:
                text = writer.let(f"xor i32 {text}, {_TURNED}")
            return writer.splat("i32", text, LANES)

        return self._known(region, self._dot.element, offsets, make)

    def _word(self, region: NestRegion, access: ElementAccess, offsets: Offsets) -> str:
        """A word of what all lanes share."""
        writer, memory, along = self._writer, self._memory, self._dot.along
        if access.index.coefficient(along.counter).number == 1:
            pointer = memory.pointer(region, access, offsets)
            return self._in_order(writer.let(f"load i32, ptr {pointer}, align 1{writer.context.access}"), 1)
        text, kind = "", ELEMENT_LLVM[access.element]
        for number in range(self.group):
            pointer = memory.pointer(region, access, {**offsets, along: offsets.get(along, 0) + number})
            one = writer.let(f"load {kind}, ptr {pointer}, align 1{writer.context.access}")
            part = writer.let(f"zext {kind} {one} to i32")
            if number:
                shifted = writer.let(f"shl i32 {part}, {8 * access.bytes * number}")
                part = writer.let(f"or i32 {text}, {shifted}")
            text = part
        return self._in_order(text, 1)

    def _in_order(self, words: str, lanes: int) -> str:
        """Words as they lie in memory, in the order in which the instruction adds their products: that of
        bytes has none, the other begins with the upper half."""
        if self.group == BYTES:
            return words
        return self._writer.intrinsic(
            "fshl", "i32", lanes, [words, words, self._writer.splat("i32", "16", lanes)]
        )

    def words(self, region: NestRegion, offsets: Offsets) -> str:
        """A word of the elements of each lane."""

        def make(access: ElementAccess) -> str:
            panel = region.panels.get(access)
            if panel is not None:
                return self._of_panel(region, panel, offsets)
            mask = None if region.mask is None else region.mask[offsets.get(self._vector, 0) // LANES]
            if not self.lies_along:
                return self._joined(region, access, offsets, mask)
            if region.squares and mask is None:
                return self._column(region, access, offsets)
            return self._gathered(region, access, offsets, mask)

        return self._known(region, self._dot.row, offsets, make)

    def _load(self, base: str, index: str) -> str:
        pointer = self._writer.let(f"getelementptr i32, ptr {base}, i64 {index}")
        return self._writer.let(f"load {llvm_type('i32', LANES)}, ptr {pointer}, align 4")

    def _of_panel(self, region: NestRegion, panel: Panel, offsets: Offsets) -> str:
        row = self._writer.let(f"mul i64 {region.counters[self._dot.along]}, {panel.lanes // self.group}")
        base = self._writer.let(f"getelementptr i32, ptr {panel.origin}, i64 {row}")
        return self._load(base, str(offsets.get(self._vector, 0)))

    def _joined(self, region: NestRegion, access: ElementAccess, offsets: Offsets, mask: str | None) -> str:
        """Rows, interleaved."""
        writer, memory, along = self._writer, self._memory, self._dot.along
        kind = f"<{LANES} x {ELEMENT_LLVM[access.element]}>"
        rows = []
        for number in range(self.group):
            place = memory.pointer(region, access, {**offsets, along: offsets.get(along, 0) + number})
            if mask is None:
                rows.append(writer.let(f"load {kind}, ptr {place}, align 1{writer.context.access}"))
            else:
                rows.append(memory.masked_load(place, access, mask, LANES))
        if self.group == BYTES:
            pairs = [self._shuffle("i8", LANES, rows[at], rows[at + 1], range(2 * LANES)) for at in (0, 2)]
            order = [LANES * number + lane for lane in range(LANES) for number in range(BYTES)]
            text = self._shuffle("i8", 2 * LANES, pairs[0], pairs[1], order)
        else:
            order = [LANES * number + lane for lane in range(LANES) for number in (1, 0)]
            text = self._shuffle("i16", LANES, rows[0], rows[1], order)
        kind = f"<{self.square} x {ELEMENT_LLVM[access.element]}>"
        return writer.let(f"bitcast {kind} {text} to {llvm_type('i32', LANES)}")

    def _shuffle(self, element: str, count: int, left: str, right: str, order: Sequence[int]) -> str:
        kind, numbers = f"<{count} x {element}>", ", ".join(f"i32 {lane}" for lane in order)
        operands = f"{kind} {left}, {kind} {right}"
        return self._writer.let(f"shufflevector {operands}, <{len(order)} x i32> <{numbers}>")

    def _column(self, region: NestRegion, access: ElementAccess, offsets: Offsets) -> str:
        """A column of a square of words."""
        writer, along = self._writer, self._dot.along
        at = {**offsets, along: 0}
        key = ("words", access, *(at.get(level, 0) for level in self._structure.levels))
        columns = region.rows.get(key)
        if columns is None:
            top = at.get(self._vector, 0)

            def load(row: int, start: int, count: int) -> str:
                place = {**at, self._vector: top + row, along: self.group * start}
                pointer = self._memory.pointer(region, access, place)
                return writer.let(f"load <{count} x i32>, ptr {pointer}, align 1{writer.context.access}")

            columns = region.rows[key] = load_columns(writer, "i32", LANES, load)
        return self._in_order(columns[offsets.get(along, 0) // self.group], LANES)

    def _gathered(self, region: NestRegion, access: ElementAccess, offsets: Offsets, mask: str | None) -> str:
        writer, kind, name = (
            self._writer,
            llvm_type("i32", LANES),
            f"@llvm.masked.gather.v{LANES}i32.v{LANES}p0",
        )
        writer.context.declare(f"declare {kind} {name}(<{LANES} x ptr>, i32, <{LANES} x i1>, {kind})")
        places = self._memory.pointers(access, self._memory.pointer(region, access, offsets))
        words = writer.let(
            f"call {kind} {name}(<{LANES} x ptr> {places}, i32 1, "
            f"<{LANES} x i1> {mask or 'splat (i1 true)'}, {kind} zeroinitializer)"
        )
        return self._in_order(words, LANES)
