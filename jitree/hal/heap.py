"""Allocates host memory for the local drivers, from a pool of aligned blocks.

A block goes back to the pool when its ``Allocation`` dies, which may be anywhere, also in the middle of an
allocation on the same thread. So that only appends to a deque (atomic by its documentation), and the next
allocation or look at the statistics moves what is there under the lock.

A session that dies anywhere gives back what it was lent, and a device trims. So the lock is reentrant, and
a thread that holds it makes no object between its look at a list of free blocks and its change of that: the
garbage collector may run there, and with it such an ending, which changes the list.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from jitree.base.arguments import integer, natural
from jitree.base.finalizers import Finalizer, SharedWeakSet, SharedWeakValues, brief_guard
from jitree.base.platform import READ, WRITE, Mapping, whole_pages
from jitree.errors import InvalidArgumentError, ResourceExhaustedError, pass_interruption
from jitree.hal.allocator import Accounting, Block, Charge, LendingAllocator, check_request
from jitree.hal.buffer import Allocation, Buffer
from jitree.hal.enums import BufferCompatibility, BufferUsage, MemoryAccess, MemoryType

if TYPE_CHECKING:
    from jitree.regs.memory import Lessee

ALIGNMENT: Final = 64
"""Bytes; compiled kernels assume it."""
_MOST_LENT: Final = 1 << 16
"""Blocks at once; fast paths ask for some."""
_OPTIMAL: Final = int(MemoryType.OPTIMAL)
_DEVICE_LOCAL: Final = int(MemoryType.DEVICE_LOCAL)
_HOST_VISIBLE: Final = int(MemoryType.HOST_VISIBLE)
_DEFAULT_USAGE: Final = int(BufferUsage.DEFAULT)
_HOST_USAGE: Final = int(BufferUsage.MAPPING | BufferUsage.TRANSFER)
_ALL: Final = int(MemoryAccess.ALL)
_READ: Final = int(MemoryAccess.READ)

_LARGE: Final = 4 << 20
"""Bytes that take a millisecond or more to clear."""
_FINE_LIMIT: Final = 1024
"""Up to here size classes are multiples of 64 bytes, above four to a doubling: at most a quarter is lost."""


def size_class(size: int) -> int:
    """The capacity in bytes of the block that serves ``size``."""
    if size <= _FINE_LIMIT:
        return (size + ALIGNMENT - 1) & -ALIGNMENT or ALIGNMENT
    step = 1 << (size - 1).bit_length() - 3
    return (size + step - 1) & -step


def host_memory_type(memory_type: int) -> int:
    """Translates a requested memory type to the host's. The optimal place is the device's own, all of it
    visible to the host."""
    if memory_type & _OPTIMAL or not memory_type:
        memory_type = memory_type & ~_OPTIMAL | _DEVICE_LOCAL
    return memory_type | _HOST_VISIBLE


HeapBlock = tuple[int, int, "np.ndarray[Any, Any]"]
"""(aligned address, capacity, the array of these bytes, which keeps the memory)"""


class HeapAllocator(LendingAllocator):
    """Allocates host memory. Adds HOST_VISIBLE and mapping and transfer usage to whatever is asked."""

    def __init__(self, limit: int | None = None, *, is_zeroed: bool = False) -> None:
        """``limit``: bytes that may be live at one time, None = what the system gives. ``is_zeroed``: buffers
        are zero when they are handed out."""
        super().__init__()
        self.is_zeroed = is_zeroed
        self._lock = brief_guard()
        self._free: dict[int, list[HeapBlock]] = {}
        self._kept = 0
        self.reserved = 0
        self._returned: deque[tuple[HeapBlock, int, int]] = deque()
        self._accounting = Accounting()
        self._limit = limit
        if limit is not None:
            self.most_lent = min(self.most_lent, limit)
        self._charged = 0
        self._uncharged: deque[int] = deque()
        """Charges that are over."""
        self._lessees: SharedWeakSet[Lessee] = SharedWeakSet()
        self._held = 0
        """What lessees have, or more."""
        self._lent: SharedWeakValues[int, np.ndarray[Any, Any]] = SharedWeakValues()
        """The memory of the blocks that are lent, by address."""

    def allocate(self, memory_type: int, usage: int, size: int, *, alignment: int = ALIGNMENT) -> Buffer:
        """As :meth:`Allocator.allocate`. Alignments above 64 bytes must be powers of two."""
        if type(size) is not int or size < 0 or type(alignment) is not int or alignment != ALIGNMENT:
            size, alignment = check_request(size, alignment)
        if type(memory_type) is not int or type(usage) is not int:
            memory_type, usage = integer("memory_type", memory_type), integer("usage", usage)
        if alignment > ALIGNMENT:
            return self._allocate_aligned(memory_type, usage, size, alignment)
        memory_type = host_memory_type(memory_type)
        block = self._take(memory_type, size)
        source = block, memory_type, size
        return Buffer(Allocation(
            block[0], size, memory_type, (usage or _DEFAULT_USAGE) | _HOST_USAGE, _ALL,
            block[0], source, partial(self._returned.append, source), device=self.device,
        ))  # fmt: skip

    def import_host(self, view: memoryview, memory_type: int, usage: int) -> Buffer | None:
        """As :meth:`Allocator.import_host`; None for memory that is not aligned to 64 bytes."""
        if not view.c_contiguous:
            raise InvalidArgumentError("only contiguous memory can be imported")
        array = np.frombuffer(view, np.uint8) if view.nbytes else np.empty(0, np.uint8)
        address: int = array.__array_interface__["data"][0]
        if address % ALIGNMENT and view.nbytes:
            return None
        return Buffer(Allocation(
            address, view.nbytes, host_memory_type(memory_type), (usage or _DEFAULT_USAGE) | _HOST_USAGE,
            _READ if view.readonly else _ALL, host_address=address, source=(view, array), release=None,
            device=self.device,
        ))  # fmt: skip

    def query_compatibility(
        self, memory_type: int, usage: int, intended_usage: int, size: int
    ) -> BufferCompatibility:
        """Everything is possible with host memory."""
        return (
            BufferCompatibility.ALLOCATABLE
            | BufferCompatibility.IMPORTABLE
            | BufferCompatibility.EXPORTABLE
            | BufferCompatibility.QUEUE_TRANSFER
            | BufferCompatibility.QUEUE_DISPATCH
        )

    def trim(self) -> None:
        with self._lock:
            self._collect()
            for blocks in list(self._free.values()):
                while blocks:
                    self._kept -= blocks.pop()[1]

    def keep_nothing(self) -> None:
        """What comes back goes to the system, from now on: its device is closed."""
        self.most_lent = 0
        self.trim()

    # Blocks that others hand out, each in one context.

    @property
    def lends(self) -> bool:
        return type(self) is HeapAllocator

    @property
    def limited_charge(self) -> Charge | None:
        return None if self._limit is None else self.charge

    def charge(self, size: int) -> Finalizer | None:
        """Counts host memory a program has elsewhere, until the ending dies. None where nothing limits it,
        RESOURCE_EXHAUSTED where the limit does."""
        if self._limit is None:
            return None
        self._make_room(self._limit, size)
        with self._lock:
            self._require_room(self._limit, size)
            self._charged += size
            self._tell_room(self._limit)
        return Finalizer(partial(self._uncharged.append, size))

    def extend(self, lessee: Lessee, size: int) -> None:
        """See :class:`~jitree.regs.memory.Lender`."""
        assert self._limit is not None
        self._make_room(self._limit, size)
        with self._lock:
            self._lessees.add(lessee)
            self._require_room(self._limit, size)
            lessee.held += size
            self._held += size
            self._tell_room(self._limit)

    def convert(self, lessee: Lessee, size: int, kept: Sequence[int]) -> list[object]:
        """See :class:`~jitree.regs.memory.Lender`."""
        with self._lock:
            self._charged += sum(kept)
            self._held -= size
            lessee.held -= size
        return [Finalizer(partial(self._uncharged.append, length)) for length in kept]

    def _make_room(self, limit: int, size: int) -> None:
        """Has freed what can be, if ``size`` bytes more are above the limit. Not with the lock: whatever dies
        may ask for memory."""
        with self._lock:
            self._collect()
            is_full = self._used() + size > limit
        if is_full:
            self.reclaim()

    def _require_room(self, limit: int, size: int) -> None:
        """RESOURCE_EXHAUSTED where live memory and ``size`` more bytes are above the limit."""
        self._collect()
        if self._held and self._used() + size > limit:
            for lessee in self._lessees:
                lessee.withdraw()
            self._held = sum(lessee.held for lessee in self._lessees)
        used = self._used()
        if used + size > limit:
            raise ResourceExhaustedError(
                f"cannot allocate {size} bytes: {used} of {limit} bytes are in use (the limit on memory)"
            )

    def _used(self) -> int:
        borrowed = sum(borrower.live for borrower in self.borrowers)
        return self._accounting.live + self._charged + self._held + borrowed

    def _tell_room(self, limit: int) -> None:
        for borrower in self.borrowers:
            borrower.limit(limit - self._accounting.live - self._charged - self._held)

    def lend(self, capacity: int, count: int, memory_type: int = 0) -> list[HeapBlock]:
        if type(capacity) is not int or type(count) is not int or min(capacity, count) < 0:
            capacity, count = natural("capacity", capacity), natural("count", count)
        if capacity != size_class(capacity):
            raise InvalidArgumentError(f"capacity: expected one of a size class but got {capacity}")
        if count > _MOST_LENT:
            raise InvalidArgumentError(f"count: expected at most {_MOST_LENT} blocks but got {count}")
        with self._lock:
            if self._returned:
                self._collect()
            blocks: list[HeapBlock] = []
            while len(blocks) < count and (block := self._take_free(capacity)) is not None:
                blocks.append(block)
            blocks += self._reserve_some(capacity, count - len(blocks))
            self._lent.update((address, memory) for address, _, memory in blocks)
        return blocks

    def _reserve_some(self, capacity: int, count: int) -> list[HeapBlock]:
        """Blocks side by side: memory that goes back to the system with the last of them. So each is one by
        itself where a limit counts those that are in use."""
        if not count or self._limit is not None:
            return [self._reserve(capacity, capacity) for _ in range(count)]
        address, size, memory = self._reserve(capacity * count, capacity * count)
        starts = range(0, size, capacity)
        return [(address + start, capacity, memory[start : start + capacity]) for start in starts]

    def take_back(self, address: int) -> None:
        with self._lock:
            memory = self._lent.pop(integer("address", address), None)
            if memory is None:
                raise InvalidArgumentError(f"address: no block that is lent begins at {address:#x}")
            self._collect()
            self._put((address, memory.size, memory))

    def allocation_over(self, block: Block, length: int, memory_type: int, usage: int) -> Allocation:
        address, _, memory = block
        return Allocation(address, length, memory_type, usage, _ALL, address, memory, device=self.device)

    @property
    def allocated(self) -> int:
        lent = (self._settled, *[borrower.counts for borrower in self.borrowers])
        return self._accounting.taken + sum([counts[0] + counts[3] for counts in lent])

    @property
    def kept_bytes(self) -> int:
        """Bytes of free blocks in the pool."""
        with self._lock:
            self._collect()
            return self._kept

    def _take(self, memory_type: int, size: int) -> HeapBlock:
        """A block for ``size`` bytes, accounted for."""
        capacity = size_class(size)
        if self._limit is not None:
            self._make_room(self._limit, size)
        with self._lock:
            if self._returned:
                self._collect()
            if self._limit is not None:
                self._require_room(self._limit, size)
            block = self._take_free(capacity)
            if block is None:
                block = self._reserve(capacity, size)
            elif self.is_zeroed:
                self._clear_block(block)
            self._accounting.allocated(memory_type, size)
            if self._limit is not None:
                self._tell_room(self._limit)
        return block

    def _take_free(self, capacity: int) -> HeapBlock | None:
        blocks = self._free.get(capacity)
        if not blocks:
            return None
        self._kept -= capacity
        return blocks.pop()

    def _clear_block(self, block: HeapBlock) -> None:
        try:
            _clear(block[2])
        except BaseException:  # the thread is to end what it does
            self._put(block)
            raise

    def _reserve(self, capacity: int, size: int) -> HeapBlock:
        """A new block; ``size`` bytes of it are asked for."""
        try:
            memory = (np.zeros if self.is_zeroed else np.empty)(capacity + ALIGNMENT, np.uint8)
        except (MemoryError, ValueError, OverflowError) as error:
            pass_interruption(error)
            from jitree.base import spare_memory  # few programs come here

            if isinstance(error, MemoryError) and spare_memory.give_up_for(capacity):
                return self._reserve(capacity, size)
            raise ResourceExhaustedError(f"cannot allocate {size} bytes of host memory") from error
        self.reserved += capacity
        address: int = memory.ctypes.data
        skipped = -address % ALIGNMENT
        return address + skipped, capacity, memory[skipped : skipped + capacity]

    def _allocate_aligned(self, memory_type: int, usage: int, size: int, alignment: int) -> Buffer:
        whole = self.allocate(memory_type, usage, size + alignment)
        return whole.subspan(-whole.address % alignment, size)

    def _collect(self) -> None:
        """Moves returned blocks to the free lists; the caller holds the lock."""
        while self._returned and (block := self._accounting.take_back(self._returned)):
            self._put(block)
        while self._uncharged:
            self._charged -= self._uncharged[0]
            self._uncharged.popleft()

    def _put(self, block: HeapBlock) -> None:
        capacity = block[1]
        if self._kept + capacity <= self.most_lent:
            blocks = self._free.setdefault(capacity, [])
            self._kept += capacity
            blocks.append(block)


def _clear(memory: np.ndarray[Any, Any]) -> None:
    """Zeroes memory; if that is much, the thread looks meanwhile whether what it does is to end."""
    if memory.nbytes < _LARGE:
        memory.fill(0)
        return
    from jitree.base.copying import parts_of  # few programs have so much

    for part in parts_of(memory):
        memory[part] = 0


GUARD: Final = 64 << 20
"""Bytes without access after each buffer."""


class GuardedAllocator(HeapAllocator):
    """Gives each buffer separate pages, which inaccessible ones follow: an overrun crashes at once.

    For the process of a sandbox, whose end is a status. In front of a buffer, and between its end and the
    next multiple of 64 bytes, nothing is noticed, nor what lies further after it than the span. It lends
    nothing, and uses nothing in place.
    """

    def _reserve(self, capacity: int, size: int) -> HeapBlock:
        self.reserved += capacity
        taken = -(-size // ALIGNMENT) * ALIGNMENT
        _, room = whole_pages(0, max(taken, 1))
        mapping = Mapping(room + GUARD)
        mapping.protect(0, room, READ | WRITE)
        shown = {"version": 3, "typestr": "|u1", "shape": (room,), "data": (mapping.address, False)}
        pages = SimpleNamespace(__array_interface__=shown, mapping=mapping)  # the array owns it
        return mapping.address + room - taken, taken, np.asarray(pages)

    def _put(self, block: HeapBlock) -> None:
        """The pages go with the last reference."""

    def import_host(self, view: memoryview, memory_type: int, usage: int) -> Buffer | None:
        """None: what others own has no guard."""
        return None
