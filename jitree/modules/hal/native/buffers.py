"""Make, read, write and free buffers (``hal.buffer.*``, ``queue.alloca`` and ``dealloca``). Machine code."""

from __future__ import annotations

from jitree.codegen.checked.layout import ENTRY_SHUT, keep_out, let_access
from jitree.codegen.primitives import bit_length, call, load8, load64, store8, store64, unlikely
from jitree.codegen.record import place_of
from jitree.hal.buffer import length_inside
from jitree.hal.checks import buffer_refusal, scalar_refusal
from jitree.hal.command_layout import TOLD_ALLOCATED
from jitree.hal.enums import BufferUsage, MemoryAccess, MemoryType
from jitree.hal.heap import host_memory_type
from jitree.hal.local.queue_record import Queue
from jitree.modules.hal.native.entries import STATE_RELEASED, State, new_entry, release, sweep
from jitree.modules.hal.native.fences import (
    await_owed,
    can_signal,
    follows,
    is_done_within,
    promise,
    queue_barrier,
    tick_of,
)
from jitree.modules.hal.native.layout import (
    ACCOUNT_SIZE,
    ACCOUNTS,
    LARGEST_POOLED,
    POOL_COUNT,
    STORAGE_POOLS,
    HandlePoolRecord,
)
from jitree.modules.hal.native.registers import (
    REFUSED,
    finish,
    give,
    give32,
    give64,
    is_kind,
    number,
    queue_of,
    reference,
)
from jitree.regs.access import retain
from jitree.regs.layout import ENTRY, KIND_BUFFER, LINK_POOLED, OWNER_CODE, PLACE_SHIFT, Entry

_OPTIMAL = int(MemoryType.OPTIMAL)
_DEVICE_LOCAL = int(MemoryType.DEVICE_LOCAL)
_HOST_VISIBLE = int(MemoryType.HOST_VISIBLE)
_HOST_LOCAL = int(MemoryType.HOST_LOCAL)
_DEFAULT_USAGE = int(BufferUsage.DEFAULT)
_HOST_USAGE = int(BufferUsage.MAPPING | BufferUsage.TRANSFER)
_READ = int(MemoryAccess.READ)
_WRITE = int(MemoryAccess.WRITE)
_ALL = int(MemoryAccess.ALL)
_PINNED = int(
    MemoryType.HOST_VISIBLE | MemoryType.HOST_COHERENT | MemoryType.HOST_CACHED | MemoryType.DEVICE_VISIBLE
)
_MAPPING = int(BufferUsage.MAPPING)
_TRANSFER = int(BufferUsage.TRANSFER)
_TICK = ENTRY["parent"]
"""Where storage has its tick, see ``entries.STORAGE_TICK``."""
_LINK = ENTRY["link"]
_MOST_LOOKED_AT = 64
"""Idle pinned storage that may still be used; the last that came back is the first."""


def device_allocator(state: State, values: int, refs: int, words: int) -> int:
    handle_pool = state.handle_pool
    device = reference(refs, words, 0)
    if not is_kind(device, handle_pool.device):
        return REFUSED
    allocator = new_entry(state, handle_pool, handle_pool.allocator)
    if not allocator:
        return REFUSED
    allocator.parent = retain(device)
    return give(state, refs, words, allocator)


# -- memory --------------------------------------------------------------------------------------------


def class_of(size: int) -> int:
    """The pool that serves a size (``layout.class_index``)."""
    if size <= 1024:
        return 1 if size == 0 else (size + 63) >> 6
    bits = bit_length(size - 1)
    return 17 + (bits - 11) * 4 + (((size - 1) >> (bits - 3)) + 1) - 5


def take_storage(state: State, handle_pool: HandlePoolRecord, size: int, account: int, first: int) -> Entry:
    """Storage with one reference, 0 when there is no idle one of that size. ``account`` is 0 for the device's
    memory, 1 for the host's; ``first`` is the number of the pools' first, POOL_COUNT of pinned ones."""
    pool = place_of(handle_pool) + STORAGE_POOLS + 8 * (first + class_of(size))
    storage = Entry(load64(pool))
    if unlikely(not storage or live_bytes(handle_pool) + size > handle_pool.room):
        sweep(state)
        storage = Entry(load64(pool))
        if not storage or live_bytes(handle_pool) + size > handle_pool.room:
            return Entry(0)
    holder = pool
    if unlikely(first != 0):
        timeline = handle_pool.queue.timeline
        holder = rested(timeline.completed, pool)
        if holder == 0 and is_done_within(timeline, timeline.tick, 1):
            holder = rested(timeline.completed, pool)
        if holder == 0:
            return Entry(0)
        storage = Entry(load64(holder))
    store64(holder, place_of(storage.link))
    let_access(place_of(storage), ENTRY_SHUT)
    storage.count = 1
    storage.length = size
    storage.usage = account
    let_access(storage.address, size)
    storage.link = Entry(LINK_POOLED)
    counts = place_of(handle_pool) + ACCOUNTS + account * ACCOUNT_SIZE
    store64(counts, load64(counts) + size)
    live = load64(counts) - load64(counts + 8)
    if live > load64(counts + 16):
        store64(counts + 16, live)
    return storage


