"""CUDA devices for tests: on the fake driver, and on a GPU where there is one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jitree import Session
from jitree.api.calls.native import RECIPE as CALLS_RECIPE
from jitree.codegen import image
from jitree.codegen.image import cache
from jitree.cuda import ptx, timings
from jitree.cuda.device import CudaDevice
from jitree.cuda.driver import CudaDriver
from jitree.cuda.stream_share import RECIPE as STREAMS
from jitree.dispatch.fast import LOOP
from jitree.errors import UnavailableError
from jitree.hal.local import executor
from jitree.modules.hal.native import RECIPE
from tests.cuda import fake_native
from tests.cuda.fake import FakeDriver
from tests.cuda.kernels import KERNELS
from tests.cuda.programs import PROGRAM_KERNELS


@pytest.fixture(scope="session")
def machine_code() -> None:
    """What machine code does of calls, fast paths and the loop is there."""
    for recipe in (RECIPE, LOOP, CALLS_RECIPE, STREAMS):
        image.wait(recipe)
    executor.require_native_executor()


@pytest.fixture(autouse=True)
def cubins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of what the driver compiles here, apart from that of images."""
    folder = tmp_path / "cubins"

    def apart(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(cache, "_chosen", str(folder))
                return function(*arguments)

        return call

    for name in ("load_cubins", "store_cubins"):
        monkeypatch.setattr(ptx, name, apart(getattr(ptx, name)))
    return folder


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    monkeypatch.setattr(timings, "tracer", lambda: None)  # which knows real GPUs only
    fake = FakeDriver()
    fake.kernels.update(KERNELS)
    fake_native.serve(fake)
    return fake


@pytest.fixture
def device(fake: FakeDriver) -> Iterator[CudaDevice]:
    with CudaDevice(fake, 0) as device:
        yield device


@pytest.fixture
def session(fake: FakeDriver, device: CudaDevice) -> Iterator[Session]:
    """On the fake driver, which computes what the tests' programs do."""
    fake.kernels.update(PROGRAM_KERNELS)
    with Session(device=device) as session:
        yield session


@pytest.fixture
def gpu() -> Iterator[CudaDevice]:
    """The first GPU; skips the test where there is none."""
    try:
        driver = CudaDriver()
    except UnavailableError as error:
        pytest.skip(str(error))
    device = driver.create_device_by_id(0)
    assert isinstance(device, CudaDevice)
    with device:
        yield device
