"""Memory layout that Python, the generated loop and compiled code agree on.

Each record is a table of fields; offsets follow from the order. Python reads and writes the records through
memoryviews of 32- and 64-bit integers, machine code through the byte offsets. All pointers are absolute
addresses, 0 is null.
"""

from __future__ import annotations

from typing import Final

from jitree.base.layout import Record

STATE: Final = Record(
    "state",
    """
    i64 status            # why the loop returned: EXIT_*
    i64 pc                # address of the current instruction's opcode word
    i64 values            # address of the current frame's value slot 0
    i64 refs              # address of the current frame's ref register 0
    i64 frame             # address of the current frame record
    i64 module            # address of the current frame's module record
    i64 values_limit      # end of the value arena
    i64 refs_limit        # end of the ref arena
    i64 frames_limit      # end of the frame arena
    i64 released          # head of the list of handle entries whose count fell to zero, linked by `link`
    i64 math              # address of the table of C math functions
    i64 fuel              # branches and calls that may still be made before machine code looks at the clock
    i64 grant             # what it has last given itself then (`fuel.py`)
    i64 looked            # when it last looked at the clock, in the processor's ticks; 0: not in this call
    i64 time              # nanoseconds that may still pass before Python is to look after signals
    i64 attended          # what the word was for which Python has looked last (`base/stop_word.py`)
    i64 tick              # how many nanoseconds 1 << TICK_SHIFT ticks are
    i64 handle_pool       # address of the record that machine code makes handles with, 0 = none
    i64 sweep             # address of `void (state)`: frees what machine code made in `released`; 0 = none
    i64 new_list          # `i64 (state, element type, capacity)`: gives an empty list or 0; 0 = none
    i64 prompt            # how long a call may work for a device itself: PATIENT, PROMPT, CONTENDED
    i64 scratch           # address of the SCRATCH record that compiled functions allocate from, 0 = none
    i64 resume            # machine code to enter first: `i64 (state, frame, fuel)`, 0 = none
    i64 slow              # `void (state)`: Python for one instruction, or to look after signals; 0 = none
    i64 outcome           # SLOW_*: what came of it
    i64 stack             # bytes of the processor's stack that compiled functions may take in all
    i64 stack_limit       # where that ends: set when the loop is entered
    i64 last_wait         # address of the operands of a `hal.fence.await`: the host waits itself; 0 = none
    i64 owed              # number of the submission that it waits for when the call has ended; 0 = none
    """,
)
"""One per call stack. `loop(state)` runs until it must stop; the same address resumes."""

TICK_SHIFT: Final = 16

GATE: Final = Record(
    "gate",
    """
    i64 ready             # 1 while the machine of direct calls may be taken
    i64 nesting           # calls in progress, one inside the other
    i64 faults            # 1 when something was found wrong in a call that goes on
    i64 begun             # what `cancels` was when the outermost call began
    i64 cancels           # number of the last cancellation of all calls
    """,
)
"""One per context: what direct calls look at and change, with the context's lock held."""

SCRATCH: Final = Record(
    "scratch",
    """
    i64 free              # head of the unused handle entries, linked by `link`; 0 = none left
    i64 next              # address of the next free byte, a multiple of SCRATCH_ALIGNMENT
    i64 limit             # where the memory ends
    i64 taken             # entries that are in use
    i64 room              # bytes of a limit that the owner has and nothing uses
    i64 held              # bytes of a limit that the owner has
    i64 paid              # … that entries in use have taken of them
    i64 lend              # `i64 (owner, length)`: gets so many more for an entry; 0 = nothing is counted
    i64 owner             # the Python object that the record belongs to
    i64 part              # which part of a workgroup runs
    i64 refused           # 1 when `lend` has given nothing
    i64 packed            # address of a PACKED record of the program's constants, 0 = none
    i64 kernel            # number of the function of the kernel whose workgroups run
    """,
)
"""Memory for `buffer.alloc` in compiled functions whose buffers die with them. An allocation takes an entry,
which is a `vm.buffer` of count 0 that may be read and written, sets address, length and count, and zeroes the
bytes. The owner of the record takes the entries back from STATE.released, and their bytes to `room`, which
others may set to 0 at any time. In parts of a workgroup but the first, buffers are copies, not counted."""
SCRATCH_ALIGNMENT: Final = 64

PACKED: Final = Record(
    "packed constants",
    """
    i64 start             # address of the constants
    i64 size              # of them, in bytes
    i64 distance          # from a constant to its copy
    i64 marks             # address of an i64 for each PACKED_LINE bytes of constants
    i64 room              # bytes that may still be copied
    i64 next              # address of the record of other constants, 0 = none
    """,
)
"""Copies of constants in the order in which vectors need them, each in a place as far from the constant as
any other. Machine code makes them (`dispatch/native/packed.py`)."""
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

