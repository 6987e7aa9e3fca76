"""Launch a program: a graph of which some launches are changed, or its kernels one by one.

What varies between submissions of one program, the words of its launches, is compared with those of the last
run of each of two graphs; the one with fewer differences is changed. Where most differ the launches go one by
one, each after all before it: to change a graph takes as long, and the device waits for that.
"""

from __future__ import annotations

from jitree.codegen.primitives import call_int, lesser, load64, quotient, store32, store64
from jitree.codegen.record import layout_of, place_of, size_of
from jitree.cuda.stream_record import (
    ChainRecord,
    InstanceRecord,
    KernelNode,
    LaunchRecord,
    ProgramRecord,
    StreamRecord,
)

CHAIN_SIZE = size_of(ChainRecord)
LAUNCH_SIZE = size_of(LaunchRecord)
INSTANCE_SIZE = size_of(InstanceRecord)
NODE_SIZE = size_of(KernelNode)
_NODE_GRID = layout_of(KernelNode)["grid"]
_GRID = layout_of(LaunchRecord)["grid"]
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
    store64(structure + _NODE_GRID, load64(last + end - 16))
    store32(structure + _NODE_GRID + 8, load64(last + end - 8))
    return last + end - 16


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
            store64(place_of(launch) + _GRID, load64(words + end - 16))
            store32(place_of(launch) + _GRID + 8, load64(words + end - 8))
            if call_int(stream.launch_kernel, place_of(launch), launch.function, launch.parameters, 0) != 0:
                stream.failed = entered * (stream.tick + 1)
                return False
            entered = 1
        launch = LaunchRecord(place_of(launch) + LAUNCH_SIZE)
    return True


def is_empty(grid: int) -> bool:
    """Whether a grid has no workgroups: no kernel is launched so."""
    return (load64(grid) & _MASK) == 0 or (load64(grid) >> 32) == 0 or load64(grid + 8) == 0
