"""Fast paths in machine code: the same results, errors and references as the functions in Python."""

from __future__ import annotations

import gc
import itertools
import re
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from jitree import Instance, Session
from jitree.codegen import image
from jitree.errors import InvalidArgumentError, ResourceExhaustedError, StatusError
from jitree.hal.buffer import Buffer, BufferView
from jitree.hal.checks import compatible_elements
from jitree.hal.fence import Fence
from jitree.hal.heap import HeapAllocator, size_class
from jitree.hal.local import executor
from jitree.hal.local.device import LocalDevice
from jitree.hal.profiling import ProfilingMode
from jitree.modules.hal.native import RECIPE, buffers, supply
from jitree.modules.hal.native.handle_pool import HandlePool
from jitree.modules.hal.native.layout import POOL_COUNT, class_index
from jitree.regs.buffer import VmBuffer
from tests.assembler import Assembler
from tests.base.rows import each_row
from tests.hal.native_kernels import MULTIPLY
from tests.modules.hal_programs import (
    ALLOCATOR,
    BUFFERS,
    COMMANDS,
    DEVICE,
    DEVICE_LOCAL,
    EXECUTABLE,
    F32,
    FENCES,
    FIRST,
    NAME,
    NULL,
    ODD_SHAPES,
    OLD_ROWS,
    PUSHED_ROWS,
    ROWS,
    SECOND,
    USAGE,
    VIEWS,
    Program,
    executable,
    programs,
)
from tests.modules.hal_programs import (
    TEXT as TEXT_REGISTER,
)
from tests.modules.helpers import python_session

TEXT = bytes(range(80))
_numbers = itertools.count()


@pytest.fixture(scope="module", autouse=True)
def machine_code() -> None:
    image.wait(RECIPE)
    executor.require_native_executor()


class Pair:
    """Sessions that run the same programs, one without machine code."""

    def __init__(self, uri: str) -> None:
        self.plain = python_session(uri)
        self.fast = Session(uri, tier="fast")
        self.coded = Session(uri, tier="plain")

    def close(self) -> None:
        for session in (self.plain, self.fast, self.coded):
            session.close()


DEVICES = ["local-sync", "local-task://?threads=2"]


@pytest.fixture(scope="module", params=DEVICES)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    pair = Pair(request.param)
    yield pair
    assert pair.fast.context.table.handle_pool is not None
    pair.close()


def lent(session: Session) -> int:
    """Bytes of memory that machine code has from the device's allocator."""
    handle_pool = session.context.table.handle_pool
    assert isinstance(handle_pool, HandlePool) and handle_pool._storage is not None
    return handle_pool._storage._lent


def outcome(session: Session, name: str) -> Any:
    """What a call of the program gave, as far as it can be compared; it leaves no references."""
    table = session.context.table
    before = _live(session)
    views = [
        session.to_device(np.arange(16, dtype=np.float32).reshape(2, 8) + offset).buffer_view
        for offset in (0, 100)
    ]
    strings = VmBuffer.alias(TEXT), VmBuffer.alias(b"multiply")
    try:
        results = session.call_direct(f"{name}.f", session.device, *views, executable(), *strings)
        told = [_told(result) for result in results]
        del results
    except StatusError as error:
        told = [type(error).__name__, re.sub(r"0x[0-9a-f]+", "0x", error.message)]
    contents = [bytes(view.buffer.host_view()) for view in views]
    del views
    assert _live(session) == before, f"{table.live_count} references"
    return told, contents


def _live(session: Session) -> int:
    gc.collect(0)
    with session.context.invoker.lock:
        session.context.table.drain_deferred()
    return session.context.table.live_count


def _told(result: object) -> object:
    if isinstance(result, Buffer):
        return bytes(result.host_view()), result.memory_type, result.allowed_usage, result.allowed_access
    if isinstance(result, BufferView):
        return result.shape, result.element_type, result.encoding, _told(result.buffer)
    return result.query() if isinstance(result, Fence) else result


@settings(max_examples=80, deadline=None, suppress_health_check=[
    HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture,
])  # fmt: skip
@given(program=programs())
def test_programs_do_the_same_with_and_without_fast_paths(pair: Pair, program: Program) -> None:
    compared(pair, program)


