"""Ctrl-C, and leaving the loop for it at any branch or call."""

from __future__ import annotations

import os
import signal
import threading
import time
from functools import partial

import pytest

from jitree.regs import machine
from jitree.regs.buffer import VmBuffer
from tests.assembler import Assembler
from tests.base.interruption import interruptions
from tests.dispatch.harness import HostFunctions, Vm

ENDLESS = {
    "a branch to itself": "br ^a\n^a:\nbr ^a",
    "a conditional branch": "%i0 = const.i32 1\nbr ^a\n^a:\ncond_br %i0, ^a {}, ^b {}\n^b:\nreturn []",
    "a table": "br ^a\n^a:\nbr_table %i0, ^a {}, []",
    "a counted loop": """
        %i1 = const.i32 1
        br ^head {%i0->%i2}
        ^head:
        %i3 = cmp.lt.i32.s %i0, %i1
        cond_br %i3, ^body {}, ^end {}
        ^body:
        %i2 = add.i32 %i2, %i1
        br ^head
        ^end:
        return []
    """,
    "turns of many slow instructions": "br ^a\n^a:\n" + "%i0 = sin.f32 %i0\n" * 50 + "br ^a",
    "turns that write much": """
        %i2 = const.i64 4194304
        br ^a
        ^a:
        buffer.fill.i8 %r0, %i4, %i2, %i0
        buffer.copy %r0, %i4, %r0, %i4, %i2
        br ^a
    """,
}


@pytest.mark.parametrize("program", ENDLESS)
def test_endless_loops_are_interrupted(vm: Vm, program: str) -> None:
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
    module = Assembler("m").import_function("host.begin", "0v_v")
    module.function("spin", "0rr_v", "[] = call @host.begin []\n" + ENDLESS[program])
    module.function("f", "0r_i", "[] = call @spin [%r0, %r0]\n%i0 = const.i32 1\nreturn [%i0]")
    vm.add(HostFunctions("host", [("begin", "0v_v", timer.start)]), module)
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt) as interrupt:
        vm.call("f", VmBuffer(4 << 20))
    timer.join()
    assert time.monotonic() - begun < 10, "it takes milliseconds"
    assert [note.split()[-1].split("+")[0] for note in interrupt.value.__notes__] == ["m.f"]
    assert "m.spin" in interrupt.value.__notes__[0]


FIBONACCI = """
    %i1 = const.i32 2
    %i2 = cmp.lt.i32.s %i0, %i1
    cond_br %i2, ^small, ^large
    ^small:
    return [%i0]
    ^large:
    %i1 = const.i32 -1
    %i2 = add.i32 %i0, %i1
    [%i3] = call @f [%i2]
    %i2 = add.i32 %i2, %i1
    [%i4] = call @f [%i2]
    %i3 = add.i32 %i3, %i4
    return [%i3]
"""
SUM = """
    %i1 = const.i32 1
    br ^head
    ^head:
    %i3 = cmp.lt.i32.s %i2, %i0
    cond_br %i3, ^body, ^end
    ^body:
    %i4 = add.i32 %i4, %i2
    %i2 = add.i32 %i2, %i1
    br ^head {%i4->%i5}
    ^end:
    return [%i5]
"""


@pytest.mark.parametrize("fuel", [1, 2, 3, 5])
@pytest.mark.parametrize(("text", "argument", "expected"), [(FIBONACCI, 10, 55), (SUM, 30, 435)])
def test_leaving_changes_nothing(
    vm: Vm, fuel: int, text: str, argument: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop goes on where it left, in the same state."""
    monkeypatch.setattr(machine, "FUEL", fuel)
    monkeypatch.setattr(machine, "TIME", 0)
    assert vm.run("0i_i", text, [argument]) == [expected]


def test_no_reference_is_lost_or_dropped_twice_by_an_interrupt(vm: Vm, no_collector: None) -> None:
    module = Assembler("m", ref_global_count=1).import_function("n.same", "0r_r")
    module.function("inner", "0rr_rr", "[%r2] = call @n.same [%r0]\n%r3 = assign.ref %r1\nreturn [%R2, %r3]")
    module.function("f", "0rr_r", """
        [%r2, %r3] = call @inner [%r0, %R1]
        global.store.ref 0, !vm.buffer, %R2
        %r1 = global.load.ref 0, !vm.buffer
        %i0 = const.i32 1
        %r4 = list.alloc !vm.buffer, %i0
        list.resize %r4, %i0
        %i0 = const.i32.zero
        list.set.ref %r4, %i0, %R3
        %r3 = list.get.ref %r4, %i0, !vm.buffer
        return [%r3]
    """)  # fmt: skip
    vm.add(HostFunctions("n", [("same", "0r_r", lambda thing: thing)]), module)
    function = vm.function("f")
    first, second = VmBuffer(1), VmBuffer(2)
    call = partial(vm.context.invoke, function, [first, second])
    assert call() == [second]
    table, places = vm.context.table, 0
    kept = table.live_count
    for interruption in interruptions(0):
        interruption.during(call)
        assert call() == [second]
        assert table.live_count == kept, f"interrupted at place {interruption.place}"
        places += 1
    assert places > 50


def test_what_earlier_frames_left_is_not_dropped_again(vm: Vm, no_collector: None) -> None:
    """Registers of a call lie where frames of the last one were: a wider frame of the host is made there."""
    module = Assembler("m", ref_global_count=1)
    module.function("keep", "0r_v", "global.store.ref 0, !vm.buffer, %r0\nreturn []")
    module.function("inner", "0r_r", "%r1 = assign.ref %r0\nreturn [%R1]")
    module.function("f", "0r_v", "[%r1] = call @inner [%r0]\n[%r2] = call @inner [%R1]\nreturn []")
    module.function("wide", "0rrrrr_v", "return []")
    vm.add(module)
    keep, narrow, wide = map(vm.function, ("keep", "f", "wide"))
    kept = VmBuffer(1)
    vm.context.invoke(keep, [kept])
    table, call = vm.context.table, partial(vm.context.invoke, wide, [None] * 5)
    for interruption in interruptions(0):
        vm.context.invoke(narrow, [kept])
        interruption.during(call)
        assert table.count(table.address_of(kept)) == 1, f"interrupted at place {interruption.place}"
