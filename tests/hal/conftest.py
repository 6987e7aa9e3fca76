"""The driver conformance table: every test that takes ``device`` runs on each of these."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from jitree.cuda.driver import CudaDriver
from jitree.errors import UnavailableError
from jitree.hal import memory_order
from jitree.hal.device import Device
from jitree.hal.driver import DriverRegistry, declared_drivers
from jitree.hal.executable import ExecutableLoader
from jitree.hal.local import executor
from tests.cuda.fake import FakeDriver
from tests.cuda.kernels import KERNELS

IN_PYTHON = " (python)"
"""After a URI: command buffers are executed as in a process whose native executor is not ready."""
FAKE_DRIVER = " (fake driver)"
"""After a URI: the CUDA device on a driver that emulates a GPU on host memory."""
LOCAL_DEVICES = (
    "local-sync",
    "local-sync" + IN_PYTHON,
    "local-task://?threads=1",
    "local-task://?threads=3",
    "local-task://?threads=3" + IN_PYTHON,
)
"""Devices whose kernels are host functions."""
COMPUTING_DEVICES = (*LOCAL_DEVICES, "cuda" + FAKE_DRIVER, "cuda")
"""Devices that execute what they are given. Another driver joins by adding its URI."""
HOST_MEMORY_DEVICES = (*LOCAL_DEVICES, "null")
"""Devices all of whose memory the host sees."""
OTHER_DEVICES = tuple(
    name for name, _ in declared_drivers() if name not in ("local-sync", "local-task", "null", "cuda")
)
"""Of further folders of drivers."""
ALL_DEVICES = (*COMPUTING_DEVICES, "null", *OTHER_DEVICES)


@contextmanager
def created(
    registry: DriverRegistry,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    loaders: Sequence[ExecutableLoader] = (),
) -> Iterator[Device]:
    if name.startswith("cuda"):
        register_cuda(registry, name)
    elif name.endswith(IN_PYTHON):
        monkeypatch.setattr(executor, "_native", None)
        monkeypatch.setattr(executor, "native_executor", lambda: None)
    elif executor.SUPPORTED and not name.startswith("null"):
        executor.require_native_executor()
    uri = name.removesuffix(IN_PYTHON).removesuffix(FAKE_DRIVER)
    with registry.create_device(uri, loaders) as device:
        yield device


def register_cuda(registry: DriverRegistry, name: str) -> None:
    """The driver ``cuda``; skips the test where it is the real one and cannot be used."""
    if name.endswith(FAKE_DRIVER):
        fake = FakeDriver()
        fake.kernels.update(KERNELS)
        driver = CudaDriver(fake)
    else:
        try:
            driver = CudaDriver()
        except UnavailableError as error:
            pytest.skip(str(error))
    registry.register("cuda", "NVIDIA GPUs", lambda: driver)


@pytest.fixture
def registry() -> DriverRegistry:
    return DriverRegistry((name, row) for name, row in declared_drivers() if name != "cuda")


@pytest.fixture
def nothing_pending() -> Iterator[None]:
    """What other tests have left is no matter here, and is not what this one leaves."""
    gc.collect()
    memory_order._after_fork()
    yield
    memory_order._after_fork()


def devices(names: Sequence[str]) -> Callable[..., Iterator[Device]]:
    """A fixture that is each of these devices in turn."""

    @pytest.fixture(params=names)
    def device(
        request: pytest.FixtureRequest, registry: DriverRegistry, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[Device]:
        with created(registry, request.param, monkeypatch) as device:
            yield device

    return device


device = devices(COMPUTING_DEVICES)
local_device = devices(LOCAL_DEVICES)
host_memory_device = devices(HOST_MEMORY_DEVICES)
any_device = devices(ALL_DEVICES)
