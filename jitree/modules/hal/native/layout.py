"""Lay out the records that machine code and Python share for imports."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

from jitree.base.platform import MACHINE
from jitree.codegen.record import MemoryRecord, Repeated, layout_of, size_of
from jitree.hal.command_layout import (
    PUSHED_BINDINGS,
    PUSHED_VALUES,
    BindingSlot,
    Command,
    Commands,
    List,
    Patch,
)
from jitree.hal.enums import MemoryType

if TYPE_CHECKING:
    from jitree.codegen.record import i32, i64
    from jitree.hal.command_layout import Functions
    from jitree.hal.local.queue_record import Queue
    from jitree.regs.layout import Entry

STAGED: Final = int(MemoryType.HOST_LOCAL | MemoryType.DEVICE_VISIBLE)
"""The type of memory through which bytes of the host come to a device that works by itself."""

MOST_SPENT: Final = 1 << 27 if MACHINE == "x86_64" else 1 << 22
"""Ticks of this machine, some 50 ms, after which Python executes a list: it looks after signals (Ctrl-C)."""
SHORT_SHIFT: Final = 8
"""A part of these: ticks of a list after which others may be executed that nothing measures."""
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


POOL_COUNT: Final = class_index(LARGEST_POOLED) + 1  # a class of its own


class HandlePoolRecord(MemoryRecord):
    """Gives machine code of imports the pools of a handle table.

    All fields but type numbers are 0 until Python has filled them. STATE.handle_pool."""

    blank: Entry  # list of entries without an object, by `link`
    extension: i64  # bytes from an entry to its extension
    live: i64  # objects of OWNER_CODE
    released: Entry  # entries of OWNER_PYTHON whose last reference an object of OWNER_CODE held
    dead: Entry  # entries of OWNER_CODE without references that are to be freed, by `link`
    lists: Entry  # list of entries with idle slots of a vm.list, by `link`
    device: i64  # type numbers of references
    allocator: i64
    buffer: i64
    buffer_view: i64
    fence: i64
    command_buffer: i64
    executable: i64
    pipeline_layout: i64
    queue: Queue  # Queue record of the device that the pools allocate for, 0 = none
    functions: Functions  # Functions record
    execute: i64  # of the command executor, 0 while there is none
    estimate: i64
    clock: i64
    most_spent: i64  # `MOST_SPENT`: machine code for one machine is made on another
    spent: i64  # ticks of the clock that fast paths have executed lists for since Python last did
    unmeasured: i64  # lists to execute before one is measured again
    busy: i64  # 1 while the local memory is in use
    local_memory: i64  # address, for all threads together
    local_size: i64  # bytes
    failure: i64  # FAILED_* of an execution whose error Python has to raise, 0 = none
    failed_row: i64
    failed_code: i64
    failed_x: i64
    failed_y: i64
    failed_z: i64
    known_lists: (
        i64  # what ``Timeline.submit`` of ``queue`` gets beside a list (KnownLists.address), 0 = none
    )
    submitted: i64  # number of the last submission to that timeline by this table's fast paths
    arenas: Recording  # list of memory for command buffers, by their first word
    device_allocated: i64  # bytes of buffers that fast paths allocated so far
    device_freed: i64
    device_peak: i64  # the most that was allocated and not freed
    host_allocated: i64  # of memory that is the host's before it is the device's
    host_freed: i64
    host_peak: i64
    room: i64  # bytes that fast paths may have allocated and not freed
    zeroed: i64  # 1 where buffers are to be zero
    pools: i64 = Repeated(2 * POOL_COUNT)


ACCOUNTS: Final = layout_of(HandlePoolRecord)["device_allocated"]
ACCOUNT_SIZE: Final = 24
"""Offset of the first account, bytes from it to the second; an account is a number of bytes allocated, one of
bytes freed, and the peak."""

STORAGE_POOLS: Final = layout_of(HandlePoolRecord)["pools"]
"""Offset of the lists of idle storage, one per size class, by `link`. An idle one has no references. After
them come those of memory that a device which works by itself sees, and the host: `parent` of such a one is
the tick that has to be done before the host may write to it."""

MAXIMUM_RANK: Final = 7
"""The highest rank of views that fast paths know. The word after the dimensions is the view's access."""

REACHED: Final = 1
PROMISED: Final = 2
"""States of a fence, as the length of its entry says them."""

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


class Recording(Commands):
    """Records a command buffer in machine code. The List and its tables lie after it."""

    next: Recording
    categories: i64
    affinity: i64
    capacity: i64  # slots
    submitted: i64  # 1 = a ONE_SHOT one has been
    constant_count: i64
    data_count: i64
    kept_count: i64
    kept: i64  # address of the handles that are kept
    scale: i64  # it may hold so many times ROWS, OPERANDS, …
    pushed: i64  # address of a PushedRecord record
    pushed_bindings: i64  # bits: which of its bindings have been pushed
    pushed_constants: i64  # how many of its constants have; the others are 0


class PushedRecord(MemoryRecord):
    """Holds what programs of ABI 0.2 to 0.4 have pushed, in registers.

    A dispatch takes it as it takes arguments. The command buffer keeps the buffers."""

    values: i32 = Repeated(PUSHED_VALUES)
    refs: i64 = Repeated(PUSHED_BINDINGS)


@cache
def sections(scale: int) -> dict[str, int]:
    """Bytes of what lies after a RECORDING, in order."""
    return {
        "list": size_of(List), "rows": scale * ROWS * size_of(Command), "addresses": scale * OPERANDS * 8,
        "lengths": scale * OPERANDS * 8, "accesses": scale * OPERANDS * 8,
        "constants": scale * CONSTANTS * 4, "data": scale * DATA,
        "patches": scale * PATCHES * size_of(Patch), "slots": SLOTS * size_of(BindingSlot),
        "kept": scale * KEPT * 8, "pushed": size_of(PushedRecord),
    }  # fmt: skip
