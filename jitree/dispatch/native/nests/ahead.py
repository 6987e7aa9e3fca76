"""Asks for memory before tiles load it, where no processor foresees what comes.

A processor foresees how a row goes on, but not where the next row begins. Weights of a model are in memory or
in the third-level cache when a kernel begins, since all others run between two of its calls. So iterations of
a reduction ask for lines, as far as the second-level cache, where more of them can be under way at a time
than into the first:

* *Streams*: rows whose pieces are loaded once, as of a matrix that meets one row. Asked for is the same piece
  of a row some iterations later; after the last one follows the next piece of the first rows.
* *Pieces*: such rows that few tiles share. Each tile asks for other lines of a later piece's rows.
* *Filters*: elements that all lanes share, in a row along the reduction for each iteration of the tiled loop.
  Asked for is what lies in rows of the next tile where this iteration's lies, in one row after the other: 16
  iterations load a line of each row, and ask for one of each.

Behind the last row lies what the next workgroup loads, or nothing, and such a request does nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final

from jitree.dispatch.native.nests.memory import LINE_BYTES, Memory, NestRegion, Offsets
from jitree.dispatch.native.nests.plan import Plan
from jitree.dispatch.native.nests.recognise import Dependence
from jitree.dispatch.native.nests.structure import ELEMENT_LLVM, ElementAccess, Level, Structure
from jitree.dispatch.native.nests.writer import Writer

ROWS_AHEAD: Final = 64
"""Iterations from one that loads a piece of a stream to the one whose piece it asks for."""
LEAST_BYTES: Final = 24 << 10
"""Of what is asked for: the first-level cache has hardly room for more."""
PIECES_AHEAD: Final = 2
"""Pieces from one that few tiles share to the one that they ask for: the next one comes too soon."""
FEW: Final = 8
"""Tiles that share a piece, at most: in the time of more, what is waited for is little."""
LEAST_DEPTH: Final = 16
"""Iterations of a reduction along filters, so that each of their rows gets its turn."""


def with_requests(structure: Structure, dependence: Dependence, plan: Plan) -> Plan:
    """Completes a plan by the loads that are asked for."""
    if plan.alternative is not None:
        plan = plan._replace(alternative=with_requests(structure, dependence, plan.alternative))
    if plan.vector is None or not plan.reductions or plan.is_window:
        return plan
    vector, loops = plan.vector, [level for level in structure.levels if level.count > 1]
    streamed, pieces, filters = [], [], []
    for value, load in structure.loads.items():
        place = dependence.place(load)
        known = [level for level in loops if level.counter in place]
        if load.predicate or load.computed or prod(level.count for level in known) * load.bytes < LEAST_BYTES:
            continue
        if vector.counter in place:
            if len(known) == len(loops) and _is_stream(load, plan):
                streamed.append(value)
            elif {*known} == {*loops} - {plan.tiled} and _is_piece(load, plan):
                pieces.append(value)
        elif _is_filter(load, plan, plan.product is not None and value is plan.product.element):
            filters.append(value)
    return plan._replace(streamed=tuple(streamed), pieces=tuple(pieces), filters=tuple(filters))


def _is_stream(load: ElementAccess, plan: Plan) -> bool:
    """Whether pieces of rows are loaded as they lie, far from each other."""
    assert plan.vector is not None
    last = plan.reductions[-1]
    distance = load.step(last).number
    return (
        not (plan.packed or plan.transposed or plan.prepacked or plan.block or plan.fold)
        and (last.extent or 0) >= 2 * ROWS_AHEAD
        and load.step(plan.vector).number == 1
        and distance is not None
        and abs(distance) >= 2 * plan.lanes * plan.vectors
    )


def _is_piece(load: ElementAccess, plan: Plan) -> bool:
    """Whether few tiles share pieces of rows, far from each other."""
    assert plan.vector is not None
    distance = load.step(plan.reductions[-1]).number
    return (
        not (plan.packed or plan.transposed or plan.fold)
        and plan.tiled is not None
        and _tiles(plan, plan.tiled) <= FEW
        and load.step(plan.vector).number == 1
        and distance is not None
        and abs(distance) >= 2 * plan.lanes * plan.vectors
    )


def _tiles(plan: Plan, tiled: Level) -> int:
    """Counts the tiles of a loop."""
    return -(-tiled.count // plan.copies)


def _is_filter(load: ElementAccess, plan: Plan, is_factor: bool) -> bool:
    """Whether each iteration of the tiled loop has a row along the reduction."""
    tiled, product = plan.tiled, plan.product
    joined = product.joined if is_factor and product is not None else ()
    last = joined[-1] if joined else plan.reductions[-1]
    return (
        tiled is not None
        and plan.reductions[-1].count >= LEAST_DEPTH
        and bool(load.step(tiled).number)
        and load.step(last).number == 1
        and _rows(plan) * plan.steps * load.bytes <= LINE_BYTES
    )


def _rows(plan: Plan) -> int:
    """Rows that a tile asks for in turn: a power of two."""
    return 1 << (plan.copies - 1).bit_length()


class Requests:
    """Writes what iterations of one nest ask for."""

    def __init__(
        self, writer: Writer, memory: Memory, structure: Structure, plan: Plan, extents: dict[Level, str]
    ) -> None:
        self._writer = writer
        self._memory = memory
        self._extents = extents
        self._plan = plan
        self._streamed = [structure.loads[value] for value in plan.streamed]
        self._pieces = [structure.loads[value] for value in plan.pieces]
        self._filters = [structure.loads[value] for value in plan.filters]

    def ask(self, region: NestRegion, copies: Sequence[Offsets], steps: int) -> None:
        """Asks in so many iterations of the last reduction, which are written out."""
        for load in self._streamed:
            self._ask_stream(region, load, copies, steps)
        if steps == self._plan.steps:
            for load in self._pieces:
                self._ask_piece(region, load)
            for load in self._filters:
                self._ask_filter(region, load)

    def _ask_stream(
        self, region: NestRegion, load: ElementAccess, copies: Sequence[Offsets], steps: int
    ) -> None:
        plan, writer = self._plan, self._writer
        last, vector = plan.reductions[-1], plan.vector
        row, kind = load.step(last).number or 0, ELEMENT_LLVM[load.element]
        before = writer.let(f"sub i64 {self._extents[last]}, {ROWS_AHEAD}")
        more = writer.let(f"icmp slt i64 {region.counters[last]}, {before}")
        rows = writer.let(f"mul i64 {before}, {row}")
        back = writer.let(f"sub i64 {plan.lanes * plan.vectors}, {rows}")
        distance = writer.let(f"select i1 {more}, i64 {ROWS_AHEAD * row}, i64 {back}")
        for offsets in copies:
            if vector is not None and offsets.get(vector, 0) * load.bytes % LINE_BYTES == 0:
                for step in range(steps):
                    place = self._memory.pointer(region, load, {**offsets, last: step})
                    writer.prefetch(writer.at(kind, place, distance))

    def _ask_piece(self, region: NestRegion, load: ElementAccess) -> None:
        """Asks for some lines of this row in a later piece: the other tiles ask for the others."""
        plan, writer, kind = self._plan, self._writer, ELEMENT_LLVM[load.element]
        assert plan.tiled is not None
        lanes, width = plan.lanes * plan.vectors, LINE_BYTES // load.bytes
        lines = -(-lanes // width)
        together = -(-lines // _tiles(plan, plan.tiled))
        tile = writer.let(f"udiv i64 {region.counters[plan.tiled]}, {plan.copies}")
        tile = writer.intrinsic("smin", "i64", 1, [tile, str(-(-lines // together) - 1)])
        place = writer.at(kind, self._memory.pointer(region, load, {}), PIECES_AHEAD * lanes)
        place = writer.at(kind, place, writer.let(f"mul i64 {tile}, {together * width}"))
        for line in range(together):
            writer.prefetch(writer.at(kind, place, line * width))

    def _ask_filter(self, region: NestRegion, load: ElementAccess) -> None:
        plan, writer, tiled = self._plan, self._writer, self._plan.tiled
        assert tiled is not None
        number = writer.let(f"udiv i64 {region.counters[plan.reductions[-1]]}, {plan.steps}")
        row = writer.let(f"and i64 {number}, {_rows(plan) - 1}")
        row = writer.let(f"add i64 {row}, {plan.copies}")
        distance = writer.let(f"mul i64 {row}, {load.step(tiled).number}")
        writer.prefetch(
            writer.at(ELEMENT_LLVM[load.element], self._memory.pointer(region, load, {}), distance)
        )
