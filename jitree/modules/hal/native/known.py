"""Remember the first bytes of arguments that the host has just uploaded.

A program that wants to see such bytes, as a decoder its position, copies them to memory that the host sees,
and waits. As nothing but uploads has been submitted since, the host can write them there itself.
"""

from __future__ import annotations

from jitree.codegen.primitives import call, lesser
from jitree.codegen.record import atomic_replace, atomic_store, layout_of, place_of, size_of
from jitree.hal.enums import MemoryType
from jitree.hal.local.queue_record import Queue
from jitree.hal.stream_record import (
    MOST_KNOWN,
    MOST_KNOWN_BYTES,
    OWNED_BY_CODE,
    SUBMITTING,
    KnownRecord,
    StreamRecord,
)
from jitree.modules.hal.native.layout import HandlePoolRecord
from jitree.regs.layout import LINK_POOLED, OWNER_CODE, Entry

_KNOWN_SIZE = size_of(KnownRecord)
_BYTES = layout_of(KnownRecord)["bytes"]
_HOST_VISIBLE = int(MemoryType.HOST_VISIBLE)


def forget(stream: StreamRecord) -> None:
    """The last submission may have written anywhere. Machine code is just submitting."""
    stream.known_count = 0
    stream.worked = stream.tick


def remember(
    handle_pool: HandlePoolRecord, stream: StreamRecord, address: int, data: int, length: int
) -> None:
    """The last submission has written bytes to memory of the device alone, which nothing had before. Machine
    code is just submitting."""
    known = record_of(stream, stream.known_count)
    stream.known_count += 1
    known.address = address
    known.length = length
    memmove = handle_pool.functions.memmove
    call(memmove, place_of(known) + _BYTES, data, lesser(length, MOST_KNOWN_BYTES))


def record_of(stream: StreamRecord, number: int) -> KnownRecord:
    return KnownRecord(stream.known + _KNOWN_SIZE * (number & (MOST_KNOWN - 1)))


def known_bytes(stream: StreamRecord, address: int, length: int) -> int:
    """Where the host has the bytes of a range of the device; 0 = it does not know them."""
    count = stream.known_count
    for index in range(lesser(count, MOST_KNOWN)):
        known = record_of(stream, count - 1 - index)
        if address < known.address + known.length and known.address < address + length:
            offset = address - known.address
            is_whole = offset >= 0 and offset + length <= lesser(known.length, MOST_KNOWN_BYTES)
            return place_of(known) + _BYTES + offset if is_whole else 0
    return 0


def is_copied(
    handle_pool: HandlePoolRecord,
    queue: Queue,
    source: Entry,
    first: int,
    target: Entry,
    second: int,
    length: int,
) -> bool:
    """Whether the host has made a copy itself, to memory that it sees and that nothing else uses: all that
    could is done, and uploads write to the device's own."""
    stream = queue.stream
    if not stream or stream.known_count == 0 or stream.exposed or length > MOST_KNOWN_BYTES:
        return False
    if not is_own(source) or not is_own(target):
        return False
    if source.access & _HOST_VISIBLE != 0 or target.access & _HOST_VISIBLE == 0:
        return False
    if not atomic_replace(stream.owner, OWNED_BY_CODE, SUBMITTING):
        return False
    found = 0
    if stream.completed >= stream.worked:
        found = known_bytes(stream, first, length)
    if found != 0:
        memmove = handle_pool.functions.memmove
        call(memmove, second, found, length)
    atomic_store(stream.owner, OWNED_BY_CODE)
    return found != 0


def is_own(buffer: Entry) -> bool:
    """Whether a buffer or view lies in memory of the pools, of which Python has no object."""
    return buffer.owner == OWNER_CODE and buffer.link == Entry(LINK_POOLED)
