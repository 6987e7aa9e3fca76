"""Command buffers on the fake driver: what is launched how, and what is kept for the next time."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from jitree.codegen import image
from jitree.cuda.command_buffer import CudaCommandBuffer
from jitree.cuda.device import CudaDevice
from jitree.cuda.graph import INSTANCES_KEPT
from jitree.cuda.plan import describe
from jitree.errors import InvalidArgumentError, OutOfRangeError, PermissionDeniedError
from jitree.hal.buffer import Buffer
from jitree.hal.command_buffer import CommandBuffer
from jitree.hal.executable import Executable
from jitree.hal.fence import Fence
from jitree.hal.profiling import ProfilingMode
from tests.cuda.fake import FakeDriver
from tests.cuda.kernels import load_executable

ADD, COUNT = 0, 1
ONE_SHOT, REUSABLE, ANY = 1, 0, 3
GRID = (4, 1, 1)


class Rig:
    """A device with the kernels and helpers to record and run."""

    def __init__(self, fake: FakeDriver, device: CudaDevice) -> None:
        self.fake = fake
        self.device = device
        self.executable: Executable = load_executable(device)

    def buffer(self, *words: int, size: int = 16) -> Buffer:
        buffer = self.device.device_allocator.allocate(0x30, 0, size)
        data = np.zeros(size, np.uint8)
        data.view("<u4")[: len(words)] = words
        self.device.write_buffer(buffer, data)
        return buffer

    def read(self, buffer: Buffer) -> list[int]:
        return [int(word) for word in np.asarray(self.device.read_buffer(buffer)).view("<u4")]

    def record(self, mode: int = REUSABLE, slots: int = 0) -> CommandBuffer:
        return self.device.create_command_buffer(mode, ANY, -1, slots)

    def add(self, commands: CommandBuffer, source: Buffer | int, target: Buffer | int, constant: int) -> None:
        bindings = [(0, b, 0, -1) if isinstance(b, Buffer) else (b, None, 0, -1) for b in (source, target)]
        commands.dispatch(self.executable, ADD, GRID, [constant], bindings)

    def run(self, commands: CommandBuffer, table: Sequence[Any] = ()) -> Fence:
        done = Fence.create(self.device)
        self.device.queue_execute(-1, None, done, commands, table)
        return done

    def edges(self) -> list[int]:
        """How many nodes each node of the newest graph waits for."""
        newest = self.fake.graphs[max(self.fake.graphs)]
        return [len(node.dependencies) for node in newest.nodes.values()]


@pytest.fixture
def rig(fake: FakeDriver, device: CudaDevice) -> Rig:
    rig = Rig(fake, device)
    fake.calls.clear()
    return rig


def test_groups_wait_for_the_groups_before(rig: Rig) -> None:
    commands = rig.record()
    buffers = [rig.buffer(1, 2, 3, 4) for _ in range(6)]
    rig.add(commands, buffers[0], buffers[1], 1)
    rig.add(commands, buffers[0], buffers[2], 2)
    commands.execution_barrier(28, 13)
    rig.add(commands, buffers[1], buffers[3], 10)
    rig.add(commands, buffers[2], buffers[4], 20)
    commands.fill_buffer((0, buffers[5], 0, 16), 7, 4)
    commands.execution_barrier(28, 13)
    commands.execution_barrier(28, 13)
    commands.copy_buffer((0, buffers[3], 0, 8), (0, buffers[5], 8, 8))
    commands.finalize()
    rig.run(commands).wait()
    assert rig.edges() == [0, 0, 2, 2, 2, 3]
    assert rig.read(buffers[4]) == [23, 24, 25, 26] and rig.read(buffers[5]) == [7, 7, 12, 13]


def test_wide_groups_meet_in_a_node(rig: Rig) -> None:
    commands = rig.record()
    source = rig.buffer(5)
    targets = [rig.buffer() for _ in range(18)]
    for target in targets[:9]:
        rig.add(commands, source, target, 1)
    commands.execution_barrier(28, 13)
    for before, target in zip(targets[:9], targets[9:], strict=True):
        rig.add(commands, before, target, 1)
    commands.finalize()
    rig.run(commands).wait()
    assert rig.edges() == [0] * 9 + [9] + [1] * 9
    assert all(rig.read(target)[0] == 7 for target in targets[9:])


def test_one_command_needs_no_graph(rig: Rig) -> None:
    for mode in (REUSABLE, ONE_SHOT):
        commands = rig.record(mode)
        source, target = rig.buffer(1, 2, 3, 4), rig.buffer()
        rig.add(commands, source, target, 5)
        commands.finalize()
        rig.run(commands).wait()
        assert rig.read(target) == [6, 7, 8, 9]
    assert not rig.fake.graphs


def test_words_are_the_same_without_machine_code(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python runs the function that fills them in."""
    commands = rig.record(ONE_SHOT)
    assert isinstance(commands, CudaCommandBuffer)
    first, second = rig.buffer(1, 2, 3, 4), rig.buffer(size=1 << 17)
    rig.add(commands, first, second, 1 << 31)
    commands.fill_buffer((0, second, 0, -1), 0xFF, 1)
    commands.update_buffer(memoryview(b"12345678"), 4, (0, second, 8, 4))
    commands.execution_barrier(28, 13)
    commands.copy_buffer((0, second, 0, 16), (0, first, 0, 16))
    commands.finalize()
    words = [commands.bind(()).block.words]
    monkeypatch.setattr(image, "get", lambda recipe: None)
    words.append(commands.bind(()).block.words)
    rig.run(commands).wait()
    assert words[0] == words[1] and rig.read(first) == [0xFFFFFFFF, 0xFFFFFFFF, 0x38373635, 0xFFFFFFFF]


