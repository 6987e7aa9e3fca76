"""Memory layout that Python, the generated loop and compiled code agree on.

Each record is a class; offsets follow from the order of its fields. Python reads and writes the records
through memoryviews of 32- and 64-bit integers, machine code through the fields or the byte offsets. All
pointers are absolute addresses, 0 is null.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jitree.codegen.record import Atomic, MemoryRecord, layout_of, words_of

if TYPE_CHECKING:
    from jitree.codegen.record import i32, i64


class MachineState(MemoryRecord):
    """Is a call stack. `loop(state)` runs until it must stop; the same address resumes."""

    status: i64  # why the loop returned: EXIT_*
    pc: i64  # address of the current instruction's opcode word
    values: i64  # address of the current frame's value slot 0
    refs: i64  # address of the current frame's ref register 0
    frame: FrameRecord  # address of the current frame record
    module: ModuleEntry  # address of the current frame's module record
    values_limit: i64  # end of the value arena
    refs_limit: i64  # end of the ref arena
    frames_limit: i64  # end of the frame arena
    released: Entry  # head of the list of handle entries whose count fell to zero, linked by `link`
    math: i64  # address of the table of C math functions
    fuel: i64  # branches and calls that may still be made before machine code looks at the clock
    grant: i64  # what it has last given itself then (`fuel.py`)
    looked: i64  # when it last looked at the clock, in the processor's ticks; 0: not in this call
    time: i64  # nanoseconds that may still pass before Python is to look after signals
    attended: i64  # what the word was for which Python has looked last (`base/stop_word.py`)
    tick: i64  # how many nanoseconds 1 << TICK_SHIFT ticks are
    handle_pool: MemoryRecord  # address of the record that machine code makes handles with, 0 = none
    sweep: i64  # address of `void (state)`: frees what machine code made in `released`; 0 = none
    new_list: i64  # `i64 (state, element type, capacity)`: gives an empty list or 0; 0 = none
    prompt: i64  # how long a call may work for a device itself: PATIENT, PROMPT, CONTENDED
    scratch: Scratch  # address of the Scratch record that compiled functions allocate from, 0 = none
    resume: i64  # machine code to enter first: `i64 (state, frame, fuel)`, 0 = none
    slow: i64  # `void (state)`: Python for one instruction, or to look after signals; 0 = none
    outcome: i64  # SLOW_*: what came of it
    stack: i64  # bytes of the processor's stack that compiled functions may take in all
    stack_limit: i64  # where that ends: set when the loop is entered
    last_wait: i64  # address of the operands of a `hal.fence.await`: the host waits itself; 0 = none
    owed: i64  # number of the submission that it waits for when the call has ended; 0 = none


TICK_SHIFT: Final = 16


class GateRecord(MemoryRecord):
    """Holds what direct calls of a context change under its lock."""

    ready: i64  # 1 while the machine of direct calls may be taken
    nesting: i64  # calls in progress, one inside the other
    faults: i64  # 1 when something was found wrong in a call that goes on
    begun: i64  # what `cancels` was when the outermost call began
    cancels: i64  # number of the last cancellation of all calls
    refused: i64  # 1 when no more calls may begin
    calls: i64  # how many outermost calls have begun,
    failures: i64  # failed
    waits: i64  # and had to wait, for a device or each other


class Scratch(MemoryRecord):
    """Lends memory for `buffer.alloc` in compiled functions whose buffers die with them.

    An allocation takes an entry, which is a `vm.buffer` of count 0 that may be read and written, sets
    address, length and count, and zeroes the bytes. The owner of the record takes the entries back from
    MachineState.released, and their bytes to `room`, which others may set to 0 at any time. In parts of a
    workgroup but the first, buffers are copies, not counted."""

    free: Entry  # head of the unused handle entries, linked by `link`; 0 = none left
    next: i64  # address of the next free byte, a multiple of SCRATCH_ALIGNMENT
    limit: i64  # where the memory ends
    taken: i64  # entries that are in use
    room: Atomic  # bytes of a limit that the owner has and nothing uses
    held: i64  # bytes of a limit that the owner has
    paid: i64  # … that entries in use have taken of them
    lend: i64  # `i64 (owner, length)`: gets so many more for an entry; 0 = nothing is counted
    owner: i64  # the Python object that the record belongs to
    part: i64  # which part of a workgroup runs
    refused: i64  # 1 when `lend` has given nothing
    packed: Packed  # address of a Packed record of the program's constants, 0 = none
    kernel: i64  # number of the function of the kernel whose workgroups run


SCRATCH_ALIGNMENT: Final = 64


class Packed(MemoryRecord):
    """Lists copies of constants in the order in which vectors need them.

    Each is in a place as far from the constant as any other. Machine code makes them
    (`dispatch/native/side_exits.py`)."""

    start: i64  # address of the constants
    size: i64  # of them, in bytes
    distance: i64  # from a constant to its copy
    marks: i64  # address of an i64 for each PACKED_LINE bytes of constants
    room: Atomic  # bytes that may still be copied
    next: Packed  # address of the record of other constants, 0 = none


PACKED_LINE: Final = 64
PACKED_ROWS: Final = 16
"""Rows of a block, 32 bits of each of which make a line."""

PATIENT: Final = 0
"""A value of STATE.prompt: the host waits for the call anyway."""
PROMPT: Final = 1
"""A value of STATE.prompt: the host goes on with something else as soon as it can."""
CONTENDED: Final = 2
"""A value of STATE.prompt: other threads wait for the context."""

EXIT_FINISHED: Final = 0
"""`host.exit` was reached: the results are in the host frame."""
EXIT_SIDE: Final = 1
"""The instruction at pc is not handled in compiled code (rare, allocating, failing, an import): nothing of it
has happened; the plain tier's handler executes it and execution resumes after it."""

