"""Keeps the table of command lists that machine code submits to a stream."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final

from jitree.codegen.record import size_of, words_of
from jitree.cuda.command_buffer import CudaCommandBuffer
from jitree.cuda.graph import join_graphs
from jitree.cuda.launches import BUCKETS, MOST_HELD, MOST_WANTED, ProgramTableRecord, mixed, sequence_hash
from jitree.hal.command_buffer import CommandBufferMode, CommandCategory
from jitree.hal.command_layout import KIND_DISPATCH
from jitree.hal.enums import MemoryType

if TYPE_CHECKING:
    from jitree.cuda.graph import StreamGraphs
    from jitree.cuda.stream import Stream
    from jitree.hal.command_buffer import CommandBuffer, Reference

_MOST: Final = 256
"""Programs; with one more all are forgotten."""
_MOST_SEQUENCES: Final = 64
"""Sequences of lists with a graph. Once there are so many, others are launched list by list."""
_TABLE: Final = words_of(ProgramTableRecord)
_WANTED_WORDS: Final = 1 + MOST_HELD
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
    """Programs of one handle table: :class:`~jitree.hal.timeline_record.KnownLists`. They keep the
    executables that they launch."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._buckets = array("q", bytes(8 * BUCKETS))
        self._programs: dict[bytes, tuple[array[int], array[int], StreamGraphs] | None] = {}
        """What keeps each; None: such a list is Python's."""
        self._sequences: dict[bytes, object] = {}
        """What keeps each, by the addresses of its programs."""
        self._sequence_buckets = array("q", bytes(8 * BUCKETS))
        self._missed = array("q", bytes(8 * BUCKETS))
        self._wanted = array("q", bytes(8 * MOST_WANTED * _WANTED_WORDS))
        self._record = array("q", bytes(size_of(ProgramTableRecord)))
        self._record[_TABLE.buckets] = self._sequence_buckets.buffer_info()[0]
        self._record[_TABLE.programs] = self._buckets.buffer_info()[0]
        self._record[_TABLE.missed] = self._missed.buffer_info()[0]
        self._record[_TABLE.wanted] = self._wanted.buffer_info()[0]
        self.address: int = self._record.buffer_info()[0]
        self._knows_transfers = False
        with stream.lock:
            stream.share.connect(self)

    def learn(self, commands: CommandBuffer) -> None:
        """See :meth:`~jitree.hal.timeline_record.KnownLists.learn`."""
        with self._stream.lock:
            if isinstance(commands, CudaCommandBuffer) and self._stream.share.connect(self):
                self._learn(commands)
                if self._record[_TABLE.wanted_count]:
                    self._learn_sequences()

    def _learn(self, commands: CudaCommandBuffer) -> None:
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
        record = _record(self._buckets[bucket], hash_, commands.commands.row_count, shapes, graphs)
        self._programs[key] = record, shapes, graphs
        self._buckets[bucket] = record.buffer_info()[0]

    def _learn_sequences(self) -> None:
        """Makes the graphs that machine code wants. The stream is Python's, or those lists wait for it."""
        self._stream.share.take()
        known = {entry[0].buffer_info()[0]: entry for entry in self._programs.values() if entry is not None}
        for number in range(self._record[_TABLE.wanted_count]):
            first = number * _WANTED_WORDS
            members = self._wanted[first + 1 : first + 1 + self._wanted[first]]
            key = members.tobytes()
            if key in self._sequences or len(self._sequences) >= _MOST_SEQUENCES:
                continue
            lists = [known[member][2] for member in members]
            graphs = join_graphs(self._stream, lists)
            hash_ = sequence_hash(members.buffer_info()[0], len(members))
            bucket = hash_ & BUCKETS - 1
            record = _record(self._sequence_buckets[bucket], hash_, len(members), members, graphs)
            self._sequences[key] = record, members, graphs
            self._sequence_buckets[bucket] = record.buffer_info()[0]
        self._record[_TABLE.wanted_count] = 0
        if len(self._sequences) >= _MOST_SEQUENCES:
            self._record[_TABLE.missed] = 0

    def learn_transfers(self) -> None:
        """See :meth:`~jitree.hal.timeline_record.KnownLists.learn_transfers`. Lists are only made, so that
        there are graphs."""
        with self._stream.lock:
            if self._knows_transfers or not self._stream.share.connect(self):
                return
            self._knows_transfers = True
        memory = [self._stream.allocate(_DEVICE_LOCAL, 0, _PATTERN) for _ in range(2)]
        for record in _TRANSFERS:
            commands = CudaCommandBuffer(
                self._stream, CommandBufferMode.ONE_SHOT, CommandCategory.TRANSFER, -1, 0
            )
            record(commands, *[(0, buffer, 0, _PATTERN) for buffer in memory])
            commands.finalize()
            self.learn(commands)

    def clear(self) -> None:
        """See :meth:`~jitree.hal.timeline_record.KnownLists.clear`."""
        with self._stream.lock:
            if self._programs:
                self._stream.share.take()
                self._buckets[:] = array("q", bytes(8 * BUCKETS))
                self._sequence_buckets[:] = array("q", bytes(8 * BUCKETS))
                self._missed[:] = array("q", bytes(8 * BUCKETS))
                self._record[_TABLE.missed] = self._missed.buffer_info()[0]
                self._record[_TABLE.wanted_count] = 0
                kept = self._programs, self._sequences
                self._programs, self._sequences = {}, {}
                self._knows_transfers = False
                self._stream.retain(kept)


def _record(following: int, hash_: int, count: int, shapes: array[int], graphs: StreamGraphs) -> array[int]:
    """A ProgramRecord in front of another one of its bucket."""
    return array("q", (
        following, hash_, count, shapes.buffer_info()[0], graphs.launch_count, graphs.firsts,
        graphs.instances, 0, graphs.chains, 0,
    ))  # fmt: skip


def _shapes(commands: CudaCommandBuffer) -> tuple[array[int], int]:
    """Shape records, and their hash as machine code computes it."""
    rows = commands.commands
    shapes, found = array("q"), rows.row_count
    for row in rows.decoded_rows():
        kind = row[0] | row[2] << 16 | row[4] << 32
        entry = row[8] if row[0] == KIND_DISPATCH else 0
        shapes.extend((kind, entry))
        found = mixed(found, kind, entry)
    return shapes, found
