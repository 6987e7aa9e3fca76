"""``hal.device.queue.*``"""

from __future__ import annotations

from collections.abc import Sequence

from jitree.hal.buffer import Buffer
from jitree.hal.command_buffer import CommandBuffer
from jitree.hal.device import Device
from jitree.hal.fence import Fence
from jitree.hal.objects import File
from jitree.modules.hal.state import HalState
from jitree.modules.hal.values import unsigned64
from jitree.regs.objects import VmBuffer


def alloca(
    state: HalState,
    device: Device,
    queue_affinity: int,
    wait: Fence | None,
    signal: Fence | None,
    pool: int,
    memory_types: int,
    usage: int,
    size: int,
    flags: int = 0,
) -> Buffer:
    return device.queue_alloca(queue_affinity, wait, signal, pool, memory_types, usage, size, flags)


def dealloca(
    state: HalState,
    device: Device,
    queue_affinity: int,
    wait: Fence | None,
    signal: Fence | None,
    buffer: Buffer,
    flags: int = 0,
) -> None:
    device.queue_dealloca(queue_affinity, wait, signal, buffer, flags)


def fill(
    state: HalState,
    device: Device,
    queue_affinity: int,
    wait: Fence | None,
    signal: Fence | None,
    target: Buffer,
    offset: int,
    length: int,
    pattern: int,
    pattern_length: int,
    flags: int,
) -> None:
    device.queue_fill(queue_affinity, wait, signal, target, offset, length, pattern, pattern_length, flags)


def update(
    state: HalState,
    device: Device,
    queue_affinity: int,
    wait: Fence | None,
    signal: Fence | None,
    source: VmBuffer,
    source_offset: int,
    target: Buffer,
    offset: int,
    length: int,
    flags: int,
) -> None:
    device.queue_update(
        queue_affinity, wait, signal, source.view, source_offset, target, offset, length, flags
    )


def copy(
    state: HalState,
    device: Device,
    queue_affinity: int,
    wait: Fence | None,
    signal: Fence | None,
    source: Buffer,
    source_offset: int,
    target: Buffer,
    target_offset: int,
    length: int,
    flags: int,
) -> None:
    device.queue_copy(
        queue_affinity, wait, signal, source, source_offset, target, target_offset, length, flags
    )


def read(
    state: HalState,
    device: Device,
    queue_affinity: int,
    wait: Fence | None,
    signal: Fence | None,
    file: File,
    file_offset: int,
    target: Buffer,
    offset: int,
    length: int,
    flags: int,
) -> None:
    device.queue_read(
        queue_affinity, wait, signal, file, unsigned64(file_offset), target, offset, length, flags
    )


def write(
    state: HalState,
    device: Device,
    queue_affinity: int,
    wait: Fence | None,
    signal: Fence | None,
    source: Buffer,
    offset: int,
    file: File,
    file_offset: int,
    length: int,
    flags: int,
) -> None:
    device.queue_write(
        queue_affinity, wait, signal, source, offset, file, unsigned64(file_offset), length, flags
    )


def barrier(
    state: HalState,
    device: Device,
    queue_affinity: int,
    wait: Fence | None,
    signal: Fence | None,
    flags: int,
) -> None:
    device.queue_barrier(queue_affinity, wait, signal, flags)


def execute(
    state: HalState,
    device: Device,
    queue_affinity: int,
    wait: Fence | None,
    signal: Fence | None,
    commands: CommandBuffer,
    flags: int,
) -> None:
    device.queue_execute(queue_affinity, wait, signal, commands, (), flags)


def execute_indirect(
    state: HalState,
    device: Device,
    queue_affinity: int,
    wait: Fence | None,
    signal: Fence | None,
    commands: CommandBuffer,
    flags: int,
    binding_table: Sequence[tuple[Buffer | None, int, int]],
) -> None:
    device.queue_execute(queue_affinity, wait, signal, commands, binding_table, flags)


def flush(state: HalState, device: Device, queue_affinity: int) -> None:
    device.queue_flush(queue_affinity)
