"""Driver and devices by name; what is said when CUDA cannot be used; errors and the loss of a device."""

from __future__ import annotations

import gc
import sys
import types
import weakref
from collections.abc import Callable

import numpy as np
import pytest

from jitree.cuda.api import LOST, load_bindings, status_of
from jitree.cuda.device import CudaDevice
from jitree.cuda.driver import CudaDriver
from jitree.errors import (
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
    StatusCode,
    StatusError,
    UnavailableError,
)
from jitree.hal.driver import DeviceOptions
from jitree.hal.fence import Fence
from tests.cuda.fake import FakeDriver
from tests.cuda.fake_results import CUresult
from tests.cuda.kernels import load_executable
from tests.hal.kernels import FAIL


def install(monkeypatch: pytest.MonkeyPatch, driver: object) -> None:
    """Makes ``driver`` what ``from cuda.bindings import driver`` gives."""
    package, bindings = types.ModuleType("cuda"), types.ModuleType("cuda.bindings")
    bindings.driver = driver  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cuda", package)
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)


# What there is.


def test_devices_by_ordinal_uuid_and_pci_id() -> None:
    driver = CudaDriver(FakeDriver(devices=3))
    infos = driver.query_available_devices()
    assert [info.id for info in infos] == [0, 1, 2]
    assert infos[1].path == "GPU-00010203-0405-0607-0809-0a0b0c0d0e01"
    for path in ("1", infos[1].path, infos[1].path.lower(), "0000:1b:00.0", "00000000:1B:00.0", "1b:00.0"):
        with driver.create_device_by_path(path) as device:
            assert device.uri == "cuda://1"
    with driver.create_device_by_path("") as device:
        assert device.uri == "cuda://0"


@pytest.mark.parametrize("path", ["3", "GPU-1", "0000:00:00.0", "-1"])
def test_unknown_devices_are_named_with_those_there_are(path: str) -> None:
    with pytest.raises(NotFoundError, match="cuda://GPU-0001"):
        CudaDriver(FakeDriver(devices=2)).create_device_by_path(path)


def test_dump() -> None:
    text = CudaDriver(FakeDriver()).dump_device_info(0)
    assert "compute capability: 9.0" in text and "PCI id: 0000:1a:00.0" in text and "CUDA 12.99" in text
    with pytest.raises(NotFoundError):
        CudaDriver(FakeDriver()).dump_device_info(1)


def test_parameters_are_refused() -> None:
    for parameters, text in (
        ({"threads": "3"}, "threads"),
        ({"host_transfers": "never"}, "implicit or explicit"),
        ({"dependent_launch": "maybe"}, "on or off"),
        ({"collective_timeout": "soon"}, "a number of seconds"),
        ({"collective_timeout": "0"}, "above 0"),
        ({"collective_timeout": "nan"}, "above 0"),
    ):
        with pytest.raises(InvalidArgumentError, match=text):
            CudaDriver(FakeDriver()).create_device_by_id(0, DeviceOptions(parameters))


def test_queries(device: CudaDevice) -> None:
    assert device.id == "cuda" and device.uri == "cuda://0"
    assert device.query_i64("hal.device.id", "cuda*") == (True, 1)
    assert device.query_i64("hal.executable.format", "cuda-nvptx-fb") == (True, 1)
    assert device.query_i64("hal.executable.format", "embedded-elf-x86_64") == (True, 0)
    assert device.query_i64("hal.dispatch", "concurrency") == (True, 132)
    assert device.query_i64("cuda.device", "compute_capability_major") == (True, 9)
    assert device.query_i64("cuda.device", "nonsense") == (False, 0)


# Where CUDA cannot be used.


def test_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cuda", "cuda.bindings"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UnavailableError, match=r"cuda-python .*pip install 'jitree\[cuda\]'"):
        load_bindings()


def test_missing_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoLibrary:
        def cuInit(self, flags: int) -> None:
            raise RuntimeError("Failed to dlopen libcuda.so.1")

    install(monkeypatch, NoLibrary())
    with pytest.raises(UnavailableError, match=r"libcuda\.so\.1.*install an NVIDIA driver"):
        load_bindings()


def test_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeDriver(devices=0))
    with pytest.raises(UnavailableError, match="CUDA_ERROR_NO_DEVICE"):
        load_bindings()


def test_old_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeDriver(version=11080))
    with pytest.raises(UnavailableError, match=r"CUDA 11\.8, older than 12\.0"):
        load_bindings()


# Errors.