def test_nothing_recorded(rig: Rig) -> None:
    commands = rig.record()
    commands.execution_barrier(28, 13)
    commands.finalize()
    rig.run(commands).wait()
    assert not rig.fake.graphs and not rig.fake.count("cuLaunchKernel")


def test_same_table_same_graph(rig: Rig) -> None:
    commands = rig.record(slots=3)
    rig.add(commands, 0, 1, 1)
    commands.execution_barrier(28, 13)
    rig.add(commands, 1, 2, 2)
    commands.finalize()
    table = [(rig.buffer(1, 1, 1, 1), 0, -1), (rig.buffer(), 0, -1), (rig.buffer(), 0, -1)]
    for _ in range(5):
        rig.run(commands, table).wait()
    assert rig.fake.count("cuGraphInstantiate") == 1 and rig.fake.count("cuGraphLaunch") == 5
    assert not rig.fake.count("cuGraphExecKernelNodeSetParams") and rig.read(table[2][0]) == [4] * 4


def test_new_addresses_change_what_uses_them(rig: Rig) -> None:
    commands = rig.record(slots=3)
    rig.add(commands, 0, 1, 1)
    commands.execution_barrier(28, 13)
    rig.add(commands, 1, 2, 2)
    commands.finalize()
    source, middle = rig.buffer(1, 1, 1, 1), rig.buffer()
    targets = [rig.buffer() for _ in range(INSTANCES_KEPT + 5)]
    for target in targets:
        rig.run(commands, [(source, 0, -1), (middle, 0, -1), (target, 0, -1)]).wait()
    assert rig.fake.count("cuGraphInstantiate") == INSTANCES_KEPT
    assert rig.fake.count("cuGraphExecKernelNodeSetParams") == 5  # one node of each further run
    assert all(rig.read(target) == [4] * 4 for target in targets)


def test_tables_are_checked(rig: Rig) -> None:
    commands = rig.record(slots=2)
    rig.add(commands, 0, 1, 1)
    commands.finalize()
    buffer = rig.buffer()
    with pytest.raises(InvalidArgumentError, match="slot 1"):
        rig.run(commands, [(buffer, 0, -1)])
    with pytest.raises(OutOfRangeError):
        rig.run(commands, [(buffer, 0, -1), (buffer, 20, -1)])
    with pytest.raises(InvalidArgumentError, match="multiple of 64"):
        rig.run(commands, [(buffer, 0, -1), (buffer, 4, -1)])
    host = rig.device.host_allocator.allocate(0x46, 0, 16)
    with pytest.raises(PermissionDeniedError, match="cannot reach"):
        rig.run(commands, [(buffer, 0, -1), (host, 0, -1)])


