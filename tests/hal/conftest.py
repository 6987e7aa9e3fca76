"""The driver conformance table: every test that takes ``device`` runs on each of these."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from jitree.hal.device import Device
from jitree.hal.driver import DriverRegistry
from jitree.hal.executable import ExecutableLoader
from jitree.hal.local import walk, walk_image
from jitree.hal.registry import register_local_drivers

PYTHON_WALKER = " (python)"
"""Behind a URI: command buffers are executed as in a process whose native walker is not ready."""
COMPUTING_DEVICES = (
    "local-sync",
    "local-sync" + PYTHON_WALKER,
    "local-task://?threads=1",
    "local-task://?threads=3",
    "local-task://?threads=3" + PYTHON_WALKER,
)
"""Devices that execute what they are given. Another driver joins by adding its URI."""
ALL_DEVICES = (*COMPUTING_DEVICES, "null")


@contextmanager
def created(
    registry: DriverRegistry,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    loaders: Sequence[ExecutableLoader] = (),
) -> Iterator[Device]:
    if name.endswith(PYTHON_WALKER):
        monkeypatch.setattr(walk, "_native", None)
        monkeypatch.setattr(walk, "native_walker", lambda: None)
    elif walk_image.supported() and not name.startswith("null"):
        walk.require_native_walker()
    with registry.create_device(name.removesuffix(PYTHON_WALKER), loaders) as device:
        yield device


@pytest.fixture
def registry() -> DriverRegistry:
    registry = DriverRegistry()
    register_local_drivers(registry)
    return registry


@pytest.fixture(params=COMPUTING_DEVICES)
def device(
    request: pytest.FixtureRequest, registry: DriverRegistry, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Device]:
    with created(registry, request.param, monkeypatch) as device:
        yield device


@pytest.fixture(params=ALL_DEVICES)
def any_device(
    request: pytest.FixtureRequest, registry: DriverRegistry, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Device]:
    with created(registry, request.param, monkeypatch) as device:
        yield device
