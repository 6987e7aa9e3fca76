"""Command buffers that record into a flat command list, whatever executes it."""

from __future__ import annotations

import abc
from array import array
from typing import TYPE_CHECKING

from jitree.hal.command_buffer import CommandBuffer, Dispatch, Reference
from jitree.hal.command_layout import COMMANDS, KIND_COPY, SLOT
from jitree.hal.command_list import CommandList, Dispatchable, Range
from jitree.hal.executable import Executable

if TYPE_CHECKING:
    from jitree.hal.stream_record import StreamGraphs
    from jitree.regs.handles import HandleTable


class ListCommandBuffer(CommandBuffer):
    """Records a :class:`CommandList`. Drivers say what a buffer's range and an executable's functions are."""

    commands: CommandList

    def __init__(self, modes: int, categories: int, queue_affinity: int, binding_capacity: int) -> None:
        super().__init__(modes, categories, queue_affinity, binding_capacity)
        self._published = array("q", bytes(COMMANDS.size))
        """A COMMANDS record."""
        self._slot_rows = array("i")

    def fill_entry(self, table: HandleTable, address: int) -> None:
        """Shows machine code the COMMANDS record."""
        table.set_extent(address, self._published.buffer_info()[0], 0)

    def finalize(self) -> None:
        """See :meth:`CommandBuffer.finalize`. Machine code may execute the list from then on."""
        super().finalize()
        count = max(self._slots, default=-1) + 1
        self._slot_rows = array("i", bytes(count * SLOT.size))
        for slot, (usage, access) in self._slots.items():
            first = slot * SLOT.size // 4
            self._slot_rows[first : first + 3] = array("i", (1, usage, access))
        record = self._published
        record[COMMANDS.word("modes")] = self.modes
        record[COMMANDS.word("copies")] = int(bool(self._copies))
        record[COMMANDS.word("list")] = self.commands.address()
        record[COMMANDS.word("slot_count")] = count
        record[COMMANDS.word("slots")] = self._slot_rows.buffer_info()[0]
        record[COMMANDS.word("place")] = self.place
        record[COMMANDS.word("ready")] = int(self.is_published)

    @property
    def place(self) -> int:
        """Whose memory its commands work on, as in ENTRY.access."""
        return 0

    @property
    def is_published(self) -> bool:
        """Whether machine code may execute it once it is finished."""
        return True

    def stream_graphs(self) -> StreamGraphs | None:
        """What it does, for machine code that submits it to a stream; None where that is not possible."""
        return None

    @property
    def copied_bytes(self) -> int:
        commands = self.commands
        copies = [row[1] for row in commands.decoded_rows() if row[0] == KIND_COPY]
        return sum(max(0, commands.lengths[operand]) for operand in copies)

    @abc.abstractmethod
    def _range(self, reference: Reference) -> Range:
        """The range as its commands get it; the list keeps its memory."""

    @abc.abstractmethod
    def _functions(self, executable: Executable) -> Dispatchable:
        """INVALID_ARGUMENT for an executable that the device cannot run."""

    def keep_recorded(self, owner: object) -> None:
        """Keeps what commands use that machine code has recorded: an executable, or memory."""
        self.commands.keep(owner)

    def _record_barrier(self, source_stages: int, target_stages: int, flags: int) -> None:
        self.commands.barrier()

    def _record_fill(self, target: Reference, pattern: int, pattern_length: int) -> None:
        self.commands.fill(self._range(target), pattern, pattern_length)

    def _record_update(self, contents: memoryview, target: Reference) -> None:
        self.commands.update(contents, self._range(target))

    def _record_copy(self, source: Reference, target: Reference) -> None:
        self.commands.copy(self._range(source), self._range(target))

    def _record_dispatch(self, workgroups: tuple[int, int, int], dispatch: Dispatch) -> None:
        executable, function, constants, bindings, _ = dispatch
        ranges = [self._range(binding) for binding in bindings]
        self.commands.dispatch(self._functions(executable), function, workgroups, constants, ranges)

    def _record_dispatch_indirect(self, workgroups: Reference, dispatch: Dispatch) -> None:
        executable, function, constants, bindings, _ = dispatch
        ranges = [self._range(binding) for binding in bindings]
        counts = self._range(workgroups)
        self.commands.dispatch_indirect(self._functions(executable), function, counts, constants, ranges)