def compared(pair: Pair, program: Program) -> Any:
    """What a program does, with and without fast paths."""
    name = f"m{next(_numbers)}"
    for session in (pair.plain, pair.fast, pair.coded):
        session.load(program.module(name))
    expected = outcome(pair.plain, name)
    for session in (pair.fast,) * 4 + (pair.coded,) * 2:  # machine code is known from the second call on
        assert outcome(session, name) == expected
    return expected


@pytest.mark.parametrize("shape", [(), (0,), (16,), (2, 8), (3, 5), *ODD_SHAPES], ids=str)
def test_views_do_not_exceed_their_buffer(pair: Pair, shape: tuple[int, ...]) -> None:
    """Machine code computes in 64 bits that wrap."""
    program = Program(ROWS)
    placed = (0, DEVICE_LOCAL, USAGE, 64, 0)
    program.call("device.queue.alloca", DEVICE, -1, NULL, NULL, *placed, to=BUFFERS[0])
    program.call("device.queue.fill", DEVICE, -1, NULL, NULL, BUFFERS[0], 0, -1, 0, 1, 0)
    program.call("buffer_view.create", BUFFERS[0], 0, 64, F32, 1, [[d] for d in shape], to=VIEWS[0])
    assert (compared(pair, program)[0][0] == "OutOfRangeError") == (shape in ODD_SHAPES and 0 not in shape)


@pytest.mark.parametrize("encoding", [0, 1, 2])
@pytest.mark.parametrize("element_type", [F32, 0, 0x20, 0x10000020, 0x10000010, 0x13000020])
@pytest.mark.parametrize("expected_type", [F32, 0x12000020])
def test_what_a_view_is_taken_for(pair: Pair, element_type: int, encoding: int, expected_type: int) -> None:
    """Opaque elements and encodings are taken for any; dimensions that a view does not have are 0."""
    program = Program(ROWS)
    program.call("buffer_view.buffer", FIRST, to=BUFFERS[0])
    program.call("buffer_view.create", BUFFERS[0], 0, 64, element_type, encoding, [[2], [8]], to=FIRST)
    for index in (0, 1, 2, -1, 8):
        program.call("buffer_view.dim", FIRST, index)
    program.call("buffer.load", BUFFERS[0], 64, 0)
    program.call("buffer_view.assert", FIRST, TEXT_REGISTER, expected_type, 1, [[2], [8]])
    agrees = compatible_elements(element_type, expected_type) and encoding in (0, 1)
    assert (compared(pair, program)[0][0] == "InvalidArgumentError") == (not agrees)


def whole_call(rows: dict[str, str]) -> Program:
    """What compiled programs do: look at arguments, allocate, record, execute, wait, make a result."""
    program = Program(rows)
    buffer, other, result, allocated, copied = BUFFERS[0], BUFFERS[1], VIEWS[0], BUFFERS[2], BUFFERS[3]
    done, ready, (joined, commands) = FENCES[0], FENCES[1], (FENCES[2], COMMANDS[0])
    program.call("device.allocator", DEVICE, to=ALLOCATOR)
    for view, register in ((FIRST, buffer), (SECOND, other)):
        program.call("buffer_view.assert", view, TEXT_REGISTER, F32, 1, [[2], [8]])
        program.call("buffer_view.dim", view, 1)
        program.call("buffer_view.buffer", view, to=register)
        program.call("buffer.assert", register, TEXT_REGISTER, ALLOCATOR, 64, 2, 3)
    program.call("fence.create", DEVICE, 0, to=ready)
    program.call("device.queue.alloca", DEVICE, -1, NULL, ready, 0, DEVICE_LOCAL, USAGE, 128, 0, to=allocated)
    program.call("command_buffer.create", DEVICE, 1, 3, -1, 3, to=commands)
    program.call("executable.lookup.function", EXECUTABLE, NAME)
    bindings: list[list[int | str]] = [[0, 0, NULL, 0, -1], [0, 0, other, 0, 64], [0, 0, allocated, 64, 64]]
    program.dispatch(commands, MULTIPLY, (16, 1, 1), [], bindings)
    program.call("command_buffer.execution_barrier", commands, 4, 8, 0)
    program.call("command_buffer.copy_buffer", commands, 0, 0, allocated, 64, allocated, 0, 32, 0)
    program.call("command_buffer.fill_buffer", commands, allocated, 32, 16, 0, 7, 4, 0)
    program.call("command_buffer.update_buffer", commands, TEXT_REGISTER, 0, allocated, 48, 16, 0, 0)
    program.call("command_buffer.finalize", commands)
    program.call("fence.join", 0, [[ready], [NULL]], to=joined)
    program.call("fence.create", DEVICE, 0, to=done)
    program.call("device.queue.execute.indirect", DEVICE, -1, joined, done, commands, 0, [[buffer, 0, -1]])
    program.call("fence.await", -1, 0, [[done]])
    program.call("buffer.load", allocated, 4, 4)
    program.call("buffer.subspan", allocated, 0, 64, to=copied)
    program.call("device.queue.dealloca", DEVICE, -1, done, NULL, copied, 0)
    program.call("buffer_view.create", allocated, 0, 64, F32, 1, [[16]], to=result)
    return program


