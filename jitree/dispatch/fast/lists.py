"""Handlers of ``vm.list`` elements. Lists are made, reserved and resized outside the loop, where also
conversions, empty slots and everything that fails are done.
"""

from __future__ import annotations

from typing import Final

from jitree.dispatch.fast.handler import Handler
from jitree.dispatch.fast.references import expected_type, require_kind, take
from jitree.regs.layout import ENTRY, KIND_LIST, LIST_SLOT, VALUE_TYPE_CODES

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


def _slot(handler: Handler, condition: str, argument: object) -> tuple[str, str]:
    """Of (list, index): the places of the slot's tag and bits, if a function of ``regs/access.py`` says that
    the element can be accessed."""
    items, index = handler.ref(1), handler.unsigned_value(2)
    handler.require(handler.call(condition, items, index, str(argument)))
    slot = handler.call("slot_of", items, index)
    return handler.field(slot, LIST_SLOT["tag"]), handler.field(slot, LIST_SLOT["bits"])


def _emit_get(handler: Handler, kind: str) -> None:
    """list, index, result"""
    _, place = _slot(handler, "list_reads", VALUE_TYPE_CODES[kind])
    bits = "i64" if kind.endswith("64") else "i32"
    handler.set_value(bits, 3, handler.load(bits, place))
    handler.advance(4)


def _emit_set(handler: Handler, kind: str) -> None:
    """list, index, value"""
    code = VALUE_TYPE_CODES[kind]
    tag, place = _slot(handler, "list_takes", code)
    bits = "i64" if kind.endswith("64") else "i32"
    value = handler.value(bits, 3)
    if bits == "i32":
        extension = "sext" if kind == "i32" else "zext"
        value = handler.let(f"{extension} i32 {value} to i64")
    handler.store("i64", str(code), tag)
    handler.store("i64", value, place)
    handler.advance(4)


def _emit_get_ref(handler: Handler) -> None:
    """list, index, type, result"""
    _, place = _slot(handler, "list_reads_ref", expected_type(handler, 3))
    ref = handler.load_pointer(place)
    handler.do(f"call void @vm.retain(ptr {ref})")
    handler.put(4, ref)
    handler.advance(5)


def _emit_set_ref(handler: Handler) -> None:
    """list, index, value, move"""
    _, place = _slot(handler, "list_takes_ref", handler.ref(3))
    handler.do(f"call void @vm.put(ptr {take(handler, 3)}, ptr {place}, ptr %state)")
    handler.advance(5)
