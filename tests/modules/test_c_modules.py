"""C modules compiled for the test, without any header of another runtime."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import jitree
from jitree.dispatch.host_export import HostExport
from jitree.dispatch.host_module import HostModule, Signal
from jitree.errors import (
    FailedPreconditionError,
    IncompatibleError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    ResourceExhaustedError,
    StatusError,
    UnavailableError,
    UnimplementedError,
)
from jitree.hal.fence import Fence
from jitree.modules.native_library import interface
from jitree.regs.buffer import VmBuffer
from jitree.regs.list import VmList
from tests.assembler import Assembler
from tests.loaders.compiler import COMPILER, NEEDS_COMPILER, compile_library
from tests.tools import command

SOURCES = Path(__file__).parents[1] / "data" / "c_module"

pytestmark = pytest.mark.skipif(COMPILER is None, reason=NEEDS_COMPILER)


class Host(HostModule):
    """What the counter imports."""

    name = "host"
    version = 7

    def exports(self) -> list[HostExport]:
        return [HostExport("callback", "0i_i", self.callback)]

    @staticmethod
    def callback(state: object, value: int) -> int:
        if value < 0:
            raise OverflowError(f"{value} is negative")
        return value * 2


@pytest.fixture(scope="module")
def counter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_library(SOURCES / "counter.c", tmp_path_factory.mktemp("c") / "counter.so")


@pytest.fixture(scope="module")
def framed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_library(SOURCES / "framed.c", tmp_path_factory.mktemp("c") / "framed.so")


@pytest.fixture
def session() -> Iterator[jitree.Session]:
    with jitree.Session("local-sync") as session:
        yield session


def call(session: jitree.Session, name: str, *arguments: Any) -> Any:
    results = session.call_direct(name, *arguments)
    return results[0] if len(results) == 1 else results or None


def test_scalars_spans_state_and_parameters(session: jitree.Session, counter: Path) -> None:
    module = session.load_native(counter, start="5")
    assert (module.name, module.version) == ("counter", 3)
    assert call(session, "counter.add", 1, -2, 3.5, 4.25) == [5.25, 4.5, -1, 2]
    assert [call(session, "counter.next") for _ in range(3)] == [5, 6, 7]
    assert call(session, "counter.sum", 10, [(1, 2), (3, 1 << 40)]) == 12 + (3 << 40)
    assert call(session, "counter.sum", 10, []) == 10
    assert session.context.lookup("counter.add").attrs == {"note": "adds four numbers"}


def test_from_bytecode(session: jitree.Session, counter: Path) -> None:
    session.load_native(counter)
    program = Assembler("program").import_function("counter.sum", "0iCiID_I")
    program.import_function("counter.box", "0i_r").import_function("counter.unbox", "0r_i")
    program.import_function("counter.same", "0r_r").type("!counter.box")
    program.function("main", "0i_Ii", """
        %r0 = call @counter.box [%i0]
        %r1 = call @counter.same [%r0]
        %i1 = call @counter.unbox [%R1]
        %i2 = const.i64 5
        %i4:5 = call.variadic @counter.sum [0xFFFF, 2] [%i0, %i0, %i2:3, %i1, %i2:3]
        return [%i4:5, %i1]
    """)  # fmt: skip
    box = call(session, "counter.box", 1)  # a type that is not registered is known from its first object on
    assert call(session, "counter.unbox", box) == 1
    del box
    session.load(program.build())
    assert call(session, "program.main", 3) == [33, 3]
    assert call(session, "counter.live") % 100 == 0


def test_failures_leave_the_session_usable(session: jitree.Session, counter: Path) -> None:
    session.load_native(counter)
    with pytest.raises(PermissionDeniedError, match="the counter is broken"):
        call(session, "counter.fail", 7)
    with pytest.raises(InvalidArgumentError, match="gave no message"):
        call(session, "counter.fail.bare", 3)
    with pytest.raises(InvalidArgumentError):
        call(session, "counter.next", 1)
    assert call(session, "counter.next") == 0


def test_references(session: jitree.Session, counter: Path) -> None:
    session.load_native(counter)
    box = call(session, "counter.box", 42)
    assert repr(box).startswith("<!counter.box at 0x")
    assert call(session, "counter.unbox", box) == 42
    assert call(session, "counter.same", box) is box
    assert call(session, "counter.pick", 1, [None, box]) is box
    assert call(session, "counter.same", None) is None
    with pytest.raises(InvalidArgumentError, match="that is no box"):
        call(session, "counter.unbox", VmBuffer(1))
    assert call(session, "counter.take", box) is None
    assert call(session, "counter.live") % 100 == 1
    del box
    gc.collect()
    assert call(session, "counter.live") % 100 == 0


def test_objects_outlive_session_and_keep_the_library_open(counter: Path) -> None:
    with jitree.Session("local-sync") as session:
        session.load_native(counter)
        box = call(session, "counter.box", 42)
    del session
    gc.collect()
    with jitree.Session("local-sync") as other:
        other.load_native(counter)
        assert call(other, "counter.unbox", box) == 42
        del box
        gc.collect()
        assert call(other, "counter.live") == 10100, "one state, one module, no box"


def test_buffers_in_place(session: jitree.Session, counter: Path) -> None:
    session.load_native(counter)
    buffer = VmBuffer(4)
    assert call(session, "counter.fill", buffer, 65) is None
    assert bytes(buffer) == b"AAAA"
    assert call(session, "counter.same", buffer) is buffer


def test_imports_call_back(session: jitree.Session, counter: Path) -> None:
    session.load_native(counter)
    with pytest.raises(UnavailableError, match="nobody to call"):
        call(session, "counter.call", 21)
    with jitree.Session("local-sync") as other:
        other.append_module(Host())
        other.load_native(counter)
        assert call(other, "counter.call", 21) == 42
        with pytest.raises(OverflowError, match="-1 is negative"):
            call(other, "counter.call", -1)
        assert call(other, "counter.call", 4) == 8


def test_signals_forks_and_giving_way(session: jitree.Session, counter: Path) -> None:
    session.load_native(counter, start="5")
    session.context.notify(Signal.SUSPEND)
    session.trim()
    assert call(session, "counter.signals") == 1 << Signal.SUSPEND | 1 << Signal.LOW_MEMORY
    assert call(session, "counter.next") == 5
    with session.context.fork() as fork:
        assert fork.invoke(fork.lookup("counter.next"), []) == [6]
        assert fork.invoke(fork.lookup("counter.next"), []) == [7]
    assert call(session, "counter.next") == 6
    assert call(session, "counter.wait") == 55


def test_fences_and_lists_are_refused(session: jitree.Session, counter: Path) -> None:
    session.load_native(counter, hal="")  # depends on the module 'hal', which is there
    for value in (Fence(()), VmList()):
        with pytest.raises(UnimplementedError, match="write the module in Python"):
            call(session, "counter.take", value)


@pytest.mark.parametrize(
    ("create", "parameters", "error", "match"),
    [
        ("create_nothing", {}, NotFoundError, "exports no function 'create_nothing'"),
        ("create_none", {}, IncompatibleError, "version 0.1"),
        ("create_nonsense", {}, FailedPreconditionError, "another interface"),
        ("create_failing", {}, PermissionDeniedError, "create_failing"),
        ("", {"stop": "1"}, InvalidArgumentError, "unknown parameter"),
    ],
)
def test_libraries_that_cannot_be_used(
    session: jitree.Session,
    counter: Path,
    create: str,
    parameters: dict[str, str],
    error: type[StatusError],
    match: str,
) -> None:
    with pytest.raises(error, match=match) as caught:
        session.load_native(counter, create=create, **parameters)
    assert f"loading C module '{counter}'" in str(caught.value)
    session.load_native(counter)
    assert call(session, "counter.next") == 0


def test_files_that_are_no_library(session: jitree.Session, tmp_path: Path, counter: Path) -> None:
    with pytest.raises(NotFoundError, match=r"missing\.so"):
        session.load_native(tmp_path / "missing.so")
    cut = tmp_path / "cut.so"
    cut.write_bytes(counter.read_bytes()[:5000])
    with pytest.raises(StatusError, match="loading C module"):
        session.load_native(cut)


# -- frames and types ------------------------------------------------------------------------------------


def test_frames_on_the_stack(session: jitree.Session, framed: Path) -> None:
    session.load_native(framed, create="create_framed")
    assert call(session, "framed.calls") == 1
    assert call(session, "framed.deep", 3) == 4
    assert call(session, "framed.deep", 500) == 501  # the stack grows
    with pytest.raises(ResourceExhaustedError, match="maximum size"):
        call(session, "framed.deep", 5000)
    before = call(session, "framed.cleanups")
    with pytest.raises(PermissionDeniedError, match="framed failure"):
        call(session, "framed.fail", 7)
    assert call(session, "framed.cleanups") == before + 2, "its own frame and the one of the failed call"
    assert call(session, "framed.calls") == 8


def test_registered_types(session: jitree.Session, framed: Path) -> None:
    session.load_native(framed, create="create_framed")
    program = Assembler("program").import_function("framed.token", "0i_r")
    program.type("!framed.token")
    program.function("main", "0i_r", "%r0 = call @framed.token [%i0]\nreturn [%R0]")
    session.load(program.build())
    token = call(session, "program.main", 9)
    assert call(session, "framed.number", token) == 9
    with pytest.raises(InvalidArgumentError, match="ref is null"):
        call(session, "framed.number", None)
    assert call(session, "framed.tokens") == 1
    del token
    gc.collect()
    assert call(session, "framed.tokens") == 0


def test_a_module_ends_while_types_are_read(
    session: jitree.Session, counter: Path, framed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library that is unloaded between two types of the table would take its own out, and its names."""
    ending = jitree.Session("local-sync")
    ending.load_native(framed, create="create_framed")
    circle: list[object] = [ending]
    circle.append(circle)
    del ending, circle
    collected: list[int] = []
    read = interface.type_name

    def collect(address: int) -> str:
        collected.append(gc.collect())
        return read(address)

    monkeypatch.setattr(interface, "type_name", collect)
    session.load_native(counter, start="5")
    assert any(collected)
    assert call(session, "counter.next") == 5
    session.load_native(framed, create="create_framed")
    assert call(session, "framed.calls") == 1


def test_other_layouts_are_noticed(session: jitree.Session, framed: Path) -> None:
    session.load_native(framed, create="create_framed", layout="other")
    for _ in range(2):
        with pytest.raises(FailedPreconditionError, match="layout of VM stacks"):
            call(session, "framed.calls")


@pytest.mark.parametrize("reference", ["@iree_vm_dynamic_module_create?start=41", "?start=41"])
def test_command_line(counter: Path, reference: str) -> None:
    result = command.jitree("run", f"--module={counter}{reference}", "--function=next", "--device=local-sync")
    assert result.code == 0, result.stderr
    assert "i32=41" in result.stdout
