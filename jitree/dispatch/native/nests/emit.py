"""Writes the loops of a nest in the order of the plan.

Every loop is written with its condition at the end: the guard has found that it runs at least once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from jitree.base.records import NamedTuple
from jitree.codegen.ir_text import llvm_type
from jitree.dispatch.native.nests.body import Body
from jitree.dispatch.native.nests.dot_panels import DotPanels
from jitree.dispatch.native.nests.dot_words import Dots
from jitree.dispatch.native.nests.extremes import NestRow, RowExtreme
from jitree.dispatch.native.nests.folding import is_zero
from jitree.dispatch.native.nests.looks import Looks
from jitree.dispatch.native.nests.memory import NestOperand, NestRegion, Offsets
from jitree.dispatch.native.nests.pair_ranges import PairRanges
from jitree.dispatch.native.nests.panels import DepthBlock, Panels
from jitree.dispatch.native.nests.plan import PlannedNest
from jitree.dispatch.native.nests.structure import ElementAccess, Level
from jitree.dispatch.native.nests.tiles import Tile
from jitree.dispatch.native.nests.windows import iterations
from jitree.dispatch.native.nests.writer import Writer
from jitree.dispatch.native.ssa import Value

Counters = dict[Level, str]
_PAIR: Final = 2
"""Vectors of a tile that ends a loop of unknown length."""


class LoopRange(NamedTuple):
    """Iterations of one loop of a nest, from a multiple of what its plan takes together to such a multiple or
    the end; at least one."""

    level: Level
    start: str
    end: str


class NestLoops:
    """The loops of a nest that has passed its guard: all iterations, or a range of one loop."""

    def __init__(
        self,
        writer: Writer,
        nest: PlannedNest,
        body: Body,
        part: LoopRange | None = None,
    ) -> None:
        structure, plan = nest.structure, nest.plan
        self._part = part
        if plan.fold is not None:
            body.places.fold(plan.fold)
            if part is not None and part.level is plan.fold.rows:
                ends = [writer.let(f"mul i64 {end}, {plan.fold.width}") for end in (part.start, part.end)]
                self._part = LoopRange(plan.fold.level, *ends)
        self._writer = writer
        self._structure = structure
        self._plan = plan
        self._body = body
        self._extents = body.places.extents
        levels = (*plan.outer, plan.vector, plan.tiled, *plan.reductions)
        self._panels: Panels | DotPanels | None = None
        self._dots: Dots | None = None
        memory = self._memory = body.memory
        if plan.dot is not None and plan.vector is not None:
            self._dots = Dots(writer, memory, structure, plan.dot, plan.vector)
            self._panels = DotPanels(writer, self._dots, plan, plan.dot) if plan.packed else None
        elif plan.packed:
            self._panels = Panels(writer, memory, plan, [structure.loads[value] for value in plan.packed])
        self._looks = Looks(
            writer, [level for level in levels if level], self._extents, nest.dependence.weight
        )

    def are_numbers_normal(self) -> str:
        """Whether the instruction for pairs of bfloat16 numbers gives the bits that the loops give."""
        assert self._plan.dot is not None
        ranges = PairRanges(self._writer, self._structure, self._memory, self._plan.dot, self._bounds)
        return ranges.are_normal()

    def write(self) -> None:
        if self._panels is not None:
            self._panels.begin()
        self._outer(list(self._plan.outer), {})
        if self._panels is not None:
            self._panels.end()
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
        region = NestRegion(counters, None, squares=False)
        loads = {access: value for value, access in self._structure.loads.items()}
        for access in sorted((*loads, *self._structure.stores), key=lambda access: access.position):
            if access in loads:
                self._body.value(region, loads[access], {})
            else:
                self._body.store(region, access, self._body.value(region, access.stored, {}), {})

    def _along_vector(self, counters: Counters) -> None:
        """Tiles of several vectors, the whole vectors that are left, and the lanes that are left."""
        level, plan, writer = self._plan.vector, self._plan, self._writer
        if level is None:
            self._along_tiled(counters, Tile(1, None))
            return
        lanes, tile = plan.lanes, plan.lanes * plan.vectors
        count = self._extents[level]
        tiles_end = self._multiple(count, tile)
        vectors_end = self._multiple(count, lanes)

        def write(tile: Tile) -> Callable[[str], None]:
            along = self._in_blocks if plan.packed or plan.block else self._along_tiled
            return lambda counter: along({**counters, level: counter}, tile)

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
                bits = ", ".join(f"i1 {'true' if lane < left else 'false'}" for lane in range(lanes))
                with self._if_within(level, vectors_end):
                    write(Tile(1, (f"<{bits}>",), left=str(left)))(vectors_end)
            return
        with (
            self._if_within(level, vectors_end),
            writer.maybe(writer.let(f"icmp slt i64 {vectors_end}, {count}"), []),
        ):
            left_name = writer.let(f"sub i64 {count}, {vectors_end}")
            write(Tile(1, self._masks(1, left_name), left=left_name))(vectors_end)

    def _masks(self, vectors: int, left: str) -> tuple[str, ...]:
        """The lanes of so many vectors before the end, to which ``left`` are left."""
        writer, lanes = self._writer, self._plan.lanes
        bound = writer.splat("i32", writer.let(f"trunc i64 {left} to i32"), lanes)
        masks = []
        for vector in range(vectors):
            numbers = ", ".join(f"i32 {vector * lanes + lane}" for lane in range(lanes))
            masks.append(writer.let(f"icmp slt <{lanes} x i32> <{numbers}>, {bound}"))
        return tuple(masks)

    def _ends_with_pairs(self, level: Level) -> bool:
        """Whether it is unknown how many vectors are left of the vector loop: one vector of sums at a time
        would wait for each addition."""
        plan = self._plan
        if not plan.reductions or plan.packed or plan.steps > 1 or plan.vectors <= _PAIR:
            return False
        return self._extents[level].startswith("%") or (self._part is not None and self._part.level is level)

    def _in_tiles_and_pairs(self, level: Level, write: Callable[[Tile], Callable[[str], None]]) -> None:
        """Whole tiles, then two vectors at a time and at last one, of which only some lanes may exist."""
        plan, writer = self._plan, self._writer
        start, end = self._bounds(level)
        tile, pair = plan.lanes * plan.vectors, plan.lanes * _PAIR
        distance = writer.let(f"sub i64 {end}, {start}")
        rest = writer.let(f"urem i64 {distance}, {tile}")
        tiles_end = writer.let(f"sub i64 {end}, {rest}")
        self._span(level, start, tiles_end, tile, write(Tile(plan.vectors, None)))

        def write_some(vectors: int) -> Callable[[str], None]:
            def write_masked(counter: str) -> None:
                left = writer.let(f"sub i64 {end}, {counter}")
                write(Tile(vectors, self._masks(vectors, left)))(counter)

            return write_masked

        more = writer.let(f"udiv i64 {writer.let(f'add i64 {rest}, {plan.lanes - 1}')}, {pair}")
        pairs_end = writer.let(f"add i64 {tiles_end}, {writer.let(f'mul i64 {more}, {pair}')}")
        self._span(level, tiles_end, pairs_end, pair, write_some(_PAIR))
        self._span(level, pairs_end, end, plan.lanes, write_some(1))

    def _ends_with_one_tile(self, level: Level, start: str) -> bool:
        """Whether what is left of the vector loop is more than a vector, and can be one tile: what two of its
        vectors compute is the same, of sums that wait in registers."""
        plan, count = self._plan, self._extents[level]
        if not plan.reductions or count.startswith("%"):
            return False
        if plan.dot is None and (plan.packed or plan.steps > 1):
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
        count, size = self._extents[last], plan.block if panels is None else panels.block

        def write(start: str) -> None:
            end = writer.intrinsic("smin", "i64", 1, [writer.let(f"add i64 {start}, {size}"), count])
            block = DepthBlock(start, end, {})
            if panels is not None:
                block = panels.write(counters, start, end, tile.firsts(self._plan.lanes), tile.left)
            self._along_tiled(counters, tile._replace(block=block))

        with writer.loop("0", count, size, []) as part:
            write(part.counter)

    def _along_tiled(self, counters: Counters, tile: Tile) -> None:
        level, copies = self._plan.tiled, self._plan.copies
        if level is None:
            self._tile(counters, tile)
            return
        count = self._extents[level]
        end = self._multiple(count, copies)

        def write(number: int) -> Callable[[str], None]:
            return lambda counter: self._tile({**counters, level: counter}, tile._replace(copies=number))

        self._span(level, *self._within(level, "0", end), copies, write(copies))
        if copies == 1:
            return
        if self._plan.reductions and not end.startswith("%"):
            if end != count:
                with self._if_within(level, end):
                    write(int(count) - int(end))(end)
        else:
            self._span(level, *self._within(level, end, count), 1, write(1))

    def _multiple(self, count: str, factor: int) -> str:
        """The greatest multiple of a power of two or a constant that is not more."""
        if not count.startswith("%"):
            return str(int(count) // factor * factor)
        rest = self._writer.let(f"urem i64 {count}, {factor}")
        return self._writer.let(f"sub i64 {count}, {rest}")

    def _span(self, level: Level, start: str, end: str, step: int, write: Callable[[str], None]) -> None:
        """A loop from start to end, which may be the same."""
        writer = self._writer
        if not start.startswith("%") and not end.startswith("%"):
            distance = int(end) - int(start)
            if distance == step:
                write(start)
            elif distance:
                with self._looks.loop(level, start, end, step, []) as iteration:
                    write(iteration.counter)
            return
        left, right = (start, end) if start.startswith("%") else (end, start)
        relation = "slt" if left is start else "sgt"
        more = writer.let(f"icmp {relation} i64 {left}, {right}")
        with writer.maybe(more, []), self._looks.loop(level, start, end, step, []) as iteration:
            write(iteration.counter)

    def _tile(self, counters: Counters, tile: Tile) -> None:
        region = NestRegion(counters, tile.mask, squares=tile.copies == self._plan.lanes)
        copies = tile.places(self._plan)
        body, stores = self._body, self._structure.stores
        results: list[tuple[ElementAccess, Offsets, NestOperand]] = []
        if self._plan.reductions:
            owners = self._owners()
            first = [body.first(region, owners[store], offsets) for offsets in copies for store in stores]
            keys = [(store, offsets) for offsets in copies for store in stores]
            values = [operand.text for operand in first]
            if self._dots is not None:
                last = self._add_products(self._dots, tile.block, region, keys, values)
            elif tile.block is not None:
                last = self._over_block(tile.block, region, keys, values)
            elif self._plan.is_window and tile.copies == self._plan.copies:
                last = self._over_window(region, keys, values)
            else:
                last = self._reduce(list(self._plan.reductions), region, keys, values)
            results = [
                (store, offsets, NestOperand(text, self._plan.lanes))
                for (store, offsets), text in zip(keys, last, strict=True)
            ]
        else:
            results = [
                (store, offsets, body.value(region, store.stored, offsets))
                for offsets in copies
                for store in stores
            ]
        after = NestRegion(counters, tile.mask, squares=False) if self._plan.reductions else region
        for store, offsets, operand in results:
            body.store(after, store, operand, offsets)

    def _owners(self) -> dict[ElementAccess, Value]:
        return {store: load for load, store in self._plan.accumulators.items()}

    def _reduce(
        self,
        levels: list[Level],
        outer: NestRegion,
        keys: list[tuple[ElementAccess, Offsets]],
        values: list[str],
    ) -> list[str]:
        """The accumulators after the loops."""
        level, steps = levels[0], self._plan.steps
        count = self._extents[level]
        if len(levels) > 1:
            with self._looks.loop(level, "0", count, 1, self._carried(keys, values)) as iteration:
                inner = NestRegion({**outer.counters, level: iteration.counter}, outer.mask, squares=False)
                iteration.next = self._reduce(levels[1:], inner, keys, iteration.values)
            return iteration.next
        if self._plan.folded is not None:
            return self._in_any_order(level, outer, keys, values)
        end = self._multiple(count, steps)
        values = self._steps(level, "0", end, steps, outer, keys, values)
        if self._dots is not None and steps > self._dots.group:
            start, end = end, self._multiple(count, self._dots.group)
            values = self._steps(level, start, end, self._dots.group, outer, keys, values)
        return self._steps(level, end, count, 1, outer, keys, values) if steps > 1 else values

    def _in_any_order(
        self,
        level: Level,
        outer: NestRegion,
        keys: list[tuple[ElementAccess, Offsets]],
        values: list[str],
    ) -> list[str]:
        """The accumulator after the last reduction; a zero is the first of its row."""
        wide, body, extreme = self._plan.folded, self._body.folded, self._plan.extreme
        assert wide is not None and body is not None and extreme is not None
        ((_, offsets),), (first,) = keys, values
        place = NestRow(level, outer.counters, offsets)
        row = RowExtreme(self._writer, self._looks, wide, body, extreme, place)
        found = row.of(first)
        with self._writer.maybe(is_zero(self._writer, 1, found), self._carried(keys, [found])) as branch:
            region = NestRegion({**outer.counters, level: row.first_zero()}, None, squares=False)
            branch.next = self._step(region, keys, values, {})
        return branch.result

    def _carried(self, keys: list[tuple[ElementAccess, Offsets]], values: list[str]) -> list[tuple[str, str]]:
        kinds = [llvm_type(store.stored.type, self._plan.lanes) for store, _ in keys]
        kinds += kinds[:1] * (len(values) - len(keys))  # beside accumulators of products of bytes
        return list(zip(kinds, values, strict=True))

    def _steps(
        self, level: Level, start: str, end: str, steps: int, outer: NestRegion,
        keys: list[tuple[ElementAccess, Offsets]], values: list[str],
    ) -> list[str]:  # fmt: skip
        """The last reduction from start to end, so many iterations written out."""
        writer = self._writer
        if start == end:
            return values
        if (start == "0" and (steps == 1 or not end.startswith("%"))) or not f"{start}{end}".count("%"):
            return self._iterations(level, start, end, steps, outer, keys, values)
        left, right = (start, end) if start.startswith("%") else (end, start)
        relation = "slt" if left is start else "sgt"
        condition = writer.let(f"icmp {relation} i64 {left}, {right}")
        with writer.maybe(condition, self._carried(keys, values)) as branch:
            branch.next = self._iterations(level, start, end, steps, outer, keys, values)
        return branch.result

    def _iterations(
        self, level: Level, start: str, end: str, steps: int, outer: NestRegion,
        keys: list[tuple[ElementAccess, Offsets]], values: list[str],
    ) -> list[str]:  # fmt: skip
        with self._looks.loop(level, start, end, steps, self._carried(keys, values)) as iteration:
            squares = steps == (self._plan.lanes if self._dots is None else self._dots.square)
            region = NestRegion({**outer.counters, level: iteration.counter}, outer.mask, squares)
            if self._plan.ahead is not None and steps > 1:
                region.ahead = NestRegion(region.counters, None, squares=False)
            current = iteration.values
            if self._dots is not None and steps > 1:
                copies = [offsets for _, offsets in keys]
                for step in range(0, steps, self._dots.group):
                    current = self._dots.step(region, copies, current, step)
            else:
                for step in range(steps):
                    current = self._step(region, keys, current, {level: step})
            iteration.next = current
        return iteration.next

    def _over_block(
        self,
        block: DepthBlock,
        outer: NestRegion,
        keys: list[tuple[ElementAccess, Offsets]],
        values: list[str],
    ) -> list[str]:
        """The last reduction over a block, too little work for a look."""
        level = self._plan.reductions[-1]
        with self._writer.loop(block.start, block.end, 1, self._carried(keys, values)) as iteration:
            counters = {**outer.counters, level: iteration.counter}
            region = NestRegion(counters, outer.mask, squares=False, panels=block.panels)
            iteration.next = self._step(region, keys, iteration.values, {})
        return iteration.next

    def _add_products(
        self, dots: Dots, block: DepthBlock | None, outer: NestRegion,
        keys: list[tuple[ElementAccess, Offsets]], values: list[str],
    ) -> list[str]:  # fmt: skip
        """Products, so many iterations at a time as an instruction takes, and those that are left."""
        group = dots.group
        copies = [offsets for _, offsets in keys]
        if block is None:
            values = self._reduce(list(self._plan.reductions), outer, keys, dots.begun(copies, values))
            return dots.ended(copies, values)
        level, writer = self._plan.reductions[-1], self._writer
        (panel,) = block.panels.values()
        values = dots.begun_in_panel(copies, values, panel)
        rest = writer.let(f"urem i64 {writer.let(f'sub i64 {block.end}, {block.start}')}, {group}")
        whole = writer.let(f"sub i64 {block.end}, {rest}")

        def add(start: str, end: str, step: int, values: list[str]) -> list[str]:
            carried = self._carried(keys, values)
            with (
                writer.maybe(writer.let(f"icmp slt i64 {start}, {end}"), carried) as branch,
                writer.loop(start, end, step, carried) as iteration,
            ):
                region = NestRegion({**outer.counters, level: iteration.counter}, outer.mask, squares=False)
                if step == group:
                    region.panels.update(block.panels)
                    iteration.next = dots.step(region, copies, iteration.values, 0)
                else:
                    iteration.next = self._step(region, keys, iteration.values, {})
                branch.next = iteration.next
            return branch.result

        values = add(block.start, whole, group, values)
        return values if (level.extent or 1) % group == 0 else add(whole, block.end, 1, values)

    def _over_window(
        self, outer: NestRegion, keys: list[tuple[ElementAccess, Offsets]], values: list[str]
    ) -> list[str]:
        """All iterations of the reductions, written out."""
        counters = {**outer.counters, **dict.fromkeys(self._plan.reductions, "0")}
        region = NestRegion(counters, outer.mask, squares=False)
        values = list(values)
        copies = [offsets for _, offsets in keys]
        for step, at in iterations(self._structure, self._plan, copies):
            values[at : at + 1] = self._step(region, keys[at : at + 1], values[at : at + 1], step)
        return values

    def _step(
        self, region: NestRegion, keys: list[tuple[ElementAccess, Offsets]], values: list[str], step: Offsets
    ) -> list[str]:
        """The accumulators after one iteration of the reductions."""
        body, owners = self._body, self._owners()
        for (store, offsets), value in zip(keys, values[: len(keys)], strict=True):
            region.accumulators[body.copy(store, offsets)] = NestOperand(value, self._plan.lanes)
        return [
            body.kept(owners[store], body.value(region, store.stored, {**offsets, **step})).text
            for store, offsets in keys
        ] + values[len(keys) :]