def test_slots_of_unknown_length(rig: Rig) -> None:
    commands = rig.record(slots=2)
    commands.fill_buffer((0, None, 0, -1), 9, 1)
    commands.execution_barrier(28, 13)
    commands.copy_buffer((0, None, 4, -1), (1, None, 0, -1))
    commands.finalize()
    for size in (16, 40000, 8):
        source, target = rig.buffer(size=size), rig.buffer(size=size)
        rig.run(commands, [(source, 0, -1), (target, 4, -1)]).wait()
        assert rig.read(target) == [0, *[0x09090909] * (size // 4 - 1)]


def test_updates_are_captured(rig: Rig) -> None:
    target = rig.buffer(size=64)
    data = bytearray(range(64))
    for mode in (REUSABLE, ONE_SHOT):
        commands = rig.record(mode)
        commands.update_buffer(memoryview(data), 3, (0, target, 0, 5))
        commands.update_buffer(memoryview(data), 20, (0, target, 8, 40))
        commands.finalize()
        data[:] = bytes(64)
        for _ in range(2 if mode == REUSABLE else 1):
            rig.run(commands).wait()
            read = bytes(np.asarray(rig.device.read_buffer(target)))
            assert read[:5] == bytes(range(3, 8)) and read[8:48] == bytes(range(20, 60))
        data[:] = bytes(range(64))


def one_shot(rig: Rig, source: Buffer, target: Buffer, constant: int) -> CommandBuffer:
    commands = rig.record(ONE_SHOT)
    rig.add(commands, source, target, constant)
    commands.execution_barrier(28, 13)
    rig.add(commands, target, target, constant)
    commands.finalize()
    return commands


def test_one_shots_of_python_are_launched_one_by_one(rig: Rig) -> None:
    """They come once, or machine code knows them."""
    source = rig.buffer(1)
    targets = [rig.buffer() for _ in range(11)]
    rig.device.stream.finish()
    rig.fake.calls.clear()
    with rig.fake.busy():
        fences = [rig.run(one_shot(rig, source, target, n)) for n, target in enumerate(targets)]
        assert rig.fake.count("cuLaunchKernel") == 2 * 11 and not rig.fake.count("cuGraphInstantiate")
    for fence in fences:
        fence.wait()
    assert [rig.read(target)[0] for target in targets] == [1 + 2 * n for n in range(11)]


def test_one_shots_are_in_order_with_other_work(rig: Rig) -> None:
    source, target = rig.buffer(1), rig.buffer()
    rig.run(one_shot(rig, source, target, 1))
    second = rig.run(one_shot(rig, target, target, 1))
    second.wait()
    assert rig.read(target)[0] == 5
    rig.run(one_shot(rig, source, target, 1))
    rig.run(one_shot(rig, target, target, 1))
    copy = rig.buffer()
    done = Fence.create(rig.device)
    rig.device.queue_copy(-1, None, done, target, 0, copy, 0, 16)
    done.wait()
    assert rig.read(copy)[0] == 5


def test_one_shots_keep_no_executable(rig: Rig) -> None:
    source, target = rig.buffer(1), rig.buffer()
    rig.run(one_shot(rig, source, target, 1)).wait()
    rig.executable = load_executable(rig.device)
    gc.collect()
    rig.run(one_shot(rig, source, target, 1)).wait()
    assert rig.read(target)[0] == 3
    rig.device.trim()
    assert not rig.fake.executables


@pytest.mark.parametrize("mode", [REUSABLE, ONE_SHOT])
@pytest.mark.parametrize("counts", [(2, 2, 1), (4, 1, 1), (0, 5, 5)])
def test_indirect_counts_are_read_when_the_commands_run(
    rig: Rig, mode: int, counts: tuple[int, int, int]
) -> None:
    where, target = rig.buffer(9, 9, 9, 9), rig.buffer(1, 1, 1, 1)
    commands = rig.record(mode)
    commands.update_buffer(np.array(counts, "<u4").data.cast("B"), 0, (0, where, 4, 12))
    commands.execution_barrier(28, 13)
    commands.dispatch_indirect(rig.executable, COUNT, (0, where, 4, 12), [], [(0, target, 0, -1)])
    commands.execution_barrier(28, 13)
    rig.add(commands, target, target, 10)
    commands.finalize()
    rig.run(commands).wait()
    assert rig.read(target) == [11 if 0 in counts else 12] * 4


def test_impossible_indirect_counts(rig: Rig) -> None:
    where, target = rig.buffer(1, 70000, 1), rig.buffer()
    commands = rig.record()
    commands.dispatch_indirect(rig.executable, COUNT, (0, where, 0, 12), [], [(0, target, 0, -1)])
    commands.finalize()
    done = rig.run(commands)
    with pytest.raises(OutOfRangeError, match="1 x 70000 x 1"):
        done.wait()


@pytest.mark.parametrize("grid", [(1 << 31, 1, 1), (1, 65536, 1), (1, 1, 65536)])
def test_impossible_counts(rig: Rig, grid: tuple[int, int, int]) -> None:
    commands = rig.record()
    with pytest.raises(OutOfRangeError, match="workgroups"):
        commands.dispatch(rig.executable, COUNT, grid, [], [(0, rig.buffer(), 0, -1)])


@pytest.mark.parametrize("mode", [ONE_SHOT, REUSABLE])
@pytest.mark.parametrize("others", [0, 2])
def test_dispatches_of_no_workgroups_do_nothing(rig: Rig, mode: int, others: int) -> None:
    """Of tensors whose dynamic size is 0; the driver has no empty grids."""
    buffer = rig.buffer(5)
    commands = rig.record(mode)
    for grid in ((0, 1, 1), *[(1, 1, 1)] * others, (1, 0, 1)):
        commands.dispatch(rig.executable, COUNT, grid, [], [(0, buffer, 0, -1)])
        commands.execution_barrier(0, 0, 0)
    commands.finalize()
    assert rig.run(commands).wait(10) == 0
    assert rig.read(buffer)[0] == 5 + others


def test_executables_of_another_device_are_refused(rig: Rig, fake: FakeDriver) -> None:
    with CudaDevice(fake, 0) as other:
        commands = other.create_command_buffer(REUSABLE, ANY)
        with pytest.raises(InvalidArgumentError, match="was not prepared for this device"):
            commands.dispatch(rig.executable, COUNT, GRID, [], [(0, rig.buffer(), 0, -1)])


def test_profiles_name_dispatches(rig: Rig) -> None:
    commands = rig.record()
    source, target = rig.buffer(1), rig.buffer()
    rig.add(commands, source, target, 1)
    commands.execution_barrier(28, 13)
    commands.fill_buffer((0, target, 4, 4), 3, 4)
    commands.dispatch_indirect(
        rig.executable, COUNT, (0, rig.buffer(4, 1, 1), 0, 12), [], [(0, target, 0, -1)]
    )
    commands.finalize()
    rig.device.profiling_begin(ProfilingMode.DISPATCH_COUNTERS)
    rig.run(commands).wait()
    rig.device.profiling_end()
    names = [m.name for m in rig.device.profiler.measurements if m.name != "execute"]
    assert names == ["add", "fill", "count"] and rig.read(target) == [3, 4, 2, 2]
    assert all(m.duration > 0 for m in rig.device.profiler.measurements)


def test_description_names_the_kernels(rig: Rig) -> None:
    commands = rig.record()
    rig.add(commands, rig.buffer(), rig.buffer(), 1)
    commands.finalize()
    assert isinstance(commands, CudaCommandBuffer)
    rig.run(commands).wait()
    assert describe(commands.plan) == "add"


SIZES = [1, 3, 4, 15, 16, 17, 4096, 131072, 1 << 20]


@pytest.mark.parametrize("size", SIZES)
def test_own_kernels_on_the_gpu(gpu: CudaDevice, size: int) -> None:
    random = np.random.default_rng(size)
    whole = size + 64
    source, target = (gpu.device_allocator.allocate(0x30, 0, whole) for _ in range(2))
    data = random.integers(0, 256, whole, np.uint8)
    gpu.write_buffer(source, data)
    for start, at, pattern_length in ((0, 0, 4), (1, 2, 1), (4, 8, 2), (16, 32, 4), (3, 16, 1)):
        expected = random.integers(0, 256, whole, np.uint8)
        gpu.write_buffer(target, expected)
        commands = gpu.create_command_buffer(ONE_SHOT, ANY)
        commands.copy_buffer((0, source, start, size), (0, target, at, size))
        commands.execution_barrier(28, 13)
        filled = size // 2 // pattern_length * pattern_length
        commands.fill_buffer((0, target, at, filled), 0xA1B2C3D4, pattern_length)
        commands.finalize()
        done = Fence.create(gpu)
        gpu.queue_execute(-1, None, done, commands)
        expected[at : at + size] = data[start : start + size]
        expected[at : at + filled] = pattern_bytes(pattern_length, filled)
        assert np.array_equal(np.asarray(gpu.read_buffer(target, done)), expected)


def pattern_bytes(pattern_length: int, length: int) -> npt.NDArray[np.uint8]:
    pattern = np.frombuffer((0xA1B2C3D4).to_bytes(4, "little")[:pattern_length], np.uint8)
    return np.tile(pattern, length // pattern_length)
