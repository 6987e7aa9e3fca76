"""Fills memory for command lists. Machine code.

Zeros around an image are filled in for every call, in memory that all threads have read for the call before.
To get such a line for itself takes a processor seven times as long as to write one that it has, and three
times as long as to write it past the caches (256 KB: 16 us, 2.2 and 6 on two processors of Zen 4). Where the
lines are, nobody says: a fill tries a part of each kind and looks at the clock.
"""

from __future__ import annotations

from jitree.codegen.primitives import apart, call, lesser, settle_stores, store8, store64, store_past, ticks
from jitree.hal.command_layout import Job

FILL_BLOCK = 1024
"""Bytes of a fill that are written word by word; the rest is copies of them. A multiple of 8."""
TRIED = 8192
"""Bytes of each kind that are written to see which is faster. Multiples of 64."""
SLOW_SHIFT = 3
"""Fewer than 8 bytes a tick are slow: what is in a processor's own caches takes a fifth of that time."""


def fill(job: Job, pattern: int, target: int, count: int) -> None:
    """Fills with four bytes."""
    byte = pattern & 0xFF
    if pattern != byte * 0x01010101:
        fill_words(job, pattern, target, count)
    elif count < 4 * TRIED:
        call(job.functions.memset, target, byte, count)
    else:
        fill_bytes(job, byte, target, count)


@apart
def fill_bytes(job: Job, byte: int, target: int, count: int) -> None:
    """Fills four times what is tried, or more, with a byte."""
    done = TRIED - (target & 63)
    begun = ticks()
    call(job.functions.memset, target, byte, done)
    usual = ticks() - begun
    if usual > TRIED >> SLOW_SHIFT:
        begun = ticks()
        fill_past(target + done, byte, TRIED)
        done += TRIED
        if 3 * (ticks() - begun) < 2 * usual:
            lines = (count - done) & -64
            fill_past(target + done, byte, lines)
            done += lines
    call(job.functions.memset, target + done, byte, count - done)


def fill_past(place: int, byte: int, size: int) -> None:
    """Fills whole lines past the caches. Other threads may be told of them afterwards."""
    word = byte * 0x0101010101010101
    end = place + size
    while place != end:
        store_past(place, word)
        place += 64
    settle_stores()


@apart
def fill_words(job: Job, pattern: int, target: int, count: int) -> None:
    """Fills with four bytes that differ."""
    word = pattern * 0x100000001
    place = target
    end = target + lesser(count & -8, FILL_BLOCK)
    while place < end:
        store64(place, word)
        place += 8
    if count > FILL_BLOCK:
        repeat(job, target, count)
        return
    while place < target + count:
        store8(place, word)
        word >>= 8
        place += 1


@apart
def repeat(job: Job, target: int, count: int) -> None:
    """Copies the first FILL_BLOCK bytes to the others."""
    done = FILL_BLOCK
    while done < count:
        call(job.functions.memmove, target + done, target, lesser(count - done, FILL_BLOCK))
        done += FILL_BLOCK
