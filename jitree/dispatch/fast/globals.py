"""Handlers of module globals, values and references."""

from __future__ import annotations

from typing import Final

from jitree.dispatch.fast.handler import Handler
from jitree.dispatch.fast.references import require_type, take
from jitree.regs.layout import MODULE, STATE

MNEMONICS: Final = tuple(
    f"global.{access}.{indirect}{kind}"
    for access in ("load", "store")
    for indirect in ("", "indirect.")
    for kind in ("i32", "i64", "f32", "f64", "ref")
)


def emit(handler: Handler, mnemonic: str) -> None:
    _, access, *_, kind = mnemonic.split(".")
    handler.fetch(1, 4 if kind == "ref" else 3)
    indirect = "indirect" in mnemonic
    place = _ref_place(handler, indirect) if kind == "ref" else _value_place(handler, kind, indirect)
    if kind == "ref":
        (_emit_load_ref if access == "load" else _emit_store_ref)(handler, place)
        return
    bits = "i64" if kind.endswith("64") else "i32"
    if access == "load":
        handler.set_value(bits, 2, handler.load(bits, place, alignment=1))
    else:
        handler.store(bits, handler.value(bits, 2), place, alignment=1)
    handler.advance(3)


def _value_place(handler: Handler, kind: str, indirect: bool) -> str:
    """The address of a value global; a register's offset is checked here, a literal one was at load."""
    module = handler.pointer_field("%state", STATE["module"])
    if not indirect:
        offset = handler.ordinal(1)
    else:
        offset = handler.unsigned_value(1)
        size = handler.load("i64", handler.field(module, MODULE["globals_size"]))
        end = handler.let(f"add i64 {offset}, {8 if kind.endswith('64') else 4}")
        handler.require(handler.let(f"icmp ule i64 {end}, {size}"))
    return handler.element("i8", handler.pointer_field(module, MODULE["globals"]), offset)


def _ref_place(handler: Handler, indirect: bool) -> str:
    module = handler.pointer_field("%state", STATE["module"])
    if not indirect:
        index = handler.ordinal(1)
    else:
        index = handler.unsigned_value(1)
        count = handler.load("i64", handler.field(module, MODULE["ref_global_count"]))
        handler.require(handler.let(f"icmp ult i64 {index}, {count}"))
    return handler.element("ptr", handler.pointer_field(module, MODULE["ref_globals"]), index)


def _emit_load_ref(handler: Handler, place: str) -> None:
    """slot, type, result"""
    ref = handler.load_pointer(place)
    require_type(handler, ref, 2)
    handler.do(f"call void @vm.retain(ptr {ref})")
    handler.put(3, ref)
    handler.advance(4)


def _emit_store_ref(handler: Handler, place: str) -> None:
    """slot, type, value, move"""
    require_type(handler, handler.ref(3), 2)
    handler.do(f"call void @vm.put(ptr {take(handler, 3)}, ptr {place}, ptr %state)")
    handler.advance(5)
