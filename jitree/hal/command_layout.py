"""Lays out recorded commands as flat tables, for recording and for the executor.

A command list is a table of rows (Command). What a row works on lies in side tables that it indexes: operands
(buffer ranges, as arrays of addresses and lengths, the form in which kernels want bindings, and of what
their buffers allow), 32-bit constants, bytes of updates. Rows never change after recording, so one list can
be submitted many times and at the same time: only the operand tables are copied and patched from the binding
table of a submission.
The other records, from Functions on, are memory that the command executor and Python share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jitree.codegen.record import Atomic, MemoryRecord
from jitree.hal.enums import MAXIMUM_CONSTANTS, MAXIMUM_SET_BINDINGS

if TYPE_CHECKING:
    from jitree.codegen.record import i32, i64, line, u8, u16, u32


class KernelEntry(MemoryRecord):
    """Is a function of a loaded executable, which owns it and lives as long."""

    code: Atomic  # address of the function: i32 (environment, dispatch state, workgroup state)
    environment: i64  # address of the executable's environment
    cost: Atomic  # moving average of ticks per 1024 workgroups, 0 = not run yet; racy by design
    local_memory: i32  # bytes of local memory that each workgroup in flight needs
    flags: i32  # ENTRY_*
    constant_count: i32  # 32-bit words, -1 = not stated by the executable
    binding_count: i32  # -1 = not stated by the executable
    ordinal: i32  # position among the executable's functions
    parts: i32  # into how many a workgroup can be cut at most; 0 and 1: it cannot. See `parts_of`


class ExecutableRecord(MemoryRecord):
    """Is what the extension of an executable's handle entry has."""

    names: i64  # address of rows (address, length), the name of each function
    pipelines: i64  # address of the addresses of PipelineRecords, one for each function; 0 = none


ENTRY_SEQUENTIAL: Final = 1
"""Workgroups of one dispatch must not run at the same time."""
ENTRY_SPAN: Final = 2
"""One call runs a span of the grid: for functions that pay for every call.

``code`` finds the span in Workgroup: ``first`` and ``last``. When it fails it leaves the id of the workgroup
there; its executable is asked for the error (``LocalExecutable.take_failure``).
"""
ENTRY_INTERPRETED: Final = 4
"""Python runs the spans. Threads wait for each other on the way into each, so what a clock says of one is not
its cost: the executable writes ``cost`` itself, and spans are long.
"""


class Counts(MemoryRecord):
    """Counts the workgroups of a dispatch."""

    x: u32
    y: u32
    z: u32


class KernelDispatch(MemoryRecord):
    """Tells functions of executables what they know of the dispatch."""

    size_x: u32  # of a workgroup
    size_y: u32
    size_z: u16
    constant_count: u16
    count_x: u32  # workgroups
    count_y: u32
    count_z: u16
    concurrency: u8  # threads that may run workgroups
    binding_count: u8
    constants: i64  # address of the 32-bit constants
    addresses: i64  # of the bindings' addresses
    lengths: i64  # of the bindings' lengths
    failure: i64  # our own: address of the job's failure, which ends it when it is not zero
    parts: i64  # our own: into how many each workgroup is cut; spans count those
    accesses: i64  # our own: of what the bindings allow


class Workgroup(MemoryRecord):
    """Tells functions of executables what they know of the workgroup.

    It ends before ``padding`` for those of others."""

    x: u32  # the workgroup's id
    y: u32
    z: u16
    reserved: u16
    processor: u32  # number of the thread
    local_memory: i64
    local_size: u32
    padding: u32
    first: i64  # of a span (ENTRY_SPAN): number of the first workgroup, x fastest, or part of one
    last: i64  # … of the one after the last


class Command(MemoryRecord):
    """Is a row of a command list."""

    kind: i32  # KIND_*
    operand: i32  # index of the first operand
    operand_count: i32  # of a dispatch: bindings; the counts of an indirect one are one more operand
    constant: i32  # index of the first constant
    constant_count: i32
    count_x: i32  # workgroups, unsigned
    count_y: i32
    count_z: i32
    entry: KernelEntry  # address of the entry point record of a dispatch
    pattern: i32  # of a fill, repeated to four bytes
    pattern_length: i32  # 1, 2 or 4
    data: i64  # offset of the bytes of an update
    data_length: i32  # of an update
    object: i32  # position of a dispatch's executable in the list's kept objects, for messages


