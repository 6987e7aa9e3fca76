"""Launches programs, and holds command lists back to launch several as one graph.

A program is a graph of which some launches are changed, or its kernels one by one.

What varies between submissions of one program, the words of its launches, is compared with those of the last
run of each of two graphs; the one with fewer differences is changed. Where most differ the launches go one by
one, each after all before it: to change a graph takes as long, and the device waits for that.

A launch costs the host more than all that a small list takes otherwise. The first list that comes while the
device has nothing to do is launched at once. Those that follow are held back until their launches are many,
or until something waits or has to come after them. A sequence of lists that comes a second time gets a
program, one graph for all its lists. Until Python has made it, the lists are launched one after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jitree.codegen.primitives import call_int, lesser, load32, load64, quotient, store32, store64
from jitree.codegen.record import (
    Atomic,
    MemoryRecord,
    atomic_replace,
    atomic_store,
    layout_of,
    place_of,
    size_of,
)
from jitree.hal.timeline_record import OWNED_BY_CODE, SUBMITTING, Timeline

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
    query: Atomic  # cuStreamQuery
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
    """Describes a row. It has the kind, from bit 16 on the number of operands and from bit 32 on that of
    constants; the entry point of a dispatch."""

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

# -- The record of a stream ------------------------------------------------------------------------------
#
# Machine code submits only what it finds in a table of programs, and counts that when it has entered the
# stream or is held back.


CHAIN_SIZE = size_of(ChainRecord)
LAUNCH_SIZE = size_of(LaunchRecord)
INSTANCE_SIZE = size_of(InstanceRecord)
NODE_SIZE = size_of(KernelNode)
_NODE_GRID = layout_of(KernelNode)["grid"]
_GRID = layout_of(LaunchRecord)["grid"]
_FIXED = layout_of(LaunchGrid)["is_fixed"]
_MASK = 0xFFFFFFFF
_PRIME = 0x01000193
_FEW_PART = 4
"""Changing so much of a graph's launches is little."""
_MOST_PART = 2
"""Launches one by one begin sooner where more of a graph's would have to be changed."""
UNKNOWN = -1
"""Stands for the grid of a node whose grid is not known."""


def mixed(found: int, kind: int, entry: int) -> int:
    """A hash of 32 bits with one more SHAPE in it."""
    found = ((found ^ ((kind ^ (kind >> 24)) & _MASK)) * _PRIME) & _MASK
    found = ((found ^ ((entry ^ (entry >> 32)) & _MASK)) * _PRIME) & _MASK
    return found ^ (found >> 15)


def launch(stream: StreamRecord, program: ProgramRecord, words: int) -> bool:
    """Whether everything has entered the stream; else nothing has."""
    if call_int(stream.set_current, stream.context) != 0:
        return False
    if stream.launch_kernel != 0 and program.launch_count == 1:
        return launch_singly(stream, program, words)
    graph = program.instances
    first = differences(program, graph.words, words)
    second = first
    if first != 0:
        second = differences(program, InstanceRecord(place_of(graph) + INSTANCE_SIZE).words, words)
    fewest = lesser(first, second)
    if fewest != 0 and stream.launch_kernel != 0 and is_for_once(program, words, fewest):
        return launch_singly(stream, program, words)
    offset = nearest(program, first, second)
    instance = InstanceRecord(place_of(graph) + offset)
    if not change(stream, program, instance, words):
        return False
    program.latest = offset
    return call_int(stream.launch_graph, instance.executable, stream.handle) == 0


def is_for_once(program: ProgramRecord, words: int, fewest: int) -> bool:
    """Whether most launches differ from graphs' and the last two times'. Those times they were made one by
    one. To change a graph takes as long, and the device waits meanwhile."""
    most = quotient(program.launch_count, _MOST_PART)
    chain = program.chains
    return (
        fewest > most
        and differences(program, chain.words, words) > most
        and differences(program, ChainRecord(place_of(chain) + CHAIN_SIZE).words, words) > most
    )


def nearest(program: ProgramRecord, first: int, second: int) -> int:
    """The offset of the graph to change, by numbers of differences: of the one with fewer if they are few,
    else of the one that was not launched last. So lists whose addresses take turns have a graph each."""
    if lesser(first, second) * _FEW_PART > program.launch_count:
        return INSTANCE_SIZE - program.latest
    return 0 if first <= second else INSTANCE_SIZE


