"""Panels: what lies along a reduction in memory, and is needed side by side in lanes, put in that order once
for all iterations of a tile's other loop.

A matrix product with a transposed matrix reads its rows in squares that are transposed in registers
(``transpose.py``). Where many rows of the other matrix meet the same square, it is put into memory instead, a
block of the reduction at a time, and read from there. Four rows are read at once: where rows are a power of
two apart, more of them would drive each other out of the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from jitree.base.records import NamedTuple
from jitree.dispatch.native.nests.memory import Memory, NestRegion, Panel
from jitree.dispatch.native.nests.plan import Plan
from jitree.dispatch.native.nests.structure import ELEMENT_LLVM, ElementAccess, Level
from jitree.dispatch.native.nests.transpose import interleaved, part_columns
from jitree.dispatch.native.nests.writer import Writer

PANEL_BYTES: Final = 8 << 10
"""Bytes of all panels of a nest. As many are asked for ahead: more at a time wait for each other."""
LINE_BYTES: Final = 64
"""Bytes of a line of the cache."""


class DepthBlock(NamedTuple):
    """Iterations of the last reduction, and where their panels are."""

    start: str
    end: str
    panels: dict[ElementAccess, Panel]


class Panels:
    """The panels of one nest."""

    def __init__(self, writer: Writer, memory: Memory, plan: Plan, accesses: Sequence[ElementAccess]) -> None:
        self._writer = writer
        self._memory = memory
        self._plan = plan
        self._accesses = accesses
        self._memories: dict[ElementAccess, str] = {}
        self._saved = ""
        row = sum(access.bytes for access in accesses) * plan.lanes * plan.vectors
        width = part_columns(plan.lanes)
        self.block = max(PANEL_BYTES // row // width, 1) * width
        """Iterations of the last reduction that panels have room for."""

    def begin(self) -> None:
        """Takes memory from the stack."""
        writer = self._writer
        writer.context.declare("declare ptr @llvm.stacksave.p0()")
        self._saved = writer.let("call ptr @llvm.stacksave.p0()")
        for access in self._accesses:
            size = self.block * self._plan.lanes * self._plan.vectors
            kind = ELEMENT_LLVM[access.element]
            self._memories[access] = writer.let(f"alloca [{size} x {kind}], align 64")

    def end(self) -> None:
        writer = self._writer
        writer.context.declare("declare void @llvm.stackrestore.p0(ptr)")
        writer.do(f"call void @llvm.stackrestore.p0(ptr {self._saved})")

    def write(
        self, counters: dict[Level, str], start: str, end: str, firsts: Sequence[int], left: str | None
    ) -> DepthBlock:
        """Fills them for some iterations and vectors, which begin at these lanes. Of ``left`` lanes, if that
        is given, the last one stands in those that do not exist."""
        panels = {
            access: self._fill(access, counters, start, end, len(firsts) * self._plan.lanes, left)
            for access in self._accesses
        }
        return DepthBlock(start, end, panels)

    def _fill(
        self, access: ElementAccess, counters: dict[Level, str], start: str, end: str, lanes: int,
        left: str | None,
    ) -> Panel:  # fmt: skip
        writer, kind = self._writer, ELEMENT_LLVM[access.element]
        width = part_columns(self._plan.lanes)
        from_start = writer.let(f"mul i64 {start}, {-lanes}")
        panel = writer.let(f"getelementptr {kind}, ptr {self._memories[access]}, i64 {from_start}")
        rest = writer.let(f"sub i64 {end}, {start}")
        whole = writer.let(f"sub i64 {end}, {writer.let(f'urem i64 {rest}, {width}')}")
        with writer.loop("0", str(lanes), width, []) as group:
            rows = [self._row(access, counters, group.counter, row, left) for row in range(width)]
            self._ask_ahead(access, rows, end)
            lane = writer.let(f"getelementptr {kind}, ptr {panel}, i64 {group.counter}")
            vector = f"<{width} x {kind}>"

            def at(pointer: str, iteration: str, factor: int) -> str:
                place = writer.let(f"mul i64 {iteration}, {factor}") if factor > 1 else iteration
                return writer.let(f"getelementptr {kind}, ptr {pointer}, i64 {place}")

            with (
                writer.maybe(writer.let(f"icmp slt i64 {start}, {whole}"), []),
                writer.loop(start, whole, width, []) as iteration,
            ):
                places = [at(row, iteration.counter, 1) for row in rows]
                pieces = [writer.let(f"load {vector}, ptr {place}, align 1") for place in places]
                for column, text in enumerate(interleaved(writer, kind, 1, pieces)):
                    place = at(lane, writer.let(f"add i64 {iteration.counter}, {column}"), lanes)
                    writer.do(f"store {vector} {text}, ptr {place}, align 1")
            with (
                writer.maybe(writer.let(f"icmp slt i64 {whole}, {end}"), []),
                writer.loop(whole, end, 1, []) as iteration,
            ):
                place = at(lane, iteration.counter, lanes)
                for number, row in enumerate(rows):
                    one = writer.let(f"load {kind}, ptr {at(row, iteration.counter, 1)}, align 1")
                    beside = writer.let(f"getelementptr {kind}, ptr {place}, i64 {number}")
                    writer.do(f"store {kind} {one}, ptr {beside}, align 1")
        return Panel(panel, lanes)

    def _ask_ahead(self, access: ElementAccess, rows: Sequence[str], end: str) -> None:
        """Has the rows' part of the next block fetched while this one is computed with: so many rows are no
        stream to a processor, and each line would be waited for."""
        writer, kind = self._writer, ELEMENT_LLVM[access.element]
        writer.context.declare("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        for row in rows:
            following = writer.let(f"getelementptr {kind}, ptr {row}, i64 {end}")
            for offset in range(0, self.block * access.bytes, LINE_BYTES):
                line = writer.let(f"getelementptr i8, ptr {following}, i64 {offset}")
                writer.do(f"call void @llvm.prefetch.p0(ptr {line}, i32 0, i32 2, i32 1)")

    def _row(
        self, access: ElementAccess, counters: dict[Level, str], group: str, row: int, left: str | None
    ) -> str:
        """The element of a lane in iteration 0."""
        writer, vector = self._writer, self._plan.vector
        assert vector is not None
        lane = writer.let(f"add i64 {group}, {row}")
        if left is not None:
            last = writer.let(f"sub i64 {left}, 1")
            lane = writer.intrinsic("smin", "i64", 1, [lane, last])
        place = writer.let(f"add i64 {counters[vector]}, {lane}")
        level = self._plan.reductions[-1]
        region = NestRegion({**counters, vector: place, level: "0"}, None, squares=False)
        return self._memory.pointer(region, access, {})
