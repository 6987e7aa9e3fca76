"""Writes a nest: the guard, then its loops, at once or when other guards have been written, by the plan or
its alternative."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jitree.dispatch.native.nests.body import Body
from jitree.dispatch.native.nests.dependence import Dependence
from jitree.dispatch.native.nests.emit import LoopRange, NestLoops
from jitree.dispatch.native.nests.guard import Guard
from jitree.dispatch.native.nests.memory import Places
from jitree.dispatch.native.nests.plan import Plan
from jitree.dispatch.native.nests.polynomials import Polynomial
from jitree.dispatch.native.nests.reading import Level, PolynomialReader
from jitree.dispatch.native.nests.recognise import Structure
from jitree.dispatch.native.nests.writer import Writer

if TYPE_CHECKING:
    from jitree.dispatch.native.nest_context import NestContext


def emit_nest(
    context: NestContext, structure: Structure, reader: PolynomialReader, plan: Plan, dependence: Dependence
) -> str:
    """The text of the nest's blocks after the label that the context's owner writes."""
    writer = Writer(context)
    body = Body(writer, structure, reader, plan, dependence, Places(), {})
    if structure.is_empty:
        Guard(writer, structure, reader, plan, body).write_empty()
    else:
        for value in dependence.invariants:
            body.invariant(value)
        Guard(writer, structure, reader, plan, body).write()
        write_loops(writer, structure, plan, body, dependence.weight, None)
    writer.jump(context.done)
    writer.label(context.done)
    writer.jump(context.exit)
    return writer.text()


class BegunNest:
    """A nest whose guard is written in one block, and whose loops are written later, in another."""

    def __init__(
        self, context: NestContext, structure: Structure, reader: PolynomialReader, plan: Plan,
        dependence: Dependence, rooms: Sequence[Polynomial],
    ) -> None:  # fmt: skip
        """``rooms`` are to be positive for it to run in parts."""
        self.writer = Writer(context)
        self._structure = structure
        self._plan = plan
        self._weight = dependence.weight
        self._body = Body(self.writer, structure, reader, plan, dependence, Places(), {})
        for value in dependence.invariants:
            self._body.invariant(value)
        guard = Guard(self.writer, structure, reader, plan, self._body)
        self.fits, self.runs = guard.gather()
        """Whether it may run; whether it has iterations."""
        self.rooms = [guard.positive(room) for room in rooms]
        self.ranges = guard.ranges

    def extent(self, level: Level) -> str:
        """The number of its iterations."""
        return self._body.places.extents[level]

    def loops(self, part: LoopRange | None) -> None:
        """The loops; ``part`` is what they run, None: all."""
        write_loops(self.writer, self._structure, self._plan, self._body, self._weight, part)


def write_loops(
    writer: Writer, structure: Structure, plan: Plan, body: Body, weight: int, part: LoopRange | None
) -> None:
    """The loops of a nest that has passed its guard, by the alternative plan where that is possible."""
    if plan.alternative is None or body.alternative is None:
        NestLoops(writer, structure, plan, body, weight, part).write()
        return
    other, plain, over = map(writer.fresh, ("other", "plain", "over"))
    alternative = NestLoops(writer, structure, plan.alternative, body.alternative, weight, part)
    is_possible = (
        alternative.are_numbers_normal()
        if plan.alternative.dot
        else _has_copies(writer, structure, plan, body)
    )
    writer.branch(is_possible, other, plain)
    writer.label(other)
    alternative.write()
    writer.jump(over)
    writer.label(plain)
    NestLoops(writer, structure, plan, body, weight, part).write()
    writer.jump(over)
    writer.label(over)


def _has_copies(writer: Writer, structure: Structure, plan: Plan, body: Body) -> str:
    """Whether the constants that the alternative plan reads have copies."""
    assert plan.alternative is not None and plan.vector is not None
    (load,) = plan.alternative.prepacked
    first = body.places.pointers[structure.loads[load]]
    depth, blocks = plan.reductions[-1].extent, (plan.vector.extent or 0) // plan.lanes
    distance = body.places.distance = writer.let(writer.context.packed(first, depth or 0, blocks))
    return writer.let(f"icmp ne i64 {distance}, 0")
