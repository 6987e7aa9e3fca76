"""Recorded commands as flat tables: one layout for the command executor and for recording, native or not.

A command list is a table of rows (COMMAND). What a row works on lies in side tables that it indexes: operands
(buffer ranges, as two arrays of addresses and lengths, the form in which kernels want their bindings), 32-bit
constants, bytes of updates. Rows never change after recording, so one list can be submitted many times and at
the same time: only the operand tables are copied and patched from the binding table of a submission.
"""

from __future__ import annotations

from typing import Final

from jitree.base.layout import Record

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
"""Operand: target."""
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
"""Of one dispatch: products of counts stay far from overflow."""
MAXIMUM_COUNT_Z: Final = 65535
"""The third count is a u16 in the kernels' dispatch state."""
