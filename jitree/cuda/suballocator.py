"""Cuts pieces of memory out of large regions, mostly without a driver call.

A piece that comes back is the first to go out again for its size class, so a program that does the same
again gets the same addresses again, and graphs made for them can be launched unchanged. Pieces of one region
have any sizes and are not joined again; a region goes back to the driver when none of its pieces is in use.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

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
    ordered_by: Any = None
    pool: Any = None


class Suballocator:
    """Cuts regions into pieces, under its owner's lock."""

    def __init__(self, source: RegionSource, region_size: int) -> None:
        """``region_size``: bytes of the regions for pieces that are small compared with it."""
        self._source = source
        self.reserved = 0
        """Bytes of all regions so far."""
        self._region_size = region_size
        self._largest_small = region_size // _OWN_REGION
        self._slabs: list[_Slab] = []
        self._free: dict[int, list[Piece]] = {}
        self._large: list[tuple[int, Piece]] = []
        """Free pieces that have a region to themselves, by capacity."""
        self._is_over = False

    def take(self, size: int) -> Piece:
        """A piece of at least ``size`` bytes. RESOURCE_EXHAUSTED when the driver has no more."""
        capacity = self._capacity(size)
        if capacity > self._largest_small:
            piece = self._take_large(capacity)
        else:
            free = self._free.get(capacity)
            piece = free.pop() if free else self._cut(capacity)
        piece.slab.live += 1
        return piece

    def has_free(self, size: int) -> bool:
        """Whether :meth:`take` needs no new region."""
        capacity = self._capacity(size)
        if capacity > self._largest_small:
            return self._find_large(capacity) is not None
        if self._free.get(capacity):
            return True
        return bool(self._slabs) and self._slabs[-1].used + capacity <= self._slabs[-1].region.size

    def give_back(self, piece: Piece) -> None:
        piece.slab.live -= 1
        if self._is_over:
            self._slabs += [] if piece.slab.live else [piece.slab]
        elif piece.capacity * _OWN_REGION > self._region_size:
            self._large.insert(
                bisect_left(self._large, piece.capacity, key=_capacity_of), (piece.capacity, piece)
            )
        else:
            self._free.setdefault(piece.capacity, []).append(piece)

    def trim(self) -> None:
        """Gives regions without a piece in use back to the driver."""
        for _, piece in self._large:
            self._source.free(piece.slab.region)
        self._large.clear()
        idle = [slab for slab in self._slabs if not slab.live]
        if not idle:
            return
        self._slabs = [slab for slab in self._slabs if slab.live]
        for capacity, pieces in list(self._free.items()):
            self._free[capacity] = [piece for piece in pieces if piece.slab.live]
        for slab in idle:
            self._source.free(slab.region)

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
        return small + sum(capacity for capacity, _ in self._large)

    def _capacity(self, size: int) -> int:
        """The capacity of the piece that serves ``size`` bytes."""
        if size > self._largest_small:
            return (size + _GRANULE - 1) // _GRANULE * _GRANULE
        return size_class(size) + ALIGNMENT - 1 & -ALIGNMENT

    def _cut(self, capacity: int) -> Piece:
        slab = self._slabs[-1] if self._slabs else None
        if slab is None or slab.used + capacity > slab.region.size:
            slab = _Slab(self._reserve(self._region_size))
            self._slabs.append(slab)
        offset = slab.used
        slab.used += capacity
        return _piece(slab, offset, capacity)

    def _take_large(self, capacity: int) -> Piece:
        index = self._find_large(capacity)
        if index is not None:
            return self._large.pop(index)[1]
        return _piece(_Slab(self._reserve(capacity)), 0, capacity)

    def _reserve(self, size: int) -> Region:
        region = self._source.allocate(size)
        self.reserved += region.size
        return region

    def _find_large(self, capacity: int) -> int | None:
        """The smallest that fits, if that wastes little."""
        index = bisect_left(self._large, capacity, key=_capacity_of)
        if index == len(self._large) or self._large[index][0] > capacity + capacity // _WASTE:
            return None
        return index


def _piece(slab: _Slab, offset: int, capacity: int) -> Piece:
    region = slab.region
    host_address = None if region.host_address is None else region.host_address + offset
    return Piece(region.address + offset, host_address, capacity, slab)


def _capacity_of(entry: tuple[int, Piece]) -> int:
    return entry[0]


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
