"""Which bindings a kernel may store to."""

from __future__ import annotations

from typing import Any

import pytest

from jitree.dispatch.native import build as native_build
from jitree.dispatch.native.reading import read_blocks
from jitree.dispatch.native.source import from_program
from jitree.loaders.vmvx import build as vmvx_build
from jitree.loaders.vmvx.analysis import ALL, stored_bindings
from jitree.loaders.vmvx.kernels import ENTRY_CONVENTION, kernels, recipes
from jitree.vmfb.decode import BytecodeModule
from tests.assembler import Assembler
from tests.loaders.samples import FOLDER, sample

FIRST_AND_SECOND = """
    %i20 = const.i32.zero
    %i21 = const.i32 1
    %r3 = list.get.ref %r2, %i20, !vm.buffer
    %r4 = list.get.ref %r2, %i21, !vm.buffer
"""
PLACE = """
    %i22:23 = const.i64 0
    %i24:25 = const.i64 4
"""
UNKNOWN = "%r5 = list.get.ref %r2, %i26, !vm.buffer\n"
HIGH = "%r5 = list.get.ref %r2, %i27, !vm.buffer\n"
SECOND = "%r5 = list.get.ref %r2, %i21, !vm.buffer\n"
OTHER = """
    %r6 = list.alloc !vm.list<?>, %i21
    list.resize %r6, %i21
"""
STORE = "buffer.store.i32 %{0}, %i22:23, %i20\n"


def stored(text: str) -> int:
    program = Assembler("stores").function("f", ENTRY_CONVENTION, f"{text}\nreturn []")
    return _stored(program.build())[0]


def _stored(data: bytes) -> list[int]:
    module = BytecodeModule.load(data, "file")
    source = from_program(module.program)
    return [stored_bindings(source, export.ordinal) for export in kernels(module.module)]


@pytest.mark.parametrize(
    ("text", "bits"),
    [
        ("", 0),
        (STORE.format("r3"), 1),
        (STORE.format("r4"), 2),
        (STORE.format("r3") + STORE.format("r4"), 3),
        (STORE.format("r0") + STORE.format("r1"), 0),
        ("%r5 = buffer.alloc %i24:25, %i21\n" + STORE.format("r5"), 0),
        ("buffer.fill.i32 %r4, %i22:23, %i24:25, %i20", 2),
        ("buffer.copy %r3, %i22:23, %r4, %i22:23, %i24:25", 3),
        (f"%i26 = buffer.load.i32 %r3, %i22:23\n{UNKNOWN}" + STORE.format("r5"), ALL),
        ("%r5 = select.ref %i21, !vm.buffer, %r3, %r4\n" + STORE.format("r5"), ALL),
        ("br ^next {%r3->%r5}\n^next:\n" + STORE.format("r5"), ALL),
        ("br ^next {}\n^next:\n%r5 = list.get.ref %r2, %i21, !vm.buffer\n" + STORE.format("r5"), ALL),
        ("%r3 = list.get.ref %r2, %i21, !vm.buffer\n" + STORE.format("r3"), 3),
        # Another list in the register, other elements in the list, another number in half of a wide register
        (f"{OTHER}br ^next {{%r6->%r2}}\n^next:\n%i21 = const.i32 1\n{SECOND}" + STORE.format("r5"), ALL),
        (f"{OTHER}%r2 = select.ref %i21, !vm.list<?>, %r6, %r6\n{SECOND}" + STORE.format("r5"), ALL),
        (f"list.set.ref %r2, %i21, %r3\n{SECOND}" + STORE.format("r5"), ALL),
        ("%i26 = const.i32 0\n%i26:27 = const.i64 1\n" + UNKNOWN + STORE.format("r5"), ALL),
        ("%i27 = const.i32 0\n%i26:27 = const.i64 4294967296\n" + HIGH + STORE.format("r5"), ALL),
        ("%i26 = const.i32 0\n%i26 = const.f32 1.0\n" + UNKNOWN + STORE.format("r5"), ALL),
    ],
)  # fmt: skip
def test_what_stores_name(text: str, bits: int) -> None:
    assert stored(FIRST_AND_SECOND + PLACE + text) == bits


def test_what_calls_get() -> None:
    program = Assembler("stores").import_function("host.fill", "0r_v")
    program.function("f", ENTRY_CONVENTION, f"{FIRST_AND_SECOND}{PLACE}call @host.fill [%r4]\nreturn []")
    assert _stored(program.build()) == [2]


def test_what_internal_functions_find() -> None:
    """They get the list, or what a global keeps."""
    first = "%i20 = const.i32.zero\n%r1 = list.get.ref %r0, %i20, !vm.buffer"
    program = Assembler("stores").function("__g", "0r_v", f"{first}\n{PLACE}{STORE.format('r1')}return []")
    program.function("f", ENTRY_CONVENTION, "call @__g [%r2]\nreturn []")
    assert _stored(program.build()) == [ALL]
    for keep, bits in (("global.store.ref 0, !vm.buffer, %r3", ALL), ("", 0)):
        load = "%i20 = const.i32.zero\n%r1 = global.load.ref 0, !vm.buffer"
        program = Assembler("stores").function("__g", "0v_v", f"{load}\n{PLACE}{STORE.format('r1')}return []")
        program.function("f", ENTRY_CONVENTION, f"{FIRST_AND_SECOND}{keep}\ncall @__g []\nreturn []")
        program.ref_global_count = 1
        assert _stored(program.build()) == [bits]


def test_a_register_that_compilers_use_again() -> None:
    """Bindings are those that were taken before; not where the first block is run once more."""
    again = "%r2 = list.get.ref %r2, %i21, !vm.buffer\n"
    assert stored(FIRST_AND_SECOND + PLACE + again + STORE.format("r2")) == 2
    assert stored(f"{FIRST_AND_SECOND}{PLACE}{again}br ^next\n^next:\n{STORE.format('r2')}") == 2
    loop = f"cond_br %i20, ^begin, ^end\n^end:\n{STORE.format('r3')}"
    assert stored(f"^begin:\n{FIRST_AND_SECOND}{PLACE}{again}{loop}") == ALL


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("vmvx_*.fb")))
def test_kernels_of_compilers_store_to_their_last_binding(name: str) -> None:
    """Which is the only one that their result is in. Microkernels are given two at once."""
    for bits in _stored(sample(name)):
        assert bits in ((3,) if "microkernels" in name else (1, 2, 4, 8)), bits


def test_a_builder_reads_a_kernel_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the bindings that it stores to, and for its machine code."""
    read: list[object] = []

    def reading(*given: Any) -> object:
        read.append(given)
        return read_blocks(*given)

    for module in (vmvx_build, native_build):
        monkeypatch.setattr(module, "read_blocks", reading)
    program = Assembler("stores").function("f", ENTRY_CONVENTION, f"{FIRST_AND_SECOND}\nreturn []").build()
    (recipe,) = recipes(BytecodeModule.load(program, "file"))
    assert vmvx_build.generate(*recipe.data).entries
    assert len(read) == 1
