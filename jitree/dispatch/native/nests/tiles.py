"""Describes tiles, orders windows, writes panels: what loops compute together.

*Windows* are reductions of so few iterations that they are written out, as those of depthwise convolutions
and pooling. Rows of such a window are rows of its neighbours' windows, too. Written in the order in which
rows lie in memory, a tile reads each of them once; each element still has its own iterations in their order.

*Panels*: a matrix product with a transposed matrix reads its rows in squares that are transposed in registers
(``memory.py``). Where many rows of the other matrix meet the same square, it is put into memory instead, a
block of the reduction at a time, side by side as lanes need it, and read from there. Four rows are read at
once: where rows are a power of two apart, more of them would drive each other out of the cache. Words of
several iterations (``reductions.py``) are put there too, followed by their sums where elements are moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise, product, repeat
from operator import mul
from typing import Final

from jitree.base.records import NamedTuple
from jitree.codegen.ir_text import llvm_type
from jitree.dispatch.native.nests.body import Body
from jitree.dispatch.native.nests.folds import has_masks
from jitree.dispatch.native.nests.memory import (
    LINE_BYTES,
    Memory,
    NestRegion,
    Offsets,
    Panel,
    interleaved,
    part_columns,
)
from jitree.dispatch.native.nests.plan import Plan
from jitree.dispatch.native.nests.products import Products
from jitree.dispatch.native.nests.reductions import LANES, Product
from jitree.dispatch.native.nests.structure import ELEMENT_LLVM, ElementAccess, Level, Structure
from jitree.dispatch.native.nests.writer import Writer

PANEL_BYTES: Final = 8 << 10
"""Bytes of all panels of a nest. As many are asked for ahead: more at a time wait for each other."""
WORD_PANEL_BYTES: Final = 16 << 10
"""… of a panel of words."""
_BESIDE_BYTES: Final = 4
"""Bytes of elements of which a block has as many lines as squares of four by four."""
_WORDS: Final = llvm_type("i32", LANES)


class DepthBlock(NamedTuple):
    """Names iterations of the last reduction, and their panels."""

    start: str
    end: str
    panels: dict[ElementAccess, Panel]
    following: NextPanel | None = None
    """What tiles write beside their sums: the next block's panel."""


class Tile(NamedTuple):
    """Says what is written together: vectors of lanes, iterations of the tiled loop."""

    vectors: int
    mask: tuple[str, ...] | None
    copies: int = 1
    left: str | None = None
    """Lanes that the mask leaves."""
    width: int | None = None
    """Iterations of the vector loop, where they do not fill its vectors: the last one begins earlier then,
    and computes what the one before does, too."""
    is_ending: bool = False
    """The last vector has half as many lanes (``Plan.narrow``)."""
    block: DepthBlock | None = None
    """The part of the last reduction that it runs over; None: all."""

    def places(self, plan: Plan) -> list[Offsets]:
        """Gives iterations from the tile's start for each copy."""
        loops = (plan.tiled, range(self.copies)), (plan.vector, self.firsts(plan.lanes))
        levels = [level for level, _ in loops if level is not None]
        ranges = [numbers for level, numbers in loops if level is not None]
        return [dict(zip(levels, numbers, strict=True)) for numbers in product(*ranges)]

    def firsts(self, lanes: int) -> list[int]:
        """The first lanes of its vectors."""
        firsts = range(0, self.vectors * lanes, lanes)
        return [first if self.width is None else min(first, self.width - lanes) for first in firsts]


TileSum = tuple[ElementAccess, Offsets, Body]
"""One vector of sums: where it is stored, and what writes it: the body of the plan, or of its last vector."""


class TileSums(NamedTuple):
    """Names the sums of a tile, in order, and the block around its reductions."""

    outer: NestRegion
    keys: list[TileSum]

    @property
    def copies(self) -> list[Offsets]:
        return [offsets for _, offsets, _ in self.keys]

    def inside(self, level: Level, counter: str, squares: bool = False) -> TileSums:
        """The same in a loop."""
        counters = {**self.outer.counters, level: counter}
        return self._replace(outer=NestRegion(counters, self.outer.mask, squares))


