"""Command buffers that record into a flat command list, whatever executes it."""

from __future__ import annotations

import abc

from jitree.hal.command_buffer import CommandBuffer, Dispatch, Reference
from jitree.hal.command_layout import KIND_COPY
from jitree.hal.command_list import CommandList, Dispatchable, Range
from jitree.hal.executable import Executable


class ListCommandBuffer(CommandBuffer):
    """Records a :class:`CommandList`. Drivers say what a buffer's range and an executable's functions are."""

    commands: CommandList

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
