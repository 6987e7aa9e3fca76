"""Where a nest looks after signals: between parts of its loops, so much work that it costs nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from jitree.codegen.ir_text import Iteration
from jitree.dispatch.native.nests.reading import Level
from jitree.dispatch.native.nests.writer import Writer
from jitree.dispatch.native.prelude import OWN_MEMORY
from jitree.dispatch.native.site import MUCH

WORK: Final = 1 << 22
"""Instructions on one element between two looks: a tenth of a millisecond in vectors; where each is a slow
function of the C library, a second."""


class Looks:
    """The loops of a nest, which has passed its guard."""

    def __init__(
        self, writer: Writer, levels: Sequence[Level], extents: dict[Level, str], weight: int
    ) -> None:
        """``levels`` as they are written, from the outermost; ``weight`` is that of the body."""
        self._writer = writer
        self._shares: dict[Level, str] = {}
        self._known, self._factor = max(weight, 1), ""
        for level in reversed(levels):
            self._shares[level] = self._share()
            if level.extent is not None:
                self._known *= level.extent
            else:
                factor = writer.let(f"uitofp i64 {extents[level]} to double")
                self._factor = writer.let(f"fmul double {factor}, {self._factor}") if self._factor else factor

    def _share(self) -> str:
        """Iterations between two looks, where one is as much work as is known now."""
        if not self._factor:
            return str(max(WORK // self._known, 1))
        share = self._writer.let(f"fdiv double {WORK / self._known:e}, {self._factor}")
        return self._at_least_one(self._writer.let(f"fptosi double {share} to i64"))

    def _at_least_one(self, number: str) -> str:
        return self._writer.intrinsic("smax", "i64", 1, [number, "1"])

    def end(self) -> None:
        """After the loops: the next branch of the function looks at the clock if they were much work."""
        writer = self._writer
        if self._factor:
            is_much = writer.let(f"fcmp ogt double {self._factor}, {MUCH / self._known:e}")
            left = writer.let("load i64, ptr %fuel.at, align 8")
            writer.do(
                f"store i64 {writer.let(f'select i1 {is_much}, i64 1, i64 {left}')}, ptr %fuel.at, align 8"
            )
        elif self._known > MUCH:
            writer.do("store i64 1, ptr %fuel.at, align 8")

    @contextmanager
    def loop(
        self, level: Level, start: str, end: str, step: int, carried: list[tuple[str, str]]
    ) -> Iterator[Iteration]:
        """As :meth:`Writer.loop`, over a level's counter."""
        writer, chunk = self._writer, self._chunk(level, step)
        constant = not f"{start}{end}{chunk}".count("%")
        if constant and int(end) - int(start) <= int(chunk):
            with writer.loop(start, end, step, carried) as iteration:
                yield iteration
            return
        with writer.loop(start, end, chunk, carried) as part:
            following = writer.let(f"add i64 {part.counter}, {chunk}")
            last = writer.intrinsic("smin", "i64", 1, [following, end])
            values = [(kind, value) for (kind, _), value in zip(carried, part.values, strict=True)]
            with writer.loop(part.counter, last, step, values) as iteration:
                yield iteration
            part.next = iteration.next
            with writer.maybe(writer.let(f"icmp slt i64 {last}, {end}"), []):
                self._look()

    def _chunk(self, level: Level, step: int) -> str:
        share = self._shares[level]
        if not share.startswith("%"):
            return str(max(int(share) // step, 1) * step)
        if step == 1:
            return share
        steps = self._at_least_one(self._writer.let(f"udiv i64 {share}, {step}"))
        return self._writer.let(f"mul i64 {steps}, {step}")

    def _look(self) -> None:
        writer, going_on = self._writer, self._writer.fresh("going_on")
        is_to_end = writer.let(f"call fastcc i1 @vm.look(ptr %state){OWN_MEMORY}")
        writer.branch(is_to_end, writer.context.stopped(), going_on)
        writer.label(going_on)
