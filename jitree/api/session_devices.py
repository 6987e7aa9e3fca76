"""The devices of a session: those that it was given, and those that it creates and closes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from jitree.api.calls.refusal import describe
from jitree.api.session_arguments import listed
from jitree.errors import InvalidArgumentError, UnimplementedError
from jitree.hal.device import Device
from jitree.hal.heap import HeapAllocator

if TYPE_CHECKING:
    from jitree.api.resources import Resources
    from jitree.api.sandbox import Sandbox
    from jitree.hal.executable import ExecutableLoader

DeviceChoice = str | Device | Sequence[str | Device] | None


def open_devices(
    choice: DeviceChoice,
    instance: Resources,
    loaders: Sequence[ExecutableLoader],
    owned: list[Device],
    sandbox: Sandbox | None,
    zero_memory: bool,
) -> tuple[Device, ...]:
    """The devices of a choice; those that are created are added to ``owned``."""
    if choice is None and sandbox is None:
        created = instance.create_default_device(loaders=loaders)
        owned.append(created)
        return (_prepared(created, zero_memory),)
    if choice is None:
        choice = "local-task"
    if isinstance(choice, (str, Device)) or not isinstance(choice, Iterable):
        choice = [choice]
    devices = []
    for item in listed("device", "URIs or Devices", choice):
        if not isinstance(item, (str, Device)):
            raise InvalidArgumentError(f"device: expected a URI or a Device but got {describe(item)}")
        if sandbox is not None:
            from jitree.api.sandbox import require_local

            require_local(item)
        if isinstance(item, str):
            item = instance.create_device(item, loaders=loaders)
            owned.append(item)
            if sandbox is not None:
                sandbox.adopt(item)
        devices.append(_prepared(item, zero_memory))
    if not devices:
        raise InvalidArgumentError("device: a session needs at least one device")
    return tuple(devices)


def _prepared(device: Device, zero_memory: bool) -> Device:
    """UNIMPLEMENTED for a device whose memory cannot be zero where that is wanted."""
    if zero_memory:
        for allocator in (device.device_allocator, device.host_allocator):
            if not isinstance(allocator, HeapAllocator):
                raise UnimplementedError(
                    f"zero_memory: memory of {device.id} is not cleared; local-sync and local-task do that"
                )
            allocator.is_zeroed = True
    return device
