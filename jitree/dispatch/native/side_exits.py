"""Moves frames at side exits of compiled functions. Machine code.

The memory for their buffers is here, too, and the copies of constants that nests read.

At a side exit a function writes its registers to its frame and calls :func:`side_exit`; native functions
further out then do the same with :func:`suspend`. Afterwards memory looks as if the interpreter had
run all the time.

Constants of a reduction are laid out as lanes need them: sixteen rows of a matrix are a block, in which the
elements of a column lie side by side. To transpose squares of rows in registers takes longer than to multiply
by them, where each is met by one row of the other matrix. What is a constant of the program is the same in
each call; so a block that is met a second time is copied, and from then on read from its copy. The copy of a
block is as large as the block, and as far from it as the copies of all others (PACKED). Where blocks of
different shapes overlap, the first one is copied.

A mark for each line of constants says what is known of it. Nothing is, or it belongs to a block. Or a block
begins there: it has been met once, is not to be copied, or has a copy, of which the mark is the depth.
"""

from __future__ import annotations

from jitree.codegen.primitives import Words, below, call, call_int, load64, store32, store64, unlikely
from jitree.codegen.record import (
    Atomic,
    atomic_add,
    atomic_load,
    atomic_replace,
    atomic_store,
    place_of,
    size_of,
)
from jitree.dispatch.native.source import OF_SPAN
from jitree.regs.layout import (
    LIBRARY_FUNCTIONS,
    PACKED_LINE,
    PACKED_ROWS,
    SCRATCH_ALIGNMENT,
    SLOW_REFUSED,
    SLOW_STOP,
    Entry,
    FrameRecord,
    FunctionEntry,
    ImportEntry,
    MachineState,
    Packed,
    Scratch,
)

MEMSET = 8 * LIBRARY_FUNCTIONS.index("memset")
FRAME_SIZE = size_of(FrameRecord)
FUNCTION_SIZE = size_of(FunctionEntry)


def clear(refs: int, bits: int) -> None:
    """Sets those ref registers to null whose bits are set."""
    slot = 0
    while slot < 64 and bits >> slot != 0:
        if bits >> slot & 1 == 1:
            store64(refs + 8 * slot, 0)
        slot += 1


def constants(values: int, rows: int, count: int) -> None:
    """Writes constants to a frame: rows of a slot and 32 bits below it."""
    for number in range(count):
        row = load64(rows + 8 * number)
        store32(values + 4 * (row >> 32), row)


def materialise(state: MachineState, frame: FrameRecord, values: int, refs: int, ordinal: int) -> int:
    """Fills the frame record of a function; the address of the words that its places are counted from: those
    of its module, or its own if it is the kernel whose workgroups run."""
    module = state.module
    code = module.code
    function = FunctionEntry(module.functions + FUNCTION_SIZE * ordinal)
    if ordinal == OF_SPAN:
        function = FunctionEntry(module.functions + FUNCTION_SIZE * state.scratch.kernel)
        code = function.code
    frame.function = function
    frame.values = values
    frame.refs = refs
    frame.values_end = values + 4 * function.value_count
    frame.refs_end = refs + 8 * function.ref_count
    return code


def side_exit(
    state: MachineState, frame: FrameRecord, values: int, refs: int, ordinal: int, pc: int, fuel: int
) -> None:
    """The interpreter is to go on at a word of this function; its registers are in memory already. ``fuel``
    is what it may spend; 0: the machine has to stop."""
    state.pc = materialise(state, frame, values, refs, ordinal) + 4 * pc
    state.values = values
    state.refs = refs
    state.frame = frame
    state.fuel = fuel


def suspend(
    state: MachineState, frame: FrameRecord, values: int, refs: int, ordinal: int, pc: int, results: int
) -> None:
    """As :func:`side_exit`, of the caller of a function that took one: it goes on at the word ``pc`` when
    that returns, and takes its results by the list at the word ``results``."""
    code = materialise(state, frame, values, refs, ordinal)
    frame.pc = code + 4 * pc
    callee = FrameRecord(place_of(frame) + FRAME_SIZE)
    callee.results = code + 4 * results


