"""Writes sums of products by instructions that add several, and the look at numbers.

Words are four bytes, or two bfloat16 numbers, out of rows (``reductions.py``).

The look tells whether no number of a nest, no product and no sum can be denormal, and no product infinite or
NaN. A bfloat16 number with exponent ``e`` (as its bits have it) is a multiple of ``2**(e - 134)``. Where the
least exponents of both factors add up to 142 or more, all products are multiples of ``2**-126``, the least
normal number, and so are sums of them, rounded or not, that begin with such a multiple: they are zero or
normal. A binary32 number is one from exponent 24 on. Products are finite where the greatest exponents add up
to 379 at the most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from jitree.base.records import NamedTuple
from jitree.codegen.ir_text import llvm_type
from jitree.dispatch.native.nests.memory import Memory, NestOperand, NestRegion, Offsets, Panel
from jitree.dispatch.native.nests.plan import Plan
from jitree.dispatch.native.nests.reductions import LANES, Product, line
from jitree.dispatch.native.nests.structure import ELEMENT_LLVM, ElementAccess, Level, Structure
from jitree.dispatch.native.nests.writer import Looks, Writer
from jitree.dispatch.native.ssa import Value

LEAST_OF_BOTH: Final = 142
GREATEST_OF_BOTH: Final = 379
LEAST_OF_SUM: Final = 24
GREATEST: Final = 254
"""Exponents: that of the greatest finite numbers is the last one."""
REGISTER: Final = 64
"""Bytes of a vector register."""
ROWS: Final = 4
"""Rows that are summed up with lanes along them at a time: AVX2 has registers for so many."""
_ROW: Final = 64
"""Iterations of a vector along a row of bytes."""
_TURNED: Final = -0x7F7F7F80
"""The highest bit of each byte of an i32: four times 128, or -128."""
_WORDS: Final = llvm_type("i32", LANES)

Bounds = Callable[[Level], tuple[str, str]]
"""The iterations of a loop that run."""


class Products:
    """Writes the products of one nest."""

    def __init__(
        self,
        writer: Writer,
        memory: Memory,
        structure: Structure,
        plan: Plan,
        product: Product,
        vector: Level,
    ) -> None:
        self._writer = writer
        self._memory = self.memory = memory
        self._structure = structure
        self._product = product
        self._vector = vector
        self._along = product.along
        made = (level for level in (vector, product.along) if level not in structure.levels)
        self._levels = (*structure.levels, *made)
        self.is_joined = bool(product.joined)
        self._upper_first = product.contraction.upper_first
        self.group = product.group
        """Iterations that one instruction takes."""
        self.square = product.square
        """Iterations in a square of words."""
        self.access = structure.loads[product.row]
        self._moves_words = product.turned and plan.copies == 1 and not plan.packed
        """Words that sums do not share are moved in place of elements: one vector is summed up beside."""
        self._summed = structure.loads[product.element] if self._moves_words else self.access
        self.lies_along = self.access.step(vector).number != 1
        """The elements of a lane's word lie side by side."""
        is_alone = plan.copies == 1 and not (plan.packed or product.joined)
        is_row = self.lies_along and structure.loads[product.element].step(product.along).number == 1
        self.has_rows = is_alone and is_row and product.contraction.any_order and self.square == _ROW
        """Lanes may lie along rows: both factors do, and sums may be of any order."""

    def begun(self, copies: Sequence[Offsets], values: list[str]) -> list[str]:
        """The accumulators, and zeros: what moving the elements adds to those of the same words."""
        return values + ["zeroinitializer"] * len(self._rows(copies))

    def ended(self, copies: Sequence[Offsets], values: list[str]) -> list[str]:
        """The accumulators without what moving the elements has added."""
        added = dict(zip(self._rows(copies), values[len(copies) :], strict=True))
        return self._less(copies, values[: len(copies)], added)

    def begun_in_panel(self, copies: Sequence[Offsets], values: list[str], panel: Panel) -> list[str]:
        """Begins sums in front of a block that its panel ends with."""
        rows = self._rows(copies).items()
        added = {row: self._load(panel.sums, offsets.get(self._vector, 0)) for row, offsets in rows}
        return self._less(copies, values, added)

    def _less(
        self, copies: Sequence[Offsets], values: list[str], added: dict[tuple[int, ...], str]
    ) -> list[str]:
        if not added:
            return values
        return [
            self._writer.let(f"sub {_WORDS} {value}, {added[self._key(self._summed, offsets)]}")
            for offsets, value in zip(copies, values, strict=True)
        ]

    def _key(self, access: ElementAccess, offsets: Offsets) -> tuple[int, ...]:
        """Which words a copy has: those of a convolution's other outputs are others, too."""
        coefficients = self._memory.places.coefficients
        return tuple(offsets.get(level, 0) for level in self._levels if (access, level) in coefficients)

    def _rows(self, copies: Sequence[Offsets]) -> dict[tuple[int, ...], Offsets]:
        """Lists words with sums to take off, with their first copy."""
        if not self._product.turned:
            return {}
        return {self._key(self._summed, offsets): offsets for offsets in reversed(copies)}

    def step(self, region: NestRegion, copies: Sequence[Offsets], values: list[str], first: int) -> list[str]:
        """The accumulators after the iterations of one instruction."""
        result = []
        for offsets, value in zip(copies, values[: len(copies)], strict=True):
            at = {**offsets, self._along: first}
            element, words = self._element(region, at), self.words(region, at)
            result.append(self._added(value, element, words))
        for offsets, value in zip(self._rows(copies).values(), values[len(copies) :], strict=False):
            at = {**offsets, self._along: first}
            if self._moves_words:
                result.append(self._added(value, self._element(region, at), f"splat (i32 {_TURNED})"))
            else:
                result.append(self.moved(value, self.words(region, at)))
        return result

    def along_rows(
        self,
        looks: Looks,
        end: str,
        at: Callable[[str], NestRegion],
        copies: Sequence[Offsets],
        values: list[str],
    ) -> list[str]:
        """The sums after whole registers of each lane's row, some rows at a time; ``at`` an iteration."""
        writer, vector, result, moved = self._writer, self._vector, list[str](), list[str]()
        for offsets in copies:
            rows: list[str] = []
            for row in range(0, LANES, ROWS):
                beside = 0 if moved else len(values) - len(copies)
                carried = [(_WORDS, "zeroinitializer")] * (ROWS + beside)
                first = {**offsets, vector: offsets.get(vector, 0) + row}
                with looks.loop(self._along, "0", end, self.square, carried) as iteration:
                    iteration.next = self._step_along(at(iteration.counter), first, iteration.values)
                rows += iteration.next[:ROWS]
                moved += [self._across([text] * LANES) for text in iteration.next[ROWS:]]
            result.append(self._across(rows))
        pairs = zip(values, result + moved, strict=True)
        return [writer.let(f"add {_WORDS} {value}, {text}") for value, text in pairs]

    def _step_along(self, region: NestRegion, offsets: Offsets, values: list[str]) -> list[str]:
        """Adds a register of each row, lane by lane; the last value is what moving words adds, if there is
        one."""
        writer, memory, product = self._writer, self._memory, self._product
        element = self._structure.loads[product.element]
        elements, result = writer.load(_WORDS, memory.pointer(region, element, offsets)), []
        for number, value in enumerate(values[:ROWS]):
            at = {**offsets, self._vector: offsets.get(self._vector, 0) + number}
            words = writer.load(_WORDS, memory.pointer(region, self.access, at))
            result.append(self._added(value, elements, self._moved_words(words)))
        return result + [self._added(value, elements, f"splat (i32 {_TURNED})") for value in values[ROWS:]]

    def _across(self, rows: list[str]) -> str:
        """Gives a vector of each row's sum over its lanes."""
        writer, part = self._writer, LANES // 2
        while len(rows) > 1:
            # Each row has two parts of lanes, which are added: the first ones to the second ones.
            first = [lane for lane in range(2 * LANES) if not lane & part]
            second = [lane + part for lane in first]
            halves = [
                [writer.shuffled(_WORDS, order, *pair) for order in (first, second)]
                for pair in zip(rows[::2], rows[1::2], strict=True)
            ]
            rows = [writer.let(f"add {_WORDS} {one}, {other}") for one, other in halves]
            part //= 2
        return rows[0]

    def moved(self, value: str, words: str) -> str:
        """The sum of what moving the elements adds."""
        return self._added(value, f"splat (i32 {_TURNED})", words)

    def _added(self, value: str, elements: str, words: str) -> str:
        product = self._product
        if self._moves_words:
            product = product._replace(row_signed=not product.row_signed)
        assert product.contraction.add is not None
        return product.contraction.add(self._writer, product, value, elements, words)

    def _known(
        self, region: NestRegion, load: Value, offsets: Offsets, make: Callable[[ElementAccess], str]
    ) -> str:
        access = self._structure.loads[load]
        key = ("word", load, *self._key(access, offsets))
        known = region.known.get(key)
        if known is None:
            known = region.known[key] = NestOperand(make(access), LANES)
        return known.text

    def _element(self, region: NestRegion, offsets: Offsets) -> str:
        """A word of elements in all lanes. They are moved as a scalar: LLVM 22 does not end where a vector of
        equal lanes is."""
        writer = self._writer

        def make(access: ElementAccess) -> str:
            text = self._in_order(self._word(region, access, offsets), 1)
            if self._product.turned and not self._moves_words:
                text = writer.let(f"xor i32 {text}, {_TURNED}")
            return writer.splat("i32", text, LANES)

        return self._known(region, self._product.element, offsets, make)

    def _word(self, region: NestRegion, access: ElementAccess, offsets: Offsets) -> str:
        """A word of what all lanes share, as it lies in memory."""
        writer = self._writer
        if region.is_rest:  # what lies before the last word's iterations goes
            missing = -(self._along.extent or 0) % self.group
            before = {**offsets, self._along: offsets.get(self._along, 0) - missing}
            word = writer.load("i32", self._memory.pointer(region, access, before))
            return writer.let(f"lshr i32 {word}, {8 * access.bytes * missing}")
        if self.is_joined or access.step(self._along).number == 1:
            return writer.load("i32", self._memory.pointer(region, access, offsets))
        text, kind = "", ELEMENT_LLVM[access.element]
        for number, pointer in enumerate(self._pointers(region, access, offsets)):
            part = writer.let(f"zext {kind} {writer.load(kind, pointer)} to i32")
            if number:
                shifted = writer.let(f"shl i32 {part}, {8 * access.bytes * number}")
                part = writer.let(f"or i32 {text}, {shifted}")
            text = part
        return text

    def _pointers(self, region: NestRegion, access: ElementAccess, offsets: Offsets) -> Iterator[str]:
        """Of the elements of each iteration of a group."""
        for number in range(self.group):
            at = {**offsets, self._along: offsets.get(self._along, 0) + number}
            yield self._memory.pointer(region, access, at)

    def _in_order(self, words: str, lanes: int) -> str:
        """Orders words as the instruction adds their products: that of bytes has none, the other begins with
        the upper half."""
        if not self._upper_first:
            return words
        operands = [words, words, self._writer.splat("i32", "16", lanes)]
        return self._writer.intrinsic("fshl", "i32", lanes, operands)

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
                column = self._memory.column(region, access, self._along, offsets, "i32", self.group)
                return self._in_order(column, LANES)
            places = self._memory.pointers(access, self._memory.pointer(region, access, offsets))
            return self._in_order(self._writer.gathered("i32", "i32", LANES, places, mask), LANES)

        return self._known(region, self._product.row, offsets, lambda access: self._moved_words(make(access)))

    def _moved_words(self, words: str) -> str:
        if not self._moves_words:
            return words
        return self._writer.let(f"xor {_WORDS} {words}, splat (i32 {_TURNED})")

    def _load(self, base: str, index: int) -> str:
        return self._writer.let(f"load {_WORDS}, ptr {self._writer.at('i32', base, index)}, align 4")

    def _of_panel(self, region: NestRegion, panel: Panel, offsets: Offsets) -> str:
        row = self._writer.let(f"mul i64 {region.counters[self._along]}, {panel.lanes // self.group}")
        return self._load(self._writer.at("i32", panel.origin, row), offsets.get(self._vector, 0))

    def _joined(self, region: NestRegion, access: ElementAccess, offsets: Offsets, mask: str | None) -> str:
        """Rows, interleaved."""
        writer, kind = self._writer, ELEMENT_LLVM[access.element]
        rows: list[str] = []
        for place in self._pointers(region, access, offsets):
            if mask is None:
                rows.append(writer.load(f"<{LANES} x {kind}>", place))
            else:
                rows.append(writer.masked_load(kind, access.element, LANES, place, mask))
        return self.interleaved(rows)

    def interleaved(self, rows: list[str]) -> str:
        """Words of the elements of a group's iterations."""
        writer, kind = self._writer, ELEMENT_LLVM[self.access.element]
        lanes, parts = LANES, range(self.group)[:: -1 if self._upper_first else 1]
        while len(rows) > 2:
            both = range(2 * lanes)
            rows = [writer.shuffled(f"<{lanes} x {kind}>", both, *rows[at : at + 2]) for at in (0, 2)]
            lanes *= 2
        order = [LANES * part + lane for lane in range(LANES) for part in parts]
        text = writer.shuffled(f"<{lanes} x {kind}>", order, *rows)
        return writer.let(f"bitcast <{self.square} x {kind}> {text} to {_WORDS}")


