"""Blocks of device memory that small numpy arguments are copied into, again and again.

A block has a buffer view, and the view a handle in the context's table, so that passing it costs a copy and
a count. It is free when nothing but its pool refers to any of them: no register or global of a program, no
queue operation, no result that is the argument itself, no numpy array over its memory. Reference counts tell,
in the table as in Python; an interpreter that does not count exactly only makes more blocks.
"""

from __future__ import annotations

from sys import getrefcount
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from jitree.hal.buffer import BufferView
from jitree.regs.layout import ENTRY
from jitree.transfers import BUFFER_USAGE, DEVICE_LOCAL
from jitree.types import ENCODING_DENSE, ElementType

if TYPE_CHECKING:
    import numpy.typing as npt

    from jitree.hal.device import Device
    from jitree.regs.handles import HandleTable

MAXIMUM_BLOCKS: Final = 16
"""Blocks of one shape and type that a pool keeps while all of them are in use."""
MAXIMUM_POOLS: Final = 64
"""Pools of a session that keep blocks: programs whose arguments differ in shape from call to call must not
keep one for each."""
_MAXIMUM_SHAPES: Final = 1024
"""Pools that a session finds again."""
_COUNT: Final = ENTRY.word("count")
_OWN_REFERENCES: Final = 1


class Block:
    """A block, the array to copy into, and the handle of its buffer view."""

    __slots__ = ("_counts", "_objects", "_resting", "count", "elements", "handle")

    def __init__(self, view: BufferView, elements: npt.NDArray[Any], table: HandleTable) -> None:
        """The lock of the table's context must be held."""
        self.elements = elements
        self.handle = table.wrap(view)
        self._counts = table.i32
        self.count = ((self.handle - table.base) >> 2) + _COUNT
        """Where the handle's count is in the table's 32-bit words."""
        self._objects = (view, view.buffer, view.buffer.allocation, elements.base)
        """Whatever leads to the memory. The last one is the base of every array over it."""
        self._resting = 0

    def references(self) -> int:
        """References from Python to anything that leads to the memory."""
        view, buffer, allocation, base = self._objects
        return getrefcount(view) + getrefcount(buffer) + getrefcount(allocation) + getrefcount(base)

    def rest(self) -> None:
        """To be called once, when nobody uses the block."""
        self._resting = self.references()

    def is_free(self) -> bool:
        if self._counts[self.count] != _OWN_REFERENCES:
            return False
        view, buffer, allocation, base = self._objects
        references = getrefcount(view) + getrefcount(buffer) + getrefcount(allocation) + getrefcount(base)
        return references == self._resting


class ArgumentBlocks:
    """The blocks for arguments of one element type and shape; used with the context's lock held."""

    __slots__ = ("_blocks", "_device", "_filled", "_row", "_shape", "_table")

    def __init__(
        self,
        row: ElementType,
        shape: tuple[int, ...],
        device: Device,
        table: HandleTable,
        filled: dict[ArgumentBlocks, None],
    ) -> None:
        """``filled``: the pools that have blocks, the oldest first."""
        self._filled = filled
        self._row = row
        self._shape = shape
        self._device = device
        self._table = table
        self._blocks: list[Block] = []

    def take(self) -> Block:
        """A free block. It is in use as soon as its handle is counted once more."""
        for block in self._blocks:
            if block.is_free():
                return block
        block = self._make()
        block.rest()
        return block

    def _make(self) -> Block:
        if not self._blocks:
            if len(self._filled) >= MAXIMUM_POOLS:
                next(iter(self._filled)).drop()
            self._filled[self] = None
        elif len(self._blocks) >= MAXIMUM_BLOCKS:
            self._table.release(self._blocks.pop(0).handle)
        size = self._row.byte_length(int(np.prod(self._shape, dtype=np.int64)))
        buffer = self._device.device_allocator.allocate(DEVICE_LOCAL, BUFFER_USAGE, size)
        view = BufferView(buffer, self._shape, self._row.code, ENCODING_DENSE)
        elements = buffer.host_array().view(self._row.dtype).reshape(self._shape)
        view.elements = elements
        block = Block(view, elements, self._table)
        self._blocks.append(block)
        return block

    def drop(self) -> None:
        """Gives the blocks up; those in use live as long as they are used."""
        self._filled.pop(self, None)
        blocks, self._blocks = self._blocks, []
        for block in blocks:
            self._table.release(block.handle)


class ArgumentPools:
    """The pools of a session."""

    def __init__(self, device: Device, table: HandleTable) -> None:
        self._device = device
        self._table = table
        self._pools: dict[tuple[ElementType, tuple[int, ...]], ArgumentBlocks] = {}
        self._filled: dict[ArgumentBlocks, None] = {}

    def find(self, row: ElementType, shape: tuple[int, ...]) -> ArgumentBlocks:
        """The pool of an element type and a shape, with the lock held."""
        pool = self._pools.get((row, shape))
        if pool is None:
            if len(self._pools) >= _MAXIMUM_SHAPES:
                self._pools.clear()  # those with blocks are not lost
            pool = ArgumentBlocks(row, shape, self._device, self._table, self._filled)
            self._pools[row, shape] = pool
        return pool

    def drop(self) -> None:
        """Gives up the blocks of all pools; the lock must be held."""
        for pool in tuple(self._filled):
            pool.drop()
        self._pools.clear()
