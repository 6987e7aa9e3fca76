"""When calls take their turn: after the pending ones that use the same memory (:mod:`jitree.hal.pending`).

A device whose memory the host does not see does its work in order, without this.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from jitree.hal import pending
from jitree.hal.pending import Extent, extents

if TYPE_CHECKING:
    from jitree.api.calls.declaration import Parameter
    from jitree.hal.device import Device
    from jitree.hal.fence import Fence


class Uses(NamedTuple):
    """The memory of a call."""

    read: tuple[Extent, ...]
    written: tuple[Extent, ...]


def are_ordered(device: Device) -> bool:
    """Whether calls on a device are ordered here."""
    return device.array_exchange is None


def uses_of(parameters: Sequence[Parameter], packed: Sequence[object]) -> Uses:
    """What a call with these values may read and write."""
    pairs = tuple(zip(parameters, packed, strict=False))
    return Uses(
        extents(value for parameter, value in pairs if not parameter.overwritten),
        extents(value for parameter, value in pairs if parameter.overwritten),
    )


def wait_for_turn(parameters: Sequence[Parameter], packed: Sequence[object]) -> None:
    """Waits for the pending calls that a call with these values has to come after."""
    pending.wait_for(pending.before(*uses_of(parameters, packed)))


def turn_of(device: Device, parameters: Sequence[Parameter], packed: Sequence[object]) -> Fence | None:
    """What a call with these values has to come after; None if nothing is in its way."""
    return pending.ended(pending.before(*uses_of(parameters, packed)), device)
