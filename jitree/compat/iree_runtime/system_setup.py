"""Drivers and devices of the process."""

from __future__ import annotations

import os
from collections.abc import Sequence
from threading import RLock
from typing import Final

from jitree.compat.iree_runtime.hal import HalDevice, HalDriver, get_cached_hal_driver

DEFAULT_DRIVER_NAMES: Final = "local-task,cuda,vulkan"
_LOCK = RLock()
_devices: dict[str, HalDevice | Exception] = {}


def query_available_drivers() -> list[str]:
    return HalDriver.query()


def get_driver(device_uri: str) -> HalDriver:
    """The same for each call with one name. ValueError for an unknown one."""
    return get_cached_hal_driver(device_uri)


def get_device(device_uri: str, cache: bool = True) -> HalDevice:
    """The same for each call with one URI, unless ``cache`` is false; a failure is raised again."""
    with _LOCK:
        found = _devices.get(device_uri) if cache else None
        if found is None:
            try:
                found = get_driver(device_uri).create_device_by_uri(device_uri)
            except Exception as error:
                found = error
            if cache:
                _devices[device_uri] = found
    if isinstance(found, Exception):
        raise found
    return found


def get_first_device(device_uris: Sequence[str] | None = None, cache: bool = True) -> HalDevice:
    """The first that can be made. ValueError if none of the drivers is there, RuntimeError if they fail."""
    if device_uris is None:
        device_uris = os.environ.get("IREE_DEFAULT_DEVICE", DEFAULT_DRIVER_NAMES).split(",")
    present = query_available_drivers()
    failure: Exception | None = None
    for uri in device_uris:
        if uri.partition("://")[0] not in present:
            continue
        try:
            return get_device(uri, cache)
        except Exception as error:
            failure = error
    if failure is None:
        raise ValueError(f"No device found from list {list(device_uris)}")
    raise RuntimeError(f"Could not create device from list {list(device_uris)}: {failure}") from failure
