"""Order on a CUDA device when submissions, callbacks or the device fail; locks, and what is given back."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Any

import pytest

from jitree.cuda.device import CudaDevice
from jitree.errors import (
    InternalError,
    ResourceExhaustedError,
    StatusCode,
    StatusError,
)
from jitree.hal.command_buffer import CommandBufferMode, CommandCategory
from jitree.hal.fence import Fence
from tests.cuda.fake import FakeDriver
from tests.cuda.fake_results import CUresult
from tests.cuda.ordering import TIMEOUT, allocate, fill


def test_a_call_that_fails_at_submission_fails_the_signal(fake: FakeDriver, device: CudaDevice) -> None:
    buffer = allocate(device)
    fill(device, buffer, None, None)
    for signal in (Fence.create(device), None):
        fake.fail_next("cuLaunchKernel", CUresult.CUDA_ERROR_OUT_OF_MEMORY)
        if signal is None:
            with pytest.raises(ResourceExhaustedError, match="cuLaunchKernel"):
                fill(device, buffer, None, None)
            continue
        fill(device, buffer, None, signal)
        with pytest.raises(ResourceExhaustedError, match="cuLaunchKernel"):
            signal.wait(TIMEOUT)
    fill(device, buffer, None, None)  # nothing else is broken


def test_devices_never_wait_for_each_others_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two threads that submit what waits for the other's device, neither may keep the other from it."""
    fake = FakeDriver(devices=2)
    with CudaDevice(fake, 0) as first, CudaDevice(fake, 1) as second:
        mark, owned = first.stream.mark, []

        def checked() -> Any:
            owned.append(second.stream.lock._is_owned())  # type: ignore[attr-defined]
            return mark()

        monkeypatch.setattr(first.stream, "mark", checked)
        with fake.busy():
            written, done = Fence.create(first), Fence.create(second)
            fill(first, allocate(first), None, written)
            second.queue_barrier(-1, written, done)
        assert owned == [False] and done.wait(TIMEOUT) == StatusCode.OK


def test_what_is_deferred_keeps_its_bindings(fake: FakeDriver, device: CudaDevice) -> None:
    buffer = allocate(device)
    address = buffer.address
    wait, done = Fence.create(device), Fence.create(device)
    commands = device.create_command_buffer(CommandBufferMode.ONE_SHOT, CommandCategory.TRANSFER, -1, 1)
    commands.fill_buffer((0, None, 0, 64), 7, 1)
    commands.finalize()
    device.queue_execute(-1, wait, done, commands, ((buffer, 0, 64),))
    del buffer
    assert allocate(device).address != address
    wait.signal()
    assert done.wait(TIMEOUT) == StatusCode.OK
    assert allocate(device).address == address


def test_a_callback_that_raises_keeps_no_failure_from_others(fake: FakeDriver, device: CudaDevice) -> None:
    buffer = allocate(device)
    fill(device, buffer, None, None)
    fences = [Fence.create(device) for _ in range(2)]

    def broken(failure: StatusError | None) -> None:
        raise ZeroDivisionError

    with fake.busy():
        fences[0].on_reached(broken)
        for fence in fences:
            fill(device, buffer, None, fence)
        stream = device.stream
        with pytest.raises(ZeroDivisionError):
            stream.fail(InternalError("the device is lost"))
    assert fences[1].failure is not None


def test_threads_give_back_what_was_discarded(fake: FakeDriver, device: CudaDevice) -> None:
    device.context.enter()
    event = device.context.api.call("cuEventCreate", 0)
    device.context._discarded._left = OneLeft([partial(fake.cuEventDestroy, event)])
    device.context.release_discarded()
    assert not fake.count("cuEventDestroy")


class OneLeft(deque[Any]):
    """What another thread takes the last item of in this moment."""

    def popleft(self) -> Any:
        super().popleft()
        return super().popleft()
