"""Lists the passes that turn loops into a planned nest, in order.

A nest is then written: its guard, and its loops by the plan or its alternative, at once or when the guards of
other nests have been written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from jitree.base.records import NamedTuple
from jitree.dispatch.native.nests.body import Body
from jitree.dispatch.native.nests.guard import Guard, require_sizes
from jitree.dispatch.native.nests.loops import LoopRange, NestLoops
from jitree.dispatch.native.nests.memory import Places
from jitree.dispatch.native.nests.plan import PlannedNest
from jitree.dispatch.native.nests.planner import make_plan
from jitree.dispatch.native.nests.recognise import Dependence, Uses, recognise, uses, values_used_after
from jitree.dispatch.native.nests.rewrites import collapsed, parted
from jitree.dispatch.native.nests.structure import Level, NotANest
from jitree.dispatch.native.nests.writer import Writer

if TYPE_CHECKING:
    from jitree.dispatch.native.nests.plan import Plan
    from jitree.dispatch.native.nests.reading import PolynomialReader
    from jitree.dispatch.native.nests.structure import Polynomial, Structure
    from jitree.dispatch.native.nests.writer import NestContext
    from jitree.dispatch.native.ssa import SsaFunction, SsaLoop, Value


class NestDraft:
    """Holds what passes have found out about a nest so far."""

    loop: SsaLoop
    uses: Uses
    structure: Structure
    reader: PolynomialReader
    dependence: Dependence
    plan: Plan


class Pass(NamedTuple):
    """Describes a pass; it raises NotANest where the loop is none."""

    run: Callable[[NestDraft], None]
    needs: str
    makes: str
    purpose: str


def _recognise(draft: NestDraft) -> None:
    draft.structure, draft.reader = recognise(draft.loop)


def _depend(draft: NestDraft) -> None:
    draft.dependence = Dependence(draft.structure, draft.reader)


def _collapse(draft: NestDraft) -> None:
    draft.structure = collapsed(draft.structure, draft.reader, draft.dependence.counters_as_data())


def _require_sizes(draft: NestDraft) -> None:
    require_sizes(draft.structure, draft.reader)


def _require_no_results(draft: NestDraft) -> None:
    if values_used_after(draft.uses, draft.loop) - {draft.loop.header.parameters[0]}:
        raise NotANest("a value is carried out of the nest")


def _plan(draft: NestDraft) -> None:
    draft.plan = make_plan(draft.structure, draft.reader.splits, draft.dependence)


_REWRITTEN: Final = (
    Pass(_depend, "structure reader", "dependence", "says on which counters values depend, and weighs them"),
    Pass(_require_sizes, "structure reader", "", "has the guard compute bounds and ranges without overflow"),
    Pass(_plan, "structure reader dependence", "plan", "decides on lanes, tiles, sums, instructions"),
)
"""What follows a rewrite."""
PASSES: Final = (
    Pass(_recognise, "loop", "structure reader", "reads loops, accesses, predicates; splits divided loops"),
    Pass(_depend, "structure reader", "dependence", "finds the counters that are data, whose loops stay"),
    Pass(_collapse, "structure reader dependence", "structure", "joins loops that are one in every index"),
    *_REWRITTEN[:-1],
    Pass(_require_no_results, "loop uses", "", "has nothing but the counter leave the nest"),
    _REWRITTEN[-1],
)
"""In the order in which they run."""


class NestRefusal(NamedTuple):
    """Says why a loop is left to the scalar code."""

    loop: SsaLoop
    reason: str


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

    def loops(self, part: LoopRange | None, starts: Mapping[Value, Value]) -> None:
        """The loops; ``part`` is what they run, None: all. Sums in a buffer of ``starts`` begin with that."""
        self._body.start_with(starts)
        _write_loops(self.writer, self._body, part)


class Nest(PlannedNest):
    """Writes loops that are taken."""

    __slots__ = ()

    def emit(self, context: NestContext) -> str:
        """Writes a nest's IR from its first block to ``context.done``.

        It branches to ``context.deopt`` with nothing done when a guard fails.
        """
        writer = Writer(context)
        body = Body(writer, self, Places(), {})
        guard = Guard(writer, self, body)
        if self.structure.is_empty:
            guard.write_empty()
        else:
            guard.write()
            _write_loops(writer, body, None)
        writer.jump(context.done)
        writer.label(context.done)
        writer.jump(context.exit)
        return writer.text()

    def begin(self, context: NestContext, rooms: Sequence[Polynomial]) -> BegunNest:
        """The guard alone, in one block that ends nowhere."""
        return BegunNest(context, self, rooms)

    def parted(self, level: Level, counts: Sequence[int]) -> Nest | None:
        """The nest with several loops that run so often in place of one; None if values depend on that."""
        if level.counter in self.dependence.counters_as_data():
            return None
        draft = NestDraft()
        draft.loop = self.loop
        draft.structure, draft.reader = parted(self.structure, self.reader, level, counts)
        try:
            return _passed(draft, _REWRITTEN)
        except NotANest:
            return None


def _passed(draft: NestDraft, passes: Iterable[Pass]) -> Nest:
    for one in passes:
        one.run(draft)
    return Nest(draft.loop, draft.structure, draft.reader, draft.dependence, draft.plan)


def find(function: SsaFunction) -> list[Nest | NestRefusal]:
    """The nests of a function, none inside another. Where a loop is refused, the loops in it may be taken."""
    found: list[Nest | NestRefusal] = []
    waiting = list(function.loops)
    used = uses(function) if waiting else {}
    while waiting:
        draft = NestDraft()
        draft.loop, draft.uses = waiting.pop(0), used
        try:
            found.append(_passed(draft, PASSES))
        except NotANest as refused:
            found.append(NestRefusal(draft.loop, str(refused)))
            waiting += draft.loop.children
    return found


def _write_loops(writer: Writer, body: Body, part: LoopRange | None) -> None:
    """Writes a nest's loops after its guard, by the alternative if possible."""
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
