"""Writes the loops of a nest in the order of the plan.

Every loop is written with its condition at the end: the guard has found that it runs at least once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Final

from jitree.base.records import NamedTuple
from jitree.codegen.ir_text import llvm_type
from jitree.dispatch.native.nests.ahead import Requests
from jitree.dispatch.native.nests.body import Body
from jitree.dispatch.native.nests.joining import JoinedPanels, RowPanels
from jitree.dispatch.native.nests.memory import NestOperand, NestRegion, Offsets
from jitree.dispatch.native.nests.products import PairRanges, Products
from jitree.dispatch.native.nests.reductions import RowExtreme, is_zero
from jitree.dispatch.native.nests.structure import ElementAccess, Level
from jitree.dispatch.native.nests.tiles import (
    DepthBlock,
    Panels,
    Tile,
    TileSum,
    TileSums,
    WordPanels,
    iterations,
)
from jitree.dispatch.native.nests.writer import Looks, Writer
from jitree.dispatch.native.ssa import Value

Counters = dict[Level, str]
_PAIR: Final = 2
"""Vectors of a tile that ends a loop of unknown length."""


class LoopRange(NamedTuple):
    """Names iterations of one loop of a nest; at least one.

    They go from a multiple of what its plan takes together to such a multiple or the end.
    """

    level: Level
    start: str
    end: str


class NestLoops:
    """Writes the loops of a nest; of one, perhaps a range."""

    def __init__(self, writer: Writer, body: Body, part: LoopRange | None) -> None:
        nest = body.nest
        structure, plan = self._structure, self._plan = nest.structure, nest.plan
        self._part = part
        for merged, parts in plan.merged:
            body.places.merge(merged, parts)
        if plan.fold is not None and part is not None and part.level is plan.fold.rows:
            start, end = (writer.let(f"mul i64 {end}, {plan.fold.pitch}") for end in (part.start, part.end))
            end = writer.let(f"sub i64 {end}, {plan.fold.pitch - plan.fold.width}")
            self._part = LoopRange(plan.fold.level, start, end)
        self._writer = writer
        self._body = body
        self._extents = body.places.extents
        self._owners: dict[ElementAccess, Value] = {store: load for load, store in plan.accumulators.items()}
        self._panels: Panels | WordPanels | JoinedPanels | None = None
        self._products: Products | None = None
        self._requests = Requests(writer, body.memory, structure, plan, self._extents)
        if plan.product is not None and plan.vector is not None:
            self._products = Products(writer, body.memory, structure, plan, plan.product, plan.vector)
            kind: type[WordPanels | JoinedPanels] = WordPanels
            if plan.product.joined:
                kind = JoinedPanels if plan.product.group > 1 else RowPanels
            self._panels = kind(writer, self._products, plan, plan.product) if plan.packed else None
        elif plan.packed:
            accesses = [structure.loads[value] for value in plan.packed]
            self._panels = Panels(writer, body.memory, plan, accesses)
        self._block = plan.block if self._panels is None else self._panels.block
        """Iterations of the last reduction that run for all of the tiled loop before the next; 0: all."""
        inside = (plan.tiled, *plan.reductions) if not self._block else (*plan.reductions, plan.tiled)
        written = [level for level in (*plan.outer, plan.vector, *inside) if level is not None]
        innermost = self._block if plan.tiled is not None else 1
        self._looks = Looks(writer, written, self._extents, nest.dependence.weight, max(innermost, 1))

    def are_numbers_normal(self) -> str:
        """Whether the bfloat16 pair instruction gives the bits of the loops."""
        product = self._plan.product
        assert product is not None
        return PairRanges(
            self._writer, self._structure, self._body.memory, product, self._bounds
        ).are_normal()

    def write(self) -> None:
        with nullcontext() if self._panels is None else self._writer.stack():
            if self._panels is not None:
                self._panels.begin()
            self._outer(list(self._plan.outer), {})
        self._looks.end()

    def _bounds(self, level: Level) -> tuple[str, str]:
        if self._part is not None and self._part.level is level:
            return self._part.start, self._part.end
        return "0", self._extents[level]

    def _within(self, level: Level, start: str, end: str) -> tuple[str, str]:
        """What of some iterations is in the range that is to run; perhaps nothing: it ends where it starts,
        or before."""
        first, last = self._bounds(level)
        if self._part is None or self._part.level is not level or start == end:
            return start, end
        start = first if start == "0" else self._writer.intrinsic("smax", "i64", 1, [start, first])
        return start, self._writer.intrinsic("smin", "i64", 1, [end, last])

    @contextmanager
    def _if_within(self, level: Level, start: str) -> Iterator[None]:
        """For what is left of a loop from ``start`` on."""
        if self._part is None or self._part.level is not level:
            yield
            return
        with self._writer.maybe(self._writer.let(f"icmp slt i64 {start}, {self._part.end}"), []):
            yield

    def _outer(self, levels: list[Level], counters: Counters) -> None:
        if levels:
            with self._looks.loop(levels[0], *self._bounds(levels[0]), 1, []) as iteration:
                self._outer(levels[1:], {**counters, levels[0]: iteration.counter})
        elif self._plan.in_order:
            self._in_order(counters)
        else:
            self._along_vector(counters)

    def _in_order(self, counters: Counters) -> None:
        region = NestRegion(counters)
        loads = {access: value for value, access in self._structure.loads.items()}
        for access in sorted((*loads, *self._structure.stores), key=lambda access: access.position):
            if access in loads:
                self._body.value(region, loads[access], {})
            else:
                self._body.store(region, access, self._body.value(region, access.stored, {}), {})

    def _along_vector(self, counters: Counters) -> None:
        """Writes tiles of vectors, then whole vectors, then single lanes."""
        level, plan, writer = self._plan.vector, self._plan, self._writer
        if level is None:
            self._along_tiled(counters, Tile(1, None))
            return
        lanes, tile, count = plan.lanes, plan.lanes * plan.vectors, self._extents[level]
        tiles_end, vectors_end = self._multiple(count, tile), self._multiple(count, lanes)

        def write(tile: Tile) -> Callable[[str], None]:
            along = self._in_blocks if self._block else self._along_tiled
            return lambda counter: along({**counters, level: counter}, tile)

        if plan.narrow and (self._part is None or self._part.level is not level):
            left = int(count) % tile
            if left < lanes:
                left += tile
            whole = str(int(count) - left)
            self._span(level, "0", whole, tile, write(Tile(plan.vectors, None)))
            write(Tile(left // lanes + 1, None, left=str(left), is_ending=True))(whole)
            return
        if self._ends_with_one_tile(level, tiles_end):
            left = int(count) - int(tiles_end)
            self._span(level, "0", tiles_end, tile, write(Tile(plan.vectors, None)))
            write(Tile(-(-left // lanes), None, width=left))(tiles_end)
            return
        if self._ends_with_pairs(level):
            self._in_tiles_and_pairs(level, write)
            return
        start, end = self._within(level, "0", vectors_end)
        if start != "0":  # whole tiles from there on
            distance = writer.let(f"sub i64 {end}, {start}")
            whole = writer.let(f"mul i64 {writer.let(f'sdiv i64 {distance}, {tile}')}, {tile}")
            tiles_end = writer.let(f"add i64 {start}, {whole}")
        self._span(level, start, tiles_end, tile, write(Tile(plan.vectors, None)))
        if plan.vectors > 1:
            self._span(level, tiles_end, end, lanes, write(Tile(1, None)))
        if not count.startswith("%"):
            left = int(count) % lanes
            if left:
                with self._if_within(level, vectors_end):
                    write(Tile(1, (writer.first_lanes(left, lanes),), left=str(left)))(vectors_end)
            return
        with (
            self._if_within(level, vectors_end),
            writer.maybe(writer.let(f"icmp slt i64 {vectors_end}, {count}"), []),
        ):
            left_name = writer.let(f"sub i64 {count}, {vectors_end}")
            write(Tile(1, self._masks(1, left_name), left=left_name))(vectors_end)

    def _masks(self, vectors: int, left: str) -> tuple[str, ...]:
        """The lanes of so many vectors before the end, to which ``left`` are left."""
        lanes = self._plan.lanes
        firsts = range(0, vectors * lanes, lanes)
        return tuple(self._writer.lanes_before(left, lanes, first) for first in firsts)

    def _ends_with_pairs(self, level: Level) -> bool:
        """Whether it is unknown how many vectors are left of the vector loop: one vector of sums at a time
        would wait for each addition."""
        plan = self._plan
        if plan.fold is not None and self._part is not None and self._part.level is level:
            return True  # its ends are those of rows
        if not plan.reductions or plan.packed or plan.steps > 1 or plan.vectors <= _PAIR:
            return False
        return self._extents[level].startswith("%") or (self._part is not None and self._part.level is level)

    def _in_tiles_and_pairs(self, level: Level, write: Callable[[Tile], Callable[[str], None]]) -> None:
        """Writes whole tiles, then pairs, then one masked vector."""
        plan, writer = self._plan, self._writer
        start, end = self._bounds(level)
        few = min(_PAIR, plan.vectors)
        tile, pair = plan.lanes * plan.vectors, plan.lanes * few
        tiles_end, rest = writer.whole(start, end, tile)
        self._span(level, start, tiles_end, tile, write(Tile(plan.vectors, None)))

        def write_some(vectors: int) -> Callable[[str], None]:
            def write_masked(counter: str) -> None:
                left = writer.let(f"sub i64 {end}, {counter}")
                write(Tile(vectors, self._masks(vectors, left), left=left))(counter)

            return write_masked

        more = writer.let(f"udiv i64 {writer.let(f'add i64 {rest}, {plan.lanes - 1}')}, {pair}")
        pairs_end = writer.let(f"add i64 {tiles_end}, {writer.let(f'mul i64 {more}, {pair}')}")
        self._span(level, tiles_end, pairs_end, pair, write_some(few))
        self._span(level, pairs_end, end, plan.lanes, write_some(1))

    def _ends_with_one_tile(self, level: Level, start: str) -> bool:
        """Whether the rest of the vector loop can be one tile: what two of its vectors compute is the same,
        of sums that wait in registers."""
        plan, count = self._plan, self._extents[level]
        if not plan.reductions or count.startswith("%"):
            return False
        if plan.product is None and (plan.packed or plan.steps > 1):
            return False
        if self._part is not None and self._part.level is level:
            return False
        return int(count) - int(start) > plan.lanes

    def _in_blocks(self, counters: Counters, tile: Tile) -> None:
        """All reductions but the last, and blocks of that, around the tiled loop: sums wait in memory."""
        plan, panels, writer = self._plan, self._panels, self._writer
        *around, last = plan.reductions
        level = next((level for level in around if level not in counters), None)
        if level is not None:
            with self._looks.loop(level, "0", self._extents[level], 1, []) as iteration:
                self._in_blocks({**counters, level: iteration.counter}, tile)
            return
        count, size = self._extents[last], self._block
        if isinstance(panels, Panels) and panels.are_written_beside and tile.left is None:
            self._in_blocks_beside(panels, counters, tile)
            return

        def write(start: str) -> None:
            end = writer.intrinsic("smin", "i64", 1, [writer.let(f"add i64 {start}, {size}"), count])
            block = DepthBlock(start, end, {})
            if panels is not None:
                block = panels.write(counters, start, end, tile.firsts(self._plan.lanes), tile.left)
            self._along_tiled(counters, tile._replace(block=block))

        with self._looks.loop(last, "0", count, size, []) as part:
            write(part.counter)

    def _in_blocks_beside(self, panels: Panels, counters: Counters, tile: Tile) -> None:
        """Blocks of the last reduction; the panel of the first one alone is written in front of its tiles."""
        tiled, last = self._plan.tiled, self._plan.reductions[-1]
        assert tiled is not None
        first, _ = self._within(tiled, "0", self._multiple(self._extents[tiled], self._plan.copies))
        panels.write(counters, "0", str(self._block), tile.firsts(self._plan.lanes), None)
        memories = [("ptr", memory) for memory in panels.memories]
        with self._looks.loop(last, "0", self._extents[last], self._block, memories) as part:
            block = panels.written_beside(counters, part.counter, part.values, tile.vectors, first)
            self._along_tiled(counters, tile._replace(block=block))
            part.next = part.values[::-1]

    def _along_tiled(self, counters: Counters, tile: Tile) -> None:
        level, copies = self._plan.tiled, self._plan.copies
        if level is None:
            self._tile(counters, tile)
            return
        count = self._extents[level]
        end = self._multiple(count, copies)

        def write(number: int) -> Callable[[str], None]:
            return lambda counter: self._tile({**counters, level: counter}, tile._replace(copies=number))

        start, last = self._within(level, "0", end)
        self._span(level, start, last, copies, write(copies))
        if tile.block is not None and tile.block.following is not None:
            tile.block.following.end(last)
            tile = tile._replace(block=tile.block._replace(following=None))
        if copies == 1:
            return
        if self._plan.reductions and not end.startswith("%"):
            if end != count:
                with self._if_within(level, end):
                    write(int(count) - int(end))(end)
        else:
            self._span(level, *self._within(level, end, count), 1, write(1))

    def _multiple(self, count: str, factor: int) -> str:
        """Rounds down to a multiple of a power of two or constant."""
        if not count.startswith("%"):
            return str(int(count) // factor * factor)
        rest = self._writer.let(f"urem i64 {count}, {factor}")
        return self._writer.let(f"sub i64 {count}, {rest}")

    def _is_before(self, start: str, end: str) -> str:
        """Whether one number, of which at most one is constant, is less than another."""
        left, right = (start, end) if start.startswith("%") else (end, start)
        relation = "slt" if left is start else "sgt"
        return self._writer.let(f"icmp {relation} i64 {left}, {right}")

    def _span(self, level: Level, start: str, end: str, step: int, write: Callable[[str], None]) -> None:
        """A loop from start to end, which may be the same."""
        if not start.startswith("%") and not end.startswith("%"):
            distance = int(end) - int(start)
            if distance == step:
                write(start)
            elif distance:
                with self._looks.loop(level, start, end, step, []) as iteration:
                    write(iteration.counter)
            return
        more = self._is_before(start, end)
        with self._writer.maybe(more, []), self._looks.loop(level, start, end, step, []) as iteration:
            write(iteration.counter)

    def _tile(self, counters: Counters, tile: Tile) -> None:
        region = NestRegion(counters, tile.mask, squares=tile.copies == self._plan.lanes)
        reductions = list(self._plan.reductions)
        keys = [
            (store, offsets, self._body_of(tile, offsets) if tile.is_ending else self._body)
            for offsets in tile.places(self._plan)
            for store in self._structure.stores
        ]
        if not reductions:
            results = [body.value(region, store.stored, offsets) for store, offsets, body in keys]
        else:
            sums = TileSums(region, keys)
            values = [body.first(region, self._owners[store], offsets).text for store, offsets, body in keys]
            if self._products is not None and self._products.group > 1:
                values = self._add_products(self._products, tile.block, sums, values)
            elif tile.block is not None:
                values = self._over_block(tile.block, sums, values)
            elif self._plan.is_window and tile.copies == self._plan.copies:
                values = self._over_window(sums, values)
            else:
                values = self._reduce(reductions, sums, values)
            results = [NestOperand(text, body.lanes) for (_, _, body), text in zip(keys, values, strict=True)]
            region = NestRegion(counters, tile.mask)
        for (store, offsets, body), operand in zip(keys, results, strict=True):
            body.store(region, store, operand, offsets)

    def _body_of(self, tile: Tile, offsets: Offsets) -> Body:
        """What writes the vector of a tile at these offsets."""
        vector, ending = self._plan.vector, self._body.ending
        assert ending is not None and vector is not None
        return ending if offsets[vector] == (tile.vectors - 1) * self._plan.lanes else self._body

    def _reduce(self, levels: list[Level], sums: TileSums, values: list[str]) -> list[str]:
        """The accumulators after the loops."""
        level, steps, products = levels[0], self._plan.steps, self._products
        count = self._extents[level]
        if len(levels) > 1:
            with self._looks.loop(level, "0", count, 1, self._carried(sums, values)) as iteration:
                inner = sums.inside(level, iteration.counter)
                iteration.next = self._reduce(levels[1:], inner, iteration.values)
            return iteration.next
        if self._plan.folded is not None:
            return self._in_any_order(level, sums, values)
        end = self._multiple(count, steps)
        is_known = sums.outer.mask is None and end != "0" and not end.startswith("%")
        if products is not None and products.has_rows and is_known:
            values = products.along_rows(
                self._looks, end, lambda counter: sums.inside(level, counter).outer, sums.copies, values
            )
        else:
            values = self._steps(level, "0", end, steps, sums, values)
        if products is not None and steps > products.group:
            start, end = end, self._multiple(count, products.group)
            values = self._steps(level, start, end, products.group, sums, values)
        return self._steps(level, end, count, 1, sums, values) if steps > 1 else values

    def _in_any_order(self, level: Level, sums: TileSums, values: list[str]) -> list[str]:
        """The accumulator after the last reduction; a zero is the first of its row."""
        body, extreme = self._body.folded, self._plan.extreme
        assert body is not None and extreme is not None
        lanes, _ = shape = body.nest.plan.lanes, body.nest.plan.vectors
        ((_, offsets, _),) = sums.keys

        def load(first: str, vectors: int, mask: str | None) -> list[str]:
            masks = None if mask is None else (mask,)
            region = NestRegion({**sums.outer.counters, level: first}, masks)
            found = []
            for number in range(vectors):
                operand = body.value(region, extreme.element, {**offsets, level: number * lanes})
                found.append(body.widened(operand, extreme.element.type, lanes))
            return found

        row = RowExtreme(self._writer, self._looks, extreme, level, shape, load)
        found = row.of(values[0])
        with self._writer.maybe(is_zero(self._writer, 1, found), self._carried(sums, [found])) as branch:
            region = NestRegion({**sums.outer.counters, level: row.first_zero()})
            branch.next = self._step(region, sums.keys, values, {})
        return branch.result

    def _carried(self, sums: TileSums, values: list[str]) -> list[tuple[str, str]]:
        kinds = [llvm_type(store.stored.type, body.lanes) for store, _, body in sums.keys]
        kinds += kinds[:1] * (len(values) - len(kinds))  # beside accumulators of products of bytes
        return list(zip(kinds, values, strict=True))

    def _steps(
        self, level: Level, start: str, end: str, steps: int, sums: TileSums, values: list[str]
    ) -> list[str]:
        """The last reduction from start to end, so many iterations written out."""
        if start == end:
            return values
        if (start == "0" and (steps == 1 or not end.startswith("%"))) or not f"{start}{end}".count("%"):
            return self._iterations(level, start, end, steps, sums, values)
        with self._writer.maybe(self._is_before(start, end), self._carried(sums, values)) as branch:
            branch.next = self._iterations(level, start, end, steps, sums, values)
        return branch.result

    def _iterations(
        self, level: Level, start: str, end: str, steps: int, sums: TileSums, values: list[str]
    ) -> list[str]:
        products = self._products
        with self._looks.loop(level, start, end, steps, self._carried(sums, values)) as iteration:
            squares = steps == (self._plan.lanes if products is None else products.square)
            region = sums.inside(level, iteration.counter, squares).outer
            if self._plan.ahead is not None and steps > 1:
                region.ahead = NestRegion(region.counters)
            iteration.next = iteration.values
            self._requests.ask(region, sums.copies, steps)
            if products is not None and steps > 1:
                for step in range(0, steps, products.group):
                    iteration.next = products.step(region, sums.copies, iteration.next, step)
            else:
                for step in range(steps):
                    iteration.next = self._step(region, sums.keys, iteration.next, {level: step})
        return iteration.next

    def _over_block(self, block: DepthBlock, sums: TileSums, values: list[str]) -> list[str]:
        """The last reduction over a block, too little work for a look."""
        level = self._plan.reductions[-1]
        with self._writer.loop(block.start, block.end, 1, self._carried(sums, values)) as iteration:
            region = sums.inside(level, iteration.counter).outer
            region.panels = block.panels
            self._requests.ask(region, sums.copies, 1)
            iteration.next = self._step(region, sums.keys, iteration.values, {})
            if block.following is not None:
                block.following.write(region.counters)
        return iteration.next

    def _add_products(
        self, products: Products, block: DepthBlock | None, sums: TileSums, values: list[str]
    ) -> list[str]:
        """Adds products by instructions of several iterations, then what is left."""
        group, copies = products.group, sums.copies
        if block is None:
            begun = products.begun(copies, values)
            return products.ended(copies, self._reduce(list(self._plan.reductions), sums, begun))
        level = self._plan.reductions[-1]
        (panel,) = block.panels.values()
        values = products.begun_in_panel(copies, values, panel)
        whole, _ = self._writer.whole(block.start, block.end, group)

        def add(start: str, end: str, step: int, values: list[str]) -> list[str]:
            with self._writer.loop_if_any(start, end, step, self._carried(sums, values)) as iteration:
                region = sums.inside(level, iteration.counter).outer
                if step == group:
                    region.panels, region.is_rest = block.panels, start == whole
                    self._requests.ask(region, copies, step)
                    iteration.next = products.step(region, copies, iteration.values, 0)
                else:
                    iteration.next = self._step(region, sums.keys, iteration.values, {})
            return iteration.result

        values = add(block.start, whole, group, values)
        if (level.extent or 1) % group == 0:
            return values
        return add(whole, block.end, group if products.is_joined else 1, values)

    def _over_window(self, sums: TileSums, values: list[str]) -> list[str]:
        """All iterations of the reductions, written out."""
        counters = {**sums.outer.counters, **dict.fromkeys(self._plan.reductions, "0")}
        region = NestRegion(counters, sums.outer.mask)
        values, keys = list(values), sums.keys
        for step, at in iterations(self._structure, self._plan, sums.copies):
            values[at : at + 1] = self._step(region, keys[at : at + 1], values[at : at + 1], step)
        return values

    def _step(self, region: NestRegion, keys: list[TileSum], values: list[str], step: Offsets) -> list[str]:
        """The accumulators after one iteration of the reductions."""
        for (store, offsets, body), value in zip(keys, values[: len(keys)], strict=True):
            region.accumulators[body.copy(store, offsets)] = NestOperand(value, body.lanes)
        return [
            body.kept(self._owners[store], body.value(region, store.stored, {**offsets, **step})).text
            for store, offsets, body in keys
        ] + values[len(keys) :]
