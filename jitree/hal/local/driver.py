"""What the drivers of local devices share: there is one device, by id 0 and by the empty path."""

from __future__ import annotations

import abc
import os
from typing import ClassVar

from jitree.errors import NotFoundError
from jitree.hal.device import Device
from jitree.hal.driver import DEFAULT_OPTIONS, DeviceInfo, DeviceOptions, Driver


class LocalDriver(Driver):
    name: ClassVar[str]
    description: ClassVar[str]

    def query_available_devices(self) -> list[DeviceInfo]:
        return [DeviceInfo(0, "", "default")]

    def dump_device_info(self, device_id: int) -> str:
        from jitree.hal.local.topology import available_processors

        self._check(device_id)
        return (
            f"  {self.description}\n  architecture: {os.uname().machine}\n"
            f"  processors available to this process: {available_processors()}\n"
        )

    def create_device_by_id(self, device_id: int, options: DeviceOptions = DEFAULT_OPTIONS) -> Device:
        self._check(device_id)
        return self._create(options)

    @abc.abstractmethod
    def _create(self, options: DeviceOptions) -> Device: ...

    def _check(self, device_id: int) -> None:
        if device_id not in (self.DEFAULT_ID, 0):
            raise NotFoundError(f"driver '{self.name}' has no device {device_id}; there is one, with id 0")
