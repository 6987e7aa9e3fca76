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
from jitree.hal.command_buffer import CommandBuffer, CommandBufferMode
from jitree.hal.device import Device
from jitree.hal.enums import QUEUE_AFFINITY_ANY
from jitree.hal.nested import NestedCommandBuffer
from jitree.modules.hal.module import HalState

MAXIMUM_TABLE: Final = 256
"""Entries of the binding table of a nested command buffer."""


def create(
    state: HalState, device: Device, modes: int, categories: int, binding_capacity: int
) -> CommandBuffer:
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
