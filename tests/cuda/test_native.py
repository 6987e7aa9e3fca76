"""Command lists that machine code submits to a GPU's stream: the same as what Python submits."""

from __future__ import annotations

import gc
import itertools
import re
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from jitree import Session
from jitree.cuda.device import CudaDevice
from jitree.errors import InternalError, StatusError
from jitree.hal.buffer import Buffer, BufferView
from jitree.hal.fence import Fence
from jitree.hal.profiling import ProfilingMode
from jitree.modules.hal.native import supply
from jitree.modules.hal.native.layout import HandlePoolRecord
from jitree.regs.buffer import VmBuffer
from tests.cuda import fake_native, native_kernels
from tests.cuda.fake import FakeDriver
from tests.cuda.fake_results import CUresult
from tests.cuda.programs import PROGRAM_KERNELS, STATELESS
from tests.modules.hal_programs import (
    BUFFERS,
    COMMANDS,
    DEVICE,
    DEVICE_LOCAL,
    EXECUTABLE,
    F32,
    FENCES,
    FIRST,
    NULL,
    ROWS,
    TEXT,
    USAGE,
    VIEWS,
    Program,
    programs,
)
from tests.modules.helpers import python_session

pytestmark = pytest.mark.usefixtures("machine_code")

MULTIPLY = 2
PINNED = 0x46
BYTES = bytes(range(80))
_numbers = itertools.count()


class Side:
    """A session on a fake GPU of its own."""

    def __init__(self, tier: str, lacks: str = "") -> None:
        """``lacks``: a function that the driver does not have for machine code."""
        self.fake = FakeDriver(memory=1 << 30)
        self.fake.kernels.update(native_kernels.KERNELS)
        fake_native.serve(self.fake)
        self.fake.machine_code.pop(lacks, None)
        self.device = CudaDevice(self.fake, 0)
        by_python = tier == "plain"
        self.session = python_session(self.device) if by_python else Session(self.device, tier=tier)
        self.executable = native_kernels.executable(self.device)

    def close(self) -> None:
        self.session.close()
        self.device.close()

    def call(self, name: str, *views: BufferView) -> Any:
        strings = VmBuffer.alias(BYTES), VmBuffer.alias(b"multiply")
        return self.session.call_direct(f"{name}.f", self.device, *views, self.executable, *strings)

    def views(self, *offsets: float) -> list[BufferView]:
        values = np.arange(16, dtype=np.float32).reshape(2, 8)
        return [self.session.to_device(values + offset).buffer_view for offset in offsets]

    def outcome(self, name: str) -> Any:
        """What a call of the program gave, as far as it can be compared; it leaves no references."""
        table = self.session.context.table
        before = self._live()
        views = self.views(0, 100)
        try:
            results = self.call(name, *views)
            told = [self._told(result) for result in results]
            del results
        except StatusError as error:
            told = [type(error).__name__, re.sub(r"0x[0-9a-f]+", "0x", error.message)]
        contents = [bytes(self.device.read_buffer(view.buffer)) for view in views]
        del views
        assert self._live() == before, f"{table.live_count} references"
        return told, contents

    def _live(self) -> int:
        gc.collect(0)
        with self.session.context.invoker.lock:
            self.session.context.table.drain_deferred()
        return self.session.context.table.live_count

    def _told(self, result: object) -> object:
        if isinstance(result, Buffer):
            contents = bytes(self.device.read_buffer(result))
            return contents, result.memory_type, result.allowed_usage, result.allowed_access
        if isinstance(result, BufferView):
            return result.shape, result.element_type, result.encoding, self._told(result.buffer)
        return result.query() if isinstance(result, Fence) else result


def submitted_by_code(session: Session) -> int:
    """The number of the last submission that machine code has made for a session."""
    handle_pool = session.context.table.handle_pool
    return 0 if handle_pool is None else HandlePoolRecord(handle_pool.record).submitted