KIND_BARRIER: Final = 0
"""Everything before it is finished before anything after it starts."""
KIND_FILL: Final = 1
"""A fill; its operand is the target."""
KIND_COPY: Final = 2
"""Operands: source, target; equal lengths."""
KIND_UPDATE: Final = 3
"""Operand: target. Source: bytes of the list."""
KIND_DISPATCH: Final = 4
KIND_DISPATCH_INDIRECT: Final = 5
"""Three u32 workgroup counts are read from the last operand when the command executes."""


class Patch(MemoryRecord):
    """Names a range of a command that a submission has in a slot."""

    operand: i64  # index of the operand to set
    slot: i64  # of the binding table
    offset: i64  # added to the table entry's
    length: i64  # WHOLE_BUFFER = the rest of the table entry
    alignment: i64  # required of the address, minus 1


class List(MemoryRecord):
    """Is what the command executor is given.

    Recording, in Python or in machine code, ends with filling one in."""

    rows: Command  # address of the Command rows
    row_count: i64
    addresses: i64  # of i64 operand addresses; those that a patch sets are 0
    lengths: i64  # of i64 operand lengths
    accesses: i64  # of i64 MemoryAccess, what each operand's buffer allows
    operand_count: i64
    constants: i64  # of the 32-bit constants
    data: i64  # of the update bytes
    patches: i64  # of the Patch rows
    patch_count: i64
    local_memory: i64  # the most that any dispatch of the list needs for a workgroup


class Commands(MemoryRecord):
    """Tells machine code what it must know of a command buffer to execute it."""

    next: Commands  # in a list of idle ones
    ready: i64  # 1 = recording has ended and machine code may execute it
    modes: i64  # of the command buffer
    copies: i64  # 1 = ranges of copies have to be compared when slots are known
    list: List  # address of the List record
    slot_count: i64
    slots: i64  # address of BindingSlot rows
    place: i64  # whose memory it works on, as in ENTRY.access


class BindingSlot(MemoryRecord):
    """Says what a submission must have in a slot."""

    used: i32  # 1 = a submission must have a buffer there
    usage: i32  # that the buffer must have been allocated for
    access: i32  # that it must allow
    reserved: i32


BINDING_ALIGNMENT: Final = 64
"""Compiled kernels load and store whole vectors: 16-byte aligned in generic code, 64 for AVX-512."""
MAXIMUM_WORKGROUPS: Final = 1 << 48
"""The most workgroups of one dispatch: products of counts stay far from overflow."""
MAXIMUM_COUNT_Z: Final = 65535
"""The third count is a u16 in the kernels' dispatch state."""


class Functions(MemoryRecord):
    """Lists addresses: an image refers to nothing by name. Those in front are of C library functions."""

    memmove: i64
    memset: i64
    park: i64  # these five: `base.platform.FUNCTIONS`
    give_way: i64
    running_on: i64
    place_thread: i64
    this_thread: i64
    look_in: i64  # address of interrupts.look_in, called now and then by threads that submit
    first_look: Atomic  # of what the first of them calls instead, once; 0: it has been called
    look_ticks: i64  # how long they may go on without
    stop: i64  # address of the word that says when to look (`base/stop_word.py`)


class Job(MemoryRecord):
    """Is one execution of a command list.

    `looked`, `attended`, `number` and `thread` are set when it begins."""

    list: List  # address of the List record
    addresses: i64  # of this submission's operand addresses
    lengths: i64  # of this submission's operand lengths
    accesses: i64  # of what this submission's operands allow
    functions: Functions  # of the Functions record
    team: ThreadTeam  # of the ThreadTeam record, 0 = this thread alone
    concurrency: i64  # threads that may run workgroups, at most 255
    local_memory: i64  # of the first thread's local memory
    local_stride: i64  # bytes from one thread's local memory to the next's
    shares: Share  # of one Share record per row and one more; with a team only
    failure: Atomic  # FAILED_*, 0 = none; the others are set by the first failure
    failed_row: i64
    failed_code: i64  # what the function returned
    failed_x: i64  # workgroup, or the counts that cannot be run
    failed_y: i64
    failed_z: i64
    looked: i64  # when Python last looked whether it is to end, in ticks; 0: not yet
    attended: i64  # what the word was for which it has looked last
    log: Log  # of the Log record that is told of rows, 0 = none
    origin: i64  # number of the submission that Python made, 0 = machine code executes it in place
    number: i64  # among the jobs of the log
    thread: i64  # that submitted it (Functions.this_thread); with a log only
    tell: i64  # `i64 (TOLD_*, job, row, 0)`, called before each row and after it; 0 = nothing


