"""Finds the GPUs of this process: the driver ``cuda``."""

from __future__ import annotations

import re
from typing import Any, Final

from jitree.cuda.api import Api, load_bindings
from jitree.cuda.channel import USUAL_SECONDS
from jitree.cuda.context import DeviceDescription
from jitree.cuda.device import CudaDevice
from jitree.errors import InvalidArgumentError, NotFoundError
from jitree.hal.device import Device
from jitree.hal.driver import DEFAULT_OPTIONS, DeviceInfo, DeviceOptions, Driver
from jitree.hal.exchange import HostTransfers

_PCI_ID: Final = re.compile(r"(?:([0-9a-f]+):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})\.([0-7])", re.IGNORECASE)
"""Domain, bus, device, function. ``lspci`` leaves domain 0 out, ``nvidia-smi`` writes eight digits of it."""


class CudaDriver(Driver):
    """Devices by ordinal, PCI id (``0000:65:00.0``) or UUID (``GPU-…``)."""

    name = "cuda"

    def __init__(self, bindings: Any = None) -> None:
        """``bindings``: what stands for the module ``cuda.bindings.driver``. UNAVAILABLE, with what to
        install, when CUDA cannot be used here or there is no GPU."""
        self._bindings = load_bindings() if bindings is None else bindings
        api = Api(self._bindings, "cuda")
        count = api.call("cuDeviceGetCount")
        self._descriptions = [
            DeviceDescription(api, api.call("cuDeviceGet", ordinal)) for ordinal in range(count)
        ]

    def query_available_devices(self) -> list[DeviceInfo]:
        return [
            DeviceInfo(ordinal, description.uuid, description.name)
            for ordinal, description in enumerate(self._descriptions)
        ]

    def dump_device_info(self, device_id: int) -> str:
        return self._descriptions[self._ordinal(device_id)].format()

    def create_device_by_id(self, device_id: int, options: DeviceOptions = DEFAULT_OPTIONS) -> Device:
        """The default device is the first. INVALID_ARGUMENT for parameters other than
        ``host_transfers=implicit|explicit``, ``dependent_launch=on|off`` and
        ``collective_timeout=seconds``."""
        chosen = {
            "host_transfers": "implicit", "dependent_launch": "on", "collective_timeout": str(USUAL_SECONDS)
        }  # fmt: skip
        for name, value in options.parameters.items():
            if name not in chosen:
                raise InvalidArgumentError(f"cuda has no parameter '{name}'; it has {', '.join(chosen)}")
            chosen[name] = value
        transfers, launch, seconds = chosen.values()
        if transfers not in [kind.value for kind in HostTransfers]:
            raise InvalidArgumentError(f"host_transfers={transfers}: expected implicit or explicit")
        if launch not in ("on", "off"):
            raise InvalidArgumentError(f"dependent_launch={launch}: expected on or off")
        ordinal, timeout = self._ordinal(device_id), _seconds(seconds)
        return CudaDevice(self._bindings, ordinal, HostTransfers(transfers), launch == "on", timeout)

    def create_device_by_path(self, path: str, options: DeviceOptions = DEFAULT_OPTIONS) -> Device:
        pci_id = _pci_numbers(path)
        for ordinal, description in enumerate(self._descriptions):
            if path.lower() == description.uuid.lower() or (
                pci_id is not None and pci_id == _pci_numbers(description.pci_id)
            ):
                return self.create_device_by_id(ordinal, options)
        return super().create_device_by_path(path, options)

    def _ordinal(self, device_id: int) -> int:
        if device_id == self.DEFAULT_ID:
            device_id = 0
        if not 0 <= device_id < len(self._descriptions):
            raise NotFoundError(
                f"driver 'cuda' has no device {device_id}; there are {len(self._descriptions)}, from 0 on"
            )
        return device_id


def _seconds(text: str) -> float:
    """Above zero; ``inf`` is without end."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise InvalidArgumentError(f"collective_timeout={text}: expected a number of seconds above 0")
    return seconds


def _pci_numbers(text: str) -> tuple[int, ...] | None:
    """What a PCI id says, None for another text."""
    match = _PCI_ID.fullmatch(text)
    return None if match is None else tuple(int(number or "0", 16) for number in match.groups())
