"""Shares a stream-ordered device between Python and machine code.

Python owns the stream while ``owner`` is OWNED_BY_PYTHON, as at first. When it has submitted what it had to
it hands the stream over, and takes it back before it counts a submission. Machine code submits
only what it finds in the table of programs of its handle pool, and counts that when it has entered the
stream. So all that is counted has, except between Python's count and its handing over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from jitree.base.records import NamedTuple
from jitree.codegen.record import Atomic, MemoryRecord, Repeated, layout_of, size_of

if TYPE_CHECKING:
    from threading import RLock

    from jitree.codegen.record import i64, u32
    from jitree.hal.semaphore import Semaphore


class StreamRecord(MemoryRecord):
    """A device's stream."""

    owner: Atomic  # OWNED_BY_*
    tick: i64  # number of the newest submission
    completed: i64  # everything up to here is done on the device
    held: i64  # counted submissions that machine code still holds back; what enters the stream comes after
    held_launches: i64  # theirs together
    held_words: i64
    held_limit: i64  # launches with which they enter the stream, at the latest
    held_programs: i64  # address of the addresses of MOST_HELD ProgramRecords
    words: i64  # address of MOST_HELD_WORDS words, one list's after another's
    sequences: SequencesRecord  # of the table that their programs are from
    place: i64  # the number by which entries name its memory (ENTRY.access)
    program: ProgramRecord  # address of the ProgramRecord that machine code launched last, and
    launched: i64  # the number of that submission
    handle: i64  # of the stream, for the driver
    context: i64
    set_current: i64  # addresses of functions of the driver: cuCtxSetCurrent
    launch_graph: i64  # cuGraphLaunch
    set_node: i64  # cuGraphExecKernelNodeSetParams
    launch_kernel: i64  # cuLaunchKernelEx; 0 = there is none
    copy_to_device: i64  # cuMemcpyHtoDAsync
    query: i64  # cuStreamQuery
    record_event: i64  # cuEventRecord
    wait_for_event: i64  # cuStreamWaitEvent
    event: i64  # that is recorded when the stream is to wait for another one
    ordinal: i64  # of the device, as other libraries number it
    lends: i64  # 1 = machine code has used memory of other libraries
    failed: i64  # number of the submission that the driver refused, all of it or a part; 0 = none
    exports: i64  # EXPORTED_BY_*: who has given them memory of the device; 0 = none was given
    block_bytes: i64  # that a thread block of a fill or copy moves at a time
    most_blocks: i64  # of a fill or copy
    neighbours: i64  # address of the addresses of such records by place; 0 = none, or closed
    known: i64  # address of MOST_KNOWN KnownRecords
    known_count: i64  # uploads since the newest other submission; number N's is record N % MOST_KNOWN
    worked: i64  # number of the newest submission that is no upload of an argument's elements
    exposed: i64  # 1 = other devices use its memory
    owed: Atomic  # number of the newest submission that hosts wait for after a call (STATE.owed)
    asking: Atomic  # threads of machine code that ask for the stream, which lives as long


class KnownRecord(MemoryRecord):
    """Says what an upload has written to memory that nothing else has been told of before it.

    Where nothing but uploads has been submitted since, the host knows what is there."""

    address: i64  # of the device
    length: i64
    bytes: i64 = Repeated(32)  # the first ones


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
MOST_HELD: Final = 64
MOST_HELD_WORDS: Final = 1 << 12
"""Command lists that are held back, and their words."""


class ProgramRecord(MemoryRecord):
    """Command lists that differ in addresses, lengths, constants and grids only. What differs are the words
    of a submission: of each launch the parameters, then the grid in two words, x and y in the first one."""

    next: ProgramRecord  # in its bucket
    hash: i64
    row_count: i64  # of a sequence of lists: how many
    shapes: Shape  # address of Shape records, one a row; of a sequence: of the programs of its lists
    launch_count: i64
    firsts: i64  # address of the i64 number of each launch's first word, and of that after all
    instances: InstanceRecord  # address of two InstanceRecords
    latest: i64  # offset there of the one that was launched last
    chains: ChainRecord  # address of two ChainRecords
    latest_chain: i64  # offset there of the one that was launched last


class Shape(MemoryRecord):
    """A row: the kind, from bit 16 on the number of operands and from bit 32 on that of constants; the entry
    point of a dispatch."""

    kind: i64
    entry: i64


class InstanceRecord(MemoryRecord):
    """An executable graph."""

    executable: i64  # an executable graph
    words: i64  # address of the words of its last run, where the driver reads parameters
    nodes: i64  # address of each launch's i64 node in the graph
    structures: i64  # address of a KernelNode for each launch


class KernelNode(MemoryRecord):
    """Is CUDA_KERNEL_NODE_PARAMS_v2 of cuda.h."""

    function: i64
    x: u32  # blocks
    y: u32
    z: u32
    block_x: u32  # threads
    block_y: u32
    block_z: u32
    shared_memory: u32
    padding: u32
    parameters: i64  # address of the addresses of the parameters
    extra: i64
    kernel: i64
    context: i64


assert size_of(KernelNode) == 72


class ChainRecord(MemoryRecord):
    """For launches one by one, which the device begins with while others are still prepared."""

    words: i64  # address of the words of its last run, where the driver reads parameters
    launches: LaunchRecord  # address of a LaunchRecord for each launch


class LaunchRecord(MemoryRecord):
    """CUlaunchConfig of cuda.h, up to ``attribute_count``; function and parameters are arguments of their
    own."""

    x: u32  # blocks
    y: u32
    z: u32
    block_x: u32  # threads
    block_y: u32
    block_z: u32
    shared_memory: u32
    padding: u32
    stream: i64
    attributes: i64  # address of attributes
    attribute_count: i64
    function: i64
    parameters: i64  # address of the addresses of the parameters


assert layout_of(LaunchRecord)["function"] == 56


class SequencesRecord(MemoryRecord):
    """Sequences of command lists that are launched as one. Python makes those that are wanted."""

    buckets: i64  # address of BUCKETS addresses of ProgramRecords, by the low bits of ``hash``
    missed: i64  # address of BUCKETS hashes of sequences that have come once; 0 = no more are wanted
    wanted_count: i64
    wanted: i64  # address of MOST_WANTED rows: a number of lists, the addresses of their MOST_HELD programs


MOST_WANTED: Final = 16

BUCKETS: Final = 64
"""Words of a table of programs: addresses of the first ones, by the low bits of ``hash``."""


class StreamGraphs(NamedTuple):
    """Holds what a command buffer does, for a ProgramRecord."""

    launch_count: int
    firsts: int
    instances: int
    chains: int
    kept: object
    """What lives as long as machine code knows of it."""
    plan: object
    """The driver's, of which it makes those of sequences."""
    join: Callable[[Any, Sequence[StreamGraphs]], StreamGraphs]
    """Makes graphs of lists one after the other, for a stream whose lock the caller has."""


class Programs(Protocol):
    """Looks programs up in a table."""

    def clear(self) -> None:
        """Forgets all. What the device still works on it keeps."""


class StreamCode(NamedTuple):
    """Functions of machine code that take the address of a StreamRecord."""

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