def differs(program: ProgramRecord, last: int, words: int, number: int) -> bool:
    """Whether a launch has other words than in the last run."""
    place = 8 * load64(program.firsts + 8 * number)
    end = 8 * load64(program.firsts + 8 * number + 8)
    while place < end:
        if load64(words + place) != load64(last + place):
            return True
        place += 8
    return False


def differences(program: ProgramRecord, last: int, words: int) -> int:
    """How many launches have other words than in the last run."""
    count = 0
    for number in range(program.launch_count):
        if differs(program, last, words, number):
            count += 1
    return count


def take_words(program: ProgramRecord, instance: InstanceRecord, words: int, number: int) -> int:
    """Copies the words of a launch to where the driver reads them; the place of its grid among them."""
    last = instance.words
    place = 8 * load64(program.firsts + 8 * number)
    end = 8 * load64(program.firsts + 8 * number + 8)
    while place < end:
        store64(last + place, load64(words + place))
        place += 8
    structure = instance.structures + NODE_SIZE * number
    set_grid(structure + _NODE_GRID, last + end - 16)
    return last + end - 16


def set_grid(size: int, words: int) -> None:
    """Sets a LaunchGrid to what a list says, unless it is fixed."""
    if load32(size + _FIXED) == 0:
        store64(size, load64(words))
        store32(size + 8, load64(words + 8))


def change(stream: StreamRecord, program: ProgramRecord, instance: InstanceRecord, words: int) -> bool:
    """Changes the launches of a graph that have other words."""
    for number in range(program.launch_count):
        if differs(program, instance.words, words, number):
            grid = take_words(program, instance, words, number)
            node = load64(instance.nodes + 8 * number)
            structure = instance.structures + NODE_SIZE * number
            if call_int(stream.set_node, instance.executable, node, structure) != 0:
                store64(grid, UNKNOWN)
                return False
    return True


# -- launch by launch ----------------------------------------------------------------------------------


def launch_singly(stream: StreamRecord, program: ProgramRecord, words: int) -> bool:
    """Whether everything has entered the stream; else nothing has, or ``failed`` says that a part has."""
    program.latest_chain = CHAIN_SIZE - program.latest_chain
    chain = ChainRecord(place_of(program.chains) + program.latest_chain)
    launch = chain.launches
    place = 0
    entered = 0
    for number in range(program.launch_count):
        end = 8 * load64(program.firsts + 8 * number + 8)
        while place < end:
            store64(chain.words + place, load64(words + place))
            place += 8
        if not is_empty(words + end - 16):
            set_grid(place_of(launch) + _GRID, words + end - 16)
            if call_int(stream.launch_kernel, place_of(launch), launch.function, launch.parameters, 0) != 0:
                stream.failed = entered * (stream.tick + 1)
                return False
            entered = 1
        launch = LaunchRecord(place_of(launch) + LAUNCH_SIZE)
    return True


def is_empty(grid: int) -> bool:
    """Whether a grid has no workgroups: no kernel is launched so."""
    return (load64(grid) & _MASK) == 0 or (load64(grid) >> 32) == 0 or load64(grid + 8) == 0


_FEWEST_LAUNCHES = 16
"""The first graph after a wait: the device has little to do until it comes."""
_MOST_LAUNCHES = 256
"""Each is twice the one before, up to this."""
_PATIENCE = 1 << 16
"""Looks at a stream on which another thread is just submitting."""
_WANTED_SIZE = 8 + 8 * MOST_HELD


def words_of(program: ProgramRecord) -> int:
    """How many words a submission has."""
    return load64(program.firsts + 8 * program.launch_count)


def is_idle(stream: StreamRecord) -> bool:
    """Whether the device does nothing but uploads, as the host knows."""
    return stream.completed >= stream.worked


def can_wait(stream: StreamRecord, program: ProgramRecord) -> bool:
    """Whether a list is one to be held back."""
    if stream.held == 0:
        if is_idle(stream):
            stream.held_limit = _FEWEST_LAUNCHES
            return False
        return program.launch_count < stream.held_limit and words_of(program) <= MOST_HELD_WORDS
    return True


def is_room_for(stream: StreamRecord, sequences: ProgramTableRecord, program: ProgramRecord) -> bool:
    """Whether a list can be held back with those that are."""
    if stream.held == 0:
        return True
    is_small = stream.held_words + words_of(program) <= MOST_HELD_WORDS
    return is_small and stream.held < MOST_HELD and stream.sequences == sequences


def are_launches(program: ProgramRecord, words: int) -> bool:
    """Whether all launches of a list have workgroups, as graphs need."""
    for number in range(program.launch_count):
        if is_empty(words + 8 * load64(program.firsts + 8 * number + 8) - 16):
            return False
    return True


