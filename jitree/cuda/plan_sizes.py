"""How much memory kernels are bound to, by name and grid, so that a profile can say what they move.

CUPTI tells a kernel's name and grid, not its arguments. What is launched with one name and grid is bound to
as many bytes each time, except where dimensions are constants of the dispatch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jitree.base.weak_sets import SharedWeakSet

if TYPE_CHECKING:
    from jitree.cuda.plan import LaunchPlan

Kernel = tuple[str, tuple[int, int, int]]
"""Name and grid."""


class KernelSizes:
    """Bytes of the kernels that a stream launches. The caller holds the stream's lock."""

    def __init__(self) -> None:
        self._plans: SharedWeakSet[LaunchPlan] = SharedWeakSet()
        self._found: dict[Kernel, int] | None = None

    def note(self, plan: LaunchPlan) -> None:
        """A plan has been made."""
        self._plans.add(plan)
        if self._found is not None:
            self._find(plan)

    def begin(self) -> None:
        """A profile begins; plans may be gone when it ends."""
        self._found = {}
        for plan in list(self._plans):
            self._find(plan)

    def end(self) -> dict[Kernel, int]:
        """Bytes of the kernels of all plans since the beginning; 0 where that is not known."""
        found, self._found = self._found, None
        return found or {}

    def _find(self, plan: LaunchPlan) -> None:
        assert self._found is not None
        for launch in plan.launches:
            if self._found.setdefault((launch.name, launch.grid), launch.bytes) != launch.bytes:
                self._found[launch.name, launch.grid] = 0
