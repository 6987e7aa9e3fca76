"""Handlers of ``vm.list`` elements. Lists are made, reserved and resized outside the loop.

Slots are read and written where the stored type is the accessed one (integers of any width on reading);
conversions, empty slots and everything that fails leave the loop.
"""

from __future__ import annotations

from typing import Final

from jitree.dispatch.fast.handler import Handler
from jitree.dispatch.fast.references import require_kind, require_type, take
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

_KINDS: Final = ("i32", "i64", "f32", "f64")
MNEMONICS: Final = (
    "list.size", *(f"list.{access}.{kind}" for access in ("get", "set") for kind in (*_KINDS, "ref"))
)  # fmt: skip


def emit(handler: Handler, mnemonic: str) -> None:
    access, *kind = mnemonic.split(".")[1:]
    if access == "size":
        _emit_size(handler)
    elif kind == ["ref"]:
        (_emit_get_ref if access == "get" else _emit_set_ref)(handler)
    else:
        (_emit_get if access == "get" else _emit_set)(handler, kind[0])


def _emit_size(handler: Handler) -> None:
    """list, result"""
    size = handler.load("i64", handler.field(require_kind(handler, 1, KIND_LIST), ENTRY["length"]))
    handler.set_value("i32", 2, handler.let(f"trunc i64 {size} to i32"))
    handler.advance(3)


def _slot(handler: Handler) -> tuple[str, str, str]:
    """Of (list, index): the element type, the slot's tag and the slot's address; the index is checked."""
    entry = require_kind(handler, 1, KIND_LIST)
    index = handler.unsigned_value(2)
    size = handler.load("i64", handler.field(entry, ENTRY["length"]))
    handler.require(handler.let(f"icmp ult i64 {index}, {size}"))
    slots = handler.pointer_field(entry, ENTRY["address"])
    slot = handler.element(f"[{LIST_SLOT.size} x i8]", slots, index)
    element_type = handler.load("i32", handler.field(entry, ENTRY["element_type"]))
    return element_type, handler.load("i64", handler.field(slot, LIST_SLOT["tag"])), slot


def _bits_place(handler: Handler, slot: str) -> str:
    return handler.field(slot, LIST_SLOT["bits"])


def _emit_get(handler: Handler, kind: str) -> None:
    """list, index, result; integer codes lie next to each other"""
    _, tag, slot = _slot(handler)
    if kind.startswith("i"):
        distance = handler.let(f"sub i64 {tag}, {LIST_I64}")
        handler.require(handler.let(f"icmp ule i64 {distance}, {LIST_I8 - LIST_I64}"))
    else:
        handler.require(handler.let(f"icmp eq i64 {tag}, {VALUE_TYPE_CODES[kind]}"))
    bits = "i64" if kind.endswith("64") else "i32"
    handler.set_value(bits, 3, handler.load(bits, _bits_place(handler, slot)))
    handler.advance(4)


def _emit_set(handler: Handler, kind: str) -> None:
    """list, index, value; into a list of that type, or a variant list over anything but a reference"""
    element_type, tag, slot = _slot(handler)
    code = VALUE_TYPE_CODES[kind]
    is_same = handler.let(f"icmp eq i32 {element_type}, {code}")
    is_variant = handler.let(f"icmp eq i32 {element_type}, {LIST_VARIANT}")
    handler.require(handler.let(f"or i1 {is_same}, {is_variant}"))
    handler.require(handler.let(f"icmp ne i64 {tag}, {LIST_REF}"))
    bits = "i64" if kind.endswith("64") else "i32"
    value = handler.value(bits, 3)
    if bits == "i32":
        extension = "sext" if kind == "i32" else "zext"
        value = handler.let(f"{extension} i32 {value} to i64")
    handler.store("i64", str(code), handler.field(slot, LIST_SLOT["tag"]))
    handler.store("i64", value, _bits_place(handler, slot))
    handler.advance(4)


def _emit_get_ref(handler: Handler) -> None:
    """list, index, type, result"""
    _, tag, slot = _slot(handler)
    handler.require(handler.let(f"icmp eq i64 {tag}, {LIST_REF}"))
    ref = handler.load_pointer(_bits_place(handler, slot))
    require_type(handler, ref, 3)
    handler.do(f"call void @vm.retain(ptr {ref})")
    handler.put(4, ref)
    handler.advance(5)


def _emit_set_ref(handler: Handler) -> None:
    """list, index, value, move; over a reference, null included"""
    element_type, tag, slot = _slot(handler)
    handler.require(handler.let(f"icmp eq i64 {tag}, {LIST_REF}"))
    ref = handler.ref(3)
    typed, valid = handler.fresh("typed"), handler.fresh("fits")
    is_null = handler.let(f"icmp eq ptr {ref}, null")
    is_any = handler.let(f"icmp sle i32 {element_type}, 0")
    handler.branch(handler.let(f"or i1 {is_null}, {is_any}"), valid, typed)
    handler.label(typed)
    kind = handler.load("i32", handler.field(ref, ENTRY["kind"]))
    handler.require(handler.let(f"icmp eq i32 {kind}, {element_type}"))
    handler.jump(valid)
    handler.label(valid)
    handler.do(f"call void @vm.put(ptr {take(handler, 3)}, ptr {_bits_place(handler, slot)}, ptr %state)")
    handler.advance(5)
