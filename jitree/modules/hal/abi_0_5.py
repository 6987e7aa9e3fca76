"""ABI 0.5 (20240828.999 to 3.3.0): what 0.6 replaced.

Flags are 32-bit or absent, executables have no queue affinity, and a submission is a list of command buffers.
"""

# ruff: noqa: E501 - one import, one line where it fits

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from jitree.dispatch.pending import Pending
from jitree.hal.buffer import Buffer
from jitree.hal.command_buffer import CommandBuffer
from jitree.hal.device import Device
from jitree.hal.executable import Executable
from jitree.hal.fence import Fence
from jitree.modules.hal import channel, command_buffer, executable, fence, queue
from jitree.modules.hal.references import COMMANDS, QUEUE, ImportRow
from jitree.modules.hal.state import HalState
from jitree.regs.objects import VmBuffer


def fence_join(state: HalState, fences: Sequence[Fence | None]) -> Fence | None:
    return fence.join(state, 0, fences)


def fence_await(state: HalState, timeout_millis: int, fences: Sequence[Fence | None]) -> int | Pending:
    return fence.await_(state, timeout_millis, 0, fences)


def executable_create(
    state: HalState,
    device: Device,
    executable_format: VmBuffer,
    data: VmBuffer,
    constants: VmBuffer | None,
) -> Executable:
    return executable.prepare(state, device, executable_format, data, constants)


def queue_execute(
    state: HalState,
    device: Device,
    queue_affinity: int,
    wait: Fence | None,
    signal: Fence | None,
    command_buffers: Sequence[CommandBuffer],
) -> None:
    """Runs the command buffers in order; none is a barrier. Errors in any of them are raised before the first
    is submitted."""
    if not command_buffers:
        device.queue_barrier(queue_affinity, wait, signal)
        return
    *earlier, last = command_buffers
    for index, commands in enumerate(command_buffers):
        commands.check_submission(index > 0 or wait is not None)
    for commands in earlier:
        done = fence.create(state, device, 0)
        device.queue_execute(queue_affinity, wait, done, commands)
        wait = done
    device.queue_execute(queue_affinity, wait, signal, last)


def queue_execute_indirect(
    state: HalState,
    device: Device,
    queue_affinity: int,
    wait: Fence | None,
    signal: Fence | None,
    commands: CommandBuffer,
    binding_table: Sequence[tuple[Buffer | None, int, int]],
) -> None:
    device.queue_execute(queue_affinity, wait, signal, commands, binding_table)


ROWS: Final = (
    # Fences.
    ImportRow("fence.create", "0ri_r", "device: hal.device, flags", fence.create),
    ImportRow("fence.join", "0CrD_r", "[fence: hal.fence?]", fence_join),
    ImportRow("fence.await", "0iCrD_i", "timeout_millis, [fence: hal.fence?]", fence_await),
    # Command buffers. The functions of the newest ABI have defaults for the flags at their end.
    ImportRow("command_buffer.execution_barrier", "0riii_v", f"{COMMANDS}, source_stage_mask, target_stage_mask, flags",
        command_buffer.execution_barrier),
    ImportRow("command_buffer.fill_buffer", "0rrIIiii_v",
        f"{COMMANDS}, target_buffer: hal.buffer?, target_offset, length, target_buffer_slot, pattern, pattern_length",
        command_buffer.fill_buffer),
    ImportRow("command_buffer.update_buffer", "0rrIrIIi_v",
        f"{COMMANDS}, source_buffer: vm.buffer, source_offset, target_buffer: hal.buffer?, target_offset, length, "
        "target_buffer_slot", command_buffer.update_buffer),
    ImportRow("command_buffer.copy_buffer", "0riirIrII_v",
        f"{COMMANDS}, source_buffer_slot, target_buffer_slot, source_buffer: hal.buffer?, source_offset, "
        "target_buffer: hal.buffer?, target_offset, length", command_buffer.copy_buffer),
    # Executables.
    ImportRow("executable.create", "0rrrr_r",
        "device: hal.device, executable_format: vm.buffer, executable_data: vm.buffer, constants: vm.buffer?",
        executable_create),
    # Queues. Allocation changed between 0.5b and 0.5c.
    ImportRow("device.queue.alloca", "0rIrriiiI_r", f"{QUEUE}, pool, memory_types, buffer_usage, allocation_size",
        queue.alloca),
    ImportRow("device.queue.dealloca", "0rIrrr_v", f"{QUEUE}, buffer: hal.buffer", queue.dealloca),
    ImportRow("device.queue.read", "0rIrrrIrIIi_v",
        f"{QUEUE}, source_file: hal.file, source_offset, target_buffer: hal.buffer, target_offset, length, flags",
        queue.read),
    ImportRow("device.queue.write", "0rIrrrIrIIi_v",
        f"{QUEUE}, source_buffer: hal.buffer, source_offset, target_file: hal.file, target_offset, length, flags",
        queue.write),
    ImportRow("device.queue.execute", "0rIrrCrD_v", f"{QUEUE}, [command_buffer: hal.command_buffer]", queue_execute),
    ImportRow("device.queue.execute.indirect", "0rIrrrCrIID_v",
        f"{QUEUE}, {COMMANDS}, [buffer: hal.buffer?, offset, length]", queue_execute_indirect),
    # Channels.
    ImportRow("channel.create", "0rIirrii_r",
        "device: hal.device, queue_affinity, flags, id: vm.buffer?, group: vm.buffer?, rank, count", channel.create),
    ImportRow("channel.split", "0riii_r", "channel: hal.channel, color, key, flags", channel.split),
)  # fmt: skip
