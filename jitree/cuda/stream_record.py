"""Lays out what machine code and Python share of a stream: what it is given, and what launches that.

Machine code submits only what it finds in a table of programs, and counts that when it has entered the stream
or is held back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jitree.codegen.record import MemoryRecord, layout_of, size_of
from jitree.hal.timeline_record import Timeline

if TYPE_CHECKING:
    from jitree.codegen.record import i64, u32


class StreamRecord(Timeline):
    """A device's stream."""

    held: i64  # counted submissions that machine code still holds back; what enters the stream comes after
    held_launches: i64  # theirs together
    held_words: i64
    held_limit: i64  # launches with which they enter the stream, at the latest
    held_programs: i64  # address of the addresses of MOST_HELD ProgramRecords
    words: i64  # address of MOST_HELD_WORDS words, one list's after another's
    sequences: ProgramTableRecord  # of the table that their programs are from
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
    failed: i64  # number of the submission that the driver refused, all of it or a part; 0 = none
    block_bytes: i64  # that a thread block of a fill or copy moves at a time
    most_blocks: i64  # of a fill or copy
    neighbours: i64  # address of the addresses of such records by place; 0 = none, or closed


MOST_NEIGHBOURS: Final = 1 << 12
"""Places from this one on have no neighbours."""
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


class LaunchGrid(MemoryRecord):
    """Is what both structures of cuda.h begin the size of a launch with."""

    embedded = True
    x: u32  # blocks
    y: u32
    z: u32
    block_x: u32  # threads
    block_y: u32
    block_z: u32
    shared_memory: u32
    is_fixed: u32  # the blocks are not a list's; padding, which the driver does not read


class KernelNode(MemoryRecord):
    """Is CUDA_KERNEL_NODE_PARAMS_v2 of cuda.h."""

    function: i64
    grid: LaunchGrid
    parameters: i64  # address of the addresses of the parameters
    extra: i64
    kernel: i64
    context: i64


assert size_of(KernelNode) == 72


class ChainRecord(MemoryRecord):
    """Launches one by one, so that the device begins early."""

    words: i64  # address of the words of its last run, where the driver reads parameters
    launches: LaunchRecord  # address of a LaunchRecord for each launch


class LaunchRecord(MemoryRecord):
    """CUlaunchConfig of cuda.h, up to ``attribute_count``; function and parameters are arguments of their
    own."""

    grid: LaunchGrid
    stream: i64
    attributes: i64  # address of attributes
    attribute_count: i64
    function: i64
    parameters: i64  # address of the addresses of the parameters


assert layout_of(LaunchRecord)["function"] == 56


class ProgramTableRecord(MemoryRecord):
    """Command lists that are launched, and sequences of them that are launched as one. Python makes those
    that are wanted. HandlePoolRecord.known_lists."""

    buckets: i64  # address of BUCKETS addresses of ProgramRecords, by the low bits of ``hash``
    programs: i64  # the same, of single lists
    missed: i64  # address of BUCKETS hashes of sequences that have come once; 0 = no more are wanted
    wanted_count: i64
    wanted: i64  # address of MOST_WANTED rows: a number of lists, the addresses of their MOST_HELD programs


MOST_WANTED: Final = 16

BUCKETS: Final = 64
"""Words of a table of programs: addresses of the first ones, by the low bits of ``hash``."""
