"""Handlers of instructions on references, and what other handlers need for references."""

from __future__ import annotations

from typing import Final

from jitree.dispatch.fast.handler import Handler
from jitree.regs.layout import ENTRY, MODULE, STATE

MNEMONICS: Final = (
    "const.ref.zero", "const.ref.rodata", "assign.ref", "cast.any.ref", "discard.refs", "select.ref",
    "switch.ref", "cmp.eq.ref", "cmp.ne.ref", "cmp.nz.ref",
)  # fmt: skip


def emit(handler: Handler, mnemonic: str) -> None:
    if mnemonic.startswith("cmp."):
        _emit_compare(handler, mnemonic.split(".")[1])
    else:
        _EMITTERS[mnemonic](handler)


def require_type(handler: Handler, ref: str, position: int) -> None:
    """Leaves the loop unless the reference is null or of the type that an operand word names."""
    handler.require(handler.call("is_of", ref, expected_type(handler, position)))


def expected_type(handler: Handler, position: int) -> str:
    """The type that an operand word names."""
    module = handler.pointer_field("%state", STATE["module"])
    types = handler.pointer_field(module, MODULE["types"])
    number = handler.load("i32", handler.element("i32", types, handler.ordinal(position)))
    return handler.let(f"sext i32 {number} to i64")


def require_kind(handler: Handler, position: int, kind: int) -> str:
    """The entry in the ref register that an operand word names; leaves the loop unless it is of that kind."""
    ref = handler.ref(position)
    handler.require(handler.let(f"icmp ne ptr {ref}, null"))
    actual = handler.load("i32", handler.field(ref, ENTRY["kind"]))
    handler.require(handler.let(f"icmp eq i32 {actual}, {kind}"))
    return ref


def take(handler: Handler, position: int) -> str:
    """A counted reference out of a register (ordinal, move flag): moved out, or copied."""
    return take_at(handler, handler.place(position))


def take_at(handler: Handler, operand: str) -> str:
    """As :func:`take`, for the address of the operand's words."""
    register = handler.ref_place(handler.ordinal_at(operand))
    ref = handler.load_pointer(register)
    moved = handler.let(f"icmp ne i64 {handler.ordinal_at(handler.element('i32', operand, '1'))}, 0")
    move, copy, taken = handler.fresh("move"), handler.fresh("copy"), handler.fresh("taken")
    handler.branch(moved, move, copy)
    handler.label(move)
    handler.store_pointer("null", register)
    handler.jump(taken)
    handler.label(copy)
    handler.do(f"call void @vm.retain(ptr {ref})")
    handler.jump(taken)
    handler.label(taken)
    return ref


def _emit_zero(handler: Handler) -> None:
    handler.put(1, "null")
    handler.advance(2)


def _emit_rodata(handler: Handler) -> None:
    """segment, result"""
    module = handler.pointer_field("%state", STATE["module"])
    segments = handler.pointer_field(module, MODULE["rodata"])
    ref = handler.load_pointer(handler.element("ptr", segments, handler.ordinal(1)))
    handler.require(handler.let(f"icmp ne ptr {ref}, null"))
    handler.do(f"call void @vm.retain(ptr {ref})")
    handler.put(2, ref)
    handler.advance(3)


def _emit_assign(handler: Handler) -> None:
    """source, move, result"""
    handler.put(3, take(handler, 1))
    handler.advance(4)


def _emit_cast(handler: Handler) -> None:
    """source, move, type, result"""
    require_type(handler, handler.ref(1), 3)
    handler.put(4, take(handler, 1))
    handler.advance(5)


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


def _emit_select(handler: Handler) -> None:
    """condition, type, (ref if true, move), (ref if false, move), result; moves both that have the flag"""
    chosen = handler.let(f"icmp ne i32 {handler.value('i32', 1)}, 0")
    ref = handler.let(f"select i1 {chosen}, ptr {handler.ref(3)}, ptr {handler.ref(5)}")
    require_type(handler, ref, 2)
    handler.do(f"call void @vm.retain(ptr {ref})")
    for position in (3, 5):
        taken = take(handler, position)
        handler.do(f"call void @vm.drop(ptr {taken}, ptr %state)")
    handler.put(7, ref)
    handler.advance(8)


def _emit_switch(handler: Handler) -> None:
    """index, type, (default, move), count, (case, move) each, result; only the chosen one moves"""
    index = handler.unsigned_value(1)
    count = handler.ordinal(5)
    inside = handler.let(f"icmp ult i64 {index}, {count}")
    cases = handler.place(6)
    case = handler.element("[2 x i32]", cases, index)
    chosen = handler.let(f"select i1 {inside}, ptr {case}, ptr {handler.place(3)}")
    require_type(handler, handler.load_pointer(handler.ref_place(handler.ordinal_at(chosen))), 2)
    ref = take_at(handler, chosen)
    out = handler.element("[2 x i32]", cases, count)
    register = handler.ref_place(handler.ordinal_at(out))
    handler.do(f"call void @vm.put(ptr {ref}, ptr {register}, ptr %state)")
    handler.move_to(handler.element("i32", out, "1"))


def _emit_compare(handler: Handler, operation: str) -> None:
    """Handles are unique for an object, so identity is equality of addresses."""
    lhs = handler.ref(1)
    rhs, out = ("null", 2) if operation == "nz" else (handler.ref(2), 3)
    result = handler.let(f"icmp {'eq' if operation == 'eq' else 'ne'} ptr {lhs}, {rhs}")
    handler.set_value("i32", out, handler.let(f"zext i1 {result} to i32"))
    handler.advance(out + 1)


_EMITTERS: Final = {
    "const.ref.zero": _emit_zero,
    "const.ref.rodata": _emit_rodata,
    "assign.ref": _emit_assign,
    "cast.any.ref": _emit_cast,
    "discard.refs": _emit_discard,
    "select.ref": _emit_select,
    "switch.ref": _emit_switch,
}
