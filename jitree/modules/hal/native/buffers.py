"""``hal.buffer.*``, ``hal.device.queue.alloca`` and ``dealloca``, ``hal.device.allocator``."""

from __future__ import annotations

from jitree.codegen.primitives import bit_length, load, load8, load64, store, store8, store64
from jitree.hal.enums import BufferUsage, MemoryAccess, MemoryType
from jitree.modules.hal.native.entries import Entry, Natives, State, new_entry, retain, sweep
from jitree.modules.hal.native.fences import can_signal, is_reached, queue_barrier, signal
from jitree.modules.hal.native.layout import ACCOUNT_SIZE, ACCOUNTS, LARGEST_POOLED, STORAGE_POOLS
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
from jitree.regs.layout import KIND_BUFFER, LINK_POOLED, OWNER_CODE

_OPTIMAL = int(MemoryType.OPTIMAL)
_DEVICE_LOCAL = int(MemoryType.DEVICE_LOCAL)
_HOST_VISIBLE = int(MemoryType.HOST_VISIBLE)
_HOST_LOCAL = int(MemoryType.HOST_LOCAL)
_DEFAULT_USAGE = int(BufferUsage.DEFAULT)
_HOST_USAGE = int(BufferUsage.MAPPING | BufferUsage.TRANSFER)
_READ = int(MemoryAccess.READ)
_WRITE = int(MemoryAccess.WRITE)
_ALL = int(MemoryAccess.ALL)


def device_allocator(state: int, values: int, refs: int, words: int) -> int:
    natives = load(state, State.natives)
    if natives == 0:
        return REFUSED
    device = reference(refs, words, 0)
    if not is_kind(device, load(natives, Natives.device)):
        return REFUSED
    allocator = new_entry(state, natives, load(natives, Natives.allocator))
    if allocator == 0:
        return REFUSED
    store(allocator, Entry.parent, retain(device))
    return give(state, refs, words, allocator)


# -- memory --------------------------------------------------------------------------------------------


def class_of(size: int) -> int:
    """The pool that serves a size (``layout.class_index``)."""
    if size <= 1024:
        return 1 if size == 0 else (size + 63) >> 6
    bits = bit_length(size - 1)
    return 17 + (bits - 11) * 4 + (((size - 1) >> (bits - 3)) + 1) - 5


def take_storage(state: int, natives: int, size: int, account: int) -> int:
    """Storage with one reference, 0 when there is no idle one of that size. ``account`` is 0 for the device's
    memory, 1 for the host's."""
    index = class_of(size)
    pool = natives + STORAGE_POOLS + 8 * index
    storage = load64(pool)
    if storage == 0:
        sweep(state)
        storage = load64(pool)
        if storage == 0:
            return 0
    store64(pool, load(storage, Entry.link))
    store(storage, Entry.count, 1)
    store(storage, Entry.length, size)
    store(storage, Entry.usage, account)
    store(storage, Entry.link, LINK_POOLED)
    counts = natives + ACCOUNTS + account * ACCOUNT_SIZE
    store64(counts, load64(counts) + size)
    live = load64(counts) - load64(counts + 8)
    if live > load64(counts + 16):
        store64(counts + 16, live)
    return storage


def queue_alloca(state: int, values: int, refs: int, words: int) -> int:
    natives = load(state, State.natives)
    if natives == 0:
        return REFUSED
    queue = queue_of(natives, reference(refs, words, 0))
    fence = reference(refs, words, 3)
    if queue == 0 or queue != load(natives, Natives.queue) or number(values, words, 4) != 0:
        return REFUSED
    if not is_reached(natives, reference(refs, words, 2)) or not can_signal(natives, fence):
        return REFUSED
    memory_type = number(values, words, 5)
    if memory_type == 0 or memory_type & _OPTIMAL:
        memory_type = (memory_type & ~_OPTIMAL) | _DEVICE_LOCAL
    memory_type |= _HOST_VISIBLE
    size = number(values, words, 7)
    if not 0 <= size <= LARGEST_POOLED:
        return REFUSED
    storage = take_storage(state, natives, size, 1 if memory_type & _HOST_LOCAL == _HOST_LOCAL else 0)
    if storage == 0:
        return REFUSED
    buffer = new_entry(state, natives, load(natives, Natives.buffer))
    if buffer == 0:
        give_back(natives, storage)
        return REFUSED
    usage = number(values, words, 6)
    store(buffer, Entry.address, load(storage, Entry.address))
    store(buffer, Entry.length, size)
    store(buffer, Entry.access, memory_type)
    store(buffer, Entry.usage, (usage if usage != 0 else _DEFAULT_USAGE) | _HOST_USAGE)
    store(buffer, Entry.encoding, _ALL)
    store(buffer, Entry.parent, storage)
    store(buffer, Entry.link, LINK_POOLED)
    signal(fence)
    return give(state, refs, words, buffer)


def give_back(natives: int, storage: int) -> None:
    """As if it had not been taken."""
    allocated = natives + ACCOUNTS + load(storage, Entry.usage) * ACCOUNT_SIZE
    store64(allocated, load64(allocated) - load(storage, Entry.length))
    store(storage, Entry.count, 0)
    pool = natives + STORAGE_POOLS + 8 * load(storage, Entry.access)
    store(storage, Entry.link, load64(pool))
    store64(pool, storage)


