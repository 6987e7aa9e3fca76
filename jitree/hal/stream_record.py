"""Shares a stream-ordered device between Python and machine code.

Python owns the stream while ``owner`` is OWNED_BY_PYTHON, as at first. When it has submitted what it had to
it hands the stream over, and takes it back before it counts a submission. Machine code submits
only what it finds in the table of programs of its handle pool, and counts that when it has entered the
stream. So all that is counted has, except between Python's count and its handing over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from jitree.base.layout import Record
from jitree.base.records import NamedTuple

if TYPE_CHECKING:
    from threading import RLock

    from jitree.hal.semaphore import Semaphore

STREAM: Final = Record(
    "stream",
    """
    i64 owner             # OWNED_BY_*
    i64 tick              # number of the newest submission
    i64 completed         # everything up to here is done on the device
    i64 batched           # submissions in Python's launch batch: they come first
    i64 place             # the number by which entries name its memory (ENTRY.access)
    i64 program           # address of the PROGRAM that machine code launched last, and
    i64 launched          # the number of that submission
    i64 handle            # of the stream, for the driver
    i64 context
    i64 set_current       # addresses of functions of the driver: cuCtxSetCurrent
    i64 launch_graph      # cuGraphLaunch
    i64 set_node          # cuGraphExecKernelNodeSetParams
    i64 launch_kernel     # cuLaunchKernelEx; 0 = there is none
    i64 copy_to_device    # cuMemcpyHtoDAsync
    i64 query             # cuStreamQuery
    i64 record_event      # cuEventRecord
    i64 wait_for_event    # cuStreamWaitEvent
    i64 event             # that is recorded when the stream is to wait for another one
    i64 ordinal           # of the device, as other libraries number it
    i64 lends             # 1 = machine code has used memory of other libraries
    i64 failed            # 1 = a list has entered the stream in part, and its next launch was refused
    i64 exports           # EXPORTED_BY_*: who has given them memory of the device; 0 = none was given
    i64 block_bytes       # that a thread block of a fill or copy moves at a time
    i64 most_blocks       # of a fill or copy
    i64 neighbours        # address of the addresses of such records by place; 0 = none, or closed
    i64 timed             # address of the PROGRAM of the submission that is timed, which may be gone since
    i64 timed_tick        # number of that
    i64 way               # BY_GRAPH or SINGLY: how it was launched
    i64 known             # address of MOST_KNOWN KNOWN records
    i64 known_count       # uploads since the newest other submission; number N's is record N % MOST_KNOWN
    i64 worked            # number of the newest submission that is no upload of an argument's elements
    i64 exposed           # 1 = other devices use its memory
    i64 begun             # ticks of the clock when it was, and
    i64 ended             # when the host found it done; 0 = it has not yet
    i64 owed              # number of the newest submission that hosts wait for after a call (STATE.owed)
    i64 asking            # threads of machine code that ask for the stream, which lives as long
    """,
)

KNOWN: Final = Record(
    "known",
    """
    i64 address           # of the device
    i64 length
    i64*32 bytes          # the first ones
    """,
)
"""What an upload has written to memory that nothing else has been told of before it: where nothing but
uploads has been submitted since, the host knows what is there."""
MOST_KNOWN: Final = 8
MOST_KNOWN_BYTES: Final = 8 * 32

MOST_NEIGHBOURS: Final = 1 << 12
"""Places from this one on have no neighbours."""

LEGACY_STREAM: Final = 1
"""The default stream of a context, by the number that drivers and DLPack give it."""
OWNED_BY_PYTHON: Final = 0
OWNED_BY_CODE: Final = 1
SUBMITTING: Final = 2
"""Machine code is just submitting something."""
EXPORTED_BY_CODE: Final = 1
"""Python does not know what of it."""
EXPORTED_BY_PYTHON: Final = 2
BY_GRAPH: Final = 0
SINGLY: Final = 1
"""Ways in which it launches a command list that is nearly as in the last runs."""

PROGRAM: Final = Record(
    "program",
    """
    i64 next              # in its bucket
    i64 hash
    i64 row_count
    i64 shapes            # address of SHAPE records, one a row
    i64 launch_count
    i64 firsts            # address of the i64 number of each launch's first word, and of that after all
    i64 instances         # address of two INSTANCE records
    i64 latest            # offset there of the one that was launched last
    i64 chains            # address of two CHAIN records
    i64 latest_chain      # offset there of the one that was launched last
    i64 changes           # times that a graph would have been changed and the device had nothing to do
    i64 graph_time        # ticks that it then took with a graph, lately at least; 0 = not known
    i64 single_time       # and launched one by one
    """,
)
"""Command lists that differ in addresses, lengths, constants and grids only. What differs are the words of a
submission: of each launch the parameters, then the grid in two words, x and y in the first one."""

SHAPE: Final = Record("shape", "i64 kind\ni64 entry")
"""A row: the kind, from bit 16 on the number of operands and from bit 32 on that of constants; the entry
point of a dispatch."""

INSTANCE: Final = Record(
    "instance",
    """
    i64 executable        # an executable graph
    i64 words             # address of the words of its last run, where the driver reads parameters
    i64 nodes             # address of each launch's i64 node in the graph
    i64 structures        # address of a KERNEL_NODE record for each launch
    """,
)

KERNEL_NODE: Final = Record(
    "kernel node",
    """
    i64 function
    u32 x                 # blocks
    u32 y
    u32 z
    u32 block_x           # threads
    u32 block_y
    u32 block_z
    u32 shared_memory
    u32 padding
    i64 parameters        # address of the addresses of the parameters
    i64 extra
    i64 kernel
    i64 context
    """,
)
"""CUDA_KERNEL_NODE_PARAMS_v2 of cuda.h."""
assert KERNEL_NODE.size == 72

CHAIN: Final = Record(
    "chain",
    """
    i64 words             # address of the words of its last run, where the driver reads parameters
    i64 launches          # address of a LAUNCH record for each launch
    """,
)
"""For launches one by one, which the device begins with while others are still prepared."""

LAUNCH: Final = Record(
    "launch",
    """
    u32 x                 # blocks
    u32 y
    u32 z
    u32 block_x           # threads
    u32 block_y
    u32 block_z
    u32 shared_memory
    u32 padding
    i64 stream
    i64 attributes        # address of attributes
    i64 attribute_count
    i64 function
    i64 parameters        # address of the addresses of the parameters
    """,
)
"""CUlaunchConfig of cuda.h, up to ``attribute_count``; function and parameters are arguments of their own."""
assert LAUNCH.offsets["function"] == 56

BUCKETS: Final = 64
"""Words of a table of programs: addresses of the first ones, by the low bits of ``hash``."""


class StreamGraphs(NamedTuple):
    """Holds what a command buffer does, for a PROGRAM."""

    launch_count: int
    firsts: int
    instances: int
    chains: int
    kept: object
    """What lives as long as machine code knows of it."""


class Programs(Protocol):
    """Looks programs up in a table."""

    def clear(self) -> None:
        """Forgets all. What the device still works on it keeps."""


class StreamCode(NamedTuple):
    """Functions of machine code that take the address of a STREAM record."""

    take_over: Callable[[int], int]
    """Gives 1 when the stream is Python's, 0 while machine code submits."""
    hand_over: Callable[[int], None]
    """Machine code may submit."""
    is_done: Callable[[int, int], int]
    """Gives 1 when submission, the second argument, is done, and 0 when it is not within a moment. The GIL is
    released meanwhile."""


class SharedStream(Protocol):
    """Shows a device's stream to the handle pool that has its memory."""

    lock: RLock
    """A thread that has it may change tables of programs while the stream is Python's."""

    def connect(self, code: StreamCode, programs: Programs) -> None:
        """There is machine code."""

    def take(self) -> None:
        """The stream is Python's from now on, until Python has submitted something."""

    def promised(self, tick: int) -> Semaphore:
        """Reaches 1 when a submission is done."""

    def retain(self, value: object) -> None:
        """Keeps an object until everything submitted so far is done."""
