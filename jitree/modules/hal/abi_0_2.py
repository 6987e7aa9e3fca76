"""ABI 0.2 (20240129.785 to 20240724.964): what 0.3 replaced.

Commands name buffers only (slots of a binding table exist in pushed descriptors), and up to 20240621.931
command buffers can be nested. ``devices.get`` of a device that is not there failed in those releases and
gives null since; the import does not tell which is meant, so it gives null, and the program fails with the
same status where it uses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from jitree.errors import InvalidArgumentError, OutOfRangeError
from jitree.hal.buffer import Buffer
from jitree.hal.command_buffer import CommandBuffer
from jitree.hal.device import Device
from jitree.hal.enums import QUEUE_AFFINITY_ANY, CommandBufferMode
from jitree.hal.executable import Executable
from jitree.hal.nested import NestedCommandBuffer
from jitree.hal.objects import Channel
from jitree.modules.hal import abi_0_4, command_buffer
from jitree.modules.hal.state import HalState

MAXIMUM_TABLE: Final = 256
"""Entries of the binding table of a nested command buffer."""
_DIRECT: Final = 0
"""A slot beside a buffer means nothing."""


def create(
    state: HalState, device: Device, modes: int, categories: int, binding_capacity: int
) -> CommandBuffer:
    if modes & CommandBufferMode.NESTED:
        return NestedCommandBuffer(modes, categories, QUEUE_AFFINITY_ANY, binding_capacity)
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


def fill_buffer(
    state: HalState,
    commands: CommandBuffer,
    target: Buffer,
    offset: int,
    length: int,
    pattern: int,
    pattern_length: int,
) -> None:
    commands.fill_buffer((_DIRECT, target, offset, length), pattern, pattern_length)


def copy_buffer(
    state: HalState,
    commands: CommandBuffer,
    source: Buffer,
    source_offset: int,
    target: Buffer,
    target_offset: int,
    length: int,
) -> None:
    commands.copy_buffer((_DIRECT, source, source_offset, length), (_DIRECT, target, target_offset, length))


def collective(
    state: HalState,
    commands: CommandBuffer,
    channel: Channel,
    operation: int,
    parameter: int,
    send: Buffer | None,
    send_offset: int,
    send_length: int,
    receive: Buffer | None,
    receive_offset: int,
    receive_length: int,
    element_count: int,
) -> None:
    command_buffer.collective(
        state, commands, channel, operation, parameter, _DIRECT, _DIRECT, send, receive,
        send_offset, send_length, receive_offset, receive_length, element_count,
    )  # fmt: skip


def dispatch_indirect(
    state: HalState,
    commands: CommandBuffer,
    target: Executable,
    entry_point: int,
    workgroups: Buffer,
    workgroups_offset: int,
) -> None:
    abi_0_4.dispatch_indirect(state, commands, target, entry_point, _DIRECT, workgroups, workgroups_offset, 0)
