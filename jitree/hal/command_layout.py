"""Lays out recorded commands as flat tables, for recording and for the executor.

A command list is a table of rows (COMMAND). What a row works on lies in side tables that it indexes: operands
(buffer ranges, as arrays of addresses and lengths, the form in which kernels want bindings, and of what
their buffers allow), 32-bit constants, bytes of updates. Rows never change after recording, so one list can
be submitted many times and at the same time: only the operand tables are copied and patched from the binding
table of a submission.
The other records, from FUNCTIONS on, are memory that the command executor and Python share.
"""

from __future__ import annotations

from typing import Final

from jitree.base.layout import Record
from jitree.hal.enums import MAXIMUM_CONSTANTS, MAXIMUM_SET_BINDINGS

ENTRY_POINT: Final = Record(
    "entry point",
    """
    i64 code              # address of the function: i32 (environment, dispatch state, workgroup state)
    i64 environment       # address of the executable's environment
    i64 cost              # moving average of ticks per 1024 workgroups, 0 = not run yet; racy by design
    i32 local_memory      # bytes of local memory that each workgroup in flight needs
    i32 flags             # ENTRY_*
    i32 constant_count    # 32-bit words, -1 = not stated by the executable
    i32 binding_count     # -1 = not stated by the executable
    i32 ordinal           # position among the executable's functions
    i32 parts             # into how many a workgroup can be cut at most; 0 and 1: it cannot
    """,
)
"""A function of a loaded executable. Records belong to the executable and live as long as it does."""

EXECUTABLE: Final = Record(
    "executable",
    """
    i64 names             # address of rows (address, length), the name of each function
    i64 pipelines         # address of the addresses of PipelineRecords, one for each function; 0 = none
    """,
)
"""What the extension of an executable's handle entry has."""

ENTRY_SEQUENTIAL: Final = 1
"""Workgroups of one dispatch must not run at the same time."""
ENTRY_SPAN: Final = 2
"""One call runs a span of the grid: for functions that pay for every call.

``code`` finds the span in WORKGROUP: ``first`` and ``last``. When it fails it leaves the id of the workgroup
there; its executable is asked for the error (``LocalExecutable.take_failure``).
"""
ENTRY_INTERPRETED: Final = 4
"""Python runs the spans. Threads wait for each other on the way into each, so what a clock says of one is not
its cost: the executable writes ``cost`` itself, and spans are long.
"""

COUNTS: Final = Record("workgroup counts", "u32 x\nu32 y\nu32 z")

DISPATCH: Final = Record(
    "dispatch state",
    """
    u32 size_x            # of a workgroup
    u32 size_y
    u16 size_z
    u16 constant_count
    u32 count_x           # workgroups
    u32 count_y
    u16 count_z
    u8 concurrency        # threads that may run workgroups
    u8 binding_count
    i64 constants         # address of the 32-bit constants
    i64 addresses         # of the bindings' addresses
    i64 lengths           # of the bindings' lengths
    i64 failure           # our own: address of the job's failure, which ends it when it is not zero
    i64 parts             # our own: into how many each workgroup is cut; spans count those
    i64 accesses          # our own: of what the bindings allow
    """,
)
"""What functions of executables know of the dispatch."""

WORKGROUP: Final = Record(
    "workgroup state",
    """
    u32 x                 # the workgroup's id
    u32 y
    u16 z
    u16 reserved
    u32 processor         # number of the thread
    i64 local_memory
    u32 local_size
    u32 padding
    i64 first             # of a span (ENTRY_SPAN): number of the first workgroup, x fastest, or part of one
    i64 last              # … of the one after the last
    """,
)
"""What functions of executables know of the workgroup. It ends before ``padding`` for those of others."""

COMMAND: Final = Record(
    "command",
    """
    i32 kind              # KIND_*
    i32 operand           # index of the first operand
    i32 operand_count     # of a dispatch: bindings; the counts of an indirect one are one more operand
    i32 constant          # index of the first constant
    i32 constant_count
    i32 count_x           # workgroups, unsigned
    i32 count_y
    i32 count_z
    i64 entry             # address of the entry point record of a dispatch
    i32 pattern           # of a fill, repeated to four bytes
    i32 pattern_length    # 1, 2 or 4
    i64 data              # offset of the bytes of an update
    i32 data_length       # of an update
    i32 object            # position of a dispatch's executable in the list's kept objects, for messages
    """,
)
COMMAND_ROW: Final = COMMAND.packer()
assert COMMAND.size == COMMAND_ROW.size == 64 and ENTRY_POINT.size == WORKGROUP.size == 48

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

