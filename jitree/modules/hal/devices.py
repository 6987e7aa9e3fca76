"""``hal.devices.*`` and ``hal.device.*`` without the queue operations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jitree.errors import StatusError
from jitree.modules.hal.values import text

if TYPE_CHECKING:
    from jitree.hal.device import Device
    from jitree.modules.hal.state import HalState
    from jitree.regs.objects import VmBuffer


def devices_get(state: HalState, index: int) -> Device | None:
    """Null when there is no such device: programs walk the devices until one fits."""
    return state.devices[index] if 0 <= index < len(state.devices) else None


def device_query_i64(state: HalState, device: Device, category: VmBuffer, key: VmBuffer) -> tuple[int, int]:
    """(1, value) or, for whatever reason there is no answer, (0, 0)."""
    try:
        known, value = device.query_i64(text(category), text(key))
    except StatusError:  # the program has to go on without an answer
        return 0, 0
    return (1, value) if known else (0, 0)
