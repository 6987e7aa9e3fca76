"""Looks accesses up in the map of memory, and allocates memory.

Each block that Python's or numpy's allocator gives lies between bytes that nothing may touch. A block that
is freed stays for a while, so that who still uses it is found. Only the builder and tests import this.
"""

from __future__ import annotations

from jitree.codegen import functions
from jitree.codegen.checked.layout import (
    AFTER,
    BEFORE,
    BETWEEN,
    CALLS,
    DESCRIPTOR,
    FREED,
    POOLED,
    SHADOW,
    UNKNOWN,
    WHOLE,
)
from jitree.codegen.image.generated import Generated, one_unit
from jitree.codegen.primitives import (
    apart,
    call,
    call_int,
    load8,
    load64,
    stack_address,
    store8,
    store64,
)
from jitree.codegen.record import Atomic, atomic_add, atomic_load, atomic_replace

# Words of the page at CALLS, which :mod:`.memory` fills.
DPRINTF = CALLS + 8
ABORT = CALLS + 16
GOES_ON = CALLS + 24
MALLOC = CALLS + 32
CALLOC = CALLS + 40
FREE = CALLS + 48
MEMSET = CALLS + 56
MEMMOVE = CALLS + 64
MEMCMP = CALLS + 72
MESSAGE = CALLS + 80
NAMES = CALLS + 88
"""The address of texts that stand for a place in code: of memmove, memcmp, memset, free; 16 bytes each."""
STACKS = CALLS + 96
"""How far above where a stack is its thread may access it."""
REPORTED = CALLS + 0x200
"""Places that have been reported, where the process goes on."""
MOST_REPORTED = 512
SMALL_NEXT = CALLS + 0x100
LARGE_NEXT = CALLS + 0x180
SMALL_RING = CALLS + 0x2000
LARGE_RING = CALLS + 0x14000
SMALL_COUNT = 8192
LARGE_COUNT = 16
MOST_SMALL = 1 << 14
MOST_LARGE = 1 << 22

MARGIN = 32
"""Bytes before a block; as many lie after it."""
MARK = 0x6A69747265655F21
# A block begins with MARK and its size.
ORIGINAL_REALLOC, ORIGINAL_FREE = 24, 32
"""Offsets in Python's and numpy's tables of an allocator."""
ORIGINAL_ARENA, ORIGINAL_ARENA_ENDS = 8, 16
"""Offsets in Python's table of what allocates arenas."""


def checked_access(address: int, size: int, site: int) -> None:
    """Looks at all of an access."""
    if size <= 0:
        return
    if address >> 47 != 0:
        report(address, size, site, UNKNOWN)
        return
    end = address + size
    granule = address >> 3
    while granule << 3 < end:
        known = load8(SHADOW + granule)
        needed = end - (granule << 3)
        if needed > WHOLE:
            needed = WHOLE
        if (known < needed or known > WHOLE) and (known != UNKNOWN or not is_on_stack(address)):
            report(granule << 3, size, site, known)
            return
        granule += 1


def checked_masked(address: int, bits: int, width: int, site: int) -> None:
    """Looks at elements of a vector, those whose bit is set."""
    place = address
    left = bits
    for _ in range(64):
        if left & 1 != 0:
            checked_access(place, width, site)
        left = left >> 1
        place += width


def is_on_stack(address: int) -> bool:
    distance = address - stack_address()
    return distance >= 0 and distance < load64(STACKS)


@apart
def report(address: int, size: int, site: int, known: int) -> None:
    """Says what was accessed and ends the process, unless it is to go on: then each place is told once."""
    if load64(GOES_ON) != 0:
        index = 0
        while index < MOST_REPORTED:
            found = load64(REPORTED + 8 * index)
            if found == site:
                return
            if found == 0:
                store64(REPORTED + 8 * index, site)
                index = MOST_REPORTED
            index += 1
    base = SHADOW + (address >> 3)
    before = 0
    after = 0
    if address >> 47 == 0:
        before = load64(base - 8)
        after = load64(base)
    call_int(load64(DPRINTF), load64(DESCRIPTOR), load64(MESSAGE), site, size, address, known, before, after)
    if load64(GOES_ON) == 0:
        call_int(load64(ABORT))


def fill(first: int, last: int, value: int) -> None:
    """Writes the map from an address up to another."""
    low = SHADOW + (first >> 3)
    call(load64(MEMSET), low, value, SHADOW + (last >> 3) - low)


def checked_open(address: int, size: int) -> None:
    """Lets memory be accessed; it begins at a multiple of 8."""
    fill(address, address + size, WHOLE)
    if size & 7:
        store8(SHADOW + (address + size >> 3), size & 7)


def checked_close(address: int, size: int, kind: int) -> None:
    """Lets nothing access memory."""
    fill(address, address + size + 7, kind)


