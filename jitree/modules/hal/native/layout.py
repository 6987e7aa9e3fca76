"""Lay out the records that machine code and Python share for imports."""

from __future__ import annotations

import os
from typing import Final

from jitree.base.layout import Record
from jitree.hal.command_layout import (
    COMMAND,
    COMMANDS,
    LIST,
    PATCH,
    PUSHED_BINDINGS,
    PUSHED_VALUES,
    SLOT,
)
from jitree.hal.enums import MemoryType
from jitree.hal.heap import size_class

MOST_SPENT: Final = 1 << 27 if os.uname().machine == "x86_64" else 1 << 22
"""Ticks, some 50 ms, after which Python executes a list: it looks after signals (Ctrl-C)."""
SHORT: Final = MOST_SPENT >> 8
"""Ticks of a list after which others may be executed that nothing measures."""
MOST_UNMEASURED: Final = 15
"""The most such lists one after the other: all bits set."""
RANDOM_SHIFT: Final = 6
"""Bits of the clock from this one on are random numbers; those below are the same in each reading of some."""
LARGEST_POOLED: Final = 64 << 20
"""Bytes of the largest block that fast paths hand out. Pools keep what they have, and filling a larger one
takes milliseconds; asking Python for it costs a call some 50 us, since all that follows is Python's then."""


def class_index(capacity: int) -> int:
    """The position of a size class (``heap.size_class``) among the pools, as ``buffers.class_of`` has it."""
    if capacity <= 1024:
        return capacity // 64
    bits = (capacity - 1).bit_length()
    return 17 + (bits - 11) * 4 + (capacity >> bits - 3) - 5


POOL_COUNT: Final = class_index(size_class(LARGEST_POOLED)) + 1

HANDLE_POOL: Final = Record(
    "handle_pool",
    """
    i64 blank             # list of entries without an object, by `link`
    i64 extension         # bytes from an entry to its extension
    i64 live              # objects of OWNER_CODE
    i64 released          # entries of OWNER_PYTHON whose last reference an object of OWNER_CODE held
    i64 dead              # entries of OWNER_CODE without references that are to be freed, by `link`
    i64 lists             # list of entries with idle slots of a vm.list, by `link`
    i64 device            # type numbers of references
    i64 allocator
    i64 buffer
    i64 buffer_view
    i64 fence
    i64 command_buffer
    i64 executable
    i64 pipeline_layout
    i64 queue             # QUEUE record of the device that the pools allocate for, 0 = none
    i64 functions         # FUNCTIONS record
    i64 execute           # of the command executor, 0 while there is none
    i64 estimate
    i64 clock
    i64 spent             # ticks of the clock that fast paths have executed lists for since Python last did
    i64 unmeasured        # lists to execute before one is measured again
    i64 busy              # 1 while the local memory is in use
    i64 local_memory      # address, for all threads together
    i64 local_size        # bytes
    i64 failure           # FAILED_* of an execution whose error Python has to raise, 0 = none
    i64 failed_row
    i64 failed_code
    i64 failed_x
    i64 failed_y
    i64 failed_z
    i64 programs          # address of the table of programs of ``queue``'s stream, 0 = none
    i64 sequences         # address of the SequencesRecord of that table
    i64 submitted         # number of the last submission to that stream by this table's fast paths
    i64 arenas            # list of memory for command buffers, by their first word
    i64 device_allocated  # bytes of buffers that fast paths allocated so far
    i64 device_freed
    i64 device_peak       # the most that was allocated and not freed
    i64 host_allocated    # of memory that is the host's before it is the device's
    i64 host_freed
    i64 host_peak
    i64 room              # bytes that fast paths may have allocated and not freed
    i64 zeroed            # 1 where buffers are to be zero
    """
    f"i64*{2 * POOL_COUNT} pools",
)
"""What a handle table gives to fast paths: pools, and what they need of the context. STATE.handle_pool."""

ACCOUNTS: Final = HANDLE_POOL["device_allocated"]
ACCOUNT_SIZE: Final = 24
"""Offset of the first account, bytes from it to the second; an account is a number of bytes allocated, one of
bytes freed, and the peak."""

STORAGE_POOLS: Final = HANDLE_POOL["pools"]
"""Offset of the lists of idle storage, one per size class, by `link`. An idle one has no references. After
them come those of pinned memory that a stream's device works on: `parent` of such a one is the tick that has
to be done before the host may write to it."""

MAXIMUM_RANK: Final = 7
"""The highest rank of views that fast paths know. The word after the dimensions is the view's access."""

REACHED: Final = 1
PROMISED: Final = 2
"""States of a fence, as the length of its entry says them."""

STAGED: Final = int(MemoryType.HOST_LOCAL | MemoryType.DEVICE_VISIBLE)
"""The type of memory through which bytes of the host come to a stream."""

ROWS: Final = 64
OPERANDS: Final = 256
CONSTANTS: Final = 512
PATCHES: Final = 64
KEPT: Final = 256
DATA: Final = 8192
"""What a command buffer of scale 1 may hold before recording moves to Python: commands, buffer ranges, 32-bit
constants, ranges by slot, handles, bytes of updates."""
LARGEST_SCALE: Final = 64
"""A program whose command buffers do not fit gets memory of a larger scale, up to this: 1.5 MB for each."""
SLOTS: Final = 512
"""Slots of a binding table that fast paths know."""

RECORDING: Final = Record(
    "recording",
    "".join(f"i64 {field}\n" for field in COMMANDS.offsets)
    + """\
    i64 categories
    i64 affinity
    i64 capacity          # slots
    i64 submitted         # 1 = a ONE_SHOT one has been
    i64 constant_count
    i64 data_count
    i64 kept_count
    i64 kept              # address of the handles that are kept
    i64 scale             # it may hold so many times ROWS, OPERANDS, …
    i64 pushed            # address of a PUSHED record
    i64 pushed_bindings   # bits: which of its bindings have been pushed
    i64 pushed_constants  # how many of its constants have; the others are 0
    """,
)
"""A command buffer that machine code records: a COMMANDS record with what only recording needs. The LIST and
its tables lie after it."""
assert all(RECORDING[field] == COMMANDS[field] for field in COMMANDS.offsets)


PUSHED: Final = Record("pushed", f"i32*{PUSHED_VALUES} values\ni64*{PUSHED_BINDINGS} refs")
"""What programs of ABI 0.2 to 0.4 have pushed, in registers: a dispatch takes it as it takes arguments. The
command buffer keeps the buffers."""


def sections(scale: int) -> dict[str, int]:
    """Bytes of what lies after a RECORDING, in order."""
    return {
        "list": LIST.size, "rows": scale * ROWS * COMMAND.size, "addresses": scale * OPERANDS * 8,
        "lengths": scale * OPERANDS * 8, "accesses": scale * OPERANDS * 8,
        "constants": scale * CONSTANTS * 4, "data": scale * DATA,
        "patches": scale * PATCHES * PATCH.size, "slots": SLOTS * SLOT.size, "kept": scale * KEPT * 8,
        "pushed": PUSHED.size,
    }  # fmt: skip
