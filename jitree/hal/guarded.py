"""Allocates debug buffers that inaccessible pages follow: an overrun crashes at once.

For the process of a sandbox, whose end is a status. In front of a buffer, and between its end and the next
multiple of 64 bytes, nothing is noticed, nor what lies further after it than the span.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from jitree.base.memory import READ, WRITE, Mapping, page_up
from jitree.hal.buffer import Buffer
from jitree.hal.heap import ALIGNMENT, HeapAllocator, HeapBlock

GUARD: Final = 64 << 20
"""Bytes without access after each buffer."""


class _Pages:
    """What a numpy array takes as the owner of memory that is mapped."""

    def __init__(self, mapping: Mapping, size: int) -> None:
        self._mapping = mapping
        self.__array_interface__ = {
            "version": 3, "typestr": "|u1", "shape": (size,), "data": (mapping.address, False),
        }  # fmt: skip


class GuardedAllocator(HeapAllocator):
    """Gives each buffer separate pages; lends nothing, uses nothing in place."""

    def _reserve(self, capacity: int, size: int) -> HeapBlock:
        self.reserved += capacity
        taken = -(-size // ALIGNMENT) * ALIGNMENT
        room = page_up(max(taken, 1))
        mapping = Mapping(room + GUARD)
        mapping.protect(0, room, READ | WRITE)
        return mapping.address + room - taken, taken, np.asarray(_Pages(mapping, room))

    def _put(self, block: HeapBlock) -> None:
        """The pages go with the last reference."""

    def import_host(
        self, view: memoryview, memory_type: int, usage: int, release: Callable[[], object] | None = None
    ) -> Buffer | None:
        """None: what others own has no guard."""
        return None
