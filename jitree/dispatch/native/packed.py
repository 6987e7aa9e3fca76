"""Lays constants of a reduction out as lanes need them. Machine code.

Sixteen rows of a matrix are a block, in which the elements of a column lie side by side.

To transpose squares of rows in registers takes longer than to multiply by them, where each is met by one
row of the other matrix. What is a constant of the program is the same in each call; so a block that is met
a second time is copied, and from then on read from its copy. The copy of a block is as large as the block,
and as far from it as the copies of all others (PACKED). Where blocks of different shapes overlap, the first
one is copied.

A mark for each line of constants says what is known of it: nothing, that a block has been met that begins
there, that it belongs to a block, that no block that begins there is to be copied, or the depth of the block
that begins there and has a copy.
"""

from __future__ import annotations

from jitree.codegen.primitives import Words, below, unlikely
from jitree.codegen.record import Atomic, atomic_add, atomic_load, atomic_replace, atomic_store
from jitree.regs.layout import PACKED_LINE, PACKED_ROWS, MachineState, Packed

_NEW, _MET, _TAKEN, _REFUSED, _DEPTHS = range(5)
"""Marks; from the last one on it is the depth of a block with a copy, so much more."""
_LINE_BITS = PACKED_LINE.bit_length() - 1
_COLUMN = 4 * PACKED_ROWS
"""Bytes of a column of a block, which are a line's."""


def mark_of(record: Packed, line: int) -> Atomic:
    return Atomic(record.marks + 8 * line)


def packed(state: MachineState, first: int, depth: int, blocks: int) -> int:
    """How far the copies of blocks are from them, if all have one or get it now; else 0. ``first`` is the
    address of the first one, which the others follow."""
    scratch = state.scratch
    if not scratch:
        return 0
    record = scratch.packed
    while record:
        begin = first - record.start
        spare = record.size - _COLUMN * depth * blocks
        if spare >= 0 and not below(spare, begin) and begin & (PACKED_LINE - 1) == 0:
            return record.distance if are_packed(record, begin >> _LINE_BITS, depth, blocks) else 0
        record = record.next
    return 0


def are_packed(record: Packed, line: int, depth: int, blocks: int) -> bool:
    """Whether the blocks that begin at a line have copies; some may be made."""
    are = True
    for block in range(blocks):
        at = line + depth * block
        mark = atomic_load(mark_of(record, at))
        if unlikely(mark != _DEPTHS + depth) and not pack(record, at, depth, mark):
            are = False
    return are


def pack(record: Packed, line: int, depth: int, mark: int) -> bool:
    """Whether the block at a line, which had this mark and so no copy, has one now."""
    first = mark_of(record, line)
    if mark == _NEW:
        atomic_replace(first, _NEW, _MET)
    if mark != _MET:
        return False
    size = _COLUMN * depth
    if atomic_add(record.room, -size) < size:
        atomic_replace(first, _MET, _REFUSED)
    elif atomic_replace(first, _MET, _TAKEN):
        if is_claimed(record, line, depth):
            transpose(record, line, depth)
            atomic_store(first, _DEPTHS + depth)
            return True
        atomic_store(first, _REFUSED)
    atomic_add(record.room, size)
    return False


def is_claimed(record: Packed, line: int, depth: int) -> bool:
    """Whether the lines of a block after its first one were free, and are taken for it."""
    for taken in range(1, depth):
        if not atomic_replace(mark_of(record, line + taken), _NEW, _TAKEN):
            for given_back in range(1, taken):
                atomic_store(mark_of(record, line + given_back), _NEW)
            return False
    return True


def transpose(record: Packed, line: int, depth: int) -> None:
    address = record.start + (line << _LINE_BITS)
    source = Words(address)
    target = Words(address + record.distance)
    for column in range(depth):
        for row in range(PACKED_ROWS):
            target[column * PACKED_ROWS + row] = source[row * depth + column]


FUNCTIONS = (mark_of, packed, are_packed, pack, is_claimed, transpose)
"""The first but one is what nests call."""