TOLD_BEGINS: Final = 0
TOLD_ENDS: Final = 1
TOLD_SUBMITTED: Final = 2
"""A list is about to be executed: state, job, words of the call."""
TOLD_ALLOCATED: Final = 3
"""There is a new buffer: state, entry, words of the call."""
TOLD_FAILED: Final = 4
"""A list has failed, and ended: job."""


class Log(MemoryRecord):
    """Measures what a device does while it is profiled. The record lives as long as the device."""

    events: LoggedEvent  # address of the LoggedEvent rows
    capacity: Atomic  # 0 = nothing is recorded now
    next: line  # number of the next event; those beyond the capacity are lost
    users: line  # jobs that may write events
    jobs: line  # number of the next job


class LoggedEvent(MemoryRecord):
    """Records a part of a row that one thread did, or a whole job."""

    begun: i64  # ticks
    ended: i64  # 0 = not complete
    what: i64  # address of the entry point of a dispatch, KIND_* of other rows, WHOLE_JOB
    job: i64
    origin: i64
    thread: i64  # that submitted the job
    bytes: i64  # of the ranges that the row is bound to, once for those that overlap
    row: i32
    worker: i32  # number of the thread in its team


WHOLE_JOB: Final = -1

FAILED_FUNCTION: Final = 1
"""A function returned another value than zero."""
FAILED_COUNTS: Final = 2
"""The workgroup counts of an indirect dispatch are out of range."""
FAILED_INTERRUPTED: Final = 3
"""See ``interrupts.py``. It replaces other failures."""


class Share(MemoryRecord):
    """Divides a row. The chunks of all rows between two barriers are numbered in one sequence."""

    chunk: i64  # number of the row's first chunk in its group
    chunk_size: i64  # parts of workgroups, or bytes
    begin: i64  # first part of a workgroup or byte that is left to do
    end: i64
    count_x: i32  # workgroup counts, read when the group starts
    count_y: i32
    count_z: i32
    parts: i32  # into which each workgroup is cut


class ThreadTeam(MemoryRecord):
    """Shares groups of rows among threads."""

    job: Job  # what the current group belongs to
    begin: Command  # first row of the group
    limit: Atomic  # generation << 32 | chunks of the group
    generation: i64  # of the last group
    threads: i64  # that take part in the group
    functions: Functions  # address of the Functions record
    workers: i64  # threads beside the one that submits
    most: i64  # of them that help at the same time: there is a processor for each
    helpers: i64  # address of one Helper record per thread, the submitting one's first
    spin_ticks: i64  # how long a worker looks for work before it sleeps
    spinning_ticks: i64  # work that is worth sharing while a worker spins
    parked_ticks: i64  # work that is worth waking workers
    owed: i64  # work done lately that more workers would have shared
    owed_since: i64  # when that last grew
    lists: i64  # address of KNOWN_LISTS MeasuredList records
    expected: i64  # ticks that one thread would take for the last list, as far as known
    masks: i64  # address of one affinity mask of MASK_SIZE bytes per thread, the first one's first
    submitter: Atomic  # processor on which the last group was opened
    parking_call: i64  # number of the system call by which helpers sleep and are woken
    claimed: line  # generation << 32 | next chunk
    finished: line  # chunks of the group that are done
    posted: line  # POSTING for every group, and below that the number of workers that are to help
    busy: line  # 1 while a thread uses the team


