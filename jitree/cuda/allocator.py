"""Allocates device memory, and pinned host memory for what the host is to see.

Device memory may be handed out again as soon as nothing refers to it: whatever still uses it was submitted to
the stream before whatever will. Pinned memory, which the host touches out of that order, first waits until
what was submitted before it came back is done. Both are cut from large regions (:mod:`suballocator`):
the driver's own allocation of host-visible memory takes half a millisecond and stops the device.

Pieces come back when an ``Allocation`` dies, which may be anywhere, also in the middle of an allocation on
the same thread: so they are only put on a list, which the next allocation works off.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from functools import partial
from itertools import repeat
from math import inf
from typing import Final, NamedTuple

import numpy as np

from jitree.base.finalizers import Finalizer, guard, repeated, uninterrupted, with_lock
from jitree.cuda.api import Owned
from jitree.cuda.stream import Stream
from jitree.cuda.stream_share import CudaAllocation, OrderedAllocation
from jitree.cuda.suballocator import (
    ALIGNMENT,
    DeviceRegions,
    Piece,
    PinnedRegions,
    RegionSource,
    Suballocator,
)
from jitree.errors import InvalidArgumentError, ResourceExhaustedError, StatusError, ignored
from jitree.hal.allocator import Accounting, Block, LendingAllocator, check_request
from jitree.hal.buffer import UNTOLD, Allocation, Buffer
from jitree.hal.enums import BufferCompatibility, BufferUsage, MemoryAccess, MemoryType

_OPTIMAL: Final = int(MemoryType.OPTIMAL)
_HOST_VISIBLE: Final = int(MemoryType.HOST_VISIBLE)
_DEVICE_LOCAL: Final = int(MemoryType.DEVICE_LOCAL)
_PINNED: Final = int(
    MemoryType.HOST_VISIBLE | MemoryType.HOST_COHERENT | MemoryType.HOST_CACHED | MemoryType.DEVICE_VISIBLE
)
"""What pinned memory is besides what was asked for."""
_MAPPING: Final = int(BufferUsage.MAPPING)
_TRANSFER: Final = int(BufferUsage.TRANSFER)
_DEFAULT_USAGE: Final = int(BufferUsage.DEFAULT)
_ALL: Final = int(MemoryAccess.ALL)
_READ: Final = int(MemoryAccess.READ)

_DEVICE_REGION: Final = 64 << 20
_PINNED_REGION: Final = 16 << 20
"""Bytes; a multiple of what small models use at a time."""

_SPARE_PART: Final = 16
"""This part of the device's memory fast paths of one session may keep."""
_LOCK_SECONDS: Final = 0.1
"""Seconds that giving back waits for the lock. A device that is forgotten ends where the garbage collector
runs, which may be on the thread that has it; what is cut then comes back later, and all regions after it."""
_MOST_PINNED: Final = 2 << 30
"""Bytes of pinned memory in use from which on results get ordinary memory."""


class _Pool:
    """Pieces of one kind of memory, and the pieces that have come back."""

    def __init__(self, owner: CudaAllocator, source: RegionSource, region_size: int) -> None:
        self.owner = owner
        self.pieces = Suballocator(source, region_size)
        self.returned: deque[tuple[Piece, int]] = deque()
        """(piece, tick of the return)"""
        self.resting: deque[tuple[Piece, int]] = deque()
        """(piece, tick that has to be done before the host may have it)"""


class _Registration(NamedTuple):
    """Host memory that was pinned for a buffer."""

    stream: Stream
    owned: Owned


class _Loan(NamedTuple):
    """Device memory of another library that a buffer is over."""

    stream: Stream
    owner: object


class OwnedPiece(Finalizer):
    """Owns a piece of a pool, which goes back when this dies. The owner is there before its piece, so that no
    interrupt loses one in between."""

    __slots__ = ("pieces",)

    def __init__(self, pool: _Pool) -> None:
        self.pieces: list[Piece] = []
        """The piece, once it is taken."""
        super().__init__(repeated(partial(_give_back, pool, self.pieces)))

    @property
    def piece(self) -> Piece:
        """The piece that was taken."""
        return self.pieces[0]


