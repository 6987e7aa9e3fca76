"""References that kernels leave to those that keep them."""

from __future__ import annotations

import re

import pytest

from jitree.dispatch.native.build import build
from jitree.dispatch.native.lower import lower
from jitree.dispatch.native.reading import borrowed
from jitree.dispatch.native.source import ModuleSource, from_program
from jitree.loaders.vmvx.kernels import ENTRY_CONVENTION
from jitree.vmfb.decode import BytecodeModule
from tests.assembler import Assembler
from tests.loaders.vmvx.programs import COUNT, NUMBER

SCRATCH = """
    %i16 = const.i64 8
    %i18 = const.i32 16
    %r4 = buffer.alloc %i16:17, %i18
"""
CONSTANT = "%r4 = const.ref.rodata 0"
OTHERS = {
    "keeps": "global.store.ref 0, !vm.buffer, %r3",
    "loads": "%r4 = global.load.ref 0, !vm.buffer",
    "copies": "%r4 = assign.ref %r3",
    "changes": "list.set.ref %r2, %i9, %r3",
    "chooses": "%r4 = select.ref %i9 !vm.buffer %r3, %r1",
    "joins": "%i14 = cmp.nz.i32 %i9\ncond_br %i14, ^one, ^two\n^one:\nbr ^two {%r1->%r3}\n^two:",
}
USED = """
    %i20 = const.i64 0
    %i21 = buffer.load.i32 %r3, %i20:21
"""


def source(text: str) -> ModuleSource:
    module = Assembler("kernels", ref_global_count=1)
    module.rodata(bytes(64))
    built = module.function("f", ENTRY_CONVENTION, text).build()
    return from_program(BytecodeModule.load(built, "executable").program)


def references(text: str) -> list[str] | None:
    """What makes the references that a kernel borrows."""
    found = borrowed(build(source(text), 0))
    return None if found is None else sorted(value.operation for value in found)


def test_arguments_elements_of_lists_and_constants_are_borrowed() -> None:
    of_arguments = ["argument"] * 3
    assert references(COUNT) == [*of_arguments, "list.get.ref"]
    assert references(f"{NUMBER}{SCRATCH}{CONSTANT.replace('4', '5')}\nreturn []") == [
        *of_arguments, "const.ref.rodata", "list.get.ref",
    ]  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_kernels_that_do_more_with_references_count_them(name: str) -> None:
    assert references(f"{NUMBER}{OTHERS[name]}{USED}return []") is None


def test_kernels_count_what_they_make_and_what_they_leave_to_the_interpreter() -> None:
    module = source(f"{NUMBER}{SCRATCH}%i20 = const.i64 0\nbuffer.store.i32 %r4, %i20:21, %i10\nreturn []")
    lent, own = (lower(module, (), roots=[0], asks=False, kernels=kernels) for kernels in ([0], ()))
    assert lent.borrowing == {0} and not own.borrowing
    assert (lent.entries, own.entries) == ((), ("enter.0",))
    dropped, kept = (
        len(re.findall(rf"call (?:fastcc )?void @vm\.{name}\(", body(lent.text))) for name in ("drop", "keep")
    )
    assert dropped == 1, "the scratch memory"
    assert kept >= 3 and "@vm.retain(" not in body(lent.text)
    assert "@vm.keep(" not in body(own.text) and body(own.text).count("@vm.drop(") == 5


def body(text: str) -> str:
    """The kernel's own function."""
    return text.partition("@f0(")[2].partition("\n}\n")[0]
