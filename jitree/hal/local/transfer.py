"""Transfers bytes in host memory, without the GIL for all but small ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import numpy as np

from jitree.base.copying import PART, ranges
from jitree.base.elements import Bytes
from jitree.hal.buffer import Buffer
from jitree.hal.local.interrupts import require_going_on
from jitree.hal.transfers import Copy, Fill, Read, Transfer, Update, Write

_PATTERN_TYPES: Final[dict[int, np.dtype[Any]]] = {1: np.dtype("u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4")}

_NANOSECONDS_PER_KIBIBYTE: Final = 100
"""What reading or writing memory takes: about 10 GB/s, what one processor does outside of its caches."""


def _fill(fill: Fill) -> None:
    target, offset, length, pattern, pattern_length = fill
    word = pattern & (1 << 8 * pattern_length) - 1
    bytes_filled = target.host_array()[offset : offset + length]
    for part in _parts(length):
        bytes_filled[part].view(_PATTERN_TYPES[pattern_length]).fill(word)


def _update(update: Update) -> None:
    target, offset, contents = update
    _move(target.host_array()[offset : offset + len(contents)], np.frombuffer(contents, np.uint8))


def _copy(copy: Copy) -> None:
    source, source_offset, target, target_offset, length = copy
    _move(
        target.host_array()[target_offset : target_offset + length],
        source.host_array()[source_offset : source_offset + length],
    )


def _move(target: Bytes, source: Bytes) -> None:
    for part in _parts(len(target)):
        target[part] = source[part]


def _read(read: Read) -> None:
    target = _view(read.target, read.offset, read.length)
    for part in _parts(read.length):
        read.file.read_into(read.file_offset + part.start, target[part])


def _write(write: Write) -> None:
    source = _view(write.source, write.offset, write.length)
    for part in _parts(write.length):
        write.file.write_from(source[part], write.file_offset + part.start)


def _parts(length: int) -> Iterator[slice]:
    """Parts of so many bytes; looks between them whether the operation is to end."""
    return ranges(length, PART, require_going_on)


def _view(buffer: Buffer, offset: int, length: int) -> memoryview:
    return buffer.host_view()[offset : offset + length]


_KINDS: Final[dict[type[Transfer], tuple[Callable[[Any], None], int]]] = {
    Fill: (_fill, 1), Update: (_update, 1), Copy: (_copy, 2), Read: (_read, 2), Write: (_write, 2)
}  # fmt: skip
"""What does it, and how many times as many bytes pass through memory as it is long."""


def work_of(transfer: Transfer) -> tuple[Callable[[], None], int]:
    """What does it, and how many nanoseconds that may take."""
    function, passes = _KINDS[type(transfer)]
    return partial(function, transfer), passes * transfer.length * _NANOSECONDS_PER_KIBIBYTE >> 10
