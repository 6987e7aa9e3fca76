"""Memory that the command executor and Python share, beside the lists of ``hal/command_layout.py``."""

from __future__ import annotations

from typing import Final

from jitree.base.layout import Record

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
    i64 look_ticks        # how long they may go on without
    i64 rings             # address of the number of rings (`base/scopes.py`)
    i64 due               # address of the time of the next deadline (`base/due.py`)
    """,
)
"""Addresses: an image refers to nothing by name. Those in front are of C library functions."""

JOB: Final = Record(
    "job",
    """
    i64 list              # address of the LIST record
    i64 addresses         # of this submission's operand addresses
    i64 lengths           # of this submission's operand lengths
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
    i64 attended          # number of the last ring that it has looked for
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
    i64 functions         # address of the FUNCTIONS record
    i64 workers           # threads beside the one that submits
    i64 spin_ticks        # how long a worker looks for work before it parks
    i64 spinning_ticks    # work that is worth sharing while a worker spins
    i64 parked_ticks      # work that is worth waking workers
    i64 owed              # work done alone lately that spinning workers would have shared
    i64 owed_since        # when that last grew
    i64 stop              # 1: workers end
    i64 homes             # address of one processor number per thread, the submitting one's first; -1 = any
    i64 masks             # address of one affinity mask of MASK_SIZE bytes per thread, for its home
    i64 submitter         # processor on which the last group was opened
    i64 futex             # number of the system call
    line claimed          # generation << 32 | next chunk
    line finished         # chunks of the group that are done
    line sequence         # grows with every group; workers sleep on its low half as a futex
    line parked           # workers that sleep; who wakes them, or they themselves, take them off
    line busy             # 1 while a thread uses the team
    """,
)
BYTES_CHUNK: Final = 256 * 1024
"""Bytes of a fill or copy that one thread does at a time, at least."""
CHUNKS_PER_THREAD: Final = 8
"""More chunks balance better, fewer cost less."""
FIRST_PART: Final = 16
"""A sixteenth of what Python runs for the first time tells what the rest takes."""
INTERPRETED_SHIFT: Final = 15
"""Of a chunk that Python runs: 32 times what is worth waking a worker, in units of ENTRY_POINT.cost. Python's
part is 40 us, for which threads wait one after the other, and as long for each other to wake up."""
MOST_CHUNKS: Final = (1 << 31) - 1
LONG_SHIFT: Final = 5
"""A part of `look_ticks`, a millisecond: no thread is to go on for longer without a look, but for one
workgroup."""
ROWS_BETWEEN_LOOKS: Final = 7
"""At the clock: all bits set."""
FIRST_WORKGROUPS: Final = 4
MOST_WORKGROUPS: Final = 1 << 13
"""Between two looks. Reading the clock takes as long as some ten of the smallest."""
PIECE: Final = 1 << 24
"""Bytes of a fill or copy, some milliseconds, after which it is looked whether it is to end."""
TURNS_BETWEEN_YIELDS: Final = 1023
"""Looks of the submitting thread at what is finished before others may have its processor: all bits set."""
MOST_TURNS: Final = 100_000
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
"""Of a copy: about 10 GB/s."""
FOREVER: Final = 1 << 52
"""Ticks, the most that an estimate is."""
FILL_BLOCK: Final = 1024
"""Bytes of a fill that are written word by word; the rest is copies of them. A multiple of 8."""
