"""Keep the table of command lists that machine code submits to a stream."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final

from jitree.codegen.record import words_of
from jitree.hal.command_buffer import CommandBufferMode, CommandCategory
from jitree.hal.command_layout import KIND_DISPATCH
from jitree.hal.command_list import ListCommandBuffer
from jitree.hal.enums import MemoryType
from jitree.hal.stream_record import BUCKETS
from jitree.modules.hal.native.layout import HandlePoolRecord
from jitree.modules.hal.native.streams import mixed

if TYPE_CHECKING:
    from jitree.hal.command_buffer import CommandBuffer, Reference
    from jitree.hal.device import Device
    from jitree.hal.stream_record import SharedStream

_HANDLE_POOL: Final = words_of(HandlePoolRecord)

_MOST: Final = 256
"""Programs; with one more all are forgotten."""
_DEVICE_LOCAL: Final = int(MemoryType.DEVICE_LOCAL)
_PATTERN: Final = 4


def _fill(commands: CommandBuffer, target: Reference, source: Reference) -> None:
    commands.fill_buffer(target, 0, _PATTERN)


def _copy(commands: CommandBuffer, target: Reference, source: Reference) -> None:
    commands.copy_buffer(source, target)


def _update(commands: CommandBuffer, target: Reference, source: Reference) -> None:
    commands.update_buffer(memoryview(bytes(_PATTERN)), 0, target)


_TRANSFERS: Final = (_fill, _copy, _update)


class ProgramTable:
    """Programs of one handle pool. They keep the executables that they launch."""

    def __init__(self, stream: SharedStream, words: array[int]) -> None:
        """``words``: of the HandlePoolRecord record."""
        self._stream = stream
        self._buckets = array("q", bytes(8 * BUCKETS))
        self._programs: dict[bytes, object] = {}
        """What keeps each; None: such a list is Python's."""
        self._knows_transfers = False
        words[_HANDLE_POOL.programs] = self._buckets.buffer_info()[0]

    def learn(self, commands: CommandBuffer) -> None:
        """Fast paths find lists of this shape from now on, if that is possible."""
        if not isinstance(commands, ListCommandBuffer):
            return
        with self._stream.lock:
            self._learn(commands)

    def _learn(self, commands: ListCommandBuffer) -> None:
        shapes, hash_ = _shapes(commands)
        key = shapes.tobytes()
        if key in self._programs:
            return
        graphs = commands.stream_graphs()
        if len(self._programs) >= _MOST:
            self.clear()
        if graphs is None:
            self._programs[key] = None
            return
        bucket = hash_ & BUCKETS - 1
        record = array("q", (
            self._buckets[bucket], hash_, commands.commands.row_count, shapes.buffer_info()[0],
            graphs.launch_count, graphs.firsts, graphs.instances, 0, graphs.chains, 0, 0, 0, 0,
        ))  # fmt: skip
        self._programs[key] = record, shapes, graphs
        self._buckets[bucket] = record.buffer_info()[0]

    def learn_transfers(self, device: Device) -> None:
        """Lists of one fill, copy or update. They are only made, so that there are graphs."""
        if self._knows_transfers:
            return
        self._knows_transfers = True
        memory = [device.device_allocator.allocate(_DEVICE_LOCAL, 0, _PATTERN) for _ in range(2)]
        for record in _TRANSFERS:
            commands = device.create_command_buffer(CommandBufferMode.ONE_SHOT, CommandCategory.TRANSFER)
            record(commands, *[(0, buffer, 0, _PATTERN) for buffer in memory])
            commands.finalize()
            self.learn(commands)

    def clear(self) -> None:
        """See :meth:`~jitree.hal.stream_record.Programs.clear`."""
        with self._stream.lock:
            if self._programs:
                self._stream.take()
                self._buckets[:] = array("q", bytes(8 * BUCKETS))
                programs, self._programs = self._programs, {}
                self._knows_transfers = False
                self._stream.retain(programs)


def _shapes(commands: ListCommandBuffer) -> tuple[array[int], int]:
    """Shape records, and their hash as machine code computes it."""
    rows = commands.commands
    shapes, found = array("q"), rows.row_count
    for row in rows.decoded_rows():
        kind = row[0] | row[2] << 16 | row[4] << 32
        entry = row[8] if row[0] == KIND_DISPATCH else 0
        shapes.extend((kind, entry))
        found = mixed(found, kind, entry)
    return shapes, found
