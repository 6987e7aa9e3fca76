"""Runs command buffers inside others (``hal`` 0.2), for every driver.

They are recorded as calls, and recorded again into the command buffer that executes them, with buffers from a
binding table in place of slots.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from jitree.base.copying import ranges
from jitree.errors import FailedPreconditionError, InvalidArgumentError
from jitree.hal import checks
from jitree.hal.allocator import HostMemory
from jitree.hal.buffer import Buffer
from jitree.hal.command_buffer import BindingTable, Collective, CommandBuffer, Dispatch, Reference

_REPLAY: Final = 512
_WORD: Final = 48
_RANGE: Final = 192
"""Bytes that a recorded command takes, each of its constants and each of its ranges."""
_TOGETHER: Final = 1024
"""Commands that are recorded again at once."""

Resolve = Callable[[Reference], Reference]
"""Puts the buffer of the binding table in place of a slot."""
Replay = Callable[[CommandBuffer, Resolve], None]


class NestedCommandBuffer(CommandBuffer):
    """Belongs to no device; :meth:`execute_in` is the only way to run it."""

    def __init__(
        self, modes: int, categories: int, queue_affinity: int, binding_capacity: int, memory: HostMemory
    ) -> None:
        super().__init__(modes, categories, queue_affinity, binding_capacity)
        self._replays: list[Replay] = []
        self._memory = memory
        self._size = 0

    def execute_in(self, target: CommandBuffer, table: BindingTable) -> None:
        """Records the commands into ``target``.

        FAILED_PRECONDITION while this is being recorded; for the table as ``CommandBuffer.check_table``,
        OUT_OF_RANGE for a range outside its entry; for the commands as recording them directly.
        """
        if self.recording:
            raise FailedPreconditionError("a nested command buffer must be finalized before it is executed")
        entries = self.check_table(table)

        def resolve(reference: Reference) -> Reference:
            slot, buffer, offset, length = reference
            entry = entries[slot] if buffer is None else None
            return reference if entry is None else _inside(slot, entry, offset, length)

        for part in ranges(len(self._replays), _TOGETHER):
            for replay in self._replays[part]:
                replay(target, resolve)

    def _keep(self, replay: Replay, size: int = 0) -> None:
        """``size``: bytes of what it refers to."""
        self._size += _REPLAY + size
        self._memory.reach(self._size)
        self._replays.append(replay)

    def check_submission(self, waits: bool) -> None:
        raise InvalidArgumentError(
            "a nested command buffer cannot be submitted to a queue; execute it from a primary one"
        )

    def _record_barrier(self, source_stages: int, target_stages: int, flags: int) -> None:
        self._keep(lambda to, at: to.execution_barrier(source_stages, target_stages, flags))

    def _record_fill(self, target: Reference, pattern: int, pattern_length: int) -> None:
        self._keep(lambda to, at: to.fill_buffer(at(target), pattern, pattern_length))

    def _record_update(self, contents: memoryview, target: Reference) -> None:
        captured = memoryview(bytes(contents))
        self._keep(lambda to, at: to.update_buffer(captured, 0, at(target)), len(captured))

    def _record_copy(self, source: Reference, target: Reference) -> None:
        self._keep(lambda to, at: to.copy_buffer(at(source), at(target)))

    def _record_dispatch(self, workgroups: tuple[int, int, int], dispatch: Dispatch) -> None:
        executable, function, constants, bindings, flags = dispatch
        words = tuple(constants)
        self._keep(
            lambda to, at: to.dispatch(
                executable, function, workgroups, words, [at(each) for each in bindings], flags
            ),
            _WORD * len(words) + _RANGE * len(bindings),
        )

    def _record_dispatch_indirect(self, workgroups: Reference, dispatch: Dispatch) -> None:
        executable, function, constants, bindings, flags = dispatch
        words = tuple(constants)
        self._keep(
            lambda to, at: to.dispatch_indirect(
                executable, function, at(workgroups), words, [at(each) for each in bindings], flags
            ),
            _WORD * len(words) + _RANGE * len(bindings),
        )

    def _record_collective(
        self, collective: Collective, send: Reference | None, receive: Reference | None
    ) -> None:
        channel, operation, parameter, element_count = collective
        self._keep(
            lambda to, at: to.collective(
                channel, operation, parameter, send and at(send), receive and at(receive), element_count
            )
        )


def _inside(slot: int, entry: tuple[Buffer, int, int], offset: int, length: int) -> Reference:
    buffer, start, available = entry
    length = checks.require_inside(checks.OUTSIDE_SLOT, available, offset, length, slot=slot)
    return slot, buffer, start + offset, length
