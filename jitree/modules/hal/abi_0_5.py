"""ABI 0.5 (20240828.999 to 3.3.0): what 0.6 replaced.

Flags are 32-bit or absent, executables have no queue affinity, and a submission is a list of command buffers.
"""

from __future__ import annotations

from collections.abc import Sequence

from jitree.hal.command_buffer import CommandBuffer
from jitree.hal.device import Device
from jitree.hal.fence import Fence
from jitree.modules.hal.module import HalState


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
        done = Fence.create(device)
        device.queue_execute(queue_affinity, wait, done, commands)
        wait = done
    device.queue_execute(queue_affinity, wait, signal, last)
