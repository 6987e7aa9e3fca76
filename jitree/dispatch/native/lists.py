"""``vm.list`` elements. Conversions, empty slots and everything that fails are the plain handler's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from jitree.codegen.ir_text import LLVM_TYPES
from jitree.dispatch.native.emitter import Emitter
from jitree.dispatch.native.prelude import ENTRIES, SLOTS
from jitree.dispatch.native.references import drop_all, expected_type, retain_all
from jitree.dispatch.native.slow import Shortcut
from jitree.dispatch.native.ssa import SsaInstruction, operand
from jitree.regs.layout import ENTRY, KIND_LIST, LIST_SLOT, VALUE_TYPE_CODES


def _emit_size(emitter: Emitter, instruction: SsaInstruction) -> None:
    shortcut = Shortcut(emitter, instruction)
    entry = emitter.entry(operand(instruction.operands[0]))
    kind = emitter.let(f"load i32, ptr {emitter.field(entry, ENTRY['kind'])}, align 4{ENTRIES}")
    shortcut.require(emitter.let(f"icmp eq i32 {kind}, {KIND_LIST}"))
    size = emitter.let(f"load i64, ptr {emitter.field(entry, ENTRY['length'])}, align 8{ENTRIES}")
    shortcut.finish(emitter.let(f"trunc i64 {size} to i32"))


def _slot(
    emitter: Emitter, instruction: SsaInstruction, condition: str, argument: object
) -> tuple[Shortcut, str, str]:
    """Of (list, index): the places of the slot's tag and bits, if a function of ``regs/access.py`` says that
    the element can be accessed."""
    items, index = (operand(value) for value in instruction.operands[:2])
    wide = emitter.let(f"zext i32 {index} to i64")
    shortcut = Shortcut(emitter, instruction)
    shortcut.require(emitter.call(condition, items, wide, str(argument)))
    slot = emitter.call("slot_of", items, wide)
    return shortcut, emitter.field(slot, LIST_SLOT["tag"]), emitter.field(slot, LIST_SLOT["bits"])


def _emit_get(emitter: Emitter, instruction: SsaInstruction) -> None:
    """list, index, result"""
    kind = instruction.results[0].type
    shortcut, _, place = _slot(emitter, instruction, "list_reads", VALUE_TYPE_CODES[kind])
    shortcut.finish(emitter.let(f"load {LLVM_TYPES[kind]}, ptr {place}, align 8{SLOTS}"))


def _emit_set(emitter: Emitter, instruction: SsaInstruction) -> None:
    """list, index, value"""
    value = instruction.operands[2]
    kind, code, bits = value.type, VALUE_TYPE_CODES[value.type], operand(value)
    shortcut, tag, place = _slot(emitter, instruction, "list_takes", code)
    if kind in ("f32", "f64"):
        bits = emitter.let(f"bitcast {LLVM_TYPES[kind]} {bits} to i{kind[1:]}")
    if kind.endswith("32"):
        bits = emitter.let(f"{'sext' if kind == 'i32' else 'zext'} i32 {bits} to i64")
    emitter.do(f"store i64 {code}, ptr {tag}, align 8{SLOTS}")
    emitter.do(f"store i64 {bits}, ptr {place}, align 8{SLOTS}")
    shortcut.finish(None)


def _emit_get_ref(emitter: Emitter, instruction: SsaInstruction) -> None:
    """list, index, type, result"""
    expected = expected_type(emitter, instruction.literals[0])
    shortcut, _, place = _slot(emitter, instruction, "list_reads_ref", expected)
    reference = emitter.let(f"load ptr, ptr {place}, align 8{SLOTS}")
    emitter.do(f"call void @vm.retain(ptr {reference})")
    drop_all(emitter, instruction.dropped)
    shortcut.finish(reference)


def _emit_set_ref(emitter: Emitter, instruction: SsaInstruction) -> None:
    """list, index, value"""
    reference = operand(instruction.operands[2])
    shortcut, _, place = _slot(emitter, instruction, "list_takes_ref", reference)
    retain_all(emitter, instruction.retained)
    old = emitter.let(f"load ptr, ptr {place}, align 8{SLOTS}")
    emitter.do(f"store ptr {reference}, ptr {place}, align 8{SLOTS}")
    emitter.do(f"call void @vm.drop(ptr {old}, ptr %state)")
    shortcut.finish(None)


_KINDS: Final = ("i32", "i64", "f32", "f64")
EMITTERS: Final[dict[str, Callable[[Emitter, SsaInstruction], None]]] = {
    "list.size": _emit_size,
    **{f"list.get.{kind}": _emit_get for kind in _KINDS},
    **{f"list.set.{kind}": _emit_set for kind in _KINDS},
    "list.get.ref": _emit_get_ref,
    "list.set.ref": _emit_set_ref,
}
