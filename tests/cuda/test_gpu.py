"""What only a GPU can show: these tests skip themselves where there is none."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jitree import Session
from jitree.cuda.device import CudaDevice
from jitree.errors import StatusCode
from jitree.hal.fence import Fence
from tests.cuda.kernels import load_executable
from tests.cuda.programs import STATELESS
from tests.cuda.test_native import submitted_by_code
from tests.hal.helpers import direct
from tests.hal.kernels import ADD, COUNT

ROOT = Path(__file__).parents[2]
NEWTON = ROOT / "tests" / "data" / "cuda" / "newton.vmfb"
"""Compiled by iree-compile 3.13.0: --iree-hal-target-device=cuda --iree-cuda-target=sm_80"""
SIZES = [0, 1, 15, 16, 1000, 128 << 10, (128 << 10) + 1, (1 << 20) + 1, (20 << 20) + 7, 70 << 20]


@pytest.mark.parametrize("size", SIZES)
def test_bytes_arrive(gpu: CudaDevice, size: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    first, second = (gpu.device_allocator.allocate(0x30, 0, size) for _ in range(2))
    gpu.write_buffer(first, data)
    copied, filled = Fence.create(gpu), Fence.create(gpu)
    gpu.queue_copy(-1, None, copied, first, 0, second, 0, size)
    assert np.array_equal(gpu.read_buffer(second, copied), data)
    half = size // 2 // 4 * 4
    gpu.queue_fill(-1, copied, filled, second, half, half, 0x12345678, 4)
    expected = data.copy()
    expected[half : 2 * half].view("<u4")[:] = 0x12345678
    assert np.array_equal(gpu.read_buffer(second, filled), expected)


def test_kernels(gpu: CudaDevice) -> None:
    executable = load_executable(gpu)
    source, target = (gpu.device_allocator.allocate(0x30, 0, 4096) for _ in range(2))
    words = np.arange(1024, dtype="<u4")
    gpu.write_buffer(source, words.view(np.uint8))
    done, again = Fence.create(gpu), Fence.create(gpu)
    gpu.queue_dispatch(-1, None, done, executable, ADD, (16, 8, 8), [5], [direct(source), direct(target)])
    gpu.queue_dispatch(-1, done, again, executable, COUNT, (1024, 1, 1), [], [direct(target)])
    assert np.array_equal(gpu.read_buffer(target, again).view("<u4"), words + 6)


def test_a_program_that_reads_from_the_device_in_every_step(gpu: CudaDevice) -> None:
    with Session(device=gpu) as session:
        newton = session.load(NEWTON).newton
        for steps in (0, 1, 7, 100, 7, 100):  # also when the call is made again from a recording
            x = np.linspace(1, 9, 256, dtype=np.float32)
            expected = x
            for _ in range(steps):
                expected = (expected + np.float32(2) / expected) * np.float32(0.5)
            np.testing.assert_allclose(np.asarray(newton(x, np.int32(steps))), expected, rtol=1e-5)


def test_waits_end_in_time(gpu: CudaDevice) -> None:
    """The host waits for itself here: nothing signals."""
    wait, done = Fence.create(gpu), Fence.create(gpu)
    buffer = gpu.device_allocator.allocate(0x30, 0, 64)
    gpu.queue_fill(-1, wait, done, buffer, 0, 64, 1, 1)
    start = time.monotonic()
    assert done.wait(0.05) == StatusCode.DEADLINE_EXCEEDED
    assert time.monotonic() - start < 20
    wait.signal()
    assert done.wait(20) == StatusCode.OK


def test_memory_does_not_grow(gpu: CudaDevice) -> None:
    with Session(device=gpu) as session:
        newton = session.load(NEWTON).newton
        x = session.to_device(np.ones(256, np.float32))

        def free_after_calls() -> int:
            for _ in range(50):
                np.asarray(newton(x, np.int32(3)))
            return int(gpu.context.api.call("cuMemGetInfo")[0])

        # Other processes use the device, too, and may take memory for seconds; a leak does in each round.
        end, before = time.monotonic() + 20, free_after_calls()
        while (after := free_after_calls()) < before and time.monotonic() < end:
            before = after
        assert after >= before


FAULT = """
from jitree.cuda.driver import CudaDriver
from jitree.errors import InternalError
from jitree.hal.fence import Fence
from tests.cuda.kernels import load_executable
from tests.cuda.programs import STATELESS
from tests.hal.kernels import FAIL