class Pair:
    """The same program on two GPUs, without and with machine code."""

    def __init__(self) -> None:
        self.plain, self.fast = Side("plain"), Side("fast")


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    assert submitted_by_code(pair.fast.session)
    assert not submitted_by_code(pair.plain.session)
    pair.plain.close()
    pair.fast.close()


@pytest.fixture
def fast() -> Iterator[Side]:
    side = Side("fast")
    yield side
    side.close()


@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.function_scoped_fixture,
    ],
)
@given(program=programs())
def test_programs_do_the_same_with_and_without_machine_code(pair: Pair, program: Program) -> None:
    name = f"m{next(_numbers)}"
    module = program.module(name)
    pair.plain.session.load(module)
    pair.fast.session.load(module)
    expected = pair.plain.outcome(name)
    for _ in range(4):  # lists are known from the second time on
        assert pair.fast.outcome(name) == expected


def decoder(rows: dict[str, str]) -> Program:
    """What a decoder's step does: reads an argument, records as many commands as it says, has a result."""
    program = Program(rows)
    source, staging, result, scratch = BUFFERS
    copied, done, joined = FENCES
    commands = COMMANDS[0]
    program.call("buffer_view.assert", FIRST, TEXT, F32, 1, [[2], [8]])
    program.call("buffer_view.buffer", FIRST, to=source)
    placed = (0, PINNED, USAGE, 4, 0)
    program.call("device.queue.alloca", DEVICE, -1, NULL, NULL, *placed, to=staging)
    program.call("fence.create", DEVICE, 0, to=copied)
    program.call("device.queue.copy", DEVICE, -1, NULL, copied, source, 8, staging, 0, 4, 0)
    program.call("fence.await", -1, 0, [[copied]])
    program.call("buffer.load", staging, 0, 4)
    placed = (0, DEVICE_LOCAL, USAGE, 128, 0)
    program.call("fence.create", DEVICE, 0, to=joined)
    program.call("device.queue.alloca", DEVICE, -1, NULL, joined, *placed, to=result)
    program.call("device.queue.alloca", DEVICE, -1, NULL, NULL, *placed, to=scratch)
    program.call("command_buffer.create", DEVICE, 1, 3, -1, 0, to=commands)
    bindings: list[list[int | str]] = [[0, 0, source, 0, 64], [0, 0, source, 0, 64], [0, 0, scratch, 64, 64]]
    program.call("command_buffer.fill_buffer", commands, scratch, 0, 64, 0, 7, 4, 0)
    program.call("command_buffer.dispatch", commands, EXECUTABLE, MULTIPLY, 16, 1, 1, 0, [], bindings)
    program.call("command_buffer.execution_barrier", commands, 4, 8, 0)
    program.call("command_buffer.copy_buffer", commands, 0, 0, scratch, 64, result, 0, 32, 0)
    program.call("command_buffer.copy_buffer", commands, 0, 0, scratch, 0, result, 32, 32, 0)
    program.call("command_buffer.execution_barrier", commands, 4, 8, 0)
    program.call("command_buffer.update_buffer", commands, TEXT, 3, result, 48, 16, 0, 0)
    program.call("command_buffer.fill_buffer", commands, result, 64, 64, 0, 9, 2, 0)
    program.call("command_buffer.finalize", commands)
    program.call("fence.create", DEVICE, 0, to=done)
    program.call("device.queue.execute", DEVICE, -1, joined, done, commands, 0)
    program.call("device.queue.update", DEVICE, -1, done, NULL, TEXT, 16, result, 120, 8, 0)
    program.call("device.queue.dealloca", DEVICE, -1, done, NULL, scratch, 0)
    program.call("fence.await", -1, 0, [[done]])
    program.call("buffer_view.create", result, 0, 64, F32, 1, [[16]], to=VIEWS[0])
    return program