def live_bytes(handle_pool: HandlePoolRecord) -> int:
    """What fast paths have handed out, of the device's memory and the host's."""
    device = handle_pool.device_allocated - handle_pool.device_freed
    return device + handle_pool.host_allocated - handle_pool.host_freed


def rested(completed: int, holder: int) -> int:
    """Locates the pinned storage of a list that the host may have; 0 = of none."""
    for _ in range(_MOST_LOOKED_AT):
        storage = Entry(load64(holder))
        if not storage:
            return 0
        if load64(place_of(storage) + _TICK) <= completed:
            return holder
        holder = place_of(storage) + _LINK
    return 0


def is_pinned(queue: Queue, memory_type: int) -> bool:
    """Whether a request is for memory that host and device see. The device works by itself."""
    return bool(queue.timeline) and memory_type & _HOST_VISIBLE != 0 and memory_type & _OPTIMAL == 0


def granted_type(queue: Queue, memory_type: int) -> int:
    """What a request becomes: on the host, or on a device that works by itself."""
    if is_pinned(queue, memory_type):
        return memory_type | _PINNED
    if queue.timeline:
        return (memory_type & ~(_OPTIMAL | _HOST_VISIBLE)) | _DEVICE_LOCAL
    return host_memory_type(memory_type)


def granted_usage(queue: Queue, memory_type: int, usage: int) -> int:
    usage = usage if usage != 0 else _DEFAULT_USAGE
    if queue.timeline:
        return usage | _TRANSFER | (_MAPPING if is_pinned(queue, memory_type) else 0)
    return usage | _HOST_USAGE


def queue_alloca(state: State, values: int, refs: int, words: int) -> int:
    handle_pool = state.handle_pool
    queue = queue_of(handle_pool, reference(refs, words, 0))
    wait = reference(refs, words, 2)
    fence = reference(refs, words, 3)
    if unlikely(not queue or queue != handle_pool.queue or number(values, words, 4) != 0):
        return REFUSED
    if not follows(handle_pool, queue, wait) or not can_signal(handle_pool, fence):
        return REFUSED
    wanted = number(values, words, 5)
    size = number(values, words, 7)
    if not 0 <= size <= LARGEST_POOLED or wanted >> PLACE_SHIFT != 0:
        return REFUSED
    buffer = new_buffer(state, handle_pool, queue, wanted, number(values, words, 6), size)
    if not buffer:
        return REFUSED
    tell = queue.tell  # once: readers may end meanwhile
    if unlikely(tell != 0) and call(tell, TOLD_ALLOCATED, place_of(state), place_of(buffer), words):
        release(handle_pool, buffer, place_of(state) + STATE_RELEASED)
        return REFUSED
    promise(fence, tick_of(handle_pool, wait))
    return give(state, refs, words, buffer)


def new_buffer(
    state: State, handle_pool: HandlePoolRecord, queue: Queue, wanted: int, usage: int, size: int
) -> Entry:
    """A buffer of what the pools have for a request, 0 without that. ``wanted`` is a type of memory."""
    memory_type = granted_type(queue, wanted)
    account = 1 if memory_type & _HOST_LOCAL == _HOST_LOCAL else 0
    storage = take_storage(state, handle_pool, size, account, POOL_COUNT if is_pinned(queue, wanted) else 0)
    if not storage:
        return Entry(0)
    buffer = new_entry(state, handle_pool, handle_pool.buffer)
    if unlikely(not buffer):
        give_back(handle_pool, storage)
        return Entry(0)
    if unlikely(handle_pool.zeroed != 0):
        call(handle_pool.functions.memset, storage.address, 0, size)
    storage.element_type = memory_type
    storage.encoding = granted_usage(queue, wanted, usage)
    buffer.address = storage.address
    buffer.length = size
    buffer.access = memory_type | place_number(queue) << PLACE_SHIFT
    buffer.usage = storage.encoding
    buffer.encoding = _ALL
    buffer.parent = storage
    buffer.link = Entry(LINK_POOLED)
    return buffer


def place_number(queue: Queue) -> int:
    """The number of the place whose memory commands of a queue work on."""
    if queue.timeline:
        return queue.timeline.place
    return 0


def give_back(handle_pool: HandlePoolRecord, storage: Entry) -> None:
    """As if it had not been taken."""
    allocated = place_of(handle_pool) + ACCOUNTS + storage.usage * ACCOUNT_SIZE
    store64(allocated, load64(allocated) - storage.length)
    storage.count = 0
    keep_out(storage.address, storage.length)
    pool = place_of(handle_pool) + STORAGE_POOLS + 8 * storage.access
    storage.link = Entry(load64(pool))
    store64(pool, place_of(storage))


def queue_dealloca(state: State, values: int, refs: int, words: int) -> int:
    """The memory goes when nothing refers to it any more."""
    handle_pool = state.handle_pool
    if not is_kind(reference(refs, words, 4), handle_pool.buffer):
        return REFUSED
    return queue_barrier(state, values, refs, words, -1)


