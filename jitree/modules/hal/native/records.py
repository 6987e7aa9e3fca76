"""Name the fields of records that imports and calls share in machine code."""

from __future__ import annotations

from jitree.codegen.record import Atomic, MemoryRecord
from jitree.hal.command_layout import PATCH, SLOT
from jitree.hal.local.executor.records import Functions, List, ThreadTeam
from jitree.hal.local.queue_record import QUEUE
from jitree.hal.pipeline_layout import PIPELINE
from jitree.hal.stream_record import CHAIN, INSTANCE, KNOWN, LAUNCH, PROGRAM, SHAPE, STREAM
from jitree.modules.hal.native.layout import HANDLE_POOL, RECORDING
from jitree.regs.access import Entry as Entry
from jitree.regs.layout import STATE


class State(MemoryRecord, layout=STATE):
    handle_pool: HandlePoolRecord
    released: Entry


class HandlePoolRecord(MemoryRecord, layout=HANDLE_POOL):
    blank: Entry
    dead: Entry
    lists: Entry
    functions: Functions
    arenas: Recording
    queue: Queue
    released: Entry


class Recording(MemoryRecord, layout=RECORDING):
    list: List
    next: Recording


class PipelineRecord(MemoryRecord, layout=PIPELINE):
    pass


class Patch(MemoryRecord, layout=PATCH):
    pass


class BindingSlot(MemoryRecord, layout=SLOT):
    pass


class Queue(MemoryRecord, layout=QUEUE):
    team: ThreadTeam
    stream: StreamRecord


class StreamRecord(MemoryRecord, layout=STREAM):
    owner: Atomic
    owed: Atomic
    asking: Atomic
    program: ProgramRecord


class ProgramRecord(MemoryRecord, layout=PROGRAM):
    next: ProgramRecord
    shapes: Shape
    instances: InstanceRecord
    chains: ChainRecord


class KnownRecord(MemoryRecord, layout=KNOWN):
    pass


class InstanceRecord(MemoryRecord, layout=INSTANCE):
    pass


class ChainRecord(MemoryRecord, layout=CHAIN):
    launches: LaunchRecord


class LaunchRecord(MemoryRecord, layout=LAUNCH):
    pass


class Shape(MemoryRecord, layout=SHAPE):
    pass
