"""The driver conformance table: every test that takes ``device`` runs on each of these."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jitree.hal.device import Device
from jitree.hal.driver import DriverRegistry
from jitree.hal.registry import register_local_drivers

COMPUTING_DEVICES = ("local-sync", "local-task://?threads=1", "local-task://?threads=3")
"""Devices that execute what they are given. Another driver joins by adding its URI."""
ALL_DEVICES = (*COMPUTING_DEVICES, "null")


@pytest.fixture
def registry() -> DriverRegistry:
    registry = DriverRegistry()
    register_local_drivers(registry)
    return registry


@pytest.fixture(params=COMPUTING_DEVICES)
def device(request: pytest.FixtureRequest, registry: DriverRegistry) -> Iterator[Device]:
    with registry.create_device(request.param) as device:
        yield device


@pytest.fixture(params=ALL_DEVICES)
def any_device(request: pytest.FixtureRequest, registry: DriverRegistry) -> Iterator[Device]:
    with registry.create_device(request.param) as device:
        yield device