def laid(raw: int, size: int) -> int:
    """Makes a block of what the C library gave."""
    if raw == 0:
        return 0
    store64(raw, MARK)
    store64(raw + 8, size)
    start = raw + MARGIN
    fill(raw, start, BEFORE)
    checked_open(start, size)
    fill(start + size + 7, start + (size + 7 & -8) + MARGIN, AFTER)
    return start


def checked_malloc(context: int, size: int) -> int:
    return laid(call(load64(MALLOC), size + 2 * MARGIN + 8), size)


def checked_calloc(context: int, count: int, size: int) -> int:
    return laid(call(load64(CALLOC), 1, count * size + 2 * MARGIN + 8), count * size)


def is_block(address: int) -> bool:
    """Whether memory was allocated here."""
    return load8(SHADOW + (address - 8 >> 3)) == BEFORE and load64(address - MARGIN) == MARK


def checked_realloc(context: int, address: int, size: int) -> int:
    if address == 0:
        return checked_malloc(context, size)
    if not is_block(address):
        found = call(load64(context + ORIGINAL_REALLOC), load64(context), address, size)
        if found != 0:
            checked_open(found, size)
        return found
    made = checked_malloc(context, size)
    if made != 0:
        old = load64(address - MARGIN + 8)
        call(load64(MEMMOVE), made, address, old if old < size else size)
        checked_free(context, address, 0)
    return made


def checked_free(context: int, address: int, size: int) -> None:
    """Frees a block later, others as their allocator does."""
    if address == 0:
        return
    if not is_block(address):
        call(load64(context + ORIGINAL_FREE), load64(context), address, size)
        return
    known = load8(SHADOW + (address >> 3))
    if known == FREED:
        report(address, 1, load64(NAMES) + 48, known)
        return
    length = load64(address - MARGIN + 8)
    raw = address - MARGIN
    if length > MOST_LARGE:
        give_back(raw)
        return
    checked_close(address, length if length > 0 else 1, FREED)
    if length <= MOST_SMALL:
        # order of ring: whoever takes a block out has what was stored in it
        give_back(exchanged(SMALL_RING + 8 * (atomic_add(Atomic(SMALL_NEXT), 1) & (SMALL_COUNT - 1)), raw))
    else:
        give_back(exchanged(LARGE_RING + 8 * (atomic_add(Atomic(LARGE_NEXT), 1) & (LARGE_COUNT - 1)), raw))


def checked_arena(context: int, size: int) -> int:
    """Has Python's arenas accessed, each as a whole: its frames lie there."""
    found = call(load64(context + ORIGINAL_ARENA), load64(context), size)
    if found != 0:
        checked_open(found, size)
    return found


def checked_arena_ends(context: int, address: int, size: int) -> None:
    checked_close(address, size, UNKNOWN)
    call(load64(context + ORIGINAL_ARENA_ENDS), load64(context), address, size)


def exchanged(place: int, value: int) -> int:
    while True:
        # order of ring: whoever takes a block out has what was stored in it
        old = atomic_load(Atomic(place))
        if atomic_replace(Atomic(place), old, value):
            return old


def give_back(raw: int) -> None:
    """Frees a block now."""
    if raw == 0:
        return
    size = load64(raw + 8)
    store64(raw, 0)
    fill(raw, raw + (size + 7 & -8) + 2 * MARGIN, UNKNOWN)
    call(load64(FREE), raw)


def checked_memmove(target: int, source: int, size: int) -> int:
    checked_access(target, size, load64(NAMES))
    checked_access(source, size, load64(NAMES))
    return call(load64(MEMMOVE), target, source, size)


def checked_memcmp(left: int, right: int, size: int) -> int:
    checked_access(left, size, load64(NAMES) + 16)
    checked_access(right, size, load64(NAMES) + 16)
    return call_int(load64(MEMCMP), left, right, size)


def checked_memset(target: int, value: int, size: int) -> int:
    checked_access(target, size, load64(NAMES) + 32)
    return call(load64(MEMSET), target, value, size)


def checked_outside(address: int, size: int, site: int) -> None:
    """Reports what is not even to be looked up: a register that no frame has."""
    report(address, size, site, BETWEEN)


def checked_keep_out(address: int, size: int) -> None:
    """Lets nothing access a block of a pool."""
    checked_close(address, size, POOLED)


ENTRIES = (
    checked_access, checked_masked, checked_outside, checked_open, checked_close, checked_keep_out,
    checked_malloc, checked_calloc, checked_realloc, checked_free, checked_arena, checked_arena_ends,
    checked_memmove, checked_memcmp, checked_memset,
)  # fmt: skip


def generate() -> Generated:
    return one_unit(functions.texts(ENTRIES), [function.__name__ for function in ENTRIES])
