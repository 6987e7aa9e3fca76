"""Name the fields of records that imports and calls share in machine code.

Records that no session needs at its start have their layout from their class (``hal/stream_record.py``).
"""

from __future__ import annotations

from typing import Final

from jitree.codegen.record import MemoryRecord
from jitree.hal.command_layout import PATCH, SLOT
from jitree.hal.local.executor.records import Functions, List, ThreadTeam
from jitree.hal.local.queue_record import QUEUE
from jitree.hal.stream_record import StreamRecord as StreamRecord
from jitree.modules.hal.native.layout import HANDLE_POOL, RECORDING
from jitree.regs.access import Entry as Entry
from jitree.regs.layout import STATE

PATCH_SIZE: Final = PATCH.size
SLOT_SIZE: Final = SLOT.size


class State(MemoryRecord, layout=STATE):
    """A machine: what it has of its handle table."""

    handle_pool: HandlePoolRecord
    released: Entry


class HandlePoolRecord(MemoryRecord, layout=HANDLE_POOL):
    """Pools of a handle table; 0 in all fields but type numbers until Python has filled them."""

    blank: Entry
    dead: Entry
    lists: Entry
    functions: Functions
    arenas: Recording
    queue: Queue
    released: Entry


class Recording(MemoryRecord, layout=RECORDING):
    """A command buffer that machine code records."""

    list: List
    next: Recording


class Patch(MemoryRecord, layout=PATCH):
    """A range of a command that a submission has in a slot."""


class BindingSlot(MemoryRecord, layout=SLOT):
    """What a submission must have in a slot."""


class Queue(MemoryRecord, layout=QUEUE):
    """A device's queue, in which machine code submits."""

    team: ThreadTeam
    stream: StreamRecord
