"""Branches, failure, yield, and the instructions that only drop references."""

from __future__ import annotations

from typing import Final

from jitree.dispatch.engine import YIELD
from jitree.dispatch.plain.calls import Handler
from jitree.errors import InternalError, status_error
from jitree.regs.machine import STOP, Machine
from jitree.vmfb.words import TAG_REF_MOVE, TAG_VALUE32, TAG_VALUE64


def move(machine: Machine, tag: int, source: int, destination: int) -> None:
    """Copies one register to another of its bank; TAG_REF_MOVE nulls the source."""
    if tag == TAG_VALUE32:
        machine.i32[destination] = machine.i32[source]
    elif tag == TAG_VALUE64:
        machine.i64[destination >> 1] = machine.i64[source >> 1]
    elif source != destination:
        handle = machine.refs[source]
        if tag == TAG_REF_MOVE:
            machine.refs[source] = 0
        else:
            machine.table.retain(handle)
        machine.set_ref(destination, handle)


def _moves(machine: Machine, word: int) -> None:
    """A remap list: one after the other, not at once."""
    code = machine.code
    for at in range(word + 1, word + 1 + 3 * code[word], 3):
        move(machine, code[at], code[at + 1], code[at + 2])


def br(machine: Machine, pc: int) -> int:
    _moves(machine, pc + 2)
    return pc + machine.code[pc + 1]


def br_bare(machine: Machine, pc: int) -> int:
    return pc + machine.code[pc + 1]


def cond_br(machine: Machine, pc: int) -> int:
    code = machine.code
    return pc + (code[pc + 2] if machine.i32[code[pc + 1]] else code[pc + 3])


def br_table(machine: Machine, pc: int) -> int:
    code = machine.code
    index = machine.i32[code[pc + 1]]
    return pc + (code[pc + 4 + index] if 0 <= index < code[pc + 3] else code[pc + 2])


def yield_(machine: Machine, pc: int) -> int:
    _moves(machine, pc + 2)
    machine.pc = pc
    machine.resume_pc = pc + machine.code[pc + 1]
    machine.pending = YIELD
    return STOP


def fail(machine: Machine, pc: int) -> int:
    """Status 0 does not fail: execution goes on in the next block of the file."""
    code = machine.code
    status = machine.i32[code[pc + 1]]
    if status:
        raise status_error(status, machine.module.program.string(code[pc + 2]))
    if not code[pc + 3]:
        raise InternalError("fail with status OK at the end of the function: there is no block to go on with")
    return pc + code[pc + 3]


def trace(machine: Machine, pc: int) -> int:
    """``trace`` and ``print`` say nothing; references they are given to keep are dropped."""
    code = machine.code
    end = pc + 3 + 2 * code[pc + 2]
    for at in range(pc + 3, end, 2):
        if code[at] == TAG_REF_MOVE:
            machine.set_ref(code[at + 1], 0)
    return end


def block(machine: Machine, pc: int) -> int:
    return pc + 1


HANDLERS: Final[dict[str, Handler]] = {
    "br": br,
    "br.bare": br_bare,
    "cond_br": cond_br,
    "br_table": br_table,
    "break": br,
    "cond_break": cond_br,
    "yield": yield_,
    "fail": fail,
    "trace": trace,
    "print": trace,
    "block": block,
}