LARGE = 6 << 20
"""Bytes that threads share the filling of."""


def moves(rows: dict[str, str]) -> Program:
    """Memory is filled and copied, much of it and little, and nothing is dispatched."""
    program = Program(rows)
    large, copy, small = BUFFERS[:3]
    for buffer, size in ((large, LARGE), (copy, LARGE), (small, 512)):
        placed = (0, DEVICE_LOCAL, USAGE, size, 0)
        program.call("device.queue.alloca", DEVICE, -1, NULL, NULL, *placed, to=buffer)
    wait = NULL
    rows_of_moves: list[tuple[str, *tuple[int | str, ...]]] = [
        ("fill", large, 0, -1, 0x01020304, 4),
        ("fill", large, 2, LARGE - 6, 0x0506, 2),
        ("fill", small, 0, -1, 5, 1),
        ("fill", small, 1, 510, 7, 1),
        ("copy", large, 0, copy, 0, -1),
        ("copy", small, 0, copy, 1000, 512),
    ]
    for number, (name, *arguments) in enumerate(rows_of_moves):
        signal = FENCES[number % 2]
        program.call("fence.create", DEVICE, 0, to=signal)
        program.call(f"device.queue.{name}", DEVICE, -1, wait, signal, *arguments, 0)
        wait = signal
    program.call("fence.await", -1, 0, [[wait]])
    return program


def many_commands(rows: dict[str, str]) -> Program:
    """A command buffer of 600 rows, 450 ranges of slots and a table of 70."""
    program = Program(rows)
    result, commands, done, slots = BUFFERS[0], COMMANDS[0], FENCES[0], 70
    program.call("device.queue.alloca", DEVICE, -1, NULL, NULL, 0, DEVICE_LOCAL, USAGE, 64, 0, to=result)
    program.call("device.queue.fill", DEVICE, -1, NULL, NULL, result, 0, -1, 0, 1, 0)
    program.call("command_buffer.create", DEVICE, 1, 3, -1, slots, to=commands)
    target = result if rows is PUSHED_ROWS else NULL  # 0.2 fills no slots
    for turn in range(150):
        if turn % 2:
            place = 4 * (turn % 16)
            program.call("command_buffer.fill_buffer", commands, target, place, 4, slots - 2, turn, 4, 0)
        bindings: list[list[int | str]] = [[0, slot, NULL, 0, 64] for slot in (slots - 1, slots - 2, 0)]
        program.dispatch(commands, MULTIPLY, (16, 1, 1), [], bindings)
        for _ in range(3):
            program.call("command_buffer.execution_barrier", commands, 4, 8, 0)
    program.call("command_buffer.finalize", commands)
    program.call("buffer_view.buffer", FIRST, to=BUFFERS[1])
    program.call("fence.create", DEVICE, 0, to=done)
    table: list[list[int | str]] = [[BUFFERS[1], 0, 64] for _ in range(slots)]
    table[0] = [result, 0, 64]
    program.call("device.queue.execute.indirect", DEVICE, -1, NULL, done, commands, 0, table)
    program.call("fence.await", -1, 0, [[done]])
    return program