class MeasuredList(MemoryRecord):
    """Says whether a team or one thread takes less time for lists.

    Times are moving averages, in ticks."""

    key: i64  # of the lists
    shared: i64  # a team's time, 0 = not known
    alone: i64  # one thread's time, 0 = not known
    left: i64  # lists until the other way is tried
    interval: i64  # lists from then on until it is tried again
    trials: i64  # lists left of a trial


class Helper(MemoryRecord):
    """Tells others of a worker thread."""

    asleep: line  # 1 = it sleeps or is about to: the word that it parks on


POSTING: Final = 1 << 8
POSTED_STOP: Final = 1 << 62
"""Workers are to end."""
ROUSED_BY_EACH: Final = 3
"""Sleeping workers that a thread wakes before it begins; those wake the others."""
RISE_SHIFT: Final = 3
FALL_SHIFT: Final = 2
"""Parts of a difference by which measured costs grow and shrink."""
KNOWN_LISTS: Final = 64
"""Kinds of lists that a team remembers, a power of two."""
FIRST_INTERVAL: Final = 8
INTERVAL_SHIFT: Final = 3
LAST_INTERVAL: Final = 1024
"""Lists between two trials of the way that takes longer: eight, and each time eight times as many."""
TRIALS: Final = 3
"""Lists of a trial, unless one takes half as long again as usual. The first one wakes helpers, or finds data
in their caches: it is forgotten."""
LISTS_BETWEEN_TRIALS: Final = 64
"""Lists on one thread before the team is tried again, at most, for each time as long that the team takes."""
LONG_LIST: Final = 64
"""Lists that a team takes longer for, in units of ``ThreadTeam.parked_ticks``, are long."""
WORTH_TRYING: Final = 3
"""One thread is tried where a team is expected to gain less than this factor: what chunks take contains what
threads fetch from each other, up to four times what the work itself takes."""
BYTES_CHUNK: Final = 64 * 1024
"""Bytes of a fill or copy that one thread does at a time, at least."""
CHUNKS_PER_THREAD: Final = 8
"""At most. More chunks balance better, fewer cost less."""
FIRST_PART: Final = 16
"""A sixteenth of what Python runs for the first time tells what the rest takes."""
INTERPRETED_SHIFT: Final = 15
"""The least cost of a chunk that Python runs: 32 times what is worth waking a worker, in units of
KernelEntry.cost. Python's part is 40 us, for which threads wait one after the other, and as long for each
other to wake up."""
MOST_CHUNKS: Final = (1 << 31) - 1
LONG_SHIFT: Final = 5
"""A part of `look_ticks`, a millisecond: no thread is to go on for longer without a look, but for one
workgroup."""
ROWS_BETWEEN_LOOKS: Final = 7
"""Rows between two looks at the clock: all bits set."""
FIRST_WORKGROUPS: Final = 4
MOST_WORKGROUPS: Final = 1 << 13
"""Between two looks. Reading the clock takes as long as some ten of the smallest."""
PIECE: Final = 1 << 24
"""Bytes of a fill or copy, some milliseconds, after which it is looked whether it is to end."""
LOOKS_BETWEEN_YIELDS: Final = 1023
"""Looks of the submitting thread at what is finished before others may have its processor: all bits set."""
MOST_LOOKS: Final = 100_000
"""Looks of a worker for something new before it parks, whatever the clock says."""
MASK_SIZE: Final = 128
"""Bytes: up to 1024 processors."""
BYTES_PER_TICK: Final = 4
"""Bytes that a copy moves in a tick: about 10 GB/s."""
FOREVER: Final = 1 << 52
"""Ticks, the most that an estimate is."""
FILL_BLOCK: Final = 1024
"""Bytes of a fill that are written word by word; the rest is copies of them. A multiple of 8."""

PUSHED_BINDINGS: Final = 2 * MAXIMUM_SET_BINDINGS
"""Bindings of two sets have registers; programs of ABI 0.2 to 0.4 use one. Others are Python's."""
PUSHED_VALUES: Final = MAXIMUM_CONSTANTS + 6 * PUSHED_BINDINGS
"""Value registers of what is pushed: constants, then six for each binding (:func:`pushed_slot`)."""


def pushed_slot(number: int) -> int:
    """The first of a binding's value registers: slot, a gap, offset, length. Its reference has its number."""
    return MAXIMUM_CONSTANTS + 6 * number
