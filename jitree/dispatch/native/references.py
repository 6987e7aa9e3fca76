"""References: constants, copies, casts, choices, comparisons."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from jitree.dispatch.native.emitter import Emitter
from jitree.dispatch.native.prelude import FIXED
from jitree.dispatch.native.ssa import SsaInstruction, Value, constant, operand


def retain_all(emitter: Emitter, values: Iterable[Value]) -> None:
    for value in values:
        if constant(value) is None:
            emitter.do(f"call void @vm.retain(ptr {value.name})")


def drop_all(emitter: Emitter, values: Iterable[Value]) -> None:
    for value in values:
        if constant(value) is None:
            emitter.do(f"call void @vm.drop(ptr {value.name}, ptr %state)")


def has_type(emitter: Emitter, reference: str, ordinal: int) -> str:
    """Whether a reference is null or of a type of the module's table (i1)."""
    return emitter.call("is_of", reference, expected_type(emitter, ordinal))


def expected_type(emitter: Emitter, ordinal: int) -> str:
    types = emitter.module_pointer("types")
    number = emitter.let(f"load i32, ptr {emitter.field(types, 4 * ordinal)}, align 4{FIXED}")
    return emitter.let(f"sext i32 {number} to i64")


def _emit_nothing(emitter: Emitter, instruction: SsaInstruction) -> None:
    """Only drops."""
    drop_all(emitter, instruction.dropped)


def _emit_rodata(emitter: Emitter, instruction: SsaInstruction) -> None:
    segments = emitter.module_pointer("rodata")
    place = emitter.field(segments, 8 * instruction.literals[0])
    reference = emitter.let(f"load ptr, ptr {place}, align 8{FIXED}")
    emitter.require(emitter.let(f"icmp ne ptr {reference}, null"))
    emitter.do(f"call void @vm.retain(ptr {reference})")
    emitter.name(instruction.results[0], reference)
    drop_all(emitter, instruction.dropped)


def _emit_copy(emitter: Emitter, instruction: SsaInstruction) -> None:
    """``assign.ref`` and ``cast.any.ref``."""
    reference = operand(instruction.operands[0])
    if instruction.mnemonic == "cast.any.ref" and reference != "null":
        emitter.require(has_type(emitter, reference, instruction.literals[0]))
    retain_all(emitter, instruction.retained)
    emitter.name(instruction.results[0], reference)
    drop_all(emitter, instruction.dropped)


def _emit_select(emitter: Emitter, instruction: SsaInstruction) -> None:
    condition, if_true, if_false = instruction.operands
    chosen = emitter.let(
        f"select i1 {emitter.truth(condition)}, ptr {operand(if_true)}, ptr {operand(if_false)}"
    )
    emitter.require(has_type(emitter, chosen, instruction.literals[0]))
    emitter.do(f"call void @vm.retain(ptr {chosen})")
    emitter.name(instruction.results[0], chosen)
    drop_all(emitter, instruction.dropped)


def _emit_compare(emitter: Emitter, instruction: SsaInstruction) -> None:
    """Handles are unique for an object, so identity is equality of addresses."""
    lhs, *rest = map(operand, instruction.operands)
    relation = "eq" if instruction.mnemonic == "cmp.eq.ref" else "ne"
    result = instruction.results[0]
    condition = emitter.let(f"icmp {relation} ptr {lhs}, {rest[0] if rest else 'null'}")
    emitter.conditions[result] = condition
    emitter.define(result, f"zext i1 {condition} to i32")


EMITTERS: Final[dict[str, Callable[[Emitter, SsaInstruction], None]]] = {
    "const.ref.zero": _emit_nothing,
    "discard.refs": _emit_nothing,
    "trace": _emit_nothing,
    "print": _emit_nothing,
    "const.ref.rodata": _emit_rodata,
    "assign.ref": _emit_copy,
    "cast.any.ref": _emit_copy,
    "select.ref": _emit_select,
    "cmp.eq.ref": _emit_compare,
    "cmp.ne.ref": _emit_compare,
    "cmp.nz.ref": _emit_compare,
}
