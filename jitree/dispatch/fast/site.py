"""Writes handlers of instructions on memory and references: decoded words name their registers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from jitree.dispatch.fast.handler import Handler
from jitree.dispatch.native.memory import LIST_STATEMENTS, MEMORY_STATEMENTS
from jitree.dispatch.native.site import REFERENCE_STATEMENTS, Site, Statement
from jitree.regs.layout import ACCESS_WRITE, ENTRY, KIND_BUFFER
from jitree.vmfb.instructions import BY_MNEMONIC

_STATEMENTS: Final[Mapping[str, Statement]] = {
    **MEMORY_STATEMENTS, **LIST_STATEMENTS, **REFERENCE_STATEMENTS
}  # fmt: skip
MEMORY: Final = tuple(_STATEMENTS)
_FETCHED: Final = ("buffer.load.", "buffer.store.", "global.")
"""Beginnings of the mnemonics of frequent instructions, whose words are read two by two."""


def emit_on_memory(handler: Handler, mnemonic: str) -> None:
    site = LoopSite(handler, mnemonic)
    if mnemonic.startswith(_FETCHED):
        handler.fetch(1, site.size)
    site.finish(_STATEMENTS[mnemonic](site))


class LoopSite(Site):
    """Values are the bits in their registers: i32 or i64."""

    def __init__(self, handler: Handler, mnemonic: str) -> None:
        super().__init__(handler, mnemonic)
        self._handler = handler
        self._operands: list[tuple[int, str]] = []
        """(word, type) of each."""
        self._literals: list[int] = []
        self._result = (0, "")
        self.size = 1
        """Words of the instruction."""
        for operand in BY_MNEMONIC[mnemonic].operands:
            prefix, _, kind = operand.kind.partition(".")
            place = self.size, _TYPES.get(kind, "i32")
            if operand.output:
                self._result = place
            elif prefix == "imm":
                self._literals.append(self.size)
            else:
                self._operands.append(place)
                self.size += operand.movable  # a word that says whether it is moved
            self.size += 1

    def operand(self, number: int) -> str:
        position, kind = self._operands[number]
        return self._handler.ref(position) if kind == "ptr" else self._handler.value(kind, position)

    def kind(self, number: int) -> str:
        return self._operands[number][1]

    @property
    def result_kind(self) -> str:
        return self._result[1]

    def literal(self, number: int) -> str:
        return self._handler.ordinal(self._literals[number])

    def truth(self, number: int) -> str:
        return self.text.let(f"icmp ne i32 {self.operand(number)}, 0")

    def comparison(self, condition: str) -> str:
        return f"zext i1 {condition} to i32"

    def take(self, number: int) -> str:
        return take(self._handler, self._handler.place(self._operands[number][0]))

    def drop(self, number: int) -> None:
        self.text.do(f"call void @vm.drop(ptr {self.take(number)}, ptr %state)")

    def put(self, place: str, number: int, scope: str) -> None:
        self.text.do(f"call void @vm.put(ptr {self.take(number)}, ptr {place}, ptr %state)")

    def entry(self, number: int, kind: int) -> str:
        reference = self.operand(number)
        self.require(self.text.let(f"icmp ne ptr {reference}, null"))
        actual = self._handler.load("i32", self.text.field(reference, ENTRY["kind"]))
        self.require(self.text.let(f"icmp eq i32 {actual}, {kind}"))
        return reference

    def element(self, number: int, offset: int, kind: str, shift: int, is_written: bool) -> str:
        entry, index = self.entry(number, KIND_BUFFER), self.operand(offset)
        limit = self.text.let(f"lshr i64 {self._length(entry)}, {shift}")
        self.require(self.text.let(f"icmp ult i64 {index}, {limit}"))
        byte = self.text.let(f"shl i64 {index}, {shift}")
        place = self.indexed("i8", self._address(entry), byte)
        if is_written:
            self._require_writable(entry)
        return place

    def extent(self, number: int, is_written: bool = False) -> tuple[str, str]:
        entry = self.entry(number, KIND_BUFFER)
        if is_written:
            self._require_writable(entry)
        return self._address(entry), self._length(entry)

    def scoped(self, access: str, scope: str) -> str:
        """A handler is too short for it to matter."""
        return access

    def _length(self, entry: str) -> str:
        return self._handler.load("i64", self.text.field(entry, ENTRY["length"]))

    def _address(self, entry: str) -> str:
        return self._handler.pointer_field(entry, ENTRY["address"])

    def _require_writable(self, entry: str) -> None:
        access = self._handler.load("i32", self.text.field(entry, ENTRY["access"]))
        bit = self.text.let(f"and i32 {access}, {ACCESS_WRITE}")
        self.require(self.text.let(f"icmp ne i32 {bit}, 0"))

    def finish(self, result: str | None) -> None:
        """Writes the result; the instruction is done."""
        position, kind = self._result
        if result is not None and kind == "ptr":
            self._handler.put(position, result)
        elif result is not None:
            self._handler.set_value(kind, position, self.text.let(result))
        self._handler.advance(self.size)


_TYPES: Final = {"ref": "ptr", "i64": "i64", "f64": "i64"}


def take(handler: Handler, operand: str) -> str:
    """A counted reference out of a register that the words (ordinal, move flag) at an address name: moved
    out, or copied."""
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


def emit_reference(handler: Handler, mnemonic: str) -> None:
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
REFERENCES: Final = tuple(_EMITTERS)