device = CudaDriver().create_device_by_path("")
buffer = device.device_allocator.allocate(0x30, 0, 64)
executable = load_executable(device)
texts = []
for attempt in range(3):
    done = Fence.create(device)
    try:
        if attempt < 2:
            device.queue_dispatch(-1, None, done, executable, FAIL, (1, 1, 1), [4], [])
            done.wait(20)
        else:
            device.read_buffer(buffer)
    except InternalError as error:
        texts.append(str(error))
assert len(texts) == 3 and len(set(texts)) == 1, texts
assert "is lost" in texts[0] and "CUDA_ERROR_ILLEGAL_ADDRESS" in texts[0], texts
device.close()
print("lost as it should be")
"""


def test_a_faulting_kernel_loses_the_device(gpu: CudaDevice) -> None:
    """In another process: no other context of the process would survive it."""
    done = subprocess.run(
        [sys.executable, "-c", FAULT], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout == "lost as it should be\n", done.stderr


# Other libraries.


def test_torch(gpu: CudaDevice) -> None:
    torch: Any = pytest.importorskip("torch")
    with Session(device=gpu) as session:
        tensor = torch.arange(12, dtype=torch.float32, device="cuda").reshape(3, 4)
        array = session.to_device(tensor)
        assert array.buffer_view.buffer.address == tensor.data_ptr()
        tensor += 1
        torch.cuda.synchronize()
        assert np.array_equal(np.asarray(array), tensor.cpu().numpy())
        back = torch.from_dlpack(array)
        assert back.data_ptr() == tensor.data_ptr() and torch.equal(back, tensor)
        newton = session.load(NEWTON).newton
        x = torch.linspace(1, 9, 256, device="cuda")
        for _ in range(4):
            result = torch.from_dlpack(newton(x, np.int32(20)))
            torch.testing.assert_close(result, torch.full_like(x, 2**0.5))
        with torch.cuda.stream(torch.cuda.Stream()):
            large = torch.randn(1 << 24, device="cuda") * 2 + 1
            assert torch.equal(torch.from_dlpack(session.to_device(large)), large)
        for dtype in (torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.complex64):
            zeros = torch.zeros(8, device="cuda", dtype=dtype)
            assert torch.from_dlpack(session.to_device(zeros)).dtype == dtype


def test_cupy(gpu: CudaDevice) -> None:
    cupy: Any = pytest.importorskip("cupy")
    with Session(device=gpu) as session:
        source = cupy.arange(10, dtype=cupy.float32)
        array = session.to_device(source)
        assert array.buffer_view.buffer.address == source.data.ptr
        assert np.array_equal(np.asarray(array), source.get())
        ours = session.to_device(np.arange(6, dtype=np.int32))
        for taken in (cupy.asarray(ours), cupy.from_dlpack(ours)):
            assert taken.data.ptr == ours.buffer_view.buffer.address and int(taken.sum()) == 15


def test_machine_code_submits_what_python_does(gpu: CudaDevice) -> None:
    """Calls that no recording makes again, since an array is passed twice, and the memory of their results
    takes turns."""
    with Session(device=gpu, tier="plain") as plain, Session(device=gpu) as fast:
        expected, scale = (session.load(STATELESS).scale for session in (plain, fast))
        for turn in range(30):
            values = np.random.default_rng(turn).standard_normal(8).astype(np.float32)
            x, y = fast.to_device(values), plain.to_device(values)
            for result, wanted in zip(scale(x, x), expected(y, y), strict=True):
                assert np.asarray(result).tobytes() == np.asarray(wanted).tobytes()
        assert scale.is_direct
        assert submitted_by_code(fast)


def test_dependent_launch_gives_the_same_bits(gpu: CudaDevice) -> None:
    results = []
    for way in ("on", "off"):
        with Session(device=f"cuda://0?dependent_launch={way}") as session:
            module = session.load(STATELESS)
            values = np.random.default_rng(1).standard_normal(8).astype(np.float32)
            x, found = session.to_device(values), []
            for _ in range(30):
                doubled, total = module.scale(x, module.shift(x))
                x = session.to_device(np.asarray(total) * np.float32(0.3))
                found += [np.asarray(doubled).tobytes(), np.asarray(total).tobytes()]
            results.append(found)
    assert results[0] == results[1]
