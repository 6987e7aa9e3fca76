"""``hal.channel.*``"""

from __future__ import annotations

from jitree.hal.device import Device
from jitree.hal.objects import Channel
from jitree.modules.hal.state import HalState
from jitree.modules.hal.values import text
from jitree.regs.objects import VmBuffer


def create(
    state: HalState,
    device: Device,
    queue_affinity: int,
    flags: int,
    identifier: VmBuffer | None,
    group: VmBuffer | None,
    rank: int,
    count: int,
) -> Channel:
    """-1 and null: from the host's environment."""
    return device.create_channel(
        queue_affinity,
        None if identifier is None else bytes(identifier),
        None if group is None else text(group),
        rank,
        count,
        flags,
    )
