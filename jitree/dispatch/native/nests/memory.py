"""Writes loads and stores of a nest: rows, elements, gathers, transposed squares."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial
from itertools import pairwise, repeat
from typing import Final

from jitree.base.records import NamedTuple
from jitree.codegen.ir_text import llvm_type
from jitree.dispatch.native.nests.folds import Fold, has_masks
from jitree.dispatch.native.nests.plan import Plan
from jitree.dispatch.native.nests.structure import ELEMENT_LLVM, ElementAccess, Level, Structure
from jitree.dispatch.native.nests.writer import Writer
from jitree.dispatch.native.ssa import Value

PARTS: Final = 4
"""128-bit parts of a vector of 512 bits: instructions that work inside them are the cheap ones."""
LINE_BYTES: Final = 64
"""Bytes of a line of the cache."""
LARGEST_STRIDE: Final = 8
"""Elements between lanes up to which whole rows are loaded."""
_NARROWED: Final = ("i8", "i16", "i32")

Offsets = dict[Level, int]
"""How far the copy of the body that is being written is from the counters of its block; absent is 0."""


class NestOperand(NamedTuple):
    """Holds a computed value: a scalar for all lanes, or a vector."""

    text: str
    lanes: int


class Places:
    """Holds names and constants that the emitted loops use."""

    def __init__(self) -> None:
        self.extents: dict[Level, str] = {}
        self.coefficients: dict[tuple[ElementAccess, Level], str] = {}
        """Factors of counters in indices, in elements."""
        self.pointers: dict[ElementAccess, str] = {}
        """The element that an access touches when all counters are 0, without what is computed."""
        self.distance = ""
        """In bytes, from constants to their copies."""
        self.bounded: set[Value] = set()
        """Computed parts of indices that the guard has found to be small."""

    def merge(self, merged: Level, parts: Collection[Level]) -> None:
        """Loops become one, in indices too; what is left of those are gaps between rows."""
        self.extents[merged] = str(merged.extent)
        for access, level in list(self.coefficients):
            if level in parts:
                del self.coefficients[access, level]
                self.coefficients[access, merged] = "1"


class Panel(NamedTuple):
    """Names elements in the order in which tiles need them."""

    origin: str
    """Where the row of iteration 0 of the last reduction would be."""
    lanes: int
    """Elements of a row."""
    sums: str = ""
    """The row of sums after a panel of words (``products.py``)."""


class NestRegion:
    """Holds the counters of a block that is being written, and what it computes."""

    def __init__(
        self, counters: dict[Level, str], mask: tuple[str, ...] | None = None, squares: bool = False
    ) -> None:
        self.counters = counters
        self.mask = mask
        """Lanes that exist, as a vector of i1 for each vector of the tile; None: all."""
        self.squares = squares
        """Whole squares can be loaded and transposed."""
        self.accumulators: dict[tuple[object, ...], NestOperand] = {}
        """Sums in registers, by store and copy."""
        self.known: dict[tuple[object, ...], NestOperand] = {}
        self.rows: dict[tuple[object, ...], list[str]] = {}
        self.folds: dict[tuple[Level, int], tuple[str, list[str | None]]] = {}
        """Rows of vectors that rows share (:class:`Fold`), by level and first lane."""
        self.pointers: dict[tuple[object, ...], str] = {}
        self.panels: dict[ElementAccess, Panel] = {}
        self.is_rest = False
        """A word of a joined reduction has iterations that do not exist."""
        self.ahead: NestRegion | None = None
        """The same block for values that are computed for several of its iterations at once."""


class _Factors(NamedTuple):
    """Holds what an index moves by with each loop: numbers or names."""

    all: list[tuple[Level, str]]
    fixed: list[tuple[Level, int]]
    dynamic: list[Level]
    """Those with the name of one."""


class Memory:
    """Writes the accesses of one nest.

    Masks are vectors of i1 over the plan's lanes; None: all lanes.
    """

    def __init__(self, writer: Writer, structure: Structure, plan: Plan, places: Places) -> None:
        self._writer = writer
        self._structure = structure
        self._plan = plan
        self.places = places
        self._factors: dict[ElementAccess, _Factors] = {}
        """Of accesses that have been written: the places of all are known before."""
        self._levels = (*structure.levels, *(merged for merged, _ in plan.merged))

    def is_uniform(self, access: ElementAccess) -> bool:
        """All lanes touch one element."""
        vector = self._plan.vector
        return vector is None or (access, vector) not in self.places.coefficients

    def _stride(self, access: ElementAccess) -> int:
        """Elements from lane to lane; 0 if that is not constant."""
        vector = self._plan.vector
        number = self.places.coefficients[access, vector] if vector is not None else "1"
        return 0 if number.startswith("%") else int(number)

    def _vector(self, access: ElementAccess, lanes: int) -> str:
        kind = ELEMENT_LLVM[access.element]
        return kind if lanes == 1 else f"<{lanes} x {kind}>"

    def pointer(self, region: NestRegion, access: ElementAccess, offsets: Offsets) -> str:
        """Of the element of the first lane."""
        writer, factors = self._writer, self._factors.get(access)
        if factors is None:
            factors = self._factors[access] = self._factors_of(access)
        # Multiples of constants go into the last addition, so that copies of a tile share the rest.
        fixed = 0
        for level, factor in factors.fixed:
            fixed += factor * offsets.get(level, 0)
        dynamic = tuple(map(offsets.get, factors.dynamic, repeat(0)))
        key = (access, *dynamic)
        kind = ELEMENT_LLVM[access.element]
        base = region.pointers.get(key)
        if base is None:
            base = self.places.pointers[access]
            distances = dict(zip(factors.dynamic, dynamic, strict=True))
            # From the outermost loop on: what does not change in an inner one stands in front of it.
            for level, number in sorted(factors.all, key=lambda item: writer.depth(region.counters[item[0]])):
                counter = region.counters[level]
                if distances.get(level):
                    counter = writer.let(f"add i64 {counter}, {distances[level]}")
                if counter != "0":
                    product = counter if number == "1" else writer.let(f"mul i64 {counter}, {number}")
                    base = writer.at(kind, base, product)
            region.pointers[key] = base
        return writer.at(kind, base, fixed) if fixed else base

    def _factors_of(self, access: ElementAccess) -> _Factors:
        coefficients = self.places.coefficients
        found = [
            (level, coefficients[access, level]) for level in self._levels if (access, level) in coefficients
        ]
        return _Factors(
            found,
            [(level, int(number)) for level, number in found if not number.startswith("%")],
            [level for level, number in found if number.startswith("%")],
        )

    def displaced(self, access: ElementAccess, pointer: str, distance: NestOperand) -> str:
        """So many elements after the first lane's, or after that of each lane: as many pointers."""
        kind, lanes, writer = ELEMENT_LLVM[access.element], distance.lanes, self._writer
        text = f"getelementptr {kind}, ptr {pointer}, {llvm_type('i64', lanes)} {distance.text}"
        places = writer.let(text)
        if lanes == 1 or self.is_uniform(access):
            return places
        return writer.let(f"getelementptr {kind}, <{lanes} x ptr> {places}, {self._distances(access)}")

    def load_element(self, access: ElementAccess, pointer: str, bit: str | None) -> NestOperand:
        """One element for all lanes, only if the bit is set."""
        writer, kind = self._writer, ELEMENT_LLVM[access.element]
        if bit is None:
            text = writer.load(kind, pointer)
        else:
            mask = writer.let(f"insertelement <1 x i1> poison, i1 {bit}, i64 0")
            one = writer.masked_load(kind, access.element, 1, pointer, mask)
            text = writer.let(f"extractelement <1 x {kind}> {one}, i64 0")
        return NestOperand(self.extended(access, text, 1), 1)

    def load_in_front(self, access: ElementAccess, index: str) -> str:
        """One element before the guard has looked at its place; 0 if it is out of range."""
        writer, kind = self._writer, ELEMENT_LLVM[access.element]
        buffer = writer.context.buffer(access.buffer)
        elements = writer.let(f"lshr i64 {buffer.length}, {access.bytes.bit_length() - 1}")
        inside = writer.let(f"icmp ugt i64 {elements}, {index}")
        mask = writer.let(f"insertelement <1 x i1> poison, i1 {inside}, i64 0")
        one = writer.masked_load(kind, access.element, 1, writer.at(kind, buffer.address, index), mask)
        return self.extended(access, writer.let(f"extractelement <1 x {kind}> {one}, i64 0"), 1)

    def load_lanes(self, access: ElementAccess, pointer: str, mask: str | None) -> NestOperand:
        """An element for each lane, from that of the first one on."""
        lanes, stride = self._plan.lanes, self._stride(access)
        if 1 < stride <= LARGEST_STRIDE:
            text = self._load_spread(access, pointer, stride, mask)
        elif stride != 1:
            return self.gather(access, self.pointers(access, pointer), mask)
        else:
            text = self._load_row(access, pointer, mask)
        return NestOperand(self.extended(access, text, lanes), lanes)

    def load_column(
        self, region: NestRegion, access: ElementAccess, along: Level, offsets: Offsets
    ) -> NestOperand:
        text = self.column(region, access, along, offsets, ELEMENT_LLVM[access.element], 1)
        return NestOperand(self.extended(access, text, self._plan.lanes), self._plan.lanes)

    def column(
        self, region: NestRegion, access: ElementAccess, along: Level, offsets: Offsets, kind: str, group: int
    ) -> str:
        """Gathers a column of a square of rows, a lane each; ``kind`` holds the elements of a group of
        iterations."""
        writer, lanes, vector = self._writer, self._plan.lanes, self._plan.vector
        assert vector is not None
        at = {**offsets, along: 0}
        key = (access, *map(at.get, self._structure.levels, repeat(0)))
        columns = region.rows.get(key)
        if columns is None:
            first = at.get(vector, 0)

            def load(row: int, start: int, count: int) -> str:
                place = {**at, vector: first + row, along: group * start}
                return writer.load(f"<{count} x {kind}>", self.pointer(region, access, place))

            columns = region.rows[key] = load_columns(writer, kind, lanes, load)
        return columns[offsets.get(along, 0) // group]

    def load_folded(
        self, region: NestRegion, access: ElementAccess, fold: Fold, offsets: Offsets, mask: str | None
    ) -> NestOperand:
        """A vector out of several rows."""
        lanes, kind, text = self._plan.lanes, ELEMENT_LLVM[access.element], "zeroinitializer"
        for pointer, some in self._pieces(region, access, fold, offsets, mask):
            if some is None:
                text = self._load_row(access, pointer, None)
            else:
                text = self._writer.masked_load(kind, access.element, lanes, pointer, some, text)
        return NestOperand(self.extended(access, text, lanes), lanes)

    def _pieces(
        self, region: NestRegion, access: ElementAccess, fold: Fold, offsets: Offsets, mask: str | None
    ) -> list[tuple[str, str | None]]:
        """Gives a vector's place by each row, and the lanes of that; None: all."""
        writer, kind, gap = self._writer, ELEMENT_LLVM[access.element], fold.gaps[access]
        row, masks = self._rows_of(region, fold, offsets.get(fold.level, 0))
        place = writer.at(kind, self.pointer(region, access, offsets), writer.let(f"mul i64 {row}, {gap}"))
        return [
            (writer.at(kind, place, gap * piece) if piece else place, self._both(some, mask))
            for piece, some in enumerate(masks)
        ]

    def _parted(self, fold: Fold, pieces: list[tuple[str, str | None]]) -> Iterator[tuple[str, str | None]]:
        """Gives each piece no lanes that the next one has."""
        inverted = f"xor <{self._plan.lanes} x i1> splat (i1 true),"
        for (pointer, some), (_, later) in pairwise(pieces):
            others = None if fold.has_gaps else self._writer.let(f"{inverted} {later}")
            yield pointer, self._both(some, others)
        yield pieces[-1]

    def _both(self, one: str | None, other: str | None) -> str | None:
        """The lanes that two masks have in common."""
        if one is None or other is None:
            return one or other
        return self._writer.let(f"and <{self._plan.lanes} x i1> {one}, {other}")

    def _rows_of(self, region: NestRegion, fold: Fold, first: int) -> tuple[str, list[str | None]]:
        """Gives the first lane's row; and for it and the next ones their lanes, or those from their first one
        on, if there are none between rows: what is loaded later takes the place of the rest."""
        writer, lanes = self._writer, self._plan.lanes
        known = region.folds.get((fold.level, first))
        if known is None:
            number = writer.let(f"add i64 {region.counters[fold.level]}, {first}")
            row = writer.let(f"udiv i64 {number}, {fold.pitch}")
            masks: list[str | None] = []
            for piece in range(fold.pieces):
                start = writer.let(f"mul i64 {writer.let(f'add i64 {row}, {piece}')}, {fold.pitch}")
                begin = writer.let(f"sub i64 {start}, {number}")
                after = writer.lanes_before(begin, lanes, relation="sge") if piece else None
                end = writer.let(f"add i64 {begin}, {fold.width}")
                masks.append(self._both(after, writer.lanes_before(end, lanes) if fold.has_gaps else None))
            known = region.folds[fold.level, first] = row, masks
        return known

    def load_panel(self, region: NestRegion, access: ElementAccess, offsets: Offsets) -> NestOperand:
        """A row of a panel."""
        writer, plan, panel = self._writer, self._plan, region.panels[access]
        level, vector, kind = plan.reductions[-1], plan.vector, ELEMENT_LLVM[access.element]
        assert vector is not None
        first = writer.let(f"mul i64 {region.counters[level]}, {panel.lanes}")
        number = offsets.get(level, 0) * panel.lanes + offsets.get(vector, 0)
        pointer = writer.at(kind, writer.at(kind, panel.origin, first), number)
        text = writer.let(f"load {self._vector(access, plan.lanes)}, ptr {pointer}, align 1")
        return NestOperand(self.extended(access, text, plan.lanes), plan.lanes)

    def load_prepacked(
        self, region: NestRegion, access: ElementAccess, offsets: Offsets, mask: str | None
    ) -> NestOperand:
        """A column of a block of rows, out of the block's copy."""
        writer, lanes, along = self._writer, self._plan.lanes, self._plan.reductions[-1]
        block = NestRegion({**region.counters, along: "0"})
        first = self.pointer(block, access, {**offsets, along: 0})
        copy = writer.at("i8", first, self.places.distance)
        column = writer.let(f"add i64 {region.counters[along]}, {offsets.get(along, 0)}")
        place = writer.at(ELEMENT_LLVM[access.element], copy, writer.let(f"mul i64 {column}, {lanes}"))
        return NestOperand(self._load_row(access, place, mask), lanes)

    def _load_row(self, access: ElementAccess, pointer: str, mask: str | None) -> str:
        """Elements that lie side by side."""
        lanes, kind = self._plan.lanes, ELEMENT_LLVM[access.element]
        if mask is None:
            return self._writer.load(f"<{lanes} x {kind}>", pointer)
        return self._writer.masked_load(kind, access.element, lanes, pointer, mask)

    def store(
        self, region: NestRegion, access: ElementAccess, text: str, offsets: Offsets, mask: str | None
    ) -> None:
        """Stores a value of the plan's lanes; of one lane, the mask is a vector of one bit."""
        writer, lanes = self._writer, self._plan.lanes
        vector = self._vector(access, lanes)
        text = self._narrowed(access, text, lanes)
        if lanes > 1 and self._stride(access) != 1:
            self._scatter(region, access, text, offsets, mask)
            return
        fold = self._plan.fold
        if fold is not None and (fold.has_gaps or access in fold.gaps):
            for pointer, some in self._parted(fold, self._pieces(region, access, fold, offsets, mask)):
                self._store_some(access, text, pointer, some)
            return
        pointer = self.pointer(region, access, offsets)
        if mask is None:
            writer.do(f"store {vector} {text}, ptr {pointer}, align 1{writer.context.access}")
            return
        if lanes == 1:
            text = writer.let(f"insertelement <1 x {vector}> poison, {vector} {text}, i64 0")
        self._store_some(access, text, pointer, mask)

    def _store_some(self, access: ElementAccess, text: str, pointer: str, mask: str | None) -> None:
        """Stores a row under a mask, which LLVM is not to know: of narrowed integers, where it knows that one
        lane is left, it stores the wide one with AVX-512. No address is negative."""
        writer, lanes = self._writer, self._plan.lanes
        if lanes > 1 and access.element in _NARROWED and has_masks():
            known = writer.let(f"icmp sgt i64 {writer.let('ptrtoint ptr %state to i64')}, -1")
            mask = writer.let(f"and <{lanes} x i1> {mask}, {writer.splat('i1', known, lanes)}")
        assert mask is not None
        writer.masked_store(ELEMENT_LLVM[access.element], access.element, lanes, text, pointer, mask)

    def stored_and_loaded(self, access: ElementAccess, text: str) -> str:
        """What a load would find if this were stored."""
        return self.extended(access, self._narrowed(access, text, self._plan.lanes), self._plan.lanes)

    def extended(self, access: ElementAccess, text: str, lanes: int) -> str:
        """Narrow integers as the i32 that the load gives."""
        if access.element not in ("i8", "i16"):
            return text
        operation = "sext" if access.instruction.mnemonic.endswith(".s") else "zext"
        return self._writer.let(
            f"{operation} {self._vector(access, lanes)} {text} to {llvm_type('i32', lanes)}"
        )

    def _narrowed(self, access: ElementAccess, text: str, lanes: int) -> str:
        if access.element not in ("i8", "i16"):
            return text
        return self._writer.let(f"trunc {llvm_type('i32', lanes)} {text} to {self._vector(access, lanes)}")

    def load_apart(self, access: ElementAccess, pointer: str, stride: int, mask: str | None) -> str:
        """Elements so far apart, as they are in memory."""
        load = self._load_row if stride == 1 else partial(self._load_spread, stride=stride)
        return load(access, pointer, mask=mask)

    def _load_spread(self, access: ElementAccess, pointer: str, stride: int, mask: str | None) -> str:
        """Loads lanes a few elements apart out of whole rows. The last row ends with the last lane. Of masked
        rows only what lanes need is read."""
        writer, lanes = self._writer, self._plan.lanes
        kind, vector = ELEMENT_LLVM[access.element], self._vector(access, lanes)
        starts = [*range(0, (stride - 1) * lanes, lanes), (stride - 1) * (lanes - 1)]
        rows = []
        for start in starts:
            place = writer.at(kind, pointer, start) if start else pointer
            needed = None if mask is None else self._spread_mask(mask, stride, start)
            rows.append(self._load_row(access, place, needed))
        result = rows[0]
        for number, row in enumerate(rows[1:], 1):
            first = number * lanes
            order = []
            for lane in range(lanes):
                element = stride * lane
                own = element >= first and (element < first + lanes or number == stride - 1)
                # Lanes of earlier rows have been put in their places by the shuffle before.
                at = lane if number > 1 else min(element, lanes - 1)
                order.append(lanes + element - starts[number] if own else at)
            result = writer.shuffled(vector, order, result, row)
        return result

    def _spread_mask(self, mask: str, stride: int, start: int) -> str:
        """Masks the elements of a row that lanes need, from ``start``."""
        lanes = self._plan.lanes
        order = [lanes if at % stride else at // stride for at in range(start, start + lanes)]
        return self._writer.shuffled(f"<{lanes} x i1>", order, mask, "zeroinitializer")

    def pointers(self, access: ElementAccess, pointer: str) -> str:
        """Of each lane's element, from that of the first one on."""
        return self._writer.let(
            f"getelementptr {ELEMENT_LLVM[access.element]}, ptr {pointer}, {self._distances(access)}"
        )

    def _distances(self, access: ElementAccess) -> str:
        """How far lanes are from the first one, with its type."""
        writer, lanes = self._writer, self._plan.lanes
        assert self._plan.vector is not None
        factor = writer.splat("i64", self.places.coefficients[access, self._plan.vector], lanes)
        distances = writer.let(f"mul <{lanes} x i64> {factor}, {writer.numbers('i64', lanes)}")
        return f"<{lanes} x i64> {distances}"

    def gather(self, access: ElementAccess, places: str, mask: str | None) -> NestOperand:
        """The elements at so many pointers."""
        lanes, kind = self._plan.lanes, ELEMENT_LLVM[access.element]
        text = self._writer.gathered(kind, access.element, lanes, places, mask)
        return NestOperand(self.extended(access, text, lanes), lanes)

    def _scatter(
        self, region: NestRegion, access: ElementAccess, text: str, offsets: Offsets, mask: str | None
    ) -> None:
        writer, lanes, element = self._writer, self._plan.lanes, access.element
        places = self.pointers(access, self.pointer(region, access, offsets))
        vector, pointers, bits = self._vector(access, lanes), f"<{lanes} x ptr>", f"<{lanes} x i1>"
        name = f"@llvm.masked.scatter.v{lanes}{element}.v{lanes}p0"
        writer.context.declare(f"declare void {name}({vector}, {pointers}, i32, {bits})")
        arguments = f"{vector} {text}, {pointers} {places}, i32 1, {bits} {mask or 'splat (i1 true)'}"
        writer.do(f"call void {name}({arguments})")


def part_columns(lanes: int) -> int:
    """How many columns a part has."""
    return lanes // PARTS


def load_columns(writer: Writer, element: str, lanes: int, load: Callable[[int, int, int], str]) -> list[str]:
    """The columns of a square of ``lanes`` rows; ``load(row, first, count)`` loads a piece of a row.

    The squares of parts change places by being loaded where they belong, the elements of each square by
    interleaving: half the shuffles of a transposition in registers.
    """
    width = part_columns(lanes)
    columns: list[str] = []
    for part in range(PARTS):
        rows = []
        for row in range(width):
            pieces = [load(row + width * other, width * part, width) for other in range(PARTS)]
            halves = [_join(writer, element, width, *pieces[at : at + 2]) for at in (0, 2)]
            rows.append(_join(writer, element, 2 * width, *halves))
        columns += interleaved(writer, element, PARTS, rows)
    return columns


def _join(writer: Writer, element: str, count: int, left: str, right: str) -> str:
    return writer.shuffled(f"<{count} x {element}>", range(2 * count), left, right)


def interleaved(writer: Writer, element: str, parts: int, rows: list[str]) -> list[str]:
    """Transposes squares of as many rows as a part has elements."""
    size, count = 1, len(rows)
    while size < count:
        # Runs of `size` elements of two rows alternate: the lower halves of the parts, then the upper ones.
        half = count // 2
        merged: list[str] = []
        for first in range(half):
            for start in (0, half):
                merged.append(
                    _alternate(writer, element, parts, rows[first], rows[first + half], start, count)
                )
        rows = merged
        size *= 2
    return rows


def _alternate(
    writer: Writer, element: str, parts: int, left: str, right: str, start: int, width: int
) -> str:
    lanes = parts * width
    order = [
        lane + part * width + source * lanes
        for part in range(parts)
        for lane in range(start, start + width // 2)
        for source in (0, 1)
    ]
    return writer.shuffled(f"<{lanes} x {element}>", order, left, right)
