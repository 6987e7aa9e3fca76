"""Branches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from jitree.dispatch.native.emitter import Emitter
from jitree.dispatch.native.ssa import RESUME, Block, SsaInstruction, operand
from jitree.regs.layout import STATE


def _emit_br(emitter: Emitter, block: Block, instruction: SsaInstruction) -> None:
    target = block.successors[0]
    emitter.retain_all(instruction.retained)
    emitter.drop_all(instruction.dropped)
    emitter.do(f"br label %{emitter.edge(block, target)}")


def _emit_conditional(emitter: Emitter, block: Block, instruction: SsaInstruction) -> None:
    condition = emitter.truth(instruction.operands[0])
    if_true, if_false = (emitter.edge(block, target) for target in block.successors)
    emitter.branch(condition, if_true, if_false)


def _emit_table(emitter: Emitter, block: Block, instruction: SsaInstruction) -> None:
    """index; default, cases"""
    default, *labels = [emitter.edge(block, target) for target in block.successors]
    cases = " ".join(f"i32 {number}, label %{label}" for number, label in enumerate(labels))
    emitter.do(f"switch i32 {operand(instruction.operands[0])}, label %{default} [ {cases} ]")


def _emit_fail(emitter: Emitter, block: Block, instruction: SsaInstruction) -> None:
    if not block.successors:
        _emit_side_exit(emitter, block, instruction)
        return
    emitter.require(emitter.let(f"icmp eq i32 {operand(instruction.operands[0])}, 0"))
    _emit_br(emitter, block, instruction)


def _emit_side_exit(emitter: Emitter, block: Block, instruction: SsaInstruction) -> None:
    emitter.jump(emitter.side_exit())


def _emit_resume(emitter: Emitter, block: Block, instruction: SsaInstruction) -> None:
    """Goes to the place that STATE.pc says."""
    place = emitter.let(f"load i64, ptr {emitter.field('%state', STATE['pc'])}, align 8")
    code = emitter.let(f"ptrtoint ptr {emitter.module_pointer('code')} to i64")
    word = emitter.let(f"lshr i64 {emitter.let(f'sub i64 {place}, {code}')}, 2")
    pairs = zip(instruction.literals, block.successors, strict=True)
    cases = " ".join(f"i64 {pc}, label %{emitter.edge(block, target)}" for pc, target in pairs)
    lost = emitter.fresh("lost")
    emitter.do(f"switch i64 {word}, label %{lost} [ {cases} ]")
    emitter.label(lost)
    emitter.do("unreachable")


EMITTERS: Final[dict[str, Callable[[Emitter, Block, SsaInstruction], None]]] = {
    "br": _emit_br,
    "br.bare": _emit_br,
    "break": _emit_br,
    "cond_br": _emit_conditional,
    "cond_break": _emit_conditional,
    "br_table": _emit_table,
    "fail": _emit_fail,
    "yield": _emit_side_exit,
    RESUME: _emit_resume,
}
"""Emitters of terminators, ``return`` aside."""
