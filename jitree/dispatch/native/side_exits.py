"""Moves frames at side exits of compiled functions. Machine code.

The memory for their buffers is here, too.

At a side exit a function writes its registers to its frame and calls :func:`side_exit`; native functions
further out then do the same with :func:`suspend`. Afterwards memory looks as if the interpreter had
run all the time.
"""

from __future__ import annotations

from jitree.codegen.primitives import below, call, call_int, load64, store32, store64
from jitree.codegen.record import atomic_load, atomic_replace, place_of, size_of
from jitree.dispatch.native.source import OF_SPAN
from jitree.regs.layout import (
    LIBRARY_FUNCTIONS,
    SCRATCH_ALIGNMENT,
    SLOW_REFUSED,
    SLOW_STOP,
    Entry,
    FrameRecord,
    FunctionEntry,
    ImportEntry,
    MachineState,
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
    """Has the instruction at a word executed by its plain handler, on the registers in memory, and says what
    came of it (SLOW_*). ``imported`` is the record of the import that is called, if any: functions of other
    modules are the interpreter's."""
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
    """Whether a limit on memory, if there is one, has so many bytes for a buffer. They are taken."""
    if scratch.lend == 0 or scratch.part != 0:
        return True
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