PATCH: Final = Record(
    "patch",
    """
    i64 operand           # index of the operand to set
    i64 slot              # of the binding table
    i64 offset            # added to the table entry's
    i64 length            # WHOLE_BUFFER = the rest of the table entry
    i64 alignment         # required of the address, minus 1
    """,
)

LIST: Final = Record(
    "list",
    """
    i64 rows              # address of the COMMAND rows
    i64 row_count
    i64 addresses         # of i64 operand addresses; those that a patch sets are 0
    i64 lengths           # of i64 operand lengths
    i64 accesses          # of i64 MemoryAccess, what each operand's buffer allows
    i64 operand_count
    i64 constants         # of the 32-bit constants
    i64 data              # of the update bytes
    i64 patches           # of the PATCH rows
    i64 patch_count
    i64 local_memory      # the most that any dispatch of the list needs for a workgroup
    """,
)
"""What the command executor is given. Recording, in Python or in native code, ends with filling one in."""

COMMANDS: Final = Record(
    "commands",
    """
    i64 next              # in a list of idle ones
    i64 ready             # 1 = recording has ended and machine code may execute it
    i64 modes             # of the command buffer
    i64 copies            # 1 = ranges of copies have to be compared when slots are known
    i64 list              # address of the LIST record
    i64 slot_count
    i64 slots             # address of SLOT rows
    i64 place             # whose memory it works on, as in ENTRY.access
    """,
)
"""What machine code must know of a command buffer before it executes it."""

SLOT: Final = Record(
    "slot",
    """
    i32 used              # 1 = a submission must have a buffer there
    i32 usage             # that the buffer must have been allocated for
    i32 access            # that it must allow
    i32 reserved
    """,
)

BINDING_ALIGNMENT: Final = 64
"""Compiled kernels load and store whole vectors: 16-byte aligned in generic code, 64 for AVX-512."""
MAXIMUM_WORKGROUPS: Final = 1 << 48
"""The most workgroups of one dispatch: products of counts stay far from overflow."""
MAXIMUM_COUNT_Z: Final = 65535
"""The third count is a u16 in the kernels' dispatch state."""


FUNCTIONS: Final = Record(
    "functions",
    """
    i64 memmove
    i64 memset
    i64 syscall
    i64 sched_yield
    i64 sched_getcpu
    i64 sched_setaffinity
    i64 pthread_self
    i64 look_in           # address of interrupts.look_in, called now and then by threads that submit
    i64 first_look        # of what the first of them calls instead, once; 0: it has been called
    i64 look_ticks        # how long they may go on without
    i64 stop              # address of the word that says when to look (`base/stop_word.py`)
    """,
)
"""Addresses: an image refers to nothing by name. Those in front are of C library functions."""

JOB: Final = Record(
    "job",
    """
    i64 list              # address of the LIST record
    i64 addresses         # of this submission's operand addresses
    i64 lengths           # of this submission's operand lengths
    i64 accesses          # of what this submission's operands allow
    i64 functions         # of the FUNCTIONS record
    i64 team              # of the TEAM record, 0 = this thread alone
    i64 concurrency       # threads that may run workgroups, at most 255
    i64 local_memory      # of the first thread's local memory
    i64 local_stride      # bytes from one thread's local memory to the next's
    i64 shares            # of one SHARE record per row and one more; with a team only
    i64 failure           # FAILED_*, 0 = none; the others are set by the first failure
    i64 failed_row
    i64 failed_code       # what the function returned
    i64 failed_x          # workgroup, or the counts that cannot be run
    i64 failed_y
    i64 failed_z
    i64 looked            # when Python last looked whether it is to end, in ticks; 0: not yet
    i64 attended          # what the word was for which it has looked last
    i64 log               # of the LOG record that is told of rows, 0 = none
    i64 origin            # number of the submission that Python made, 0 = machine code executes it in place
    i64 number            # among the jobs of the log
    i64 thread            # that submitted it (pthread_self); with a log only
    """,
)
"""One execution of a command list. `looked`, `attended`, `number` and `thread` are set when it begins."""

LOG: Final = Record(
    "log",
    """
    i64 events            # address of the EVENT rows; 0 = nothing is recorded now
    i64 capacity
    line next             # number of the next event; those beyond the capacity are lost
    line users            # jobs that may write events
    line jobs             # number of the next job
    """,
)
"""What a device measures while it is profiled. The record lives as long as the device."""