def test_errors_name_call_device_and_cuda_error(fake: FakeDriver, device: CudaDevice) -> None:
    fake.fail_next("cuStreamQuery", CUresult.CUDA_ERROR_INVALID_HANDLE)
    with pytest.raises(
        InvalidArgumentError, match=r"cuStreamQuery on cuda://0 .*INVALID_HANDLE \(400\): text"
    ):
        device.context.api.stream_is_idle(device.stream.handle)
    assert device.context.api.lost is None


def test_numbers_that_the_bindings_do_not_know(device: CudaDevice) -> None:
    assert "error 12345" in str(device.context.api.failure("cuNothing", 12345))


def test_losses_have_a_status() -> None:
    assert status_of(700) == status_of(719) == StatusCode.INTERNAL
    assert {700, 719, 709} <= LOST and not LOST & {0, 1, 2, 600}


def test_a_lost_device_names_the_first_failure_from_then_on(fake: FakeDriver, device: CudaDevice) -> None:
    executable = load_executable(device)
    buffer = device.device_allocator.allocate(0x30, 0, 64)
    fake.hold()
    before, after = Fence.create(device), Fence.create(device)
    device.queue_fill(-1, None, before, buffer, 0, 64, 1, 1)
    device.queue_dispatch(-1, None, after, executable, FAIL, (1, 1, 1), [0], [])
    fake.release()
    for fence in (after, before):  # how far the device got is not known
        with pytest.raises(InternalError, match=r"cuda://0 is lost.*ILLEGAL_ADDRESS.*last given: fail"):
            fence.wait(5)
    calls: list[Callable[[], object]] = [
        lambda: device.queue_fill(-1, None, None, buffer, 0, 64, 1, 1),
        lambda: device.queue_barrier(-1, None, None),
        lambda: device.write_buffer(buffer, np.zeros(4, np.uint8)),
        lambda: device.read_buffer(buffer),
        lambda: device.device_allocator.allocate(0x30, 0, 100 << 20),
    ]
    for call in calls:
        with pytest.raises(StatusError, match=r"cuda://0 is lost.*CUDA_ERROR_ILLEGAL_ADDRESS"):
            call()


def test_out_of_memory_says_what_is_in_use(fake: FakeDriver, device: CudaDevice) -> None:
    allocate = device.device_allocator.allocate
    half, most = fake.memory // 2, fake.memory // 4 * 3
    held = allocate(0x30, 0, half)
    with pytest.raises(ResourceExhaustedError, match=f"cannot allocate {most} .*{half} bytes are in use"):
        allocate(0x30, 0, most)
    assert device.context.api.lost is None
    del held
    assert allocate(0x30, 0, most).byte_length == most


# Lifetime.


def test_closing_gives_everything_back(fake: FakeDriver) -> None:
    device = CudaDevice(fake, 0)
    buffer = device.device_allocator.allocate(0x30, 0, 1 << 20)
    pinned = device.device_allocator.allocate(0x46, 0, 100)
    device.write_buffer(buffer, np.arange(256, dtype=np.uint8))
    device.close()
    device.close()
    assert len(fake.streams) == 2 and not fake.events
    pinned.host_array()[:] = 7  # memory that the program refers to stays
    del buffer, pinned
    assert fake.live_bytes == 0


def test_closing_without_a_driver(fake: FakeDriver) -> None:
    """At the end of a process the driver may have gone first."""
    device = CudaDevice(fake, 0)
    device.write_buffer(device.device_allocator.allocate(0x30, 0, 64), np.zeros(64, np.uint8))
    for _ in range(4):
        fake.fail_next("cuCtxSetCurrent", CUresult.CUDA_ERROR_DEINITIALIZED)
    device.close()
    assert device._queue.stream.api.lost is None


def test_a_forgotten_device_ends_its_threads(fake: FakeDriver) -> None:
    import threading

    before = threading.active_count()
    device = CudaDevice(fake, 0)
    wait, done = Fence.create(device), Fence.create(device)
    device.queue_barrier(-1, wait, done)
    wait.signal()
    assert done.wait(5) == StatusCode.OK
    assert threading.active_count() == before + 1
    del device
    gc.collect()
    assert threading.active_count() == before


def test_a_device_in_a_circle_ends_after_its_users(fake: FakeDriver) -> None:
    """What a garbage collection runs may still use it."""

    class User:
        device: CudaDevice

        def __del__(self) -> None:
            allocated.append(self.device.device_allocator.allocate(0, 0, 64).byte_length)

    allocated: list[int] = []
    user = User()
    user.device = CudaDevice(fake, 0)
    user.device.user = user  # type: ignore[attr-defined]
    stream = weakref.ref(user.device.stream)
    del user
    gc.collect()
    assert allocated == [64] and stream() is None
