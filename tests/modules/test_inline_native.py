"""Programs without a device by machine code: the same as by Python, and without Python."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from jitree import Session
from jitree.api.load_order import BUILTIN_MODULES
from jitree.errors import StatusError
from jitree.hal.command_list import CommandList
from jitree.hal.executable import Executable
from jitree.modules.hal.native import supply
from jitree.regs.buffer import VmBuffer
from jitree.regs.handles import HandleTable
from tests.api.direct import live, needs_machine_code
from tests.assembler import Assembler
from tests.hal.kernels import ADD, FAIL, Call, Kernel, PythonExecutable, make_executable
from tests.modules.helpers import python_session
from tests.modules.test_hal_inline import PROGRAMS

pytestmark = needs_machine_code

_CALLS = 200
"""Until pools are filled and sites are bound; now and then Python makes one, to look for signals."""
_DISPATCH = """
    call.variadic @hal_loader.executable.dispatch [0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, {0}, {1}] \
[%r0, %i0:1, %i2, %i3, %i4{2}]
    return []
"""
_RANGES = ", %r1, %i6:7, %i8:9, %r2, %i6:7, %i8:9"
_ROUND = """
    %i2 = const.i32 64
    [%r1, %r2] = call @hal_inline.buffer.allocate [%i2, %i0:1]
    [%r3] = call @hal_inline.buffer.storage [%r1]
    [%i4:5] = call @hal_inline.buffer.length [%r1]
    %i6:7 = const.i64 4
    %i8 = const.i32 77
    %i10:11 = const.i64 1
    buffer.store.i32 %r3, %i10:11, %i8
    return [%r1, %r2, %r3]
"""
_STORAGE = "[%r1] = call @hal_inline.buffer.storage [%r0]\nreturn [%r1]"


def program() -> bytes:
    """``run`` gets an executable, two buffers, a function, a grid, a constant, and an offset and length."""
    module = (
        Assembler("m")
        .import_function("hal_loader.executable.dispatch", "0rIiiiCiDCrIID_v")
        .import_function("hal_inline.buffer.allocate", "0iI_rr")
        .import_function("hal_inline.buffer.storage", "0r_r")
        .import_function("hal_inline.buffer.length", "0r_I")
    )
    for name, counts, operands in (
        ("run", (1, 2), f", %i5{_RANGES}"),
        ("without_constant", (0, 2), _RANGES),
        ("with_one_range", (1, 1), ", %i5, %r1, %i6:7, %i8:9"),
        ("without_ranges", (1, 0), ", %i5"),
    ):
        module.function(name, "0rrrIiiiiII_v", _DISPATCH.format(*counts, operands))
    module.function("round", "0I_rrr", _ROUND)
    module.function("storage", "0r_r", _STORAGE)
    return module.build()


@pytest.fixture(params=["plain", "fast", "native"])
def session(request: pytest.FixtureRequest) -> Iterator[Session]:
    with opened(request.param) as session:
        yield session


def opened(tier: str) -> Session:
    session = Session("local-sync", tier=tier) if tier else python_session("local-sync")
    for name in ("hal_inline", "hal_loader"):
        session.append_module(BUILTIN_MODULES[name](session))
    session.load(program())
    return session


@pytest.fixture
def in_python(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What machine code has left to Python."""
    found: list[str] = []
    make, refill = CommandList, supply.Supplier.refill

    def making() -> object:
        found.append("dispatch")
        return make()

    def refilling(supplier: supply.Supplier) -> bool:
        found.append("refill")
        return refill(supplier)

    monkeypatch.setattr("jitree.modules.hal_inline.CommandList", making)
    monkeypatch.setattr(supply.Supplier, "refill", refilling)
    return found


class Published(PythonExecutable):
    """Machine code knows its functions, as those of compiled ones."""

    def fill_entry(self, table: HandleTable, address: int) -> None:
        self.publish(table, address, self.entry_point(0), 0)


def kernels() -> Published:
    known: Any = make_executable
    return Published(known(NoDevice).kernels)


class NoDevice:
    id = "local-sync"


def buffers() -> tuple[VmBuffer, VmBuffer]:
    source = VmBuffer(256)
    source.data.view(np.uint32)[:] = np.arange(64)
    return source, VmBuffer(256)


def outcome(session: Session, name: str, executable: Executable, *numbers: int) -> tuple[Any, ...]:
    """The result's bytes, and what it failed with."""
    source, target = buffers()
    failed = ""
    try:
        session.call_direct(f"m.{name}", executable, source, target, *numbers)
    except StatusError as error:
        failed = re.sub("0x[0-9a-f]+", "", f"{error.code} {error.message}")
    return bytes(source), bytes(target), failed


def dispatches(session: Session, executable: Executable) -> Callable[..., tuple[Any, ...]]:
    return lambda name, *numbers: outcome(session, name, executable, *numbers)


@pytest.mark.parametrize("function", [ADD, -1, 99, 1 << 32])
@pytest.mark.parametrize("grid", [(64, 1, 1), (4, 4, 4), (0, 1, 1), (1, 1, 0), (1, 1, 65536), (-1, -1, 1)])
def test_functions_and_grids_do_the_same(session: Session, function: int, grid: tuple[int, ...]) -> None:
    same(session, "run", function, *grid, 7, 0, 256)