def queue_dealloca(state: int, values: int, refs: int, words: int) -> int:
    """The memory goes when nothing refers to it any more."""
    natives = load(state, State.natives)
    if natives == 0 or not is_kind(reference(refs, words, 4), load(natives, Natives.buffer)):
        return REFUSED
    return queue_barrier(state, values, refs, words, -1)


# -- ranges --------------------------------------------------------------------------------------------


def range_length(buffer: int, offset: int, length: int) -> int:
    """The length of a range with -1 (the rest) resolved, -1 when it is not inside the buffer."""
    available = load(buffer, Entry.length) - offset
    if length == -1:
        length = available
    if offset < 0 or length < 0 or length > available:
        return -1
    return length


def keeper(buffer: int) -> int:
    """What keeps a buffer's memory: the handle that ranges of it have to keep."""
    return load(buffer, Entry.parent) if load(buffer, Entry.owner) == OWNER_CODE else buffer


def range_of(state: int, natives: int, buffer: int, offset: int, length: int) -> int:
    """A reference to a range inside a buffer; the whole of it is the buffer itself. 0 without an entry."""
    if offset == 0 and length == load(buffer, Entry.length):
        return retain(buffer)
    part = new_entry(state, natives, load(natives, Natives.buffer))
    if part != 0:
        store(part, Entry.address, load(buffer, Entry.address) + offset)
        store(part, Entry.length, length)
        store(part, Entry.access, load(buffer, Entry.access))
        store(part, Entry.usage, load(buffer, Entry.usage))
        store(part, Entry.encoding, load(buffer, Entry.encoding))
        store(part, Entry.parent, retain(keeper(buffer)))
        if load(buffer, Entry.owner) == OWNER_CODE:
            store(part, Entry.link, load(buffer, Entry.link))
    return part


def is_host_buffer(natives: int, buffer: int) -> bool:
    """Whether it is a buffer whose address machine code on the host may use."""
    return is_kind(buffer, load(natives, Natives.buffer)) and load(buffer, Entry.address) != 0


def buffer_subspan(state: int, values: int, refs: int, words: int) -> int:
    natives = load(state, State.natives)
    if natives == 0:
        return REFUSED
    source = reference(refs, words, 0)
    if not is_host_buffer(natives, source):
        return REFUSED
    offset = number(values, words, 1)
    length = range_length(source, offset, number(values, words, 2))
    if length < 0:
        return REFUSED
    part = range_of(state, natives, source, offset, length)
    if part == 0:
        return REFUSED
    return give(state, refs, words, part)


def buffer_length(state: int, values: int, refs: int, words: int) -> int:
    natives = load(state, State.natives)
    if natives == 0:
        return REFUSED
    buffer = reference(refs, words, 0)
    if not is_kind(buffer, load(natives, Natives.buffer)):
        return REFUSED
    return give64(state, values, refs, words, load(buffer, Entry.length))


def buffer_assert(state: int, values: int, refs: int, words: int) -> int:
    natives = load(state, State.natives)
    if natives == 0:
        return REFUSED
    buffer = reference(refs, words, 0)
    if not is_kind(buffer, load(natives, Natives.buffer)):
        return REFUSED
    if not is_kind(reference(refs, words, 1), KIND_BUFFER):
        return REFUSED
    if not is_kind(reference(refs, words, 2), load(natives, Natives.allocator)):
        return REFUSED
    if load(buffer, Entry.length) < number(values, words, 3):
        return REFUSED
    if number(values, words, 4) & ~load(buffer, Entry.access) or number(values, words, 5) & ~load(
        buffer, Entry.usage
    ):
        return REFUSED
    return finish(state, refs, words)


# -- scalars -------------------------------------------------------------------------------------------


def scalar(natives: int, buffer: int, offset: int, length: int, access: int) -> int:
    """The address of 1 to 4 bytes that the host may access, else 0."""
    if not is_host_buffer(natives, buffer) or not 1 <= length <= 4:
        return 0
    if offset < 0 or offset > load(buffer, Entry.length) - length:
        return 0
    if load(buffer, Entry.encoding) & access == 0 or load(buffer, Entry.access) & _HOST_VISIBLE == 0:
        return 0
    return load(buffer, Entry.address) + offset


def buffer_load(state: int, values: int, refs: int, words: int) -> int:
    natives = load(state, State.natives)
    if natives == 0:
        return REFUSED
    length = number(values, words, 2)
    place = scalar(natives, reference(refs, words, 0), number(values, words, 1), length, _READ)
    if place == 0:
        return REFUSED
    value = 0
    for index in range(length):
        value |= load8(place + index) << (8 * index)
    return give32(state, values, refs, words, value)


def buffer_store(state: int, values: int, refs: int, words: int) -> int:
    natives = load(state, State.natives)
    if natives == 0:
        return REFUSED
    value = number(values, words, 0)
    length = number(values, words, 3)
    place = scalar(natives, reference(refs, words, 1), number(values, words, 2), length, _WRITE)
    if place == 0:
        return REFUSED
    for index in range(length):
        store8(place + index, value >> (8 * index))
    return finish(state, refs, words)
