"""``vm.list`` elements. Slots are read and written where the stored type is the accessed one (integers of any
width on reading); conversions, empty slots and everything that fails are the plain handler's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from jitree.dispatch.native.emitter import Emitter
from jitree.dispatch.native.module_text import LLVM_TYPES, operand
from jitree.dispatch.native.prelude import ENTRIES, SLOTS
from jitree.dispatch.native.references import drop_all, has_type, retain_all
from jitree.dispatch.native.slow import Shortcut
from jitree.dispatch.native.ssa import SsaInstruction
from jitree.regs.layout import (
    ENTRY,
    KIND_LIST,
    LIST_I8,
    LIST_I64,
    LIST_REF,
    LIST_SLOT,
    LIST_VARIANT,
    VALUE_TYPE_CODES,
)


def _entry(emitter: Emitter, shortcut: Shortcut, reference: str) -> str:
    """The handle entry of a list."""
    entry = emitter.entry(reference)
    kind = emitter.let(f"load i32, ptr {emitter.field(entry, ENTRY['kind'])}, align 4{ENTRIES}")
    shortcut.require(emitter.let(f"icmp eq i32 {kind}, {KIND_LIST}"))
    return entry


def _emit_size(emitter: Emitter, instruction: SsaInstruction) -> None:
    shortcut = Shortcut(emitter, instruction)
    entry = _entry(emitter, shortcut, operand(instruction.operands[0]))
    size = emitter.let(f"load i64, ptr {emitter.field(entry, ENTRY['length'])}, align 8{ENTRIES}")
    shortcut.finish(emitter.let(f"trunc i64 {size} to i32"))


def _slot(emitter: Emitter, shortcut: Shortcut, instruction: SsaInstruction) -> tuple[str, str, str]:
    """Of (list, index): the list's entry, the slot's tag and the slot's address; the index is checked."""
    entry = _entry(emitter, shortcut, operand(instruction.operands[0]))
    index = emitter.let(f"zext i32 {operand(instruction.operands[1])} to i64")
    size = emitter.let(f"load i64, ptr {emitter.field(entry, ENTRY['length'])}, align 8{ENTRIES}")
    shortcut.require(emitter.let(f"icmp ult i64 {index}, {size}"))
    slots = emitter.let(f"load ptr, ptr {emitter.field(entry, ENTRY['address'])}, align 8{ENTRIES}")
    slot = emitter.let(f"getelementptr [{LIST_SLOT.size} x i8], ptr {slots}, i64 {index}")
    tag = emitter.let(f"load i64, ptr {emitter.field(slot, LIST_SLOT['tag'])}, align 8{SLOTS}")
    return entry, tag, slot


def _element_type(emitter: Emitter, entry: str) -> str:
    return emitter.let(f"load i32, ptr {emitter.field(entry, ENTRY['element_type'])}, align 4{ENTRIES}")


def _emit_get(emitter: Emitter, instruction: SsaInstruction) -> None:
    """list, index, result; integer codes lie next to each other"""
    kind = instruction.results[0].type
    shortcut = Shortcut(emitter, instruction)
    _, tag, slot = _slot(emitter, shortcut, instruction)
    if kind.startswith("i"):
        distance = emitter.let(f"sub i64 {tag}, {LIST_I64}")
        shortcut.require(emitter.let(f"icmp ule i64 {distance}, {LIST_I8 - LIST_I64}"))
    else:
        shortcut.require(emitter.let(f"icmp eq i64 {tag}, {VALUE_TYPE_CODES[kind]}"))
    place = emitter.field(slot, LIST_SLOT["bits"])
    shortcut.finish(emitter.let(f"load {LLVM_TYPES[kind]}, ptr {place}, align 8{SLOTS}"))


def _emit_set(emitter: Emitter, instruction: SsaInstruction) -> None:
    """list, index, value; into a list of that type, or a variant list over anything but a reference"""
    value = instruction.operands[2]
    kind, code = value.type, VALUE_TYPE_CODES[value.type]
    shortcut = Shortcut(emitter, instruction)
    entry, tag, slot = _slot(emitter, shortcut, instruction)
    element_type = _element_type(emitter, entry)
    is_same = emitter.let(f"icmp eq i32 {element_type}, {code}")
    is_variant = emitter.let(f"icmp eq i32 {element_type}, {LIST_VARIANT}")
    shortcut.require(emitter.let(f"or i1 {is_same}, {is_variant}"))
    shortcut.require(emitter.let(f"icmp ne i64 {tag}, {LIST_REF}"))
    bits = operand(value)
    if kind in ("f32", "f64"):
        bits = emitter.let(f"bitcast {LLVM_TYPES[kind]} {bits} to i{kind[1:]}")
    if kind.endswith("32"):
        bits = emitter.let(f"{'sext' if kind == 'i32' else 'zext'} i32 {bits} to i64")
    emitter.do(f"store i64 {code}, ptr {emitter.field(slot, LIST_SLOT['tag'])}, align 8{SLOTS}")
    emitter.do(f"store i64 {bits}, ptr {emitter.field(slot, LIST_SLOT['bits'])}, align 8{SLOTS}")
    shortcut.finish(None)


def _emit_get_ref(emitter: Emitter, instruction: SsaInstruction) -> None:
    """list, index, type, result"""
    shortcut = Shortcut(emitter, instruction)
    _, tag, slot = _slot(emitter, shortcut, instruction)
    shortcut.require(emitter.let(f"icmp eq i64 {tag}, {LIST_REF}"))
    place = emitter.field(slot, LIST_SLOT["bits"])
    reference = emitter.let(f"load ptr, ptr {place}, align 8{SLOTS}")
    shortcut.require(has_type(emitter, reference, instruction.literals[0]))
    emitter.do(f"call void @vm.retain(ptr {reference})")
    drop_all(emitter, instruction.dropped)
    shortcut.finish(reference)


def _emit_set_ref(emitter: Emitter, instruction: SsaInstruction) -> None:
    """list, index, value; over a reference, null included"""
    reference = operand(instruction.operands[2])
    shortcut = Shortcut(emitter, instruction)
    entry, tag, slot = _slot(emitter, shortcut, instruction)
    shortcut.require(emitter.let(f"icmp eq i64 {tag}, {LIST_REF}"))
    element_type = _element_type(emitter, entry)
    is_any = emitter.let(f"icmp sle i32 {element_type}, 0")
    if reference != "null":
        place = emitter.field(emitter.entry(reference), ENTRY["kind"])
        kind = emitter.let(f"load i32, ptr {place}, align 4{ENTRIES}")
        fits = emitter.let(f"or i1 {is_any}, {emitter.let(f'icmp eq i32 {kind}, {element_type}')}")
        is_null = emitter.let(f"icmp eq ptr {reference}, null")
        shortcut.require(emitter.let(f"or i1 {fits}, {is_null}"))
    retain_all(emitter, instruction.retained)
    place = emitter.field(slot, LIST_SLOT["bits"])
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
