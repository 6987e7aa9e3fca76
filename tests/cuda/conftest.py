"""CUDA devices for tests: on the fake driver, and on a GPU where there is one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jitree.cuda import cubin_cache
from jitree.cuda.device import CudaDevice
from jitree.cuda.driver import CudaDriver
from jitree.errors import UnavailableError
from tests.cuda import fake_native
from tests.cuda.fake import FakeDriver
from tests.cuda.kernels import KERNELS


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compiled here is kept apart from what programs use."""
    monkeypatch.setattr(cubin_cache, "folder", lambda: tmp_path / "cubins")


@pytest.fixture
def fake() -> FakeDriver:
    fake = FakeDriver()
    fake.kernels.update(KERNELS)
    fake_native.serve(fake)
    return fake


@pytest.fixture
def device(fake: FakeDriver) -> Iterator[CudaDevice]:
    with CudaDevice(fake, 0) as device:
        yield device


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
