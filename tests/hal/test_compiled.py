"""Compiled executables on devices: the whole way from the executable cache to results."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jitree.errors import NotFoundError, ResourceExhaustedError
from jitree.hal.device import Device
from jitree.hal.driver import DriverRegistry
from jitree.hal.executable import ExecutableParameters
from jitree.hal.fence import Fence
from jitree.loaders.embedded_elf import EmbeddedElfLoader
from tests.hal.conftest import LOCAL_DEVICES, created
from tests.hal.helpers import TIMEOUT, allocate, direct, execute, finish, record, slot

EXECUTABLES = Path(__file__).parents[1] / "data" / "executables"
FORMAT = "embedded-elf-x86_64"
ELEMENTS = 1 << 20
"""Of mulbig: 256 workgroups, enough work to be shared."""

pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="the executables are x86-64 code")


@pytest.fixture(params=LOCAL_DEVICES)
def loading_device(
    request: pytest.FixtureRequest, registry: DriverRegistry, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Device]:
    with created(registry, request.param, monkeypatch, [EmbeddedElfLoader()]) as device:
        yield device


def load(device: Device, name: str) -> Any:
    data = (EXECUTABLES / name).read_bytes()
    return device.create_executable_cache("test").prepare_executable(
        ExecutableParameters(FORMAT, memoryview(data))
    )


def random_inputs(seed: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    return generator.random(ELEMENTS, np.float32), generator.random(ELEMENTS, np.float32)


def test_large_dispatch_is_the_same_with_any_number_of_threads(loading_device: Device) -> None:
    device, (lhs, rhs) = loading_device, random_inputs(1)
    buffers = [allocate(device, lhs.tobytes()), allocate(device, rhs.tobytes()), allocate(device, lhs.nbytes)]
    for _ in range(4):  # later rounds know what the function costs
        buffers[2].host_array()[:] = 0
        done = Fence.create(device)
        device.queue_dispatch(
            -1, None, done, load(device, "mulbig-3.13.0.so"), 0, (256, 1, 1), [], [direct(b) for b in buffers]
        )
        finish(done)
        assert (buffers[2].host_array().view("<f4") == lhs * rhs).all()


def test_submissions_of_several_threads_overlap(loading_device: Device) -> None:
    """Four threads run one command buffer with buffers of their own and wait on chains of fences."""
    device = loading_device
    command_buffer = record(device, capacity=3)
    command_buffer.dispatch(load(device, "mulbig-3.13.0.so"), 0, (256, 1, 1), [], [slot(0), slot(1), slot(2)])
    command_buffer.execution_barrier(28, 13)
    command_buffer.copy_buffer(slot(2), slot(0))
    command_buffer.finalize()
    wrong: list[str] = []

    def run(seed: int) -> None:
        lhs, rhs = random_inputs(seed)
        buffers = [
            allocate(device, lhs.tobytes()),
            allocate(device, rhs.tobytes()),
            allocate(device, lhs.nbytes),
        ]
        semaphore = device.create_semaphore()
        for turn in range(5):
            device.queue_execute(
                -1, Fence([(semaphore, turn)]), Fence([(semaphore, turn + 1)]), command_buffer,
                [(buffer, 0, -1) for buffer in buffers],
            )  # fmt: skip
            lhs = lhs * rhs
        if not semaphore.wait(5, TIMEOUT):
            wrong.append(f"seed {seed}: not done in time")
        elif (buffers[0].host_array().view("<f4") != lhs).any():
            wrong.append(f"seed {seed}: other values")

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * TIMEOUT)
    assert not wrong


def test_small_dispatches_run_at_once_when_their_cost_is_known(registry: DriverRegistry) -> None:
    with registry.create_device("local-task://?threads=2", [EmbeddedElfLoader()]) as device:
        values = np.array([1, 2, 3, 4], "<f4").tobytes()
        buffers = [allocate(device, values), allocate(device, values), allocate(device, 16)]
        command_buffer = record(device)
        command_buffer.dispatch(
            load(device, "tiny-3.13.0.so"), 0, (1, 1, 1), [], [direct(buffer) for buffer in buffers]
        )
        command_buffer.finalize()
        for _ in range(3):
            execute(device, command_buffer)
        done = Fence.create(device)
        device.queue_execute(-1, None, done, command_buffer)
        assert done.is_reached(), "the call itself did the work"
        assert (buffers[2].host_array().view("<f4") == [1, 4, 9, 16]).all()


def test_local_memory_limit(registry: DriverRegistry) -> None:
    with registry.create_device("local-task://?local_memory=1024", [EmbeddedElfLoader()]) as device:
        executable = load(device, "local_memory-3.9.0.so")
        needed = executable.local_memory(0)
        assert needed > 1024
        buffers = [direct(allocate(device, 1 << 16)) for _ in range(executable.binding_count(0) or 0)]
        constants = [0] * (executable.constant_count(0) or 0)
        with pytest.raises(ResourceExhaustedError, match=f"{needed} bytes of workgroup-local memory"):
            device.queue_dispatch(-1, None, None, executable, 0, (1, 1, 1), constants, buffers)


def test_formats(loading_device: Device) -> None:
    assert loading_device.query_i64("hal.executable.format", FORMAT) == (True, 1)
    assert loading_device.query_i64("hal.cpu", "no-such-feature") == (False, 0)
    with pytest.raises(NotFoundError, match="cuda-nvptx-fb"):
        loading_device.create_executable_cache().prepare_executable(
            ExecutableParameters("cuda-nvptx-fb", memoryview(b""))
        )
