"""Writes a nest: its guard, then its loops by the plan or its alternative.

Loops follow at once, or when the guards of other nests have been written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jitree.dispatch.native.nests.body import Body
from jitree.dispatch.native.nests.guard import Guard
from jitree.dispatch.native.nests.loops import LoopRange, NestLoops
from jitree.dispatch.native.nests.memory import Places
from jitree.dispatch.native.nests.plan import PlannedNest
from jitree.dispatch.native.nests.polynomials import Polynomial
from jitree.dispatch.native.nests.structure import Level
from jitree.dispatch.native.nests.writer import Writer

if TYPE_CHECKING:
    from jitree.dispatch.native.nest_context import NestContext


def emit_nest(context: NestContext, nest: PlannedNest) -> str:
    """The text of the nest's blocks after the label that the context's owner writes."""
    writer = Writer(context)
    body = Body(writer, nest, Places(), {})
    guard = Guard(writer, nest, body)
    if nest.structure.is_empty:
        guard.write_empty()
    else:
        guard.write()
        _write_loops(writer, body, None)
    writer.jump(context.done)
    writer.label(context.done)
    writer.jump(context.exit)
    return writer.text()


class BegunNest:
    """Writes a guard in one block, and the loops later, in another."""

    def __init__(self, context: NestContext, nest: PlannedNest, rooms: Sequence[Polynomial]) -> None:
        """``rooms`` are to be positive for it to run in parts."""
        self.writer = Writer(context)
        self._body = Body(self.writer, nest, Places(), {})
        guard = Guard(self.writer, nest, self._body)
        self.fits, self.runs = guard.gather()
        """Whether it may run; whether it has iterations."""
        self.rooms = [guard.positive(room) for room in rooms]
        self.ranges = guard.ranges

    def extent(self, level: Level) -> str:
        """The number of its iterations."""
        return self._body.places.extents[level]

    def loops(self, part: LoopRange | None) -> None:
        """The loops; ``part`` is what they run, None: all."""
        _write_loops(self.writer, self._body, part)


def _write_loops(writer: Writer, body: Body, part: LoopRange | None) -> None:
    """The loops of a nest that has passed its guard, by the alternative plan where that is possible."""
    if body.alternative is None:
        NestLoops(writer, body, part).write()
        return
    other, plain, over = map(writer.fresh, ("other", "plain", "over"))
    alternative = NestLoops(writer, body.alternative, part)
    is_possible = (
        alternative.are_numbers_normal()
        if body.alternative.nest.plan.product
        else _has_copies(writer, body.alternative)
    )
    writer.branch(is_possible, other, plain)
    writer.label(other)
    alternative.write()
    writer.jump(over)
    writer.label(plain)
    NestLoops(writer, body, part).write()
    writer.jump(over)
    writer.label(over)


def _has_copies(writer: Writer, body: Body) -> str:
    """Whether the constants that a plan reads have copies."""
    plan, structure = body.nest.plan, body.nest.structure
    assert plan.vector is not None
    (load,) = plan.prepacked
    first = body.places.pointers[structure.loads[load]]
    depth, blocks = plan.reductions[-1].extent, (plan.vector.extent or 0) // plan.lanes
    distance = body.places.distance = writer.let(writer.context.packed(first, depth or 0, blocks))
    return writer.let(f"icmp ne i64 {distance}, 0")
