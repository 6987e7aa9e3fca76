"""How much the programs of a context may have, where a session limits it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jitree.base.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from jitree.codegen.image.builds import Builds

MAXIMUM_FRAMES: Final = 8192


def _free(size: int) -> object:
    return None


class Bounds(NamedTuple):
    frames: int = MAXIMUM_FRAMES - 1
    """Calls of a program, one inside the other."""
    objects: int | None = None
    """What registers, globals and lists refer to; None: as many as a table has room for."""
    charge: Callable[[int], object] = _free
    """Counts bytes of ``vm.buffer``, ``vm.list`` and globals until what it gives dies. RESOURCE_EXHAUSTED."""
    builds: Builds | None = None
    """Limits what it takes to build the programs' machine code."""

    @property
    def limited_charge(self) -> Callable[[int], object] | None:
        """``charge``, where it limits anything."""
        return None if self.charge is _free else self.charge

    @property
    def count_nothing(self) -> bool:
        """Whether programs may have as much as there is."""
        return self[:3] == UNBOUNDED[:3]


UNBOUNDED: Final = Bounds()
