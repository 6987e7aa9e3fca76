"""Modules hal_inline and hal_loader: compiled programs, and each import called by itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jitree import Session
from jitree.api.load_order import BUILTIN_MODULES
from jitree.dispatch.host_module import HostModule
from jitree.errors import (
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    OutOfRangeError,
    ResourceExhaustedError,
    StatusError,
)
from jitree.hal.executable import Executable
from jitree.modules.hal_inline import MAXIMUM_BINDINGS
from jitree.regs.buffer import VmBuffer
from tests.assembler import Assembler
from tests.loaders.samples import FORMAT
from tests.modules.helpers import text

DATA = Path(__file__).parent.parent / "data"
PROGRAMS = DATA / "programs"
KERNELS = DATA / "executables" / "tiny-3.13.0.so"


@pytest.fixture
def session() -> Iterator[Session]:
    with Session("local-sync", tier="plain") as session:
        for name in ("hal_inline", "hal_loader"):
            session.append_module(BUILTIN_MODULES[name](session))
        yield session


class Imports:
    """``inline("buffer.length", buffer)`` calls the import of that name as a program would."""

    def __init__(self, session: Session, module: str) -> None:
        self.session = session
        self.module = module

    def __call__(self, name: str, *arguments: Any) -> Any:
        results = self.session.call_direct(f"{self.module}.{name}", *arguments)
        return results[0] if len(results) == 1 else tuple(results) or None


@pytest.fixture
def inline(session: Session) -> Imports:
    return Imports(session, "hal_inline")


@pytest.fixture
def loader(session: Session) -> Imports:
    return Imports(session, "hal_loader")


# -- compiled programs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("tier", ["plain", "fast"])
@pytest.mark.parametrize("program", ["inline_vmvx", "inline_cpu"])
@pytest.mark.parametrize("size", [0, 1, 4, 1000])
def test_programs_without_devices(program: str, tier: str, size: int) -> None:
    a, b = np.arange(size, dtype=np.float32), np.full(size, 0.5, np.float32)
    with Session("local-sync", tier=tier) as session:
        module = session.load(PROGRAMS / f"{program}.vmfb")
        for _ in range(2):
            np.testing.assert_array_equal(np.asarray(module.scaled_sum(a, b)), a + 2 * b)
    names = [item.name for item in module.dependencies]
    assert "hal_inline" in names and ("hal_loader" in names) == (program == "inline_cpu")


# -- hal_inline ----------------------------------------------------------------------------------------


def test_buffers_and_their_storage_share_memory(inline: Imports) -> None:
    buffer, storage = inline("buffer.allocate", 64, 100)
    assert inline("buffer.length", buffer) == len(storage) == 100
    storage.view[:] = bytes(range(100))
    assert bytes(buffer.host_view()) == bytes(range(100))
    part = inline("buffer.subspan", buffer, 10, 20)
    again = inline("buffer.storage", part)
    again.view[0] = 255
    assert storage.view[10] == 255 and len(again) == 20
    del buffer, part
    assert again.view[1] == 11  # the storage keeps the memory


def test_initialized_buffers_are_copies(inline: Imports) -> None:
    source = VmBuffer.alias(bytearray(b"0123456789"))
    buffer, storage = inline("buffer.allocate.initialized", 16, source, 2, 5)
    source.view[2] = 0
    assert bytes(buffer.host_view()) == bytes(storage) == b"23456"
    with pytest.raises(OutOfRangeError):
        inline("buffer.allocate.initialized", 16, source, 8, 3)


def test_wrapped_buffers_share_memory(inline: Imports) -> None:
    source = VmBuffer.alias(bytearray(b"0123456789"))
    buffer = inline("buffer.wrap", source, 3, 4)
    source.view[3] = ord("x")
    assert bytes(buffer.host_view()) == b"x456"
    constant = inline("buffer.wrap", VmBuffer.alias(b"constant"), 0, 8)
    assert constant.host_view().readonly
    for offset, length in ((0, 11), (-1, 2), (11, 0), (5, -1)):
        with pytest.raises(OutOfRangeError):
            inline("buffer.wrap", source, offset, length)


def test_views(inline: Imports) -> None:
    buffer, _ = inline("buffer.allocate", 64, 24)
    view = inline("buffer_view.create", buffer, 0, 24, 0x21000020, 1, [2, 3])
    assert inline("buffer_view.buffer", view) is buffer
    assert inline("buffer_view.element_type", view) == 0x21000020
    assert inline("buffer_view.encoding_type", view) == 1
    assert [inline("buffer_view.rank", view), *(inline("buffer_view.dim", view, n) for n in (0, 1))] == [
        2,
        2,
        3,
    ]
    inline("buffer_view.assert", view, text("input"), 0x21000020, 1, [2, 3])
    with pytest.raises(InvalidArgumentError, match="input shape dimension 1 mismatch"):
        inline("buffer_view.assert", view, text("input"), 0x21000020, 1, [2, 4])


def test_traced_views_go_to_the_sink_of_the_session() -> None:
    seen: list[str] = []
    with Session("local-sync", tier="plain", trace_sink=lambda key, views: seen.append(key)) as session:
        session.append_module(BUILTIN_MODULES["hal_inline"](session))
        inline = Imports(session, "hal_inline")
        inline("buffer_view.trace", text("here"), [])
    assert seen == ["here"]


def test_only_the_processor_is_asked(inline: Imports) -> None:
    known, _ = inline("device.query.i64", text("hal.cpu"), text("no such feature"))
    assert known in (0, 1)
    assert inline("device.query.i64", text("hal.device.id"), text("*")) == (0, 0)


@pytest.mark.parametrize(
    ("alignment", "size", "status"),
    [(3, 8, InvalidArgumentError), (64, -1, OutOfRangeError), (64, -(2**63), ResourceExhaustedError)],
)
def test_impossible_allocations(
    inline: Imports, alignment: int, size: int, status: type[StatusError]
) -> None:
    with pytest.raises(status):
        inline("buffer.allocate", alignment, size)


def test_references_are_checked_and_named(inline: Imports) -> None:
    with pytest.raises(InvalidArgumentError, match=r"null.*hal_inline\.buffer\.length needs a hal\.buffer"):
        inline("buffer.length", None)


# -- hal_loader ----------------------------------------------------------------------------------------


@pytest.fixture
def executable(loader: Imports) -> Executable:
    data = VmBuffer.alias(KERNELS.read_bytes())
    loaded: Executable = loader("executable.load", text(FORMAT), data, None)
    return loaded


def floats(*values: float) -> VmBuffer:
    buffer = VmBuffer(4 * len(values))
    buffer.data.view(np.float32)[:] = values
    return buffer


def test_formats(loader: Imports) -> None:
    assert loader("executable.query_support", text(FORMAT)) == 1
    assert loader("executable.query_support", text("spirv")) == 0
    with pytest.raises(NotFoundError, match="spirv"):
        loader("executable.load", text("spirv"), VmBuffer(4), None)
    with pytest.raises(InvalidArgumentError, match="32-bit words"):
        loader("executable.load", text(FORMAT), VmBuffer(4), VmBuffer(3))


@pytest.mark.parametrize(("character", "cconv"), [("I", "0rIiiiCiDCrIID_v"), ("i", "0riiiiCiDCrIID_v")])
def test_dispatch_by_number_and_by_id(
    session: Session, executable: Executable, character: str, cconv: str
) -> None:
    """``mul`` of the sample multiplies two vectors of four."""
    module = Assembler("m").import_function("hal_loader.executable.dispatch", cconv)
    registers = "%i0:1, " if character == "I" else "%i0, "
    dispatch = (
        f"{'%i0 = const.i64.zero' if character == 'I' else '%i0 = const.i32.zero'}\n"
        "%i2 = const.i32 1\n%i4 = const.i64 0\n%i6 = const.i64 16\n"
        "call.variadic @hal_loader.executable.dispatch [0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, 0, 3] "
        f"[%r0, {registers}%i2, %i2, %i2, %r1, %i4:5, %i6:7, %r2, %i4:5, %i6:7, %r3, %i4:5, %i6:7]\nreturn"
    )
    session.load(module.function("f", "0rrrr_v", dispatch).build())
    result = floats(0, 0, 0, 0)
    session.call_direct("m.f", executable, floats(1, 2, 3, 4), floats(5, 6, 7, 8), result)
    assert result.data.view(np.float32).tolist() == [5, 12, 21, 32]


def test_lookup(loader: Imports, executable: Executable) -> None:
    name = executable.function_name(0)
    assert loader("executable.lookup.function", executable, text(name)) == 0
    with pytest.raises(NotFoundError, match="nothing"):
        loader("executable.lookup.function", executable, text("nothing"))


def test_dispatches_that_cannot_be(loader: Imports, executable: Executable) -> None:
    a = floats(1, 2, 3, 4)
    whole = [(a, 0, 16)] * 3

    def failure(
        function: int, constants: list[int], bindings: list[tuple[VmBuffer, int, int]]
    ) -> StatusError:
        with pytest.raises(StatusError) as caught:
            loader("executable.dispatch", executable, function, 1, 1, 1, constants, bindings)
        return caught.value

    assert isinstance(failure(99, [], whole), OutOfRangeError)
    assert isinstance(failure(-1, [], whole), OutOfRangeError)
    assert isinstance(failure(0, [], [(a, 0, 16)] * (MAXIMUM_BINDINGS + 1)), ResourceExhaustedError)
    assert isinstance(failure(0, [], [(a, 4, 16), *whole[1:]]), OutOfRangeError)
    assert "takes 3 bindings but got 2" in str(failure(0, [], whole[1:]))
    assert "takes 0 constants but got 1" in str(failure(0, [7], whole))


def test_a_module_of_an_older_kind_is_refused_by_signature(session: Session) -> None:
    module = Assembler("m").import_function("hal_loader.executable.load", "0rr_r")
    with pytest.raises(InternalError, match=r"hal_loader\.executable\.load"):
        session.load(module.function("f", "0v_v", "return").build())


def test_every_builtin_module_states_its_name(session: Session) -> None:
    for name, create in BUILTIN_MODULES.items():
        module = create(session)
        assert isinstance(module, HostModule) and module.name == name
