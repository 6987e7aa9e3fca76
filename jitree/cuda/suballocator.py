"""Cuts pieces of memory out of large regions, mostly without a driver call.

A piece that comes back is the first to go out again for its size class, so a program that does the same
again gets the same addresses again, and graphs made for them can be launched unchanged. Pieces of one region
have any sizes and are not joined again; a region goes back to the driver when none of its pieces is in use.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from itertools import filterfalse
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from jitree.cuda.context import CudaContext
from jitree.hal.heap import size_class

if TYPE_CHECKING:
    from jitree.cuda.api import Owned

ALIGNMENT: Final = 256
"""Bytes; what the driver's own allocations have, and more than any kernel assumes."""
_OWN_REGION: Final = 4
"""A piece of more than this part of a region gets a region to itself …"""
_GRANULE: Final = 2 << 20
"""The size of such a region is a multiple of this: the driver's pages."""
_WASTE: Final = 4
"""A free region serves requests for which at most this part of it would be lost."""

_PORTABLE: Final = 0x1
"""Pinned for every context of the process."""
_DEVICE_MAP: Final = 0x2

_LAST: Final = slice(-1, None)
_BEHIND: Final = slice(1 << 62, None)
"""Where a list ends, and goes on."""
_CAPACITY: Final = attrgetter("capacity")
_OF_LEAVING: Final = attrgetter("slab.is_leaving")
_IS_LEAVING: Final = attrgetter("is_leaving")


class Region(NamedTuple):
    """Holds memory as it comes from the driver."""

    address: int
    """Where the device finds it."""
    host_address: int | None
    size: int
    owned: Owned | None = None
    """What gives it back, also if it is forgotten."""


class RegionSource(Protocol):
    """Allocates regions."""

    def allocate(self, size: int) -> Region:
        """RESOURCE_EXHAUSTED when it does not fit."""

    def free(self, region: Region) -> None:
        """Never fails; nothing uses the region any more."""


@dataclass(slots=True, eq=False)
class _Slab:
    """A region that is cut into pieces from the front."""

    region: Region
    used: int = 0
    live: int = 0
    """How many pieces are in use; one more as it leaves."""
    is_leaving: bool = False
    """Whether it goes back to the driver: no piece of it is free."""


@dataclass(slots=True, eq=False)
class Piece:
    """Names memory for one buffer."""

    address: int
    host_address: int | None
    capacity: int
    slab: _Slab = field(repr=False)
    size: int = 0
    """Bytes that were asked for; this and the rest is the user's business."""
    memory_type: int = 0
    is_counted: bool = False
    """As these: whether its user counts it."""


