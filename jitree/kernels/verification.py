"""Compares a kernel with the function that it replaces, on copies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from jitree.base.records import NamedTuple
from jitree.errors import FailedPreconditionError
from jitree.hal.stepwise import memory, merged
from jitree.observe.tolerance import compare
from jitree.regs.memory import address_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from jitree.hal.stepwise import Extent
    from jitree.kernels.kernel import BoundTensor
    from jitree.observe.tolerance import Tolerance

ZONE: Final = 4096
"""Bytes around each copy in which stray stores are seen: a multiple of what kernels may take for granted."""
_UNTOUCHED: Final = 0xA5


class CopiedRange:
    """Copies a range of memory, with zones around it."""

    def __init__(self, first: int, end: int) -> None:
        self.first, self.end = first, end
        whole = np.full(end - first + 3 * ZONE, _UNTOUCHED, np.uint8)
        self.bytes = whole[(first - address_of(whole)) % ZONE :]  # aligned as what it copies
        """With the zones."""
        self.address = address_of(self.bytes) + ZONE
        self.original = memory((first, end - first))
        self.data = self.bytes[ZONE : ZONE + end - first]
        self.data[:] = self.original
        self.changed = np.zeros(end - first, np.bool_)
        """Bytes that originals have changed that came before."""

    def stray(self) -> int:
        """How many bytes of the zones have changed."""
        zones = self.bytes[:ZONE], self.bytes[ZONE + self.end - self.first :]
        return sum(int(np.count_nonzero(zone != _UNTOUCHED)) for zone in zones)


class CopiedMemory:
    """Copies of ranges, which share what ranges share."""

    def __init__(self, extents: Sequence[Extent]) -> None:
        self.regions = [CopiedRange(first, first + length) for first, length in merged(extents)]
        self.extents = [(self._moved(*extent), extent[1]) for extent in extents]
        """The ranges in the copies."""

    def _moved(self, address: int, length: int) -> int:
        held = (each for each in self.regions if each.first <= address and address + length <= each.end)
        region = next(held)
        return region.address + address - region.first

    def keep_changes(self) -> None:
        """Notes what originals have changed, which no kernel is to change."""
        for region in self.regions:
            region.changed = region.data != region.original

    def require_near(self, what: str, parts: Sequence[CheckedDispatch], allowed: Tolerance) -> None:
        """Raises FAILED_PRECONDITION for stray stores and far results. The kernel has run on the copies, the
        originals on the memory itself. ``what``: who differs."""
        stray = sum(region.stray() for region in self.regions)
        if stray:
            raise FailedPreconditionError(f"{what}: the kernel has written {stray} bytes outside of bindings")
        for region in self.regions:
            region.data[region.changed] = region.original[region.changed]
        moved = iter(self.extents)
        compared = [(part, [next(moved) for _ in part.extents]) for part in parts]
        for part, copies in compared:
            _require_tensors(what, part, copies, allowed)
        for part, copies in compared:  # what is in one binding alone may be in another's tensor
            _require_rest(what, part, copies)


class CheckedDispatch(NamedTuple):
    """A dispatch: its name, its tensors, and the ranges of its bindings."""

    name: str
    tensors: Sequence[BoundTensor]
    extents: Sequence[Extent]


def require_near(what: str, here: npt.NDArray[Any], there: npt.NDArray[Any], allowed: Tolerance) -> None:
    """FAILED_PRECONDITION with the first element that is not near. ``what``: who differs, and where."""
    found = compare(here, there, here.shape, allowed)
    if found.first is not None:
        raise FailedPreconditionError(
            f"{what} {found.first}; {found.differing} of {found.size} elements differ, by {found.max_abs:g} "
            f"(relative {found.max_rel:g}) at most, allowed: {allowed}; correct it, or pass atol=, rtol= or "
            "ulp="
        )


def _require_tensors(what: str, part: CheckedDispatch, copies: Sequence[Extent], allowed: Tolerance) -> None:
    """Compares tensors. Copies get the originals' elements, which are near."""
    for tensor in part.tensors:
        here, there = (tensor.view(memory(extents[tensor.binding])) for extents in (copies, part.extents))
        require_near(
            f"{what} differ in binding {tensor.binding} of {part.name} ({tensor})", here, there, allowed
        )
        here[...] = there


def _require_rest(what: str, part: CheckedDispatch, copies: Sequence[Extent]) -> None:
    """Compares all bytes of bindings."""
    for number, (own, original) in enumerate(zip(copies, part.extents, strict=True)):
        wrong = np.flatnonzero(memory(own) != memory(original))
        if len(wrong):
            raise FailedPreconditionError(
                f"{what} differ in {len(wrong)} bytes of binding {number} of {part.name} that are in no "
                f"tensor of types=, from byte {wrong[0]} on"
            )