FRAME: Final = Record(
    "frame",
    """
    i64 function          # address of the function record
    i64 pc                # where this frame goes on when its callee returns; written by the call
    i64 values            # address of value slot 0
    i64 refs              # address of ref register 0
    i64 values_end        # end of this frame's value slots, rounded up to a pair: the callee's slot 0
    i64 refs_end          # end of this frame's ref registers: the callee's ref register 0
    i64 results           # address of the (tag, destination) words of the call that made this frame
    i64 spare
    """,
)
"""Frames lie one after the other in the frame arena; the caller's record is the one in front."""

FUNCTION: Final = Record(
    "function",
    """
    i64 code              # address of the first instruction word
    i64 module            # address of the module record
    i64 arguments         # address of i32 destination slots, one per argument (for calls across modules)
    i32 value_count       # value slots, a multiple of 2
    i32 ref_count         # ref registers
    i32 argument_count
    i32 ordinal           # in its module
    i64 native            # machine code of the whole function: `i64 (state, frame, fuel)`, 0 = none
    """,
)

MODULE: Final = Record(
    "module",
    """
    i64 code              # address of the module's decoded words
    i64 functions         # address of its function records
    i64 imports           # address of its import records
    i64 globals           # address of the value globals
    i64 globals_size      # bytes
    i64 ref_globals       # address of the ref globals, one handle address each
    i64 ref_global_count
    i64 rodata            # address of handle addresses, one per rodata segment
    i64 types             # address of i32 type ids, one per entry of the module's type table
    i64 index             # position of the module in its context
    """,
)
"""A bytecode module's state in one context."""

IMPORT: Final = Record(
    "import",
    """
    i64 function          # address of the function record if the import is bytecode, else 0
    i64 resolved          # 1 when found, 0 for a missing optional import
    i64 compiled          # address of machine code for a host function (COMPILED_*), 0 = there is none
    """,
)

COMPILED_DONE: Final = 0
"""What the machine code of a host function returns: ``i32 (state, values, refs, words)``. ``words`` are the
(tag, register) pairs of the call's arguments, then of its results; the registers are those of the caller. Any
other number means that nothing has happened and that the function has to be called the ordinary way."""

ENTRY: Final = Record(
    "entry",
    """
    i32 kind              # type id of the object, KIND_FREE when free
    i32 count             # references from registers, globals, lists and the host
    i64 address           # of the bytes (vm.buffer, hal.buffer, view) or slots (vm.list); tick of a fence
    i64 length            # bytes; elements for a vm.list
    i32 access            # ACCESS_* bits of a vm.buffer; memory type and place of a hal.buffer
    i32 usage             # allowed usage of a hal.buffer
    i32 element_type      # of a view; LIST_* element code or ref type id of a vm.list
    i32 encoding          # of a view; allowed access of a hal.buffer
    i32 rank              # of a view; capacity of a vm.list
    i32 owner             # OWNER_*
    i64 parent            # handle that an object of OWNER_CODE keeps alive
    i64 link              # next in the free or the released list; LINK_POOLED
    """,
)
"""A handle entry, 64 bytes. A ref register holds its address."""

PLACE_SHIFT: Final = 12
"""The bits of a buffer's `access` from here on say whose memory it is: 0 = the host's; else a number of the
stream in whose order a device works on it by itself, and `address` is the device's."""

EXTENSION_SIZE: Final = 64
"""Bytes that belong to every entry, as far after it as the table is long: the i64 dimensions of a view."""

RELEASED: Final = Record("released", "i64 first")
"""A list of entries without references, linked by `link`: STATE.released, HANDLE_POOL.released."""

COUNT_UNLIMITED: Final = 1 << 30
"""References to entries whose count is at least this are not counted."""

OWNER_PYTHON: Final = 0
"""An entry that has a Python object."""
OWNER_CODE: Final = 1
"""Machine code made the object; Python has none until it asks for it."""

LINK_POOLED: Final = 1
"""The link of an entry of OWNER_CODE with references that keeps nothing alive but memory of a pool."""

assert ENTRY.size == 64 and FRAME.size == 64

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

LIST_SLOT: Final = Record(
    "list slot",
    """
    i64 tag               # LIST_* code of what the slot holds, LIST_EMPTY when empty
    i64 bits              # the value (floats as bits, i8-i32 sign extended) or the handle's address
    """,
)

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
