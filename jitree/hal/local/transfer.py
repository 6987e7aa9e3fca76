"""Fills and copies of host memory for single queue operations; the GIL is released for all but small ones."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from jitree.hal.buffer import Buffer

_PATTERN_TYPES: Final[dict[int, np.dtype[Any]]] = {1: np.dtype("u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4")}

NANOSECONDS_PER_KIBIBYTE: Final = 100
"""Of memory that has to be read or written: about 10 GB/s, what one processor does outside of its caches."""


def transfer_cost(length: int) -> int:
    """Nanoseconds that moving ``length`` bytes may take."""
    return length * NANOSECONDS_PER_KIBIBYTE >> 10


def fill(target: Buffer, offset: int, length: int, pattern: int, pattern_length: int) -> None:
    """Repeats the low bytes of ``pattern``; the arguments have been checked."""
    word = pattern & (1 << 8 * pattern_length) - 1
    target.host_array()[offset : offset + length].view(_PATTERN_TYPES[pattern_length]).fill(word)


def copy(source: Buffer, source_offset: int, target: Buffer, target_offset: int, length: int) -> None:
    """Copies between ranges that do not overlap."""
    target.host_array()[target_offset : target_offset + length] = source.host_array()[
        source_offset : source_offset + length
    ]


def write(target: Buffer, offset: int, contents: bytes) -> None:
    target.host_array()[offset : offset + len(contents)] = np.frombuffer(contents, np.uint8)
