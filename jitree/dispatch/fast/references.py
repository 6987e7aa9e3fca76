"""Handlers of instructions on references that compiled functions have no code for: they drop what is
overwritten by themselves, and execute ``switch.ref`` by its plain handler."""

from __future__ import annotations

from typing import Final

from jitree.dispatch.fast.handler import Handler
from jitree.dispatch.fast.site import LoopSite, take


def emit(handler: Handler, mnemonic: str) -> None:
    _EMITTERS[mnemonic](handler)


def _emit_zero(handler: Handler) -> None:
    handler.put(1, "null")
    handler.advance(2)


def _emit_discard(handler: Handler) -> None:
    """count, (ref, move) each: drops those with the flag"""
    first = handler.place(2)
    count = handler.ordinal(1)
    with handler.counted(count) as index:
        operand = handler.element("[2 x i32]", first, index)
        moved = handler.let(f"icmp ne i64 {handler.ordinal_at(handler.element('i32', operand, '1'))}, 0")
        drop, done = handler.fresh("drop"), handler.fresh("dropped")
        handler.branch(moved, drop, done)
        handler.label(drop)
        register = handler.ref_place(handler.ordinal_at(operand))
        handler.do(f"call void @vm.put(ptr null, ptr {register}, ptr %state)")
        handler.jump(done)
        handler.label(done)
    handler.move_to(handler.element("[2 x i32]", first, count))


def _emit_switch(handler: Handler) -> None:
    """index, type, (default, move), count, (case, move) each, result; only the chosen one moves"""
    index = handler.unsigned_value(1)
    count = handler.ordinal(5)
    inside = handler.let(f"icmp ult i64 {index}, {count}")
    cases = handler.place(6)
    case = handler.element("[2 x i32]", cases, index)
    chosen = handler.let(f"select i1 {inside}, ptr {case}, ptr {handler.place(3)}")
    reference = handler.load_pointer(handler.ref_place(handler.ordinal_at(chosen)))
    LoopSite(handler, "switch.ref").require_type(reference, 0)
    ref = take(handler, chosen)
    out = handler.element("[2 x i32]", cases, count)
    register = handler.ref_place(handler.ordinal_at(out))
    handler.do(f"call void @vm.put(ptr {ref}, ptr {register}, ptr %state)")
    handler.move_to(handler.element("i32", out, "1"))


_EMITTERS: Final = {
    "const.ref.zero": _emit_zero,
    "discard.refs": _emit_discard,
    "switch.ref": _emit_switch,
}
MNEMONICS: Final = tuple(_EMITTERS)