class CudaAllocator(LendingAllocator):
    """Allocates a device's memory. Every request for something host-visible is served with pinned memory."""

    def __init__(self, stream: Stream) -> None:
        super().__init__()
        self._stream = stream
        self._context = stream.context
        self._lock = guard()
        self._accounting = Accounting()
        self._device = _Pool(self, DeviceRegions(stream.context), _DEVICE_REGION)
        self._pinned = _Pool(self, PinnedRegions(stream.context), _PINNED_REGION)
        self.most_lent = max(self.most_lent, stream.context.info.memory // _SPARE_PART)
        self._closed = self._is_collecting = False
        self._pinned_bytes = 0
        """Bytes of pinned pieces in use, as far as has been noticed."""

    def allocate(self, memory_type: int, usage: int, size: int, *, alignment: int = ALIGNMENT) -> Buffer:
        """As :meth:`Allocator.allocate`. Alignments above 256 bytes must be powers of two."""
        size, alignment = check_request(size, alignment)
        if alignment > ALIGNMENT:
            whole = self.allocate(memory_type, usage, size + alignment)
            return whole.subspan(-whole.address % alignment, size)
        usage = (usage or _DEFAULT_USAGE) | _TRANSFER
        if self.is_pinned(memory_type):
            memory_type |= _PINNED
            usage |= _MAPPING
            pool = self._pinned
        else:
            memory_type = memory_type & ~(_OPTIMAL | _HOST_VISIBLE) | _DEVICE_LOCAL
            pool = self._device
        owner = OwnedPiece(pool)
        piece = self._take(pool, memory_type, size, owner)
        allocation = OrderedAllocation(
            piece.address, size, memory_type, usage, _ALL, host_address=piece.host_address,
            source=owner, place=self._place(piece), device=self.device,
        )  # fmt: skip
        allocation.stream = self._stream
        buffer = Buffer(allocation)
        return buffer

    def import_host(self, view: memoryview, memory_type: int, usage: int) -> Buffer | None:
        """As :meth:`Allocator.import_host`: host memory can be pinned in place, but not become device-local.

        None also when the driver cannot pin it.
        """
        if not view.c_contiguous:
            raise InvalidArgumentError("only contiguous memory can be imported")
        if not memory_type & _HOST_VISIBLE or memory_type & _OPTIMAL or not view.nbytes:
            return None
        array = np.frombuffer(view, np.uint8)
        address: int = array.ctypes.data
        context = self._context
        context.enter()
        context.release_discarded()  # the same memory may have been pinned before
        arguments, kept = (address, view.nbytes, _REGISTER_MAPPED), (view, array)
        try:
            owned = context.make("cuMemHostRegister", arguments, "cuMemHostUnregister", (address,), kept)
        except StatusError:
            context.api.check_alive()
            return None
        registration = _Registration(self._stream, owned)
        device_address = int(context.api.call("cuMemHostGetDevicePointer", address, 0))
        allocation = CudaAllocation(
            device_address, view.nbytes, memory_type | _PINNED,
            (usage or _DEFAULT_USAGE) | _TRANSFER | _MAPPING, _READ if view.readonly else _ALL,
            host_address=address,
            source=registration, release=uninterrupted(partial(_unregister, registration)), place=UNTOLD,
            device=self.device,
        )  # fmt: skip
        allocation.stream = self._stream
        return Buffer(allocation)

    def import_device(self, address: int, length: int, owner: object) -> Buffer:
        """Wraps device memory of another library; submitted work that uses it keeps ``owner``.

        INVALID_ARGUMENT for memory of another device or of the host.
        """
        if length:
            self._context.enter()
            self._check_ordinal(address)
        loan = _Loan(self._stream, owner)
        allocation = CudaAllocation(
            address, length, _DEVICE_LOCAL, _DEFAULT_USAGE, _ALL, host_address=None,
            source=loan, release=uninterrupted(partial(_release_foreign, loan)),
            place=self._stream.share.place,
            device=self.device,
        )  # fmt: skip
        allocation.stream = self._stream
        return Buffer(allocation)

    def query_compatibility(
        self, memory_type: int, usage: int, intended_usage: int, size: int
    ) -> BufferCompatibility:
        known = (
            BufferCompatibility.ALLOCATABLE
            | BufferCompatibility.EXPORTABLE
            | BufferCompatibility.QUEUE_TRANSFER
            | BufferCompatibility.QUEUE_DISPATCH
        )
        return known | BufferCompatibility.IMPORTABLE if memory_type & _HOST_VISIBLE else known

    def trim(self) -> None:
        """Waits for the device, then gives back every region that is not used.

        Nothing is submitted meanwhile: what another thread holds back could use a region.
        """
        stream = self._stream
        with stream.lock, stream.share.taken():
            with suppress(StatusError):  # a lost device takes nothing back, but frees its memory
                stream.reclaim()
            stream.finish()
            with_lock(self._lock, self._trim, _LOCK_SECONDS)

    # Blocks that others hand out.

    @property
    def lends(self) -> bool:
        return True

    def is_pinned(self, memory_type: int) -> bool:
        return bool(memory_type & _HOST_VISIBLE and not memory_type & _OPTIMAL)

    def has_rested(self, tick: int) -> bool:
        if tick > self._stream.completed:
            self._stream.poll()
        return tick <= self._stream.completed

    def lend(self, capacity: int, count: int, memory_type: int = 0) -> list[Block]:
        """As :meth:`LendingAllocator.lend`. A block comes back when what owns it dies."""
        pool = self._pinned if self.is_pinned(memory_type) else self._device
        with self._stream.lock:
            self._stream.reclaim()
        with self._lock:
            self._collect()
            owners = [self._lent(pool, capacity) for _ in range(count)]
        blocks = [(owner.piece.address, capacity, owner) for owner in owners]
        return [block for block in blocks if self._place(block[2].piece) > 0]

    def _lent(self, pool: _Pool, capacity: int) -> OwnedPiece:
        """A piece that others hand out, and say what is in use. It goes back also where the next one cannot
        be had."""
        owner = OwnedPiece(pool)
        self._count(pool.pieces.take(capacity, owner.pieces), 0, 0)
        return owner

    def take_back(self, address: int) -> None:
        """What owns the block comes back by itself."""

    def allocation_over(self, block: Block, length: int, memory_type: int, usage: int) -> Allocation:
        address, _, owner = block
        assert isinstance(owner, OwnedPiece)
        place, host_address = self._stream.share.place, owner.piece.host_address
        allocation = OrderedAllocation(
            address, length, memory_type, usage, _ALL, host_address, owner, None, place, self.device
        )
        allocation.stream = self._stream
        return allocation

    def _place(self, piece: Piece) -> int:
        """As in ENTRY.access. Machine code knows one address of each buffer."""
        return self._stream.share.place if piece.host_address in (None, piece.address) else UNTOLD

    def _count(self, piece: Piece, memory_type: int, size: int) -> None:
        """Counts a piece in use. No interrupt comes between what is counted and the note of it."""
        piece.memory_type, piece.size = memory_type, size
        self._accounting.allocated(memory_type, size)
        if piece.host_address is not None:
            self._pinned_bytes += piece.capacity
        piece.is_counted = True

    def _uncount(self, piece: Piece) -> None:
        """Takes :meth:`_count` back, once."""
        if piece.is_counted:
            self._accounting.freed(piece.memory_type, piece.size)
            if piece.host_address is not None:
                self._pinned_bytes -= piece.capacity
            piece.is_counted = False

    @property
    def reserved(self) -> int:  # type: ignore[override]
        return self._device.pieces.reserved + self._pinned.pieces.reserved

    @property
    def kept_bytes(self) -> int:
        """Bytes of free pieces in the regions."""
        with self._lock:
            self._collect()
            return self._device.pieces.kept_bytes + self._pinned.pieces.kept_bytes

    @property
    def has_pinned_room(self) -> bool:
        """Whether results may take more pinned memory from the system."""
        if self._pinned_bytes < _MOST_PINNED:
            return True
        with self._lock:
            self._collect()
            return self._pinned_bytes < _MOST_PINNED

    def close(self) -> None:
        """As :meth:`trim`; what comes back later goes to the driver at once."""
        self._closed = True
        self.trim()
        with_lock(self._lock, self._end, _LOCK_SECONDS)

    def _take(self, pool: _Pool, memory_type: int, size: int, owner: OwnedPiece) -> Piece:
        """Gives an owner a piece for ``size`` bytes, accounted for.

        No thread waits for the stream with the lock held: one that submits to it may need memory.
        """
        try:
            with self._lock:
                self._collect()
                if not pool.resting or pool.pieces.has_free(size):
                    return self._take_now(pool, memory_type, size, owner)
            self._stream.poll()
            with self._lock:
                self._collect()
                return self._take_now(pool, memory_type, size, owner)
        except ResourceExhaustedError:
            self.trim()
        try:
            with self._lock:
                return self._take_now(pool, memory_type, size, owner)
        except ResourceExhaustedError as error:
            free, total = self._context.api.call("cuMemGetInfo")
            raise ResourceExhaustedError(
                f"cannot allocate {size} bytes for {self._context.api.name}: {self._accounting.live} bytes "
                f"are in use here, {free} of the device's {total} bytes are free ({error.message})"
            ) from error

    def _take_now(self, pool: _Pool, memory_type: int, size: int, owner: OwnedPiece) -> Piece:
        piece = pool.pieces.take(size, owner.pieces)
        self._count(piece, memory_type, size)
        return piece

    def _trim(self) -> None:
        lost = self._stream.api.lost  # and has been waited for: no tick says so
        self._collect_until(self._stream.completed if lost is None else inf)
        self._context.enter()
        self._device.pieces.trim()
        self._pinned.pieces.trim()

    def _end(self) -> None:
        self._collect()
        self._context.enter()
        self._device.pieces.end()
        self._pinned.pieces.end()
        self._context.release_discarded()

    def _collect(self) -> None:
        """Moves what has come back to the free pieces; the caller holds the lock."""
        self._collect_until(self._stream.completed)

    def _collect_until(self, done: float) -> None:
        """As :meth:`_collect`. ``done``: the newest submission that is. Where it is interrupted, the next one
        goes on; a finalizer or a signal's handler that runs meanwhile leaves it alone."""
        if self._is_collecting:
            return
        device, pinned = self._device, self._pinned
        try:
            self._is_collecting = True
            while device.returned:  # only this method, under the lock, takes anything out
                self._uncount(device.returned[0][0])
                device.pieces.take_back(device.returned)
            while pinned.returned:
                self._uncount(pinned.returned[0][0])
                next(map(pinned.resting.append, iter(pinned.returned.popleft, None)))
            while pinned.resting and pinned.resting[0][1] <= done:
                pinned.pieces.take_back(pinned.resting)
        finally:
            self._is_collecting = False

    def _check_ordinal(self, address: int) -> None:
        api = self._context.api
        kinds = api.driver.CUpointer_attribute
        try:
            ordinal = int(
                api.call("cuPointerGetAttribute", kinds.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address)
            )
        except StatusError as error:
            api.check_alive()
            raise InvalidArgumentError(
                f"address {address:#x} is not memory of {api.name}: {error.message}"
            ) from error
        if ordinal != self._context.ordinal:
            raise InvalidArgumentError(
                f"an array in memory of cuda://{ordinal} cannot be used on {api.name}; copy it there first"
            )


_REGISTER_MAPPED: Final = 0x2
"""CU_MEMHOSTREGISTER_DEVICEMAP"""


def _give_back(pool: _Pool, pieces: list[Piece]) -> None:
    """Lists a piece as one that has come back, in one step."""
    allocator = pool.owner
    pool.returned.extend(zip(map(pieces.pop, repeat(-1, len(pieces))), repeat(allocator._stream.tick)))
    if allocator._closed and not allocator._is_collecting:
        with ignored(StatusError):  # the device is lost, and with it its memory
            with_lock(allocator._lock, allocator._trim)


def _unregister(registration: _Registration) -> None:
    """Gives host memory back to the process once submissions have used it."""
    registration.stream.retain(registration.owned)


def _release_foreign(loan: _Loan) -> None:
    """Lets go of foreign memory when nothing submitted uses it."""
    loan.stream.retain(loan)
