"""Launch command lists one by one, where that is sooner than a changed graph.

A list that enters the stream nearly as in the last runs does so by a graph of which some launches are
changed, or launch by launch, each after all before it. The device has nothing to do while a graph is changed,
and begins with the first of single launches at once. But where its kernels take less time than a launch does,
it then waits for each. So the times of both decide, from when the list is submitted until the host finds it
done, where the device had nothing else to do. The slower way is tried again now and then.
"""

from __future__ import annotations

from jitree.codegen.primitives import call_int, lesser, load64, store32, store64
from jitree.codegen.processor import ticks
from jitree.codegen.record import layout_of, place_of, size_of
from jitree.hal.stream_record import (
    BY_GRAPH,
    SINGLY,
    ChainRecord,
    LaunchRecord,
    ProgramRecord,
    StreamRecord,
)

CHAIN_SIZE = size_of(ChainRecord)
LAUNCH_SIZE = size_of(LaunchRecord)
_GRID = layout_of(LaunchRecord)["x"]
_MASK = 0xFFFFFFFF
FIRST_TRIAL = 8
"""Lists of a shape after which the other way is tried twice, and again whenever they are twice as many."""
_MOST_CHANGES = 1 << 16
_SLOWNESS = 4
"""A time that was better than all after it counts for 1/16 more each time."""


def is_sooner_singly(stream: StreamRecord, program: ProgramRecord) -> bool:
    """Whether to launch one by one what could also be a graph with changes. Machine code is just submitting
    it."""
    take_time(stream, program)
    if stream.completed < stream.worked:
        return False
    changes = program.changes + 1
    program.changes = changes if changes < _MOST_CHANGES else _MOST_CHANGES >> 1
    is_singly = 0 < program.single_time < program.graph_time
    pair = changes & -2
    if pair >= FIRST_TRIAL and pair & (pair - 1) == 0:
        is_singly = not is_singly
    stream.timed = place_of(program)
    stream.timed_tick = stream.tick + 1
    stream.way = SINGLY if is_singly else BY_GRAPH
    stream.ended = 0
    stream.begun = ticks()
    return is_singly


def note_end(stream: StreamRecord, tick: int) -> None:
    """The host has just found that the device has done submission ``tick``."""
    if stream.timed_tick == tick and stream.ended == 0:
        stream.ended = ticks()


def include(stream: StreamRecord, tick: int, later: int) -> None:
    """Submission ``later``, which ends soon after ``tick``, is what the host waits for instead."""
    if stream.timed_tick == tick:
        stream.timed_tick = later


def take_time(stream: StreamRecord, program: ProgramRecord) -> None:
    """Keeps the time of the program's last run, if that is the one that was timed last."""
    taken = stream.ended - stream.begun
    if stream.timed != place_of(program) or stream.ended == 0 or program.changes == 0:
        return
    stream.timed = 0
    if stream.way == SINGLY:
        program.single_time = recent_least(program.single_time, taken)
    else:
        program.graph_time = recent_least(program.graph_time, taken)


def recent_least(time: int, taken: int) -> int:
    """The least of the times lately. 0 = there was none."""
    return taken if time == 0 else lesser(taken, time + (time >> _SLOWNESS) + 1)


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
                stream.failed = entered
                return False
            entered = 1
        launch = LaunchRecord(place_of(launch) + LAUNCH_SIZE)
    return True


def is_empty(grid: int) -> bool:
    """Whether a grid has no workgroups: no kernel is launched so."""
    return (load64(grid) & _MASK) == 0 or (load64(grid) >> 32) == 0 or load64(grid + 8) == 0
