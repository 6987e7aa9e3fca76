"""``hal.device.queue.*``: what is not a method of devices as it stands."""

from __future__ import annotations

from typing import Any

from jitree.hal.buffer import Buffer
from jitree.hal.command_buffer import BindingTable, CommandBuffer
from jitree.hal.device import Device
from jitree.hal.fence import Fence
from jitree.hal.objects import File
from jitree.modules.hal.state import HalState
from jitree.modules.hal.values import unsigned64
from jitree.regs.objects import VmBuffer


def update(
    state: HalState,
    device: Device,
    queue_affinity: int,
    wait: Fence | None,
    signal: Fence | None,
    source: VmBuffer,
    *rest: Any,
) -> None:
    device.queue_update(queue_affinity, wait, signal, source.view, *rest)


def read(
    state: HalState,
    device: Device,
    queue_affinity: int,
    wait: Fence | None,
    signal: Fence | None,
    file: File,
    file_offset: int,
    *rest: Any,
) -> None:
    device.queue_read(queue_affinity, wait, signal, file, unsigned64(file_offset), *rest)


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
    *rest: Any,
) -> None:
    device.queue_write(queue_affinity, wait, signal, source, offset, file, unsigned64(file_offset), *rest)


def execute(
    state: HalState,
    device: Device,
    queue_affinity: int,
    wait: Fence | None,
    signal: Fence | None,
    commands: CommandBuffer,
    flags: int,
    binding_table: BindingTable = (),
) -> None:
    device.queue_execute(queue_affinity, wait, signal, commands, binding_table, flags)