# -- ranges --------------------------------------------------------------------------------------------


def range_length(buffer: Entry, offset: int, length: int) -> int:
    """Resolves a range's length, -1 when outside the buffer. A length of -1 means the rest."""
    return length_inside(buffer.length, offset, length)


def keeper(buffer: Entry) -> Entry:
    """What keeps a buffer's memory: the handle that ranges of it have to keep."""
    return buffer.parent if buffer.owner == OWNER_CODE else buffer


def range_of(state: State, handle_pool: HandlePoolRecord, buffer: Entry, offset: int, length: int) -> Entry:
    """A reference to a range inside a buffer; the whole of it is the buffer itself. 0 without an entry. Where
    it begins in memory without an address is in the extension."""
    if offset == 0 and length == buffer.length:
        return retain(buffer)
    part = new_entry(state, handle_pool, handle_pool.buffer)
    if part:
        part.address = buffer.address + offset
        part.length = length
        part.access = buffer.access
        part.usage = buffer.usage
        part.encoding = buffer.encoding
        part.parent = retain(keeper(buffer))
        if buffer.owner == OWNER_CODE:
            part.link = buffer.link
        if unlikely(buffer.address == 0):
            part.address = 0
            before = load64(place_of(buffer) + handle_pool.extension) if buffer.owner == OWNER_CODE else 0
            store64(place_of(part) + handle_pool.extension, before + offset)
    return part


def has_address(handle_pool: HandlePoolRecord, buffer: Entry) -> bool:
    """Whether it is a buffer of which machine code knows where it is."""
    return is_kind(buffer, handle_pool.buffer) and buffer.address != 0


def is_reachable(handle_pool: HandlePoolRecord, place: int, buffer: Entry) -> bool:
    """Whether a buffer's address suits commands on a place's memory."""
    return has_address(handle_pool, buffer) and buffer.access >> PLACE_SHIFT == place


def buffer_subspan(state: State, values: int, refs: int, words: int) -> int:
    handle_pool = state.handle_pool
    source = reference(refs, words, 0)
    if not is_kind(source, handle_pool.buffer):
        return REFUSED
    offset = number(values, words, 1)
    length = range_length(source, offset, number(values, words, 2))
    if length < 0:
        return REFUSED
    part = range_of(state, handle_pool, source, offset, length)
    return give(state, refs, words, part) if part else REFUSED


def buffer_length(state: State, values: int, refs: int, words: int) -> int:
    buffer = reference(refs, words, 0)
    is_buffer = is_kind(buffer, state.handle_pool.buffer)
    return give64(state, values, refs, words, buffer.length) if is_buffer else REFUSED


def buffer_assert(state: State, values: int, refs: int, words: int) -> int:
    handle_pool = state.handle_pool
    buffer = reference(refs, words, 0)
    if not is_kind(buffer, handle_pool.buffer) or not is_kind(reference(refs, words, 1), KIND_BUFFER):
        return REFUSED
    if not is_kind(reference(refs, words, 2), handle_pool.allocator):
        return REFUSED
    least, memory_type, usage = number(values, words, 3), number(values, words, 4), number(values, words, 5)
    own_type = buffer.access & ((1 << PLACE_SHIFT) - 1)
    if buffer_refusal(buffer.length, least, own_type, memory_type, buffer.usage, usage):
        return REFUSED
    return finish(state, refs, words)


# -- scalars -------------------------------------------------------------------------------------------


def scalar(state: State, buffer: Entry, offset: int, length: int, access: int) -> int:
    """The address of up to 4 bytes that the host may access, else 0. Pinned memory is the device's, too,
    and Python has not to know that the program looks."""
    handle_pool = state.handle_pool
    if not has_address(handle_pool, buffer):
        return 0
    queue = handle_pool.queue
    place = buffer.access >> PLACE_SHIFT
    if place != 0 and (not queue or queue.open == 0 or place != place_number(queue)):
        return 0
    if scalar_refusal(buffer.length, offset, length, access, buffer.encoding):
        return 0
    if buffer.access & _HOST_VISIBLE == 0:
        return 0
    if place != 0 and unlikely(not await_owed(state, queue)):
        return 0
    return buffer.address + offset


def buffer_load(state: State, values: int, refs: int, words: int) -> int:
    length = number(values, words, 2)
    place = scalar(state, reference(refs, words, 0), number(values, words, 1), length, _READ)
    if place == 0:
        return REFUSED
    value = 0
    for index in range(length):
        value |= load8(place + index) << (8 * index)
    return give32(state, values, refs, words, value)


def buffer_store(state: State, values: int, refs: int, words: int) -> int:
    value = number(values, words, 0)
    length = number(values, words, 3)
    place = scalar(state, reference(refs, words, 1), number(values, words, 2), length, _WRITE)
    if place == 0:
        return REFUSED
    for index in range(length):
        store8(place + index, value >> (8 * index))
    return finish(state, refs, words)