@pytest.mark.parametrize("constant", [7, -1])
@pytest.mark.parametrize("span", [
    (0, 256), (64, 192), (0, 0), (256, 0), (4, 16), (0, 257), (-64, 64), (64, -1), (1 << 62, 1 << 62),
])  # fmt: skip
def test_constants_and_ranges_do_the_same(session: Session, constant: int, span: tuple[int, int]) -> None:
    same(session, "run", ADD, 2, 1, 1, constant, *span)


@pytest.mark.parametrize("name", ["without_constant", "with_one_range", "without_ranges"])
def test_other_numbers_of_operands_do_the_same(session: Session, name: str) -> None:
    assert same(session, name, ADD, 1, 1, 1, 7, 0, 256)[2]


def same(session: Session, name: str, *arguments: int) -> tuple[Any, ...]:
    """What a call gives, before and after others that machine code makes."""
    with opened("") as plain:
        expected = dispatches(plain, kernels())(name, *arguments)
    run = dispatches(session, kernels())
    for _ in range(3):
        assert run(name, *arguments) == expected
        assert not run("run", ADD, 2, 1, 1, 1, 0, 256)[2]
    return expected


def without_python(in_python: list[str], call: Callable[[], object]) -> None:
    """Makes calls until one does not need Python."""
    for _ in range(_CALLS):
        in_python.clear()
        call()
        if not in_python:
            return
    pytest.fail("a fast path gives up in every call")


def test_dispatches_do_not_need_python(session: Session, in_python: list[str]) -> None:
    run = dispatches(session, kernels())

    def call() -> None:
        _, target, failed = run("run", ADD, 64, 1, 1, 5, 0, 256)
        assert not failed and target == bytes((np.arange(64, dtype=np.uint32) + 5).data)

    without_python(in_python, call)


def test_what_a_kernel_fails_with(session: Session, in_python: list[str]) -> None:
    """Python raises it, and does not run the kernel again."""
    ran: list[int] = []

    def fail(call: Call) -> int:
        ran.append(call.constants[0])
        return call.constants[0]

    run = dispatches(session, Published([Kernel("fail", fail, 1, 2)]))
    without_python(in_python, lambda: run("run", 0, 1, 1, 1, 0, 0, 256))
    ran.clear()
    failed = run("run", 0, 1, 1, 1, 42, 0, 256)[2]
    assert "fail of executable 'python' returned 42 in workgroup (0, 0, 0)" in failed
    assert ran == [42]
    assert not run("run", 0, 1, 1, 1, 0, 0, 256)[2]


def test_the_workgroup_that_fails(session: Session) -> None:
    run = dispatches(session, kernels())
    for _ in range(3):
        assert "(3, 0, 0)" in run("without_ranges", FAIL, 8, 1, 1, 3, 0, 256)[2]


def test_local_memory(session: Session, in_python: list[str]) -> None:
    run = dispatches(session, Published([Kernel("scratch", lambda call: 0, 1, 2, local_memory=4096)]))
    without_python(in_python, lambda: run("run", 0, 4, 1, 1, 0, 0, 256))


def test_who_listens_hears_of_dispatches(session: Session, in_python: list[str]) -> None:
    """Python makes them meanwhile."""
    run = dispatches(session, kernels())
    without_python(in_python, lambda: run("run", ADD, 1, 1, 1, 7, 0, 256))
    with session.tap("*") as taps:
        assert run("run", ADD, 1, 1, 1, 7, 0, 256)[1][:4] == bytes([7, 0, 0, 0])
    assert len(taps) == 1
    without_python(in_python, lambda: run("run", ADD, 1, 1, 1, 7, 0, 256))


@pytest.mark.parametrize("size", [8, 100, 4096, 1 << 20])
def test_memory_is_one_whoever_asks(session: Session, in_python: list[str], size: int) -> None:
    """A buffer of machine code, its memory twice, and what Python sees of them."""
    before = live(session)

    def call() -> None:
        buffer, first, second = session.call_direct("m.round", size)
        assert len(first) == len(second) == buffer.byte_length == size
        assert first.writable and buffer.address == first.address == second.address
        first.view[:4] = b"abcd"
        assert bytes(second.view[:4]) == bytes(buffer.host_view()[:4]) == b"abcd"
        del buffer
        assert bytes(first.view[:4]) == b"abcd", "it keeps the memory"

    without_python(in_python, call)
    assert live(session) == before


def test_memory_of_what_python_has_made(session: Session) -> None:
    whole = session.device.host_allocator.allocate(0x46, 0xC03, 128)
    whole.host_view()[:] = bytes(range(128))
    for _ in range(8):
        (memory,) = session.call_direct("m.storage", whole)
        assert bytes(memory) == bytes(range(128)) and memory.writable
        (memory,) = session.call_direct("m.storage", whole.subspan(64, 32))
        assert bytes(memory) == bytes(range(64, 96))


@pytest.mark.parametrize("tier", ["fast", "native"])
@pytest.mark.parametrize("device", ["local-sync", "local-task://?threads=2"])
@pytest.mark.parametrize("name", ["inline_cpu", "inline_vmvx"])
def test_whole_calls_do_not_need_python(name: str, device: str, tier: str, in_python: list[str]) -> None:
    a, b = np.arange(100, dtype=np.float32), np.full(100, 0.5, np.float32)
    with Session(device, tier=tier) as session:
        scaled_sum = session.load(PROGRAMS / f"{name}.vmfb").scaled_sum

        def call() -> None:
            assert np.array_equal(np.asarray(scaled_sum(a, b)), a + 2 * b)

        without_python(in_python, call)