def hold(stream: StreamRecord, sequences: ProgramTableRecord, program: ProgramRecord) -> None:
    """Holds a list back whose words follow those that are held. Machine code is just submitting it."""
    store64(stream.held_programs + 8 * stream.held, place_of(program))
    stream.held += 1
    stream.held_words += words_of(program)
    stream.held_launches += program.launch_count
    stream.sequences = sequences


def launch_held(stream: StreamRecord) -> None:
    """Launches what is held back. Machine code is just submitting, and all of that is counted."""
    count = stream.held
    if count == 0:
        return
    first = stream.tick - count + 1
    if not is_launched_as_one(stream, count) and stream.failed == 0:
        launch_each(stream, count)
    if stream.failed != 0:
        stream.failed = first
    stream.held = 0
    stream.held_words = 0
    stream.held_launches = 0
    stream.held_limit = lesser(2 * stream.held_limit, _MOST_LAUNCHES)


def is_launched_as_one(stream: StreamRecord, count: int) -> bool:
    """Whether the held lists have been launched as a sequence. Else none has, or ``failed`` says so."""
    if count == 1:
        return False
    found = sequence_hash(stream.held_programs, count)
    sequence = find_sequence(stream.sequences, stream.held_programs, count, found)
    if not sequence:
        note_missed(stream.sequences, stream.held_programs, count, found)
        return False
    return launch(stream, sequence, stream.words)


def launch_each(stream: StreamRecord, count: int) -> None:
    """Launches the held lists one after the other. What the driver refuses ``failed`` says."""
    words = stream.words
    for index in range(count):
        program = ProgramRecord(load64(stream.held_programs + 8 * index))
        if not launch(stream, program, words):
            stream.failed = stream.tick
            return
        words += 8 * words_of(program)


def has_launched_held(stream: StreamRecord) -> bool:
    """Whether nothing is held back, now at the latest, and nothing was refused. Machine code is not just
    submitting on this thread."""
    for _ in range(_PATIENCE):
        if stream.held == 0:
            return stream.failed == 0
        # order of owner: a lock: acquires what the last owner stored
        if atomic_replace(stream.owner, OWNED_BY_CODE, SUBMITTING):
            launch_held(stream)
            atomic_store(stream.owner, OWNED_BY_CODE)
    return False


# -- sequences -----------------------------------------------------------------------------------------


def sequence_hash(programs: int, count: int) -> int:
    """A number of 32 bits for so many programs."""
    found = count
    for index in range(count):
        program = load64(programs + 8 * index)
        found = mixed(found, ProgramRecord(program).hash, program)
    return found


def find_sequence(sequences: ProgramTableRecord, programs: int, count: int, wanted: int) -> ProgramRecord:
    """What launches so many lists as one, 0 if there is nothing."""
    sequence = ProgramRecord(load64(sequences.buckets + 8 * (wanted & (BUCKETS - 1))))
    while sequence:
        if sequence.hash == wanted and sequence.row_count == count:
            index = 0
            members = place_of(sequence.shapes)
            while index < count and load64(members + 8 * index) == load64(programs + 8 * index):
                index += 1
            if index == count:
                return sequence
        sequence = sequence.next
    return ProgramRecord(0)


def note_missed(sequences: ProgramTableRecord, programs: int, count: int, found: int) -> None:
    """There is no such sequence. Python is to make it if it comes for the second time."""
    if sequences.missed == 0:
        return
    place = missed_place(sequences.missed, found)
    if load64(place) != found:
        store64(place, found)
        return
    number = sequences.wanted_count
    if number == MOST_WANTED:
        return
    row = sequences.wanted + _WANTED_SIZE * number
    store64(row, count)
    for index in range(count):
        store64(row + 8 + 8 * index, load64(programs + 8 * index))
    sequences.wanted_count = number + 1
    store64(place, 0)


def missed_place(missed: int, found: int) -> int:
    """Finds where a hash is, or is to be: each has two places, so that two that come in turn both stay."""
    first = missed + 8 * (found & (BUCKETS - 1))
    second = missed + 8 * ((found >> 16) & (BUCKETS - 1))
    is_second = load64(second) == found or (load64(first) != 0 and load64(first) != found)
    return second if is_second else first


def asks_python(stream: StreamRecord, sequences: ProgramTableRecord) -> bool:
    """Whether Python submits a list and makes sequences before the next."""
    count = sequences.wanted_count
    return count != 0 and (is_idle(stream) or count == MOST_WANTED)
