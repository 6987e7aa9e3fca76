"""Observers of single steps, on every device: what memory holds before and after each."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from jitree.base.events import EventReader
from jitree.errors import InternalError
from jitree.hal.buffer import Buffer
from jitree.hal.command_buffer import CommandBuffer
from jitree.hal.command_list import CommandList
from jitree.hal.device import Device
from jitree.hal.fence import Fence
from jitree.hal.heap import HeapAllocator
from jitree.hal.stepwise import DeviceStep
from jitree.hal.transfers import Transfer
from tests.hal.helpers import DEVICE_LOCAL, direct, record
from tests.hal.kernels import ADD, COUNT, make_executable


class Recorder(EventReader):
    """Keeps the contents of all operands, before and after."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, list[bytes], list[bytes]]] = []
        self._before: list[bytes] = []

    def submitted(self, work: Transfer | CommandBuffer | CommandList) -> EventReader | None:
        return self

    def begins(self, step: DeviceStep) -> None:
        self._before = [step.look(extent).tobytes() for extent in step.operands]

    def ends(self, step: DeviceStep) -> None:
        now = [step.look(extent).tobytes() for extent in step.operands]
        self.steps.append((step.name, self._before, now))


def words(*values: int) -> bytes:
    return np.array(values, "<u4").tobytes()


@pytest.fixture
def heard(device: Device) -> Iterator[Recorder]:
    recorder = Recorder()
    device.listen(recorder)
    yield recorder
    device.stop_listening(recorder)


def filled(device: Device, data: bytes) -> Buffer:
    buffer = device.device_allocator.allocate(DEVICE_LOCAL, 0, len(data))
    device.write_buffer(buffer, np.frombuffer(data, np.uint8))
    return buffer


def test_commands_of_all_kinds(device: Device, heard: Recorder) -> None:
    executable = make_executable(device)
    source, target = filled(device, words(1, 2)), filled(device, words(0, 0))
    counts = filled(device, words(2, 1, 1))
    commands = record(device)
    commands.fill_buffer(direct(target), 7, 4)
    commands.execution_barrier(0, 0)
    commands.copy_buffer(direct(source), direct(target))
    commands.update_buffer(memoryview(words(5)), 0, (0, target, 4, 4))
    commands.execution_barrier(0, 0)
    commands.dispatch(executable, ADD, (2, 1, 1), [3], [direct(source), direct(target)])
    commands.execution_barrier(0, 0)
    commands.dispatch_indirect(executable, COUNT, direct(counts), [], [direct(target)])
    commands.finalize()
    done = Fence.create(device)
    device.queue_execute(-1, None, done, commands)
    assert device.read_buffer(target, done).tobytes() == words(5, 6)
    one_two = words(1, 2)
    assert heard.steps == [
        ("fill", [words(0, 0)], [words(7, 7)]),
        ("copy", [one_two, words(7, 7)], [one_two, one_two]),
        ("update", [words(2)], [words(5)]),
        ("add", [one_two, words(1, 5)], [one_two, words(4, 5)]),
        ("count", [words(4, 5)], [words(5, 6)]),
    ]


def test_transfers_and_operations_that_wait_for_the_host(device: Device, heard: Recorder) -> None:
    target, ready, done = filled(device, words(0, 0)), Fence.create(device), Fence.create(device)
    device.queue_fill(-1, ready, done, target, 0, 8, 9, 4)
    assert not heard.steps
    ready.signal()
    done.wait()
    assert heard.steps == [("fill", [words(0, 0)], [words(9, 9)])]
    host = HeapAllocator().allocate(0x0, 0, 8)
    copied = Fence.create(device)
    device.queue_copy(-1, None, copied, target, 0, host, 0, 8)
    copied.wait()
    assert heard.steps[1][2] == [words(9, 9), words(9, 9)] == [host.host_array().tobytes()] * 2


def test_a_failing_step_fails_the_fence(device: Device) -> None:
    class Failing(Recorder):
        def ends(self, step: DeviceStep) -> None:
            raise KeyError(step.name)

    device.listen(Failing())
    target, done = filled(device, words(1)), Fence.create(device)
    device.queue_fill(-1, None, done, target, 0, 4, 9, 4)
    with pytest.raises(InternalError, match="what looks at fill failed: KeyError: 'fill'"):
        done.wait()
