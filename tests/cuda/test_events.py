"""Events that pass between jitree and other libraries, as points of timelines."""

from __future__ import annotations

import gc

import pytest

import jitree.compat.iree_runtime as rt
from jitree.compat.iree_runtime.hal import HalDevice
from jitree.cuda.device import CudaDevice
from jitree.errors import FailedPreconditionError, StatusError, UnimplementedError
from jitree.hal.fence import Fence
from tests.base.interruption import interruptions
from tests.cuda.fake import FakeDriver
from tests.cuda.fake_results import CUresult
from tests.cuda.ordering import TIMEOUT, allocate, fill


def other_library(fake: FakeDriver) -> int:
    """An event after the work of a stream that another library has made."""
    _, stream = fake.cuStreamCreate(0)
    _, event = fake.cuEventCreate(0)
    fake.cuEventRecord(event, stream)
    return int(event)


def test_a_semaphore_follows_an_event_of_another_library(fake: FakeDriver, device: CudaDevice) -> None:
    buffer = allocate(device)
    fill(device, buffer, None, None)
    semaphore = device.create_semaphore(0)
    with fake.busy():
        event = other_library(fake)
        device.import_event(semaphore, 3, event)
        done = Fence.create(device)
        fill(device, buffer, Fence(((semaphore, 3),)), done, 7)
        assert not semaphore.is_reached(3) and not done.is_reached()
    assert done.wait(TIMEOUT) == 0 and semaphore.query() == 3
    assert (device.read_buffer(buffer) == 7).all()


def test_another_library_waits_for_a_semaphore(fake: FakeDriver, device: CudaDevice) -> None:
    buffer = allocate(device)
    semaphore = device.create_semaphore(0)
    with pytest.raises(FailedPreconditionError, match="nothing that was submitted reaches 1"):
        device.export_event(semaphore, 1)
    with fake.busy():
        fill(device, buffer, None, Fence(((semaphore, 1),)))
        event = device.export_event(semaphore, 1)
        assert fake.cuEventQuery(event)[0]  # not ready
    assert semaphore.wait(1, TIMEOUT)
    assert not fake.cuEventQuery(event)[0]
    free = len(device.stream.events._free)
    del semaphore
    gc.collect()
    assert len(device.stream.events._free) == free + 1


def test_timepoints_of_iree_runtime_are_events(fake: FakeDriver, device: CudaDevice) -> None:
    wrapped = HalDevice(device)
    semaphore, timepoint = wrapped.create_semaphore(0), rt.HalExternalTimepoint()
    timepoint.type, timepoint.cuda_event = rt.ExternalTimepointType.CUDA_EVENT, other_library(fake)
    semaphore.import_timepoint(5, timepoint)
    assert semaphore.wait(5, timeout=int(TIMEOUT * 1e9))
    out = rt.HalExternalTimepoint()
    semaphore.export_timepoint(5, rt.ExternalTimepointType.CUDA_EVENT, 0, out)
    assert out.type == rt.ExternalTimepointType.CUDA_EVENT and out.cuda_event
    with pytest.raises(NotImplementedError, match="not HIP_EVENT"):
        semaphore.export_timepoint(6, rt.ExternalTimepointType.HIP_EVENT, 0, out)


def test_devices_without_a_driver_know_no_events() -> None:
    local = rt.get_device("local-sync").raw
    with pytest.raises(UnimplementedError, match="knows no events"):
        local.import_event(local.create_semaphore(0), 1, 1)
    with pytest.raises(UnimplementedError, match="wait for the semaphore"):
        local.export_event(local.create_semaphore(0), 1)


def test_an_event_that_the_driver_refuses_is_an_error(fake: FakeDriver, device: CudaDevice) -> None:
    semaphore = device.create_semaphore(0)
    fake.fail_next("cuStreamWaitEvent", CUresult.CUDA_ERROR_INVALID_HANDLE)
    device.import_event(semaphore, 1, 12345)
    with pytest.raises(StatusError, match="cuStreamWaitEvent"):
        semaphore.query()


def test_an_interrupt_loses_no_event_while_other_streams_are_followed(
    fake: FakeDriver, device: CudaDevice
) -> None:
    stream, places = device.stream, 0
    _, producer = fake.cuStreamCreate(0)
    stream.context.enter()
    stream.events.acquire().release()
    made = len([name for name, _ in fake.calls if name == "cuEventCreate"])
    for interruption in interruptions(0):
        with stream.lock:
            interruption.during(lambda: stream.order_after(int(producer)))
        places += 1
    assert places > 5
    assert len([name for name, _ in fake.calls if name == "cuEventCreate"]) == made