@pytest.mark.parametrize("tier", ["fast", "native"])
def test_a_step_does_not_need_python(tier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = decoder(ROWS).module("m")
    plain, side = Side("plain"), Side(tier)
    for each in (plain, side):
        each.session.load(module)
        each.fake.be_lazy()
    expected = plain.outcome("m")
    gave_up: list[int] = []
    refill = supply.Supplier.refill

    def counting(supplier: supply.Supplier) -> object:
        gave_up.append(1)
        return refill(supplier)

    monkeypatch.setattr(supply.Supplier, "refill", counting)
    for _ in range(200):  # until sites are bound, pools filled, lists known
        gave_up.clear()
        side.fake.calls.clear()
        assert side.outcome("m") == expected
        if not gave_up:
            break
    else:
        pytest.fail("a fast path gives up in every call")
    assert not side.fake.count("cuGraphInstantiate")
    plain.close()
    side.close()


def test_a_lost_device_fails_what_was_promised(fast: Side) -> None:
    fast.session.load(decoder(ROWS).module("m"))
    fast.session.load(promising(ROWS).module("p"))
    for _ in range(5):
        fast.call("p", *fast.views(0, 100))
    fast.fake.be_lazy()
    results = fast.call("p", *fast.views(0, 100))
    (fence,) = [result for result in results if isinstance(result, Fence)]
    fast.fake.kernels["multiply"] = native_kernels.FAULT
    with pytest.raises(InternalError, match="is lost"):
        fence.wait()
    later = [result for result in results if isinstance(result, Fence)]
    assert later[0].failure is not None
    with pytest.raises(InternalError, match="is lost"):
        fast.call("m", *fast.views(0, 100))


def promising(rows: dict[str, str]) -> Program:
    """Work whose fence the caller gets."""
    program = Program(rows)
    result, done, commands = BUFFERS[0], FENCES[0], COMMANDS[0]
    program.call("buffer_view.buffer", FIRST, to=BUFFERS[1])
    placed = (0, DEVICE_LOCAL, USAGE, 64, 0)
    program.call("device.queue.alloca", DEVICE, -1, NULL, NULL, *placed, to=result)
    program.call("command_buffer.create", DEVICE, 1, 3, -1, 0, to=commands)
    bindings: list[list[int | str]] = [
        [0, 0, BUFFERS[1], 0, 64],
        [0, 0, BUFFERS[1], 0, 64],
        [0, 0, result, 0, 64],
    ]
    program.call("command_buffer.dispatch", commands, EXECUTABLE, MULTIPLY, 16, 1, 1, 0, [], bindings)
    program.call("command_buffer.finalize", commands)
    program.call("fence.create", DEVICE, 0, to=done)
    program.call("device.queue.execute", DEVICE, -1, NULL, done, commands, 0)
    return program


def test_promises_of_machine_code_are_waited_for(fast: Side) -> None:
    """By Python, which gets the fence while the device still works."""
    fast.session.load(promising(ROWS).module("p"))
    for _ in range(5):
        fast.call("p", *fast.views(0, 100))
    before = submitted_by_code(fast.session)
    fast.fake.be_lazy()
    results = fast.call("p", *fast.views(1, 100))
    assert submitted_by_code(fast.session) > before
    fences = [result for result in results if isinstance(result, Fence)]
    buffers = [result for result in results if isinstance(result, Buffer)]
    assert not fences[0].is_reached()
    fences[0].wait()
    assert fences[0].is_reached()
    values = fast.device.read_buffer(buffers[0]).view("<f4")
    assert np.array_equal(values, (np.arange(16, dtype=np.float32) + 1) ** 2)


def test_a_failed_launch_is_pythons(fast: Side) -> None:
    fast.session.load(decoder(ROWS).module("m"))
    for _ in range(20):
        expected = fast.outcome("m")
    for name in ("cuGraphExecKernelNodeSetParams", "cuGraphLaunch", "cuLaunchKernelEx", "cuCtxSetCurrent"):
        fast.fake.fail_next(name, CUresult.CUDA_ERROR_OUT_OF_MEMORY)
        try:
            found = fast.outcome("m")
        except StatusError:
            continue  # it came to Python first
        assert found == expected or found[0][0] == "ResourceExhaustedError"
        fast.fake.failures.clear()
        assert fast.outcome("m") == expected


def test_profiles_have_every_operation(fast: Side) -> None:
    fast.session.load(decoder(ROWS).module("m"))
    for _ in range(5):
        fast.outcome("m")
    fast.device.profiling_begin(ProfilingMode.QUEUE_OPERATIONS)
    fast.outcome("m")
    fast.device.profiling_end()
    assert "execute" in [measurement.name for measurement in fast.device.profiler.measurements]


def test_memory_goes_back(fast: Side) -> None:
    fast.session.load(decoder(ROWS).module("m"))
    fast.outcome("m")
    allocator = fast.device.device_allocator
    live = allocator.statistics.device.live
    for _ in range(20):
        fast.outcome("m")
    assert allocator.statistics.device.live == live
    assert allocator.statistics.device.allocated >= 20 * 128


def test_sessions_and_threads_share_a_stream() -> None:
    side = Side("fast")
    sessions = [side.session, Session(side.device, tier="fast")]
    for session in sessions:
        session.load(promising(ROWS).module("p"))
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            session = sessions[number % 2]
            strings = VmBuffer.alias(BYTES), VmBuffer.alias(b"multiply")
            for turn in range(60):
                values = np.full((2, 8), number * 1000 + turn, np.float32)
                views = [session.to_device(values).buffer_view for _ in range(2)]
                results = session.call_direct("p.f", side.device, *views, side.executable, *strings)
                (fence,) = [result for result in results if isinstance(result, Fence)]
                (buffer, *_) = [result for result in results if isinstance(result, Buffer)]
                fence.wait()
                assert (side.device.read_buffer(buffer).view("<f4") == values.reshape(-1) ** 2).all()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    sessions[1].close()
    side.close()


def test_calls_that_are_not_repeated_are_machine_codes() -> None:
    """An array passed twice, whose call no recording makes again."""
    fake = FakeDriver()
    fake.kernels.update(PROGRAM_KERNELS)
    fake_native.serve(fake)
    with CudaDevice(fake, 0) as device, Session(device) as session:
        scale = session.load(STATELESS).scale
        for turn in range(12):
            values = np.arange(8, dtype=np.float32) + turn
            x = session.to_device(values)
            doubled, total = scale(x, x)
            assert np.array_equal(np.asarray(doubled), 2 * values)
            assert np.array_equal(np.asarray(total), 3 * values)
            assert np.array_equal(np.asarray(scale(values, values)[1]), 3 * values)
        assert scale.is_direct
        for _ in range(8):
            scale(x, x)
        fake.calls.clear()
        scale(x, x)
        assert set(fake.names()) == {"cuCtxSetCurrent", "cuLaunchKernelEx", "cuStreamQuery"}


def test_recordings_are_made_where_they_pay() -> None:
    """Not of a call that submits little, or that reads on the host."""
    fake = FakeDriver()
    fake.kernels.update(PROGRAM_KERNELS)
    fake_native.serve(fake)
    with CudaDevice(fake, 0) as device, Session(device) as session:
        module = session.load(STATELESS)
        x = session.to_device(np.arange(8, dtype=np.float32))
        y = session.to_device(np.ones(8, np.float32))
        for turn in range(30):
            assert np.array_equal(np.asarray(module.scale(x, y)[1]), 2 * np.arange(8, dtype=np.float32) + 1)
            steps = np.array(turn % 3, np.int32)
            halved = np.arange(8, dtype=np.float32) * np.float32(0.5) ** (turn % 3)
            assert np.array_equal(np.asarray(module.repeat(x, steps)), halved)
        assert module.scale.is_direct and module.repeat.is_direct