def iterations(structure: Structure, plan: Plan, copies: Sequence[Offsets]) -> list[tuple[Offsets, int]]:
    """What a tile of a window does, one after the other: an iteration, for which of its copies."""
    ranges = [range(level.extent or 0) for level in plan.reductions]
    steps = [dict(zip(plan.reductions, numbers, strict=True)) for numbers in product(*ranges)]
    pairs = [(step, copy) for step in steps for copy in range(len(copies))]
    factors = _factors(structure, plan)
    if factors is None:
        return pairs
    distances = [_distance(factors, step) for step in steps]
    if any(one >= other for one, other in pairwise(distances)):  # each copy's are to stay in order
        return pairs
    of_copies = [_distance(factors, copy) for copy in copies]
    sums = [one + other for one in distances for other in of_copies]
    return [pairs[at] for at in sorted(range(len(sums)), key=sums.__getitem__)]


def _factors(structure: Structure, plan: Plan) -> dict[Level, int] | None:
    """Gives distances of row loads along the tiled loop and reductions; None if there is no such load, or
    that is not constant."""
    assert plan.vector is not None
    levels = plan.reductions if plan.tiled is None else (plan.tiled, *plan.reductions)
    for value, load in structure.loads.items():
        if value in plan.accumulators or load.computed or load.step(plan.vector).number != 1:
            continue
        numbers = [load.step(level).number for level in levels]  # that of no step is 0
        found = [number for number in numbers if number is not None]
        return dict(zip(levels, found, strict=True)) if len(found) == len(levels) else None
    return None


def _distance(factors: dict[Level, int], offsets: Offsets) -> int:
    """Iterations of reductions and copies of a tile are of different loops: distances add up."""
    return sum(map(mul, factors.values(), map(offsets.get, factors, repeat(0))))


