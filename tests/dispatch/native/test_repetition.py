"""What compiled functions compute and ask once, where they have computed and asked it before."""

from __future__ import annotations

import re

from jitree.dispatch.native.lower import lower
from jitree.dispatch.native.source import from_program
from jitree.loaders.vmvx.kernels import ENTRY_CONVENTION
from jitree.regs.layout import KIND_LIST
from jitree.vmfb.decode import BytecodeModule
from tests.assembler import Assembler

BINDINGS = """
    %i9 = const.i32 0
    %r3 = list.get.ref %r2, %i9, !vm.buffer
    %i10 = const.i32 1
    %r4 = list.get.ref %r2, %i10, !vm.buffer
    %i11 = const.i32 2
    %r5 = list.get.ref %r2, %i11, !vm.buffer
    return []
"""
JOINED = """
    %i9 = const.i32 0
    cond_br %i0, ^one, ^two
    ^one:
    %r3 = list.get.ref %r2, %i9, !vm.buffer
    br ^both
    ^two:
    br ^both
    ^both:
    %i10 = const.i32 1
    %r4 = list.get.ref %r2, %i10, !vm.buffer
    return []
"""
WIDTHS = """
    %i10 = const.i64 0
    %i12 = const.i64 1
    %i14 = buffer.load.i32 %r1, %i10:11
    %i15 = buffer.load.i32 %r1, %i12:13
    %i14 = add.i32 %i14, %i15
    buffer.store.i32 %r0, %i10:11, %i14
    return []
"""


def function(text: str, asks: bool = False) -> str:
    """The text of a kernel."""
    built = Assembler("kernels").function("f", ENTRY_CONVENTION, text).build()
    source = from_program(BytecodeModule.load(built, "executable").program)
    lowered = lower(source, (), roots=[0], asks=asks).text
    return lowered[lowered.index("@f0(") :]


def counted(text: str, pattern: str) -> int:
    return len(re.findall(pattern, text))


def test_a_list_is_asked_once_whether_it_is_one() -> None:
    assert counted(function(BINDINGS), rf"icmp eq i32 %\w+, {KIND_LIST}\n") == 1
    assert counted(function(BINDINGS), "call i1 @vm.list_reads_ref") == 3


def test_a_type_is_looked_up_once() -> None:
    """The module's record does not change while a function runs."""
    assert counted(function(BINDINGS), r"load i32, ptr .*invariant\.load") == 1


def test_a_block_with_two_ways_into_it_asks_again() -> None:
    assert counted(function(JOINED), rf"icmp eq i32 %\w+, {KIND_LIST}\n") == 2


def test_what_others_may_have_done_to_a_list_is_asked_again() -> None:
    """Where Python completes an instruction, lists have other elements afterwards."""
    text = function(BINDINGS, asks=True)
    assert counted(text, rf"icmp eq i32 %\w+, {KIND_LIST}\n") == 3


def test_the_length_of_a_buffer_in_elements_is_computed_once() -> None:
    assert counted(function(WIDTHS), r"lshr i64 %v\d+\.length, 2\n") == 1
