"""What the loops of a nest write together."""

from __future__ import annotations

from jitree.base.records import NamedTuple
from jitree.dispatch.native.nests.memory import Offsets
from jitree.dispatch.native.nests.panels import DepthBlock
from jitree.dispatch.native.nests.plan import Plan


class Tile(NamedTuple):
    """What is written together: so many vectors of lanes, so many iterations of the tiled loop."""

    vectors: int
    mask: tuple[str, ...] | None
    copies: int = 1
    left: str | None = None
    """Lanes that the mask leaves."""
    width: int | None = None
    """Iterations of the vector loop, where they do not fill its vectors: the last one begins earlier then,
    and computes what the one before does, too."""
    block: DepthBlock | None = None
    """The part of the last reduction that it runs over; None: all."""

    def places(self, plan: Plan) -> list[Offsets]:
        """Where each copy of the nest's body is, in iterations from the tile's first ones."""
        found: list[Offsets] = []
        for copy in range(self.copies):
            for first in self.firsts(plan.lanes):
                offsets: Offsets = {}
                if plan.tiled is not None:
                    offsets[plan.tiled] = copy
                if plan.vector is not None:
                    offsets[plan.vector] = first
                found.append(offsets)
        return found

    def firsts(self, lanes: int) -> list[int]:
        """The first lanes of its vectors."""
        firsts = range(0, self.vectors * lanes, lanes)
        return [first if self.width is None else min(first, self.width - lanes) for first in firsts]