@pytest.mark.parametrize("tier", ["plain", "fast", "native"])
@pytest.mark.parametrize("rows", [ROWS, OLD_ROWS, PUSHED_ROWS], ids=["0.7", "0.5", "0.2"])
@pytest.mark.parametrize("program", [whole_call, moves, many_commands])
@pytest.mark.parametrize("uri", DEVICES)
def test_a_call_does_not_need_python(
    uri: str,
    program: Callable[[dict[str, str]], Program],
    rows: dict[str, str],
    tier: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = program(rows).module("m")
    with python_session(uri) as plain:
        plain.load(module)
        expected = outcome(plain, "m")
    session = Session(uri, tier=tier)
    session.load(module)
    gave_up: list[int] = []
    refill = supply.Supplier.refill

    def counting(supplier: supply.Supplier) -> object:
        gave_up.append(1)
        return refill(supplier)

    monkeypatch.setattr(supply.Supplier, "refill", counting)
    for _ in range(200):  # until sites are bound, pools filled, and costs known that a busy machine distorts
        gave_up.clear()
        assert outcome(session, "m") == expected
        if not gave_up:
            return session.close()
    pytest.fail("a fast path gives up in every call")


def test_sessions_and_threads_share_a_device() -> None:
    """Pools belong to a session, which one thread has at a time; the device's team is everybody's."""
    with Instance.default().create_device(DEVICES[1]) as device:
        sessions = [Session(device, tier="fast") for _ in range(2)]
        for session in sessions:
            session.load(whole_call(ROWS).module("m"))
        strings = VmBuffer.alias(TEXT), VmBuffer.alias(b"multiply")

        def work(number: int) -> None:
            session = sessions[number % 2]
            for turn in range(150):
                values = np.full((2, 8), number * 1000 + turn, np.float32)
                views = [session.to_device(values).buffer_view for _ in range(2)]
                result = session.call_direct("m.f", session.device, *views, executable(), *strings)[5]
                products = result.buffer.host_array()[:32].view(np.float32)
                assert (products == values.reshape(-1)[:8] ** 2).all()

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
        for session in sessions:
            session.close()


def test_results_outlive_their_session() -> None:
    with Session("local-sync", tier="fast") as session:
        session.load(whole_call(ROWS).module("m"))
        views = [session.to_device(np.ones((2, 8), np.float32)).buffer_view for _ in range(2)]
        strings = VmBuffer.alias(TEXT), VmBuffer.alias(b"multiply")
        arguments = (session.device, *views, executable(), *strings)
        results = [session.call_direct("m.f", *arguments)[5] for _ in range(40)]
        kept = [result.buffer.host_array()[32:48].copy() for result in results]
        arrays = [result.buffer.host_array() for result in results]
        del results
        for _ in range(40):
            session.call_direct("m.f", *arguments)
    del session
    gc.collect()
    for array, expected in zip(arrays, kept, strict=True):
        assert (array[32:48] == expected).all()
        array[:] = 255


def test_memory_goes_back() -> None:
    session = Session("local-sync", tier="fast")
    session.load(whole_call(ROWS).module("m"))
    allocator = session.device_allocator
    assert isinstance(allocator, HeapAllocator)
    views = [session.to_device(np.ones((2, 8), np.float32)).buffer_view for _ in range(2)]
    arguments = (session.device, *views, executable(), VmBuffer.alias(TEXT), VmBuffer.alias(b"multiply"))
    live = allocator.statistics.device.live
    for _ in range(20):
        session.call_direct("m.f", *arguments)
    _live(session)
    statistics = allocator.statistics
    assert statistics.device.live == live
    assert statistics.device.allocated >= 20 * 128
    assert lent(session)
    session.trim()
    assert not lent(session)
    assert allocator.kept_bytes == 0
    session.call_direct("m.f", *arguments)
    del views, arguments
    session.close()
    assert not lent(session)
    assert allocator.statistics.device.live == 0


def test_memory_is_lent_as_a_program_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first call takes a few blocks, a program that keeps many asks Python seldom."""
    counts: dict[int, list[int]] = {}
    lend = HeapAllocator.lend

    def counted(self: HeapAllocator, capacity: int, count: int, memory_type: int = 0) -> Any:
        counts.setdefault(capacity, []).append(count)
        return lend(self, capacity, count, memory_type)

    monkeypatch.setattr(HeapAllocator, "lend", counted)
    with Session("local-sync", tier="fast") as session:
        session.load(whole_call(ROWS).module("m"))
        views = [session.to_device(np.ones((2, 8), np.float32)).buffer_view for _ in range(2)]
        strings = VmBuffer.alias(TEXT), VmBuffer.alias(b"multiply")
        kept = [session.call_direct("m.f", session.device, *views, executable(), *strings) for _ in range(60)]
        assert len(kept) == 60 and counts
        for lent_at_a_time in counts.values():
            expected = [4, 8, *[16] * len(lent_at_a_time)]
            assert lent_at_a_time == expected[: len(lent_at_a_time)]
        assert max(map(len, counts.values())) > 3


def test_a_closed_session_waits_for_no_garbage_collection() -> None:
    gc.collect()
    gc.disable()
    try:
        session = Session("local-sync", tier="fast")
        session.load(whole_call(ROWS).module("m"))
        for _ in range(5):
            outcome(session, "m")
        handle_pool = session.context.table.handle_pool
        assert isinstance(handle_pool, HandlePool)
        gone = weakref.ref(handle_pool)
        del handle_pool
        session.close()
        del session
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_session_in_a_circle_is_closed_by_the_garbage_collector() -> None:
    """Whatever of it goes first."""
    device = Instance().create_device("local-sync")
    for _ in range(3):
        session = Session(device, tier="fast")
        session.load(whole_call(ROWS).module("m"))
        for _ in range(3):
            outcome(session, "m")
        circle: list[object] = [session, session.context.table, session.context.table.handle_pool]
        circle.append(circle)
        del session, circle
        gc.collect()
    assert device.device_allocator.statistics.device.live == 0


def test_idle_memory_of_other_sizes_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HeapAllocator, "most_lent", 3 << 20)
    program = Program(ROWS)
    for index, size in enumerate((1 << 20, 2 << 20, 3 << 20)):
        placed = (0, DEVICE_LOCAL, USAGE, size, 0)
        program.call("device.queue.alloca", DEVICE, -1, NULL, NULL, *placed, to=BUFFERS[0])
        program.call("device.queue.fill", DEVICE, -1, NULL, NULL, BUFFERS[0], 0, -1, index, 1, 0)
    with Session("local-sync", tier="fast") as session:
        session.load(program.module("m"))
        expected = None
        for _ in range(20):
            told = outcome(session, "m")
            assert expected in (None, told)
            expected = told
        allocator = session.device_allocator
        assert isinstance(allocator, HeapAllocator)
        assert 0 < lent(session) < 4 << 20


def test_another_allocator_is_used_at_once() -> None:
    with Session("local-sync", tier="fast") as session:
        session.load(whole_call(ROWS).module("m"))
        views = [session.to_device(np.ones((2, 8), np.float32)).buffer_view for _ in range(2)]
        arguments = (session.device, *views, executable(), VmBuffer.alias(TEXT), VmBuffer.alias(b"multiply"))
        for _ in range(5):
            session.call_direct("m.f", *arguments)
        other = HeapAllocator(limit=100)
        session.device.replace_device_allocator(other)
        with pytest.raises(ResourceExhaustedError, match="128 bytes"):
            session.call_direct("m.f", *arguments)


def test_profiles_have_every_operation() -> None:
    with Session("local-sync", tier="fast") as session:
        session.load(whole_call(ROWS).module("m"))
        views = [session.to_device(np.ones((2, 8), np.float32)).buffer_view for _ in range(2)]
        arguments = (session.device, *views, executable(), VmBuffer.alias(TEXT), VmBuffer.alias(b"multiply"))
        for _ in range(5):
            session.call_direct("m.f", *arguments)
        assert isinstance(session.device, LocalDevice)
        session.device.profiling_begin(ProfilingMode.QUEUE_OPERATIONS)
        session.call_direct("m.f", *arguments)
        session.device.profiling_end()
        assert "execute" in [measurement.name for measurement in session.device.profiler.measurements]


def test_sizes_have_the_pool_of_their_class() -> None:
    def check(size: int) -> None:
        assert buffers.class_of(size) == class_index(size_class(size)) < POOL_COUNT

    each_row([*range(0, 3000, 7), *(1 << bits for bits in range(11, 27)), 1025], check)


def test_an_execution_by_what_is_no_device() -> None:
    """The fast path has no device to ask whether it may go on."""
    name = "device.queue.execute"
    module = (
        Assembler("m")
        .import_function(f"hal.{name}", ROWS[name])
        .function(
            "run",
            "0r_v",
            f"%i0:1 = const.i64 0\ncall @hal.{name} [%r0, %i0:1, %r1, %r2, %r3, %i0:1]\nreturn []",
        )
    )
    with Session("local-sync", tier="fast") as session:
        run = session.load(module.build()).run.vm_function
        for odd, message in ((None, "ref is null"), (VmBuffer(4), "ref type mismatch")):
            for _ in range(3):
                with pytest.raises(InvalidArgumentError, match=f"{message}; hal.{name} needs a hal.device"):
                    session.context.invoke(run, [odd])