class Suballocator:
    """Cuts regions into pieces, under its owner's lock.

    A piece goes from one list to another by statements that call nothing: wherever an interrupt comes, it is
    in one of them, and a signal's handler, which may take and drop pieces, finds them as they are.
    """

    def __init__(self, source: RegionSource, region_size: int) -> None:
        """``region_size``: bytes of the regions for pieces that are small compared with it."""
        self._source = source
        self.reserved = 0
        """Bytes of all regions so far."""
        self._region_size = region_size
        self._largest_small = region_size // _OWN_REGION
        self._slabs: list[_Slab] = []
        self._free: dict[int, list[Piece]] = {}
        self._leaving: list[_Slab] = []
        self._large: list[Piece] = []
        """Free pieces that have a region to themselves, by capacity."""
        self._is_over = False

    def take(self, size: int, owner: list[Piece]) -> Piece:
        """Gives an owner a piece of at least ``size`` bytes. RESOURCE_EXHAUSTED when the driver has no
        more."""
        capacity = self._capacity(size)
        is_large = capacity > self._largest_small
        free = self._large if is_large else self._free.get(capacity, [])
        place = self._find_large(capacity) if is_large else _LAST
        found = free[place]  # nothing is called from here on
        if found and found[0].capacity >= capacity:
            found[0].slab.live += 1
            owner[_BEHIND], free[place] = found, ()
        else:
            self._cut(capacity, is_large, owner)
        return owner[-1]

    def has_free(self, size: int) -> bool:
        """Whether :meth:`take` needs no new region."""
        capacity = self._capacity(size)
        if capacity > self._largest_small:
            return bool(self._large[self._find_large(capacity)])
        if self._free.get(capacity):
            return True
        return bool(self._slabs) and self._slabs[-1].used + capacity <= self._slabs[-1].region.size

    def take_back(self, returned: deque[tuple[Piece, int]]) -> None:
        """Takes the first of pieces that have come back. Only this takes any off that list."""
        piece = returned[0][0]
        slab, free, place = piece.slab, self._large, _BEHIND.start
        if piece.capacity > self._largest_small:
            place = bisect_left(free, piece.capacity, key=_CAPACITY)
        else:
            free = self._free.setdefault(piece.capacity, [])
        slab.live -= 1  # nothing is called from here on
        if slab.is_leaving:
            pass  # with its region
        elif not self._is_over:
            free[place:place] = (piece,)
        elif not slab.live:
            self._slabs += (slab,)
        del returned[0]

    def trim(self) -> None:
        """Gives regions without a piece in use back to the driver.

        A handler may take pieces and give them back meanwhile: none of a region that leaves is free
        again. One of which the handler keeps a piece stays, without those that were free."""
        while self._large:
            self._source.free(self._large.pop().slab.region)
        leaving = self._leaving
        for slab in self._slabs[:]:
            if not slab.live:  # nothing is called from here on
                slab.live, slab.is_leaving, slab.used = 1, True, slab.region.size
                leaving[_BEHIND] = (slab,)
        if not leaving:
            return
        for pieces in list(self._free.values()):
            pieces[:] = filterfalse(_OF_LEAVING, pieces)
        self._slabs[:] = filterfalse(_IS_LEAVING, self._slabs)
        while leaving:  # where it is interrupted, the next trim does what is left
            slab = leaving[-1]
            if slab.live == 1:
                leaving[_LAST] = ()
                self._source.free(slab.region)
            else:
                slab.live, slab.is_leaving = slab.live - 1, False
                self._slabs[:0], leaving[_LAST] = (slab,), ()

    def end(self) -> None:
        """Gives back as :meth:`trim`, and forgets the other regions: one goes back by the :meth:`trim` after
        its last piece, or when that has died, which an interrupt may have lost."""
        self.trim()
        self._slabs.clear()
        self._free.clear()
        self._is_over = True

    @property
    def kept_bytes(self) -> int:
        """Bytes of free pieces."""
        small = sum(capacity * len(pieces) for capacity, pieces in self._free.items())
        large: int = sum(map(_CAPACITY, self._large))
        return small + large

    def _capacity(self, size: int) -> int:
        """The capacity of the piece that serves ``size`` bytes."""
        if size > self._largest_small:
            return (size + _GRANULE - 1) // _GRANULE * _GRANULE
        return size_class(size) + ALIGNMENT - 1 & -ALIGNMENT

    def _cut(self, capacity: int, is_large: bool, owner: list[Piece]) -> None:
        slab = self._slabs[-1] if self._slabs and not is_large else None
        is_new = slab is None or slab.used + capacity > slab.region.size
        if slab is None or is_new:
            slab = _Slab(self._reserve(capacity if is_large else self._region_size))
        offset, slab.used, slab.live = slab.used, slab.used + capacity, slab.live + 1
        try:  # others may cut it from here on: a signal's handler
            if is_new and not is_large:
                self._slabs.append(slab)
            piece = _piece(slab, offset, capacity)
        except BaseException:
            slab.live -= 1
            raise
        owner[_BEHIND] = (piece,)

    def _reserve(self, size: int) -> Region:
        region = self._source.allocate(size)
        self.reserved += region.size
        return region

    def _find_large(self, capacity: int) -> slice:
        """Where the smallest is that fits, if that wastes little."""
        index = bisect_left(self._large, capacity, key=_CAPACITY)
        found = self._large[index : index + 1]  # none, too, where a signal's handler has taken it since
        if not found or found[0].capacity > capacity + capacity // _WASTE:
            return _BEHIND
        return slice(index, index + 1)


def _piece(slab: _Slab, offset: int, capacity: int) -> Piece:
    region = slab.region
    host_address = None if region.host_address is None else region.host_address + offset
    return Piece(region.address + offset, host_address, capacity, slab)


def free(region: Region) -> None:
    """Gives a region back to the driver."""
    if region.owned is not None:
        region.owned.close()


class DeviceRegions:
    """Allocates regions of the device's memory."""

    def __init__(self, context: CudaContext) -> None:
        self._context = context

    def allocate(self, size: int) -> Region:
        self._context.enter()
        owned = self._context.make("cuMemAlloc", (size,), "cuMemFree")
        return Region(int(owned), None, size, owned)

    def free(self, region: Region) -> None:
        free(region)


class PinnedRegions:
    """Allocates pinned regions of host memory, which the device sees."""

    def __init__(self, context: CudaContext) -> None:
        self._context = context

    def allocate(self, size: int) -> Region:
        self._context.enter()
        api = self._context.api
        owned = self._context.make("cuMemHostAlloc", (size, _PORTABLE | _DEVICE_MAP), "cuMemFreeHost")
        address = int(api.call("cuMemHostGetDevicePointer", int(owned), 0))
        return Region(address, int(owned), size, owned)

    def free(self, region: Region) -> None:
        free(region)
