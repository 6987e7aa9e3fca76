"""Loop nests in vectors: found in a function, guarded once in front, written anew. See README.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jitree.base.records import NamedTuple
from jitree.dispatch.native.nests.collapsing import collapsed, parted
from jitree.dispatch.native.nests.dependence import Dependence
from jitree.dispatch.native.nests.guard import require_sizes
from jitree.dispatch.native.nests.guarded import BegunNest, emit_nest
from jitree.dispatch.native.nests.plan import Plan
from jitree.dispatch.native.nests.planner import make_plan
from jitree.dispatch.native.nests.reading import NotANest, PolynomialReader
from jitree.dispatch.native.nests.recognise import Structure, Uses, recognise, uses, values_used_after

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jitree.dispatch.native.nest_context import NestContext
    from jitree.dispatch.native.nests.polynomials import Polynomial
    from jitree.dispatch.native.nests.reading import Level
    from jitree.dispatch.native.ssa import SsaFunction, SsaLoop

__all__ = ["Nest", "NestRefusal", "find"]


class NestRefusal(NamedTuple):
    """A loop that is left to the scalar code."""

    loop: SsaLoop
    reason: str


class Nest(NamedTuple):
    """Loops that are taken."""

    loop: SsaLoop
    """The outermost loop of the nest."""
    structure: Structure
    reader: PolynomialReader
    dependence: Dependence
    plan: Plan

    def emit(self, context: NestContext) -> str:
        """LLVM IR after the label of the nest's first block, up to the end of the block ``context.done``.

        It branches to ``context.deopt`` with nothing done when a guard fails.
        """
        return emit_nest(context, self.structure, self.reader, self.plan, self.dependence)

    def begin(self, context: NestContext, rooms: Sequence[Polynomial]) -> BegunNest:
        """The guard alone, in one block that ends nowhere; see :class:`BegunNest`."""
        return BegunNest(context, self.structure, self.reader, self.plan, self.dependence, rooms)

    def parted(self, level: Level, counts: Sequence[int]) -> Nest | None:
        """The nest with several loops that run so often in place of one; None if values depend on that."""
        if level.counter in self.dependence.counters_as_data():
            return None
        structure, reader = parted(self.structure, self.reader, level, counts)
        dependence = Dependence(structure, reader)
        try:
            require_sizes(structure, reader)
        except NotANest:
            return None
        plan = make_plan(structure, reader.splits, dependence)
        return Nest(self.loop, structure, reader, dependence, plan)


def find(function: SsaFunction) -> list[Nest | NestRefusal]:
    """The nests of a function, none inside another. Where a loop is refused, the loops in it may be taken."""
    found: list[Nest | NestRefusal] = []
    waiting = list(function.loops)
    used = uses(function) if waiting else {}
    while waiting:
        loop = waiting.pop(0)
        try:
            found.append(_take(used, loop))
        except NotANest as refused:
            found.append(NestRefusal(loop, str(refused)))
            waiting += loop.children
    return found


def _take(used: Uses, loop: SsaLoop) -> Nest:
    structure, reader = recognise(loop)
    structure = collapsed(structure, reader, Dependence(structure, reader).counters_as_data())
    dependence = Dependence(structure, reader)
    require_sizes(structure, reader)
    if values_used_after(used, loop) - {loop.header.parameters[0]}:
        raise NotANest("a value is carried out of the nest")
    return Nest(loop, structure, reader, dependence, make_plan(structure, reader.splits, dependence))