EVENT: Final = Record(
    "event",
    """
    i64 begun             # ticks
    i64 ended             # 0 = not complete
    i64 what              # address of the entry point of a dispatch, KIND_* of other rows, WHOLE_JOB
    i64 job
    i64 origin
    i64 thread            # that submitted the job
    i64 bytes             # of the ranges that the row is bound to, once for those that overlap
    i32 row
    i32 worker            # number of the thread in its team
    """,
)
"""A part of a row that one thread did at once, or a job from its beginning to its end."""
EVENT_ROW: Final = EVENT.packer()
assert EVENT.size == EVENT_ROW.size == 64

WHOLE_JOB: Final = -1

FAILED_FUNCTION: Final = 1
"""A function returned another value than zero."""
FAILED_COUNTS: Final = 2
"""The workgroup counts of an indirect dispatch are out of range."""
FAILED_INTERRUPTED: Final = 3
"""See ``interrupts.py``. It replaces other failures."""

SHARE: Final = Record(
    "share",
    """
    i64 chunk             # number of the row's first chunk in its group
    i64 chunk_size        # parts of workgroups, or bytes
    i64 begin             # first part of a workgroup or byte that is left to do
    i64 end
    i32 count_x           # workgroup counts, read when the group starts
    i32 count_y
    i32 count_z
    i32 parts             # into which each workgroup is cut
    """,
)
"""How a row is divided: the chunks of all rows between two barriers are numbered in one sequence."""

TEAM: Final = Record(
    "team",
    """
    i64 job               # what the current group belongs to
    i64 begin             # first row of the group
    i64 limit             # generation << 32 | chunks of the group
    i64 generation        # of the last group
    i64 threads           # that take part in the group
    i64 functions         # address of the FUNCTIONS record
    i64 workers           # threads beside the one that submits
    i64 most              # of them that help at the same time: there is a processor for each
    i64 helpers           # address of one HELPER record per thread, the submitting one's first
    i64 spin_ticks        # how long a worker looks for work before it sleeps
    i64 spinning_ticks    # work that is worth sharing while a worker spins
    i64 parked_ticks      # work that is worth waking workers
    i64 owed              # work done lately that more workers would have shared
    i64 owed_since        # when that last grew
    i64 lost              # ticks by which shared groups took longer than alone, less what others gained
    i64 alone_until       # when groups are shared again
    i64 alone_ticks       # for how long they were not
    i64 masks             # address of one affinity mask of MASK_SIZE bytes per thread, the first one's first
    i64 submitter         # processor on which the last group was opened
    i64 futex             # number of the system call
    line claimed          # generation << 32 | next chunk
    line finished         # chunks of the group that are done
    line posted           # POSTING for every group, and below that the number of workers that are to help
    line busy             # 1 while a thread uses the team
    """,
)
HELPER: Final = Record("helper", "line asleep  # 1 = it sleeps or is about to: a futex")
"""What others know of a worker thread."""
POSTING: Final = 1 << 8
POSTED_STOP: Final = 1 << 62
"""Workers are to end."""
ROUSED_BY_EACH: Final = 3
"""Sleeping workers that a thread wakes before it begins; those wake the others."""
RISE_SHIFT: Final = 3
FALL_SHIFT: Final = 2
"""Parts of a difference by which measured costs grow and shrink."""
MOST_LOST: Final = 8
MOST_GAINED: Final = 64
LONGEST_ALONE: Final = 4096
"""In units of ``TEAM.parked_ticks``, as sharing is given up and taken up again."""
BYTES_CHUNK: Final = 256 * 1024
"""Bytes of a fill or copy that one thread does at a time, at least."""
CHUNKS_PER_THREAD: Final = 8
"""At most. More chunks balance better, fewer cost less."""
FIRST_PART: Final = 16
"""A sixteenth of what Python runs for the first time tells what the rest takes."""
INTERPRETED_SHIFT: Final = 15
"""The least cost of a chunk that Python runs: 32 times what is worth waking a worker, in units of
ENTRY_POINT.cost. Python's part is 40 us, for which threads wait one after the other, and as long for each
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
FUTEX_CALLS: Final = {"x86_64": 202, "amd64": 202}
FUTEX_CALL: Final = 98
"""Numbers of the system call; the second everywhere else."""
FUTEX_WAIT: Final = 128
FUTEX_WAKE: Final = 129
"""Operations of the futex system call on memory of one process (FUTEX_PRIVATE_FLAG)."""
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
