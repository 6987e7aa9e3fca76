"""Which dispatch has made what lies in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jitree.hal.observing import DISPATCH
from jitree.observe.observation import Onlooker
from jitree.observe.regions import overlaps

if TYPE_CHECKING:
    from jitree.hal.observing import Extent
    from jitree.observe.tensors import ObservedDispatch


class Makers(Onlooker):
    """What made the tensors of a call. What is copied was made by what made it where it comes from."""

    def __init__(self) -> None:
        self._writes: list[tuple[Extent, ObservedDispatch | None]] = []
        self.results: Sequence[ObservedDispatch | None] = ()
        """The dispatches that made the results of the call."""

    def looks_at(self, dispatch: ObservedDispatch) -> None:
        maker: ObservedDispatch | None = dispatch
        if dispatch.kind != DISPATCH:
            maker = self.of(dispatch.inputs[0].extent) if dispatch.inputs else None
        self._writes += [(tensor.extent, maker) for tensor in dispatch.outputs]

    def of(self, extent: Extent) -> ObservedDispatch | None:
        """None for what no dispatch has made."""
        found = (maker for written, maker in reversed(self._writes) if overlaps(written, extent))
        return next(found, None)
