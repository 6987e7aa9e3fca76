"""Ctrl-C, and leaving the loop for it at any branch or call."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from jitree.regs import machine
from jitree.regs.buffer import VmBuffer
from tests.assembler import Assembler
from tests.dispatch.harness import Vm

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
}


@pytest.mark.parametrize("program", ENDLESS)
def test_endless_loops_are_interrupted(vm: Vm, program: str) -> None:
    module = Assembler("m").function("spin", "0rr_v", ENDLESS[program])
    module.function("f", "0r_i", "[] = call @spin [%r0, %r0]\n%i0 = const.i32 1\nreturn [%i0]")
    vm.add(module)
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt) as interrupt:
        vm.call("f", VmBuffer(1))
    timer.join()
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
    assert vm.run("0i_i", text, [argument]) == [expected]