class Magnitudes(NamedTuple):
    """Holds the least and the greatest exponent of numbers that are not zero."""

    least: str
    greatest: str


class PairRanges:
    """Writes the look at all numbers of one nest."""

    def __init__(
        self, writer: Writer, structure: Structure, memory: Memory, product: Product, bounds: Bounds
    ) -> None:
        """Windows that overlap have more iterations than elements: the loops look after signals."""
        self._writer = writer
        self._structure = structure
        self._memory = memory
        self._product = product
        self._bounds = bounds

    def are_normal(self) -> str:
        """Whether the instruction gives the bits that the program's loop gives."""
        writer, loads = self._writer, self._structure.loads
        left, right = (self._magnitudes(loads[load]) for load in (self._product.element, self._product.row))
        total = self._magnitudes(self._structure.stores[0])
        least = writer.let(f"add i32 {left.least}, {right.least}")
        greatest = writer.let(f"add i32 {left.greatest}, {right.greatest}")
        conditions = [
            f"sge i32 {least}, {LEAST_OF_BOTH}",
            f"sle i32 {greatest}, {GREATEST_OF_BOTH}",
            f"sge i32 {total.least}, {LEAST_OF_SUM}",
            f"sle i32 {total.greatest}, {GREATEST}",
        ]
        for factor in (left, right):
            conditions += [f"sge i32 {factor.least}, 1", f"sle i32 {factor.greatest}, {GREATEST}"]
        result = "true"
        for condition in conditions:
            result = writer.let(f"and i1 {result}, {writer.let(f'icmp {condition}')}")
        return result

    def _magnitudes(self, access: ElementAccess) -> Magnitudes:
        """Of all elements that an access touches. Bits without the sign are compared, the least ones less 1,
        so that a zero is the greatest of them."""
        writer, kind, bits = self._writer, f"i{8 * access.bytes}", 7 if access.bytes == 2 else 23
        lanes, row = REGISTER // access.bytes, line(self._structure, access)
        assert row is not None
        around = [level for level in self._structure.levels if access.step(level).terms and level is not row]
        found = [f"splat ({kind} -1)", "zeroinitializer"]
        self._looks = Looks(writer, (*around, row), self._memory.places.extents, 1)
        least, greatest = self._along(access, around, row, {}, lanes, found)
        least, greatest = (
            writer.reduced(name, kind, lanes, text) for name, text in (("umin", least), ("umax", greatest))
        )
        one_more = writer.let(f"add i64 {writer.let(f'zext {kind} {least} to i64')}, 1")
        first = writer.let(f"trunc i64 {writer.let(f'lshr i64 {one_more}, {bits}')} to i32")
        last = writer.let(f"zext {kind} {greatest} to i64")
        return Magnitudes(first, writer.let(f"trunc i64 {writer.let(f'lshr i64 {last}, {bits}')} to i32"))

    def _along(
        self, access: ElementAccess, levels: Sequence[Level], row: Level, counters: dict[Level, str],
        lanes: int, found: list[str],
    ) -> list[str]:  # fmt: skip
        """Finds least and greatest of each lane, in loops around the row."""
        if not levels:
            return self._row(access, row, counters, lanes, found)
        kind = llvm_type(f"i{8 * access.bytes}", lanes)
        carried = [(kind, text) for text in found]
        with self._looks.loop(levels[0], *self._bounds(levels[0]), 1, carried) as iteration:
            inner = {**counters, levels[0]: iteration.counter}
            iteration.next = self._along(access, levels[1:], row, inner, lanes, iteration.values)
        return iteration.next

    def _row(
        self, access: ElementAccess, row: Level, counters: dict[Level, str], lanes: int, found: list[str]
    ) -> list[str]:
        """Whole vectors, and what is left of the row under a mask."""
        writer, element = self._writer, f"i{8 * access.bytes}"
        kind = llvm_type(element, lanes)
        start, end = self._bounds(row)
        whole, rest = writer.whole(start, end, lanes)

        def place(counter: str) -> str:
            region = NestRegion({**counters, row: counter})
            return self._memory.pointer(region, access, {})

        carried = [(kind, text) for text in found]
        with writer.maybe(writer.let(f"icmp slt i64 {start}, {whole}"), carried) as branch:
            with self._looks.loop(row, start, whole, lanes, carried) as iteration:
                text = writer.load(kind, place(iteration.counter))
                iteration.next = self._compared(element, iteration.values, text, lanes)
            branch.next = iteration.next
        found, carried = branch.result, [(kind, text) for text in branch.result]
        with writer.maybe(writer.let(f"icmp slt i64 {whole}, {end}"), carried) as branch:
            mask = writer.lanes_before(rest, lanes)
            text = writer.masked_load(element, element, lanes, place(whole), mask)
            branch.next = self._compared(element, found, text, lanes)
        return branch.result

    def _compared(self, kind: str, found: list[str], text: str, lanes: int) -> list[str]:
        """The least and the greatest with a vector more."""
        writer, vector, width = self._writer, llvm_type(kind, lanes), int(kind[1:])
        number = writer.let(f"and {vector} {text}, splat ({kind} {(1 << width - 1) - 1})")
        lower = writer.let(f"sub {vector} {number}, splat ({kind} 1)")
        return [
            writer.intrinsic("umin", kind, lanes, [found[0], lower]),
            writer.intrinsic("umax", kind, lanes, [found[1], number]),
        ]