EXIT_OUT_OF_FUEL: Final = 2
"""The same as EXIT_SIDE, at a branch or call, because the time is over."""
EXIT_STOPPED: Final = 3
"""An instruction that a compiled function had executed by STATE.slow has failed or waits (SLOW_STOP)."""

SLOW_DONE: Final = 0
"""The instruction at pc has been executed; what it wrote is in the frame's registers."""
SLOW_STOP: Final = 1
"""It failed, or the call has to wait for it: return at once, the machine knows more."""
SLOW_REFUSED: Final = 2
"""Nothing has happened: take a side exit in front of it. Of SLOW_LOOK: leave the compiled function."""
SLOW_LOOK: Final = 3
"""Python is to look after signals, and to execute nothing. It stays where the call is to end."""


class FrameRecord(MemoryRecord):
    """Is a frame. They lie one after the other in the frame arena; the caller's is the one in front."""

    function: FunctionEntry  # address of the function record
    pc: i64  # where this frame goes on when its callee returns; written by the call
    values: i64  # address of value slot 0
    refs: i64  # address of ref register 0
    values_end: i64  # end of this frame's value slots, rounded up to a pair: the callee's slot 0
    refs_end: i64  # end of this frame's ref registers: the callee's ref register 0
    results: i64  # address of the (tag, destination) words of the call that made this frame
    spare: i64


class FunctionEntry(MemoryRecord):
    """Is a function of a bytecode module in one context."""

    code: i64  # address of the first instruction word
    module: ModuleEntry  # address of the module record
    arguments: i64  # address of i32 destination slots, one per argument (for calls across modules)
    value_count: i32  # value slots, a multiple of 2
    ref_count: i32  # ref registers
    argument_count: i32
    ordinal: i32  # in its module
    native: i64  # machine code of the whole function: `i64 (state, frame, fuel)`, 0 = none


class ModuleEntry(MemoryRecord):
    """Is a bytecode module's state in one context."""

    code: i64  # address of the module's decoded words
    functions: i64  # address of its function records
    imports: i64  # address of its import records
    globals: i64  # address of the value globals
    globals_size: i64  # bytes
    ref_globals: i64  # address of the ref globals, one handle address each
    ref_global_count: i64
    rodata: i64  # address of handle addresses, one per rodata segment
    types: i64  # address of i32 type ids, one per entry of the module's type table
    index: i64  # position of the module in its context


class ImportEntry(MemoryRecord):
    """Says what an import has become."""

    function: i64  # address of the function record if the import is bytecode, else 0
    resolved: i64  # 1 when found, 0 for a missing optional import
    compiled: i64  # address of machine code for a host function (COMPILED_*), 0 = there is none


COMPILED_DONE: Final = 0
"""What the machine code of a host function returns: ``i32 (state, values, refs, words)``. ``words`` are the
(tag, register) pairs of the call's arguments, then of its results; the registers are those of the caller. Any
other number means that nothing has happened and that the function has to be called the ordinary way."""


