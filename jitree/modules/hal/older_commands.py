"""Record what ABI 0.2 to 0.4 put into command buffers (20240129.785 to August 2024).

Arguments of a dispatch come from layouts: a descriptor set layout declares the bindings of one set, a
pipeline layout the sets and the number of constants of one function. A program pushes constants and
descriptors into the command buffer, where they stay until overwritten; a dispatch then takes what the layout
of its function declares, bindings in ascending order of (set, binding) without gaps. Version 0.4 has the
forms of 0.5 beside these under names that end in 2.

In 0.2 commands name buffers only (slots of a binding table exist in pushed descriptors), and up to
20240621.931 command buffers can be nested.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from jitree.base.copying import ranges
from jitree.errors import FailedPreconditionError, InvalidArgumentError, OutOfRangeError
from jitree.hal import checks
from jitree.hal.allocator import HostMemory
from jitree.hal.buffer import Buffer
from jitree.hal.command_buffer import (
    BindingTable,
    Collective,
    CommandBuffer,
    CommandBufferMode,
    Dispatch,
    Reference,
)
from jitree.hal.device import Device
from jitree.hal.enums import MAXIMUM_SET_BINDINGS, QUEUE_AFFINITY_ANY
from jitree.hal.executable import Executable
from jitree.hal.pipeline_layout import DescriptorSetLayout, PipelineLayout, Pushed
from jitree.modules.hal import command_buffer
from jitree.modules.hal.module import HalState

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


# -- Command buffers inside others -----------------------------------------------------------------------
#
# They are recorded as calls, and recorded again into the command buffer that executes them, with buffers
# from a binding table in place of slots.


MAXIMUM_SETS: Final = 32
MAXIMUM_TABLE: Final = 256
"""Entries of the binding table of a nested command buffer."""
_PAIR: Final = 64
_DESCRIPTOR: Final = 320
"""Bytes that a declared binding takes, and a pushed one."""

Descriptor = tuple[int, int, Buffer | None, int, int]
"""(binding, slot, buffer, offset, length)"""


def create(
    state: HalState, device: Device, modes: int, categories: int, binding_capacity: int
) -> CommandBuffer:
    """For any queue, perhaps to run in others."""
    if modes & CommandBufferMode.NESTED:
        memory = state.host_memory()
        return NestedCommandBuffer(modes, categories, QUEUE_AFFINITY_ANY, binding_capacity, memory)
    return device.create_command_buffer(modes, categories, QUEUE_AFFINITY_ANY, binding_capacity)


def execute_commands(
    state: HalState,
    commands: CommandBuffer,
    nested: CommandBuffer,
    binding_table: Sequence[tuple[Buffer | None, int, int]],
) -> None:
    """INVALID_ARGUMENT for a command buffer without mode NESTED, OUT_OF_RANGE for more than 256 bindings."""
    if not isinstance(nested, NestedCommandBuffer):
        raise InvalidArgumentError(
            "execute.commands needs a command buffer that was created with mode NESTED"
        )
    if len(binding_table) > MAXIMUM_TABLE:
        raise OutOfRangeError(f"a binding table of {len(binding_table)} entries; at most {MAXIMUM_TABLE}")
    nested.execute_in(commands, binding_table)


def descriptor_set_layout_create(
    state: HalState, device: Device, flags: int, bindings: Sequence[tuple[int, int, int]]
) -> DescriptorSetLayout:
    """OUT_OF_RANGE for more than 32 bindings or one numbered 32 or more."""
    if len(bindings) > MAXIMUM_SET_BINDINGS:
        raise OutOfRangeError(f"a set of {len(bindings)} bindings; at most {MAXIMUM_SET_BINDINGS}")
    for binding, _, _ in bindings:
        _check_binding(binding)
    return DescriptorSetLayout(flags, tuple(bindings))


def pipeline_layout_create(
    state: HalState, device: Device, constant_count: int, sets: Sequence[DescriptorSetLayout]
) -> PipelineLayout:
    """OUT_OF_RANGE for more than 32 sets or 64 words of constants."""
    if len(sets) > MAXIMUM_SETS:
        raise OutOfRangeError(f"a pipeline layout of {len(sets)} sets; at most {MAXIMUM_SETS}")
    _check_constants(0, constant_count)
    declared = {(index, row[0]) for index, layout in enumerate(sets) for row in layout.bindings}
    memory = state.host_memory()
    memory.reach(_PAIR * len(declared))
    return PipelineLayout(constant_count, tuple(sorted(declared)), memory)


def push_constants(
    state: HalState, commands: CommandBuffer, layout: PipelineLayout, offset: int, values: Sequence[int]
) -> None:
    """``offset`` in words. OUT_OF_RANGE outside the 64 words that there are."""
    _check_constants(offset, len(values))
    _pushed(state, commands).constants[offset : offset + len(values)] = values


def push_descriptor_set(
    state: HalState,
    commands: CommandBuffer,
    layout: PipelineLayout,
    set_index: int,
    descriptors: Sequence[Descriptor],
) -> None:
    """Replaces the named bindings of a set; the buffers are checked by the dispatch that uses them."""
    if not 0 <= set_index < MAXIMUM_SETS:
        raise OutOfRangeError(f"descriptor set {set_index}; sets are numbered 0 to {MAXIMUM_SETS - 1}")
    pushed = _pushed(state, commands)
    for binding, slot, buffer, offset, length in descriptors:
        _check_binding(binding)
        pushed.bindings[set_index, binding] = (slot, buffer, offset, length)
    pushed.memory.reach(_DESCRIPTOR * len(pushed.bindings))


def dispatch(
    state: HalState,
    commands: CommandBuffer,
    target: Executable,
    entry_point: int,
    x: int,
    y: int,
    z: int,
    flags: int = 0,
) -> None:
    arguments = _arguments(state, commands, target, entry_point)
    command_buffer.dispatch(state, commands, target, entry_point, x, y, z, flags, *arguments)


def dispatch_indirect(
    state: HalState,
    commands: CommandBuffer,
    target: Executable,
    entry_point: int,
    workgroups_slot: int,
    workgroups: Buffer | None,
    workgroups_offset: int,
    flags: int,
) -> None:
    arguments = _arguments(state, commands, target, entry_point)
    counts = workgroups_slot, workgroups, workgroups_offset
    command_buffer.dispatch_indirect(state, commands, target, entry_point, *counts, flags, *arguments)


def _arguments(
    state: HalState, commands: CommandBuffer, target: Executable, entry_point: int
) -> tuple[list[int], list[command_buffer.Binding]]:
    """Constants and bindings as the layout of the function declares them."""
    layouts = target.layouts
    if not 0 <= entry_point < len(layouts):
        raise OutOfRangeError(
            f"dispatch of function {entry_point} of an executable that was created with {len(layouts)} "
            "pipeline layouts"
        )
    layout = layouts[entry_point]
    pushed = _pushed(state, commands)
    missing = [key for key in layout.bindings if key not in pushed.bindings]
    if missing:
        raise FailedPreconditionError(
            f"dispatch of function {entry_point}: no buffer was pushed for "
            + ", ".join(f"set {index} binding {binding}" for index, binding in missing)
        )
    bindings = [(0, *pushed.bindings[key]) for key in layout.bindings]
    return pushed.constants[: layout.constant_count], bindings


def _pushed(state: HalState, commands: CommandBuffer) -> Pushed:
    if not commands.recording:
        raise FailedPreconditionError("arguments of a dispatch were pushed into a finalized command buffer")
    if commands.pushed is None:
        commands.pushed = Pushed(state.host_memory())
    return commands.pushed


def _check_binding(binding: int) -> None:
    checks.require(checks.binding_refusal(binding), binding=binding)


def _check_constants(first: int, count: int) -> None:
    checks.require(checks.constants_refusal(first, count), first=first, count=count)