class Panels:
    """Writes the panels of one nest."""

    def __init__(self, writer: Writer, memory: Memory, plan: Plan, accesses: Sequence[ElementAccess]) -> None:
        self.writer = writer
        self._memory = memory
        self.plan = plan
        self._accesses = accesses
        self._memories: dict[ElementAccess, str] = {}
        row = sum(access.bytes for access in accesses) * plan.lanes * plan.vectors
        width = part_columns(plan.lanes)
        self.block = max(PANEL_BYTES // row // width, 1) * width
        """Iterations of the last reduction that panels have room for."""
        self.columns = self.block // width
        """Squares of the same rows in a panel."""
        is_one = [access.bytes for access in accesses] == [_BESIDE_BYTES]
        is_deep = (plan.reductions[-1].extent or 0) >= 2 * self.block
        is_even = width * width == plan.lanes  # a vector's squares are as many as the block's iterations
        self.are_written_beside = is_one and is_deep and is_even and has_masks()
        """Whether tiles have registers to write the panel of the next block while they compute."""
        self._second = ""

    def begin(self) -> None:
        """Takes memory from the stack."""
        for access in self._accesses:
            self._memories[access] = self._take(access)
        if self.are_written_beside:
            self._second = self._take(self._accesses[0])

    def _take(self, access: ElementAccess) -> str:
        size = self.block * self.plan.lanes * self.plan.vectors
        return self.writer.let(f"alloca [{size} x {ELEMENT_LLVM[access.element]}], align 64")

    @property
    def memories(self) -> list[str]:
        """Memory of a block's panel, and of the next one's."""
        return [self._memories[self._accesses[0]], self._second]

    def written_beside(
        self, counters: dict[Level, str], start: str, memories: Sequence[str], vectors: int, first: str
    ) -> DepthBlock:
        """The block from ``start`` on, whose panel is written: its tiles, from ``first`` on, write the next
        one. The last panel is as long as the others, and begins with what the one before has, too."""
        writer, plan, access = self.writer, self.plan, self._accesses[0]
        depth, lanes = plan.reductions[-1].extent or 0, vectors * plan.lanes
        after = writer.let(f"add i64 {start}, {self.block}")

        def least(number: str, most: int) -> str:
            return writer.intrinsic("smin", "i64", 1, [number, str(most)])

        def panel(memory: str, at: str) -> Panel:
            origin = writer.at(ELEMENT_LLVM[access.element], memory, writer.let(f"mul i64 {at}, {-lanes}"))
            return Panel(origin, lanes)

        now, later = (least(number, depth - self.block) for number in (start, after))
        following = NextPanel(self, panel(memories[1], later), counters, start, later, first)
        return DepthBlock(start, least(after, depth), {access: panel(memories[0], now)}, following)

    def write(
        self, counters: dict[Level, str], start: str, end: str, firsts: Sequence[int], left: str | None
    ) -> DepthBlock:
        """Fills them for some iterations and vectors, which begin at these lanes. Of ``left`` lanes, if that
        is given, the last one stands in those that do not exist."""
        lanes = len(firsts) * self.plan.lanes
        panels = {access: self._fill(access, counters, start, end, lanes, left) for access in self._accesses}
        return DepthBlock(start, end, panels)

    def _fill(
        self, access: ElementAccess, counters: dict[Level, str], start: str, end: str, lanes: int,
        left: str | None,
    ) -> Panel:  # fmt: skip
        writer, kind = self.writer, ELEMENT_LLVM[access.element]
        width = part_columns(self.plan.lanes)
        panel = writer.at(kind, self._memories[access], writer.let(f"mul i64 {start}, {-lanes}"))
        whole, _ = writer.whole(start, end, width)
        with writer.loop("0", str(lanes), width, []) as group:
            rows = [self._row(access, counters, group.counter, row, left) for row in range(width)]
            self._ask_ahead(access, rows, end)
            lane = writer.at(kind, panel, group.counter)
            with writer.loop_if_any(start, whole, width, []) as iteration:
                places = [writer.at(kind, row, iteration.counter) for row in rows]
                row = writer.let(f"mul i64 {iteration.counter}, {lanes}")
                self._write_square(access, places, writer.at(kind, lane, row), lanes)
            with writer.loop_if_any(whole, end, 1, []) as iteration:
                place = writer.at(kind, lane, writer.let(f"mul i64 {iteration.counter}, {lanes}"))
                for offset, row in enumerate(rows):
                    element = writer.at(kind, row, iteration.counter)
                    one = writer.let(f"load {kind}, ptr {element}, align 1")
                    writer.do(f"store {kind} {one}, ptr {writer.at(kind, place, offset)}, align 1")
        return Panel(panel, lanes)

    def _write_square(self, access: ElementAccess, places: Sequence[str], target: str, lanes: int) -> None:
        """Transposes as many iterations as there are rows, whose places these are."""
        writer, kind, width = self.writer, ELEMENT_LLVM[access.element], len(places)
        vector = f"<{width} x {kind}>"
        pieces = [writer.let(f"load {vector}, ptr {place}, align 1") for place in places]
        for column, text in enumerate(interleaved(writer, kind, 1, pieces)):
            place = writer.at(kind, target, column * lanes)
            writer.do(f"store {vector} {text}, ptr {place}, align 1")

    def write_squares(
        self, counters: dict[Level, str], number: str, count: int, panel: Panel, start: str
    ) -> None:
        """Writes some squares of the same rows, numbered along rows.

        The panel begins at iteration ``start``. For each square a line of the rows is asked for, in the block
        after."""
        writer, access, width = self.writer, self._accesses[0], part_columns(self.plan.lanes)
        kind, last, vector = ELEMENT_LLVM[access.element], self.plan.reductions[-1], self.plan.vector
        assert vector is not None
        group = writer.let(f"mul i64 {writer.let(f'udiv i64 {number}, {self.columns}')}, {width}")
        column = writer.let(f"urem i64 {number}, {self.columns}")
        lane = writer.let(f"add i64 {counters[vector]}, {group}")
        first = writer.let(f"add i64 {start}, {writer.let(f'mul i64 {column}, {width}')}")
        at = NestRegion({**counters, vector: lane, last: first})
        target = writer.at(kind, panel.origin, writer.let(f"mul i64 {first}, {panel.lanes}"))
        target = writer.at(kind, target, group)
        for square in range(count):
            step = square * width
            places = [self._memory.pointer(at, access, {vector: row, last: step}) for row in range(width)]
            self._write_square(access, places, writer.at(kind, target, step * panel.lanes), panel.lanes)
            turn = writer.let(f"add i64 {column}, {square}")
            asked = writer.let(f"add i64 {lane}, {writer.let(f'urem i64 {turn}, {width}')}")
            row = NestRegion({**counters, vector: asked, last: start})
            place = self._memory.pointer(row, access, {last: self.block})
            line = writer.let(f"mul i64 {writer.let(f'udiv i64 {turn}, {width}')}, {LINE_BYTES}")
            writer.prefetch(writer.at("i8", place, line))

    def _ask_ahead(self, access: ElementAccess, rows: Sequence[str], end: str) -> None:
        """Fetches the next block's part of the rows while this is computed: so many rows are no stream to a
        processor, and each line would be waited for."""
        writer = self.writer
        for row in rows:
            following = writer.at(ELEMENT_LLVM[access.element], row, end)
            for offset in range(0, self.block * access.bytes, LINE_BYTES):
                writer.prefetch(writer.at("i8", following, offset))

    def _row(
        self, access: ElementAccess, counters: dict[Level, str], group: str, row: int, left: str | None
    ) -> str:
        """The element of a lane in iteration 0."""
        writer, vector = self.writer, self.plan.vector
        assert vector is not None
        lane = writer.let(f"add i64 {group}, {row}")
        if left is not None:
            lane = writer.intrinsic("smin", "i64", 1, [lane, writer.let(f"sub i64 {left}, 1")])
        place = writer.let(f"add i64 {counters[vector]}, {lane}")
        region = NestRegion({**counters, vector: place, self.plan.reductions[-1]: "0"})
        return self._memory.pointer(region, access, {})


class NextPanel(NamedTuple):
    """Writes the panel of the next block while tiles compute."""

    panels: Panels
    panel: Panel
    counters: dict[Level, str]
    """Of the loops around the block."""
    block: str
    """The first iteration of the block that is computed."""
    start: str
    """The panel's first iteration."""
    first: str
    """Where the first tile begins."""

    @property
    def tiles(self) -> int:
        """Counts the tiles that write it, if there are so many."""
        plan, vectors = self.panels.plan, self.panel.lanes // self.panels.plan.lanes
        extent = None if plan.tiled is None else plan.tiled.extent
        most = vectors if extent is None else extent // plan.copies
        for number in range(min(most, vectors), 0, -1):
            if vectors % number == self.panels.columns % (vectors // number) == 0:
                return number
        return vectors

    @property
    def _together(self) -> int:
        """Counts squares of an iteration."""
        return self.panel.lanes // self.panels.plan.lanes // self.tiles

    def write(self, counters: dict[Level, str]) -> None:
        """Writes some squares in an iteration of a tile that is to."""
        writer, plan = self.panels.writer, self.panels.plan
        assert plan.tiled is not None
        tile = self._tiles_before(counters[plan.tiled])
        with self._if_it_writes(tile):
            iteration = writer.let(f"sub i64 {counters[plan.reductions[-1]]}, {self.block}")
            number = writer.let(f"add i64 {writer.let(f'mul i64 {tile}, {self.panels.block}')}, {iteration}")
            number = writer.let(f"mul i64 {number}, {self._together}")
            self.panels.write_squares(counters, number, self._together, self.panel, self.start)

    def end(self, last: str) -> None:
        """Writes what tiles up to the last one have left."""
        writer, share = self.panels.writer, self.panels.block * self._together
        last = writer.intrinsic("smax", "i64", 1, [last, self.first])
        done = writer.let(f"mul i64 {self._tiles_before(last)}, {share}")
        with writer.loop_if_any(done, str(self.tiles * share), 1, []) as square:
            self.panels.write_squares(self.counters, square.counter, 1, self.panel, self.start)

    def _if_it_writes(self, tile: str) -> AbstractContextManager[object]:
        """What is written for tiles before the last one that writes: for all, if there are no others."""
        plan, writer = self.panels.plan, self.panels.writer
        extent = None if plan.tiled is None else plan.tiled.extent
        if extent is not None and extent // plan.copies <= self.tiles:
            return nullcontext()
        return writer.maybe(writer.let(f"icmp ult i64 {tile}, {self.tiles}"), [])

    def _tiles_before(self, tile: str) -> str:
        writer = self.panels.writer
        return writer.let(
            f"udiv i64 {writer.let(f'sub i64 {tile}, {self.first}')}, {self.panels.plan.copies}"
        )


class WordPanels:
    """Writes the panel of words of one nest."""

    def __init__(self, writer: Writer, products: Products, plan: Plan, product: Product) -> None:
        self._writer = writer
        self._products = products
        self._product = product
        self._plan = plan
        self._memory = ""
        square, iteration = product.square, 4 * plan.lanes * plan.vectors
        self.block = max(WORD_PANEL_BYTES * product.group // iteration // square, 1) * square
        """Iterations of the last reduction that the panel has room for."""

    def begin(self) -> None:
        """Takes memory from the stack: words, and a row of sums."""
        words = (self.block // self._product.group + 1) * self._plan.lanes * self._plan.vectors
        self._memory = self._writer.let(f"alloca [{words} x i32], align 64")

    def write(
        self, counters: dict[Level, str], start: str, end: str, firsts: Sequence[int], left: str | None
    ) -> DepthBlock:
        """Fills the tile for whole groups of iterations at these lanes. Of ``left`` lanes, if that is given,
        those that do not exist are 0."""
        writer, products, product = self._writer, self._products, self._product
        group, square, lanes = product.group, product.square, len(firsts) * LANES
        mask = None if left is None else (writer.lanes_before(left, LANES),)
        origin = writer.at("i32", self._memory, writer.let(f"mul i64 {start}, {-lanes // group}"))
        sums, done = ["zeroinitializer"] * len(firsts) if product.turned else [], start
        for size in (square, group) if products.lies_along and mask is None else (group,):
            whole, _ = writer.whole(done, end, size)
            with writer.loop_if_any(done, whole, size, [(_WORDS, text) for text in sums]) as iteration:
                at = {**counters, product.along: iteration.counter}
                region = NestRegion(at, mask, squares=size == square)
                iteration.next = self._groups(region, origin, firsts, size, iteration.values)
            sums, done = iteration.result, whole
        row = writer.at("i32", origin, writer.let(f"mul i64 {done}, {lanes // group}"))
        for first, text in zip(firsts, sums, strict=False):
            self._store(text, row, first)
        return DepthBlock(start, end, {products.access: Panel(origin, lanes, row)})

    def _groups(
        self, region: NestRegion, origin: str, firsts: Sequence[int], size: int, sums: list[str]
    ) -> list[str]:
        """Writes the words of some iterations, and adds them up."""
        vector, along, group = self._plan.vector, self._product.along, self._product.group
        assert vector is not None
        lanes, sums = len(firsts) * LANES, list(sums)
        row = self._writer.let(f"mul i64 {region.counters[along]}, {lanes // group}")
        base = self._writer.at("i32", origin, row)
        for step in range(0, size, group):
            for number, first in enumerate(firsts):
                words = self._products.words(region, {vector: first, along: step})
                self._store(words, base, step // group * lanes + first)
                if sums:
                    sums[number] = self._products.moved(sums[number], words)
        return sums

    def _store(self, text: str, base: str, place: int) -> None:
        self._writer.do(f"store {_WORDS} {text}, ptr {self._writer.at('i32', base, place)}, align 4")