class Entry(MemoryRecord):
    """Is a handle, 64 bytes. A ref register holds its address."""

    apart = "count: count, link: link"

    kind: i32  # type id of the object, KIND_FREE when free
    count: i32  # references from registers, globals, lists and the host
    address: i64  # of the bytes (vm.buffer, hal.buffer, view) or slots (vm.list); tick of a fence
    length: i64  # bytes; elements for a vm.list
    access: i32  # ACCESS_* bits of a vm.buffer; memory type and place of a hal.buffer
    usage: i32  # allowed usage of a hal.buffer
    element_type: i32  # of a view; LIST_* element code or ref type id of a vm.list
    encoding: i32  # of a view; allowed access of a hal.buffer
    rank: i32  # of a view; capacity of a vm.list
    owner: i32  # OWNER_*
    parent: Entry  # handle that an object of OWNER_CODE keeps alive
    link: Entry  # next in the free or the released list; LINK_POOLED


PLACE_SHIFT: Final = 12
"""The bits of a buffer's `access` from here on say whose memory it is: 0 = the host's; else a number of the
timeline in whose order a device works on it by itself, and `address` is the device's."""

EXTENSION_SIZE: Final = 64
"""Bytes that belong to every entry, as far after it as the table is long: the i64 dimensions of a view."""


class Released(MemoryRecord):
    """Begins a list of entries without references, linked by `link`.

    MachineState.released, HandlePoolRecord.released."""

    apart = "first: state"

    first: Entry


COUNT_UNLIMITED: Final = 1 << 30
"""References to entries whose count is at least this are not counted."""

OWNER_PYTHON: Final = 0
"""An entry that has a Python object."""
OWNER_CODE: Final = 1
"""Machine code made the object; Python has none until it asks for it."""

LINK_POOLED: Final = 1
"""The link of an entry of OWNER_CODE with references that keeps nothing alive but memory of a pool."""

KIND_FREE: Final = 0
KIND_BUFFER: Final = 1
"""``vm.buffer``"""
KIND_LIST: Final = 2
"""``vm.list``"""
KIND_STORAGE: Final = 3
"""Memory of buffers that machine code makes; no register ever refers to it."""
KIND_FIRST_REGISTERED: Final = 16
"""Types registered by modules are numbered from here."""

ACCESS_READ: Final = 1
ACCESS_WRITE: Final = 2
ACCESS_PRIVATE: Final = 0x40
"""No caller has these constants: kernels may store to them. IREE's compilers have them do so where an
operation that works in place is given a constant. The VM's own instructions and commands may not."""


class ListSlot(MemoryRecord):
    """Is an element of a list."""

    apart = "tag: list slot, bits: list slot"

    tag: i64  # LIST_* code of what the slot holds, LIST_EMPTY when empty
    bits: i64  # the value (floats as bits, i8-i32 sign extended) or the handle's address


LIST_CAPACITY: Final = 32
"""Slots of each list that machine code makes; Python makes those that need more."""
LIST_EMPTY: Final = 0
LIST_I8: Final = -1
LIST_I16: Final = -2
LIST_I32: Final = -3
LIST_I64: Final = -4
LIST_F32: Final = -5
LIST_F64: Final = -6
LIST_REF: Final = -7
"""The tag of a slot with a ref. A positive element code is the type id of a list of such refs."""
LIST_VARIANT: Final = -8
"""Element code of ``!vm.list<?>``."""
VALUE_TYPE_CODES: Final = {
    "i8": LIST_I8, "i16": LIST_I16, "i32": LIST_I32, "i64": LIST_I64, "f32": LIST_F32, "f64": LIST_F64,
}  # fmt: skip
TYPE_OPAQUE: Final = LIST_VARIANT
"""Type id of ``!vm.opaque``: matches only null; as a list element it is the variant."""

MATH_FUNCTIONS: Final = (
    "atan", "atan2", "cos", "sin", "exp", "exp2", "expm1", "log", "log1p", "log2", "pow", "remainder",
    "remainderf",
)  # fmt: skip
"""C library functions of one number or two. The others, those of binary32 too, are vector math."""

LIBRARY_FUNCTIONS: Final = (*MATH_FUNCTIONS, "memmove", "memcmp", "memset")
"""What machine code calls through the table that STATE.math points to, in the table's order; after them the
clock and the addresses of the number of rings and of the next deadline (`fuel.py`)."""

STATE: Final = layout_of(MachineState)
SCRATCH: Final = layout_of(Scratch)
FRAME: Final = layout_of(FrameRecord)
FUNCTION: Final = layout_of(FunctionEntry)
MODULE: Final = layout_of(ModuleEntry)
IMPORT: Final = layout_of(ImportEntry)
ENTRY: Final = layout_of(Entry)
LIST_SLOT: Final = layout_of(ListSlot)
"""Offsets, for those who write machine code as text."""
STATE_WORDS: Final = words_of(MachineState)
"""For those who have a view of the record."""
