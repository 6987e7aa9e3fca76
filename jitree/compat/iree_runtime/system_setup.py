"""Drivers and devices of the process."""

from __future__ import annotations

import os
from collections.abc import Sequence
from threading import RLock
from typing import Final

from jitree.compat.iree_runtime.arguments import anything, takes, text
from jitree.compat.iree_runtime.hal import HalDevice, HalDriver, get_cached_hal_driver
from jitree.errors import is_interruption, pass_interruption

DEFAULT_DRIVER_NAMES: Final = "local-task,cuda,vulkan"
_LOCK = RLock()
_devices: dict[str, HalDevice | Exception] = {}


def query_available_drivers() -> list[str]:
    return HalDriver.query()


def get_driver(device_uri: str) -> HalDriver:
    """The same for each call with one name. ValueError for an unknown one."""
    return get_cached_hal_driver(device_uri)


@takes(text, anything)
def get_device(device_uri: str, cache: bool = True) -> HalDevice:
    """The same for each call with one URI, unless ``cache`` is false; a failure is raised again."""
    with _LOCK:
        found = _devices.get(device_uri) if cache else None
        if found is None:
            try:
                found = get_driver(device_uri).create_device_by_uri(device_uri)
            except Exception as error:
                if is_interruption(error):
                    raise
                found = error
            if cache:
                _devices[device_uri] = found
    if isinstance(found, Exception):
        raise found
    return found


def get_first_device(device_uris: Sequence[str] | None = None, cache: bool = True) -> HalDevice:
    """The first that can be made. ValueError if none of them is there, RuntimeError if the last one fails."""
    if device_uris is None:
        text = os.environ.get("IREE_DEFAULT_DEVICE", DEFAULT_DRIVER_NAMES)
        device_uris = [uri.strip() for uri in text.split(",")]
    failure: Exception | None = None
    for uri in device_uris:
        try:
            return get_device(uri, cache)
        except ValueError as error:  # there is no such driver or device
            pass_interruption(error)
            continue
        except Exception as error:
            if is_interruption(error):
                raise
            failure = error
    if failure is None:
        raise ValueError(f"No device found from list {device_uris}")
    raise RuntimeError("Could not create device. Exception for last tried follows.") from failure
