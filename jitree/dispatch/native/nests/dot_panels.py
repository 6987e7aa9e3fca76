"""Panels of words: four iterations of a reduction side by side for each lane, in the order in which tiles
need them (``dots.py``), put into memory once for all iterations of a tile's other loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from jitree.codegen.ir_text import llvm_type
from jitree.dispatch.native.nests.dot_words import Dots
from jitree.dispatch.native.nests.dots import LANES, DotProduct
from jitree.dispatch.native.nests.memory import NestRegion, Panel
from jitree.dispatch.native.nests.panels import DepthBlock
from jitree.dispatch.native.nests.plan import Plan
from jitree.dispatch.native.nests.structure import Level
from jitree.dispatch.native.nests.writer import Writer

PANEL_BYTES: Final = 16 << 10


class DotPanels:
    """The panel of one nest."""

    def __init__(self, writer: Writer, dots: Dots, plan: Plan, dot: DotProduct) -> None:
        self._writer = writer
        self._dots = dots
        self._dot = dot
        self._plan = plan
        self._memory = ""
        self._saved = ""
        self.block = (
            max(PANEL_BYTES * dot.group // (4 * plan.lanes * plan.vectors) // dot.square, 1) * dot.square
        )
        """Iterations of the last reduction that the panel has room for."""

    def begin(self) -> None:
        """Takes memory from the stack: words, and a row of sums."""
        writer = self._writer
        writer.context.declare("declare ptr @llvm.stacksave.p0()")
        self._saved = writer.let("call ptr @llvm.stacksave.p0()")
        words = (self.block // self._dot.group + 1) * self._plan.lanes * self._plan.vectors
        self._memory = writer.let(f"alloca [{words} x i32], align 64")

    def end(self) -> None:
        writer = self._writer
        writer.context.declare("declare void @llvm.stackrestore.p0(ptr)")
        writer.do(f"call void @llvm.stackrestore.p0(ptr {self._saved})")

    def write(
        self, counters: dict[Level, str], start: str, end: str, firsts: Sequence[int], left: str | None
    ) -> DepthBlock:
        """Fills it for some iterations, as far as they are whole groups, and vectors that begin at these
        lanes. Of ``left`` lanes, if that is given, those that do not exist are 0."""
        writer, dots, dot, lanes = self._writer, self._dots, self._dot, len(firsts) * LANES
        mask = None if left is None else (self._mask(left),)
        back = writer.let(f"mul i64 {start}, {-lanes // dot.group}")
        origin = writer.let(f"getelementptr i32, ptr {self._memory}, i64 {back}")
        kind = llvm_type("i32", LANES)

        def fill(first: str, last: str, size: int, sums: list[str]) -> list[str]:
            carried = [(kind, text) for text in sums]
            condition = writer.let(f"icmp slt i64 {first}, {last}")
            with (
                writer.maybe(condition, carried) as branch,
                writer.loop(first, last, size, carried) as iteration,
            ):
                at = {**counters, self._plan.reductions[-1]: iteration.counter}
                region = NestRegion(at, mask, squares=size == dot.square)
                iteration.next = branch.next = self._groups(region, origin, firsts, size, iteration.values)
            return branch.result

        sums = ["zeroinitializer"] * len(firsts) if dot.turned else []
        done = start
        for size in (dot.square, dot.group) if dots.lies_along and mask is None else (dot.group,):
            rest = writer.let(f"urem i64 {writer.let(f'sub i64 {end}, {done}')}, {size}")
            whole = writer.let(f"sub i64 {end}, {rest}")
            sums, done = fill(done, whole, size, sums), whole
        last = writer.let(f"mul i64 {done}, {lanes // dot.group}")
        row = writer.let(f"getelementptr i32, ptr {origin}, i64 {last}")
        for first, text in zip(firsts, sums, strict=False):
            self._store(text, row, first)
        return DepthBlock(start, end, {dots.access: Panel(origin, lanes, row)})

    def _groups(
        self, region: NestRegion, origin: str, firsts: Sequence[int], size: int, sums: list[str]
    ) -> list[str]:
        """Writes the words of some iterations, and adds them up."""
        vector, along = self._plan.vector, self._plan.reductions[-1]
        assert vector is not None
        lanes = len(firsts) * LANES
        row = self._writer.let(f"mul i64 {region.counters[along]}, {lanes // self._dot.group}")
        base = self._writer.let(f"getelementptr i32, ptr {origin}, i64 {row}")
        sums, group = list(sums), self._dot.group
        for step in range(0, size, group):
            for number, first in enumerate(firsts):
                words = self._dots.words(region, {vector: first, along: step})
                self._store(words, base, step // group * lanes + first)
                if sums:
                    sums[number] = self._dots.moved(sums[number], words)
        return sums

    def _store(self, text: str, base: str, place: int) -> None:
        pointer = self._writer.let(f"getelementptr i32, ptr {base}, i64 {place}")
        self._writer.do(f"store {llvm_type('i32', LANES)} {text}, ptr {pointer}, align 4")

    def _mask(self, left: str) -> str:
        bound = self._writer.splat("i32", self._writer.let(f"trunc i64 {left} to i32"), LANES)
        numbers = ", ".join(f"i32 {lane}" for lane in range(LANES))
        return self._writer.let(f"icmp slt <{LANES} x i32> <{numbers}>, {bound}")
