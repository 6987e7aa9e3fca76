"""Where compiled kernels keep copies of a program's constants (`dispatch/native/packed_text.py`)."""

from __future__ import annotations

import mmap
from array import array
from typing import Final

import numpy as np

from jitree.base.memory import READ, WRITE, Mapping
from jitree.errors import ResourceExhaustedError
from jitree.regs.layout import PACKED_LINE

MOST_COPIED: Final = 32 << 20
"""Bytes. What is more does not stay in a cache from one call to the next, and waits for memory either way."""


class PackedConstants:
    """Room for copies of the constants of one file. Pages that are never written take no memory."""

    def __init__(self, constants: memoryview) -> None:
        """RESOURCE_EXHAUSTED if the address space has no room."""
        self._constants = constants  # keeps the file open
        elements = np.frombuffer(constants, np.uint8)
        begin: int = elements.__array_interface__["data"][0]
        start = -(-begin // PACKED_LINE) * PACKED_LINE
        size = max(begin + len(elements) - start, 0)
        lines = 4 * (size // PACKED_LINE + 1)
        self._copies = Mapping(size + lines)
        self._copies.protect(0, self._copies.size, READ | WRITE)
        copies = self._copies.address
        marks = copies + -(-size // PACKED_LINE) * PACKED_LINE
        self._record = array("q", (start, size, copies - start, marks, MOST_COPIED))

    @property
    def address(self) -> int:
        """Of the PACKED record."""
        return self._record.buffer_info()[0]

    @property
    def copied(self) -> int:
        """Bytes of constants that have copies."""
        return MOST_COPIED - self._record[-1]


def packed_constants(data: memoryview) -> PackedConstants | None:
    """For the file in which an executable lies; None where its bytes may change, or there is no room."""
    owner: object = data
    while isinstance(owner, (memoryview, np.ndarray)):
        owner = owner.obj if isinstance(owner, memoryview) else owner.base
    if not isinstance(owner, (bytes, mmap.mmap)):
        return None
    whole = memoryview(owner)
    if not whole.readonly:
        return None
    try:
        return PackedConstants(whole)
    except ResourceExhaustedError:  # kernels run without copies
        return None