def pop(state: MachineState, frame: FrameRecord) -> None:
    """The call of the host or of the interpreter is done: its frame is current again, after the call."""
    caller = FrameRecord(place_of(frame) - FRAME_SIZE)
    state.frame = caller
    state.module = caller.function.module
    state.pc = caller.pc
    state.values = caller.values
    state.refs = caller.refs


def slow(
    state: MachineState,
    frame: FrameRecord,
    values: int,
    refs: int,
    ordinal: int,
    pc: int,
    imported: ImportEntry,
) -> int:
    """Executes an instruction by its plain handler (gives SLOW_*). It works on the registers in memory.
    ``imported`` is the record of the import that is called, if any: functions of other modules are the
    interpreter's."""
    if (imported and imported.function != 0) or state.slow == 0:
        return SLOW_REFUSED
    side_exit(state, frame, values, refs, ordinal, pc, 1)
    state.outcome = SLOW_STOP
    call(state.slow, place_of(state))
    outcome: int = state.outcome
    return outcome


def allocate(state: MachineState, length: int) -> Entry:
    """As :func:`take`, zeroed."""
    entry = take(state, length)
    if entry:
        call(load64(state.math + MEMSET), entry.address, 0, length)
    return entry


def is_paid(scratch: Scratch, length: int) -> bool:
    """Whether a limit on memory has the bytes of a buffer left. They are taken."""
    if scratch.lend == 0 or scratch.part != 0:
        return True
    # order of room: a number alone
    room = atomic_load(scratch.room)
    while room >= length:
        if atomic_replace(scratch.room, room, room - length):
            scratch.paid += length
            return True
        room = atomic_load(scratch.room)
    if call_int(scratch.lend, scratch.owner, length) == 0:
        scratch.refused = 1
        return False
    scratch.paid += length
    return True


def take(state: MachineState, length: int) -> Entry:
    """A buffer from the memory for buffers that die with their function; null if there is none."""
    scratch = state.scratch
    if not scratch or not scratch.free:
        return Entry(0)
    start = scratch.next
    if below((scratch.limit - start) & -SCRATCH_ALIGNMENT, length) or not is_paid(scratch, length):
        return Entry(0)
    entry = scratch.free
    scratch.free = entry.link
    entry.link = Entry(0)
    entry.address = start
    entry.length = length
    entry.count = 1
    scratch.next = start + (length + SCRATCH_ALIGNMENT - 1 & -SCRATCH_ALIGNMENT)
    scratch.taken += 1
    return entry


FUNCTIONS = (clear, constants, side_exit, suspend, pop, slow, is_paid, allocate, take)
"""What compiled functions call."""


_NEW, _MET, _TAKEN, _REFUSED, _DEPTHS = range(5)
"""Marks; from the last one on it is the depth of a block with a copy, so much more."""
_LINE_BITS = PACKED_LINE.bit_length() - 1
_COLUMN = 4 * PACKED_ROWS
"""Bytes of a column of a block, which are a line's."""


def mark_of(record: Packed, line: int) -> Atomic:
    return Atomic(record.marks + 8 * line)


def packed(state: MachineState, first: int, depth: int, blocks: int) -> int:
    """Gives distances to the copies of blocks, made where missing; else 0. ``first`` is the address of the
    first one, which the others follow."""
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
        # order of mark: acquires or releases the copy
        mark = atomic_load(mark_of(record, at))
        if unlikely(mark != _DEPTHS + depth) and not pack(record, at, depth, mark):
            are = False
    return are


def pack(record: Packed, line: int, depth: int, mark: int) -> bool:
    """Copies the marked block at a line, if there is room."""
    first = mark_of(record, line)
    if mark == _NEW:
        # order of mark: acquires or releases the copy
        atomic_replace(first, _NEW, _MET)
    if mark != _MET:
        return False
    size = _COLUMN * depth
    # order of room: a number alone
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
    """Whether the lines after a block's first were free, then taken."""
    for taken in range(1, depth):
        # order of mark: acquires or releases the copy
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


PACKED = (mark_of, packed, are_packed, pack, is_claimed, transpose)
"""The first but one is what nests call."""
