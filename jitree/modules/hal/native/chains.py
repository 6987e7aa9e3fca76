"""Command lists launched one by one: each launch comes after all before it.

To change most launches of a graph takes as long as to launch them, and the device waits meanwhile.
"""

from __future__ import annotations

from jitree.codegen.primitives import call_int, load64, store32, store64
from jitree.codegen.record import place_of
from jitree.hal.stream_record import CHAIN, LAUNCH
from jitree.modules.hal.native.records import ChainRecord, LaunchRecord, ProgramRecord, StreamRecord

CHAIN_SIZE = CHAIN.size
LAUNCH_SIZE = LAUNCH.size
_GRID = LAUNCH["x"]
_MASK = 0xFFFFFFFF


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
