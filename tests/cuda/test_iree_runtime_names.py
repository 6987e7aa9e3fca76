"""Names of iree.runtime on a CUDA device, as far as the fake driver goes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jitree.compat.iree_runtime as rt
from jitree.compat.iree_runtime.hal import HalDevice
from jitree.cuda.device import CudaDevice

FOUR = np.arange(4, dtype=np.float32)


@pytest.fixture
def cuda(device: CudaDevice) -> HalDevice:
    return HalDevice(device)


def copied(cuda: HalDevice, array: Any, element_type: Any = None) -> Any:
    return cuda.allocator.allocate_buffer_copy(
        rt.MemoryType.DEVICE_LOCAL, rt.BufferUsage.DEFAULT, cuda, array, element_type
    )


def test_arrays_go_to_the_device_and_back(cuda: HalDevice) -> None:
    array = rt.asdevicearray(cuda, FOUR)
    assert (array.shape, array.dtype) == ([4], np.float32)
    with pytest.raises(ValueError, match="cannot be implicitly transferred"):
        np.asarray(array)
    np.testing.assert_array_equal(array.to_host(), FOUR)
    view = copied(cuda, FOUR, rt.HalElementType.FLOAT_32)
    assert rt.DeviceArray(cuda, view, implicit_host_transfer=True)[2] == 2
    assert cuda.allocator.statistics["device_bytes_allocated"] >= 32
    assert "DEVICE_LOCAL" in repr(view.get_buffer())


def test_memory_that_the_host_cannot_see_is_not_mapped(cuda: HalDevice) -> None:
    buffer = copied(cuda, FOUR)
    with pytest.raises(RuntimeError):
        buffer.map()
    staging = cuda.allocator.allocate_host_staging_buffer_copy(cuda, FOUR)
    np.testing.assert_array_equal(staging.map().asarray([4], np.float32), FOUR)


def test_queues_copy_and_fill(cuda: HalDevice) -> None:
    source, target = copied(cuda, FOUR), copied(cuda, np.zeros(4, np.float32))
    semaphore = cuda.create_semaphore(0)
    cuda.queue_copy(source, target, [(semaphore, 0)], [(semaphore, 1)])
    commands = rt.HalCommandBuffer(cuda)
    commands.fill(target, np.float32(9), 0, 4, end=True)
    cuda.queue_execute(commands, rt.HalFence.create_at(semaphore, 1), rt.HalFence.create_at(semaphore, 2))
    assert semaphore.wait(2, timeout=20_000_000_000)
    view = rt.HalBufferView(target, [4], rt.HalElementType.FLOAT_32)
    np.testing.assert_array_equal(rt.DeviceArray(cuda, view).to_host(), [9, 1, 2, 3])
    made = cuda.queue_alloca(64, [], [(semaphore, 3)])
    cuda.queue_dealloca(made, [(semaphore, 3)], [(semaphore, 4)])
    assert semaphore.wait(4)


def test_views_pass_as_capsules_of_the_gpu(cuda: HalDevice) -> None:
    view = copied(cuda, FOUR, rt.HalElementType.FLOAT_32)
    with pytest.raises(ValueError, match=r"not on \(1, 0\)"):
        cuda.create_dlpack_capsule(view, 1, 0)
    back = cuda.from_dlpack_capsule(cuda.create_dlpack_capsule(view, 2, 0))
    assert back.shape == [4] and back.element_type == int(rt.HalElementType.FLOAT_32)
    np.testing.assert_array_equal(rt.DeviceArray(cuda, back).to_host(), FOUR)


def test_a_context_has_the_module_hal_of_the_gpu(cuda: HalDevice) -> None:
    config = rt.Config(device=cuda)
    context = rt.SystemContext(config=config)
    assert list(context.modules) == ["hal"] and context.config.device is cuda
    with pytest.raises(TypeError, match="expected HalDevice"):
        rt.create_hal_module(config.vm_instance, 3)
