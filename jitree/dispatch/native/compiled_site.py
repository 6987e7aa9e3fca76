"""Instructions on memory and references in compiled functions, whose operands are values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from jitree.codegen.ir_text import LLVM_TYPES
from jitree.dispatch.native import lists, memory, references
from jitree.dispatch.native.emitter import Emitter
from jitree.dispatch.native.site import Site, Statement
from jitree.dispatch.native.slow import Shortcut
from jitree.dispatch.native.ssa import REF, SsaInstruction, operand


class CompiledSite(Site):
    def __init__(self, emitter: Emitter, instruction: SsaInstruction) -> None:
        super().__init__(emitter, instruction.mnemonic)
        self.emitter = emitter
        self.instruction = instruction

    def operand(self, number: int) -> str:
        return operand(self.instruction.operands[number])

    def kind(self, number: int) -> str:
        return LLVM_TYPES[self.instruction.operands[number].type]

    @property
    def result_kind(self) -> str:
        return LLVM_TYPES[self.instruction.results[0].type]

    def literal(self, number: int) -> str:
        return str(self.instruction.literals[number])

    def truth(self, number: int) -> str:
        return self.emitter.truth(self.instruction.operands[number])

    def comparison(self, condition: str) -> str:
        self.emitter.conditions[self.instruction.results[0]] = condition
        return f"zext i1 {condition} to i32"

    def require_type(self, reference: str, number: int) -> None:
        if reference != "null":
            super().require_type(reference, number)

    def is_bindings(self, number: int) -> bool:
        return self.emitter.is_bindings(self.instruction.operands[number])

    def take(self, number: int) -> str:
        self.emitter.retain_all(self.instruction.retained)
        return self.operand(number)

    def retain(self, reference: str) -> None:
        if self.instruction.results[0] not in self.emitter.borrowed:
            super().retain(reference)

    def drop(self, number: int) -> None:
        """With what else the instruction drops, by :meth:`finish`."""

    def put(self, place: str, number: int, scope: str) -> None:
        reference = self.take(number)
        old = self.read("ptr", place, scope)
        self.text.do(self.scoped(f"store ptr {reference}, ptr {place}, align 8", scope))
        self.text.do(f"call void @vm.drop(ptr {old}, ptr %state)")

    def entry(self, number: int, kind: int) -> str:
        entry = self.emitter.entry(self.operand(number))
        self.require(self.text.let(f"icmp eq i32 {self.emitter.kind(entry)}, {kind}"))
        return entry

    def element(self, number: int, offset: int, kind: str, shift: int, is_written: bool) -> str:
        """What is no buffer has no bytes."""
        buffer, index = self.instruction.operands[number], self.operand(offset)
        limit = self.emitter.buffer(buffer, "room" if is_written else "length")
        if shift:
            limit = self.text.let(f"lshr i64 {limit}, {shift}")
        self.require(self.text.let(f"icmp ult i64 {index}, {limit}"))
        element = kind if kind in ("i8", "i16") else LLVM_TYPES[kind]
        address = self.emitter.buffer(buffer, "address")
        return self.text.let(f"getelementptr inbounds {element}, ptr {address}, i64 {index}")

    def extent(self, number: int, is_written: bool = False) -> tuple[str, str]:
        buffer = self.instruction.operands[number]
        self.require(self.emitter.buffer(buffer, "writable" if is_written else "is"))
        return self.emitter.buffer(buffer, "address"), self.emitter.buffer(buffer, "length")

    def scoped(self, access: str, scope: str) -> str:
        return access + scope

    def finish(self, result: str | None) -> None:
        """Defines the result; what the instruction overwrites is dropped."""
        if result is None:
            return
        value = self.instruction.results[0]
        (self.emitter.name if value.type == REF else self.emitter.define)(value, result)
        self.emitter.drop_all(self.instruction.dropped)


class QuickSite(CompiledSite):
    """A site where the plain handler does what cannot be done here."""

    def __init__(self, emitter: Emitter, instruction: SsaInstruction) -> None:
        super().__init__(emitter, instruction)
        self._shortcut = Shortcut(emitter, instruction)

    def require(self, condition: str) -> None:
        self._shortcut.require(condition)

    def finish(self, result: str | None) -> None:
        if result is not None and self.result_kind != "ptr":
            result = self.text.let(result)
        self.emitter.drop_all(self.instruction.dropped)
        self._shortcut.finish(result)


def _emit(
    statement: Statement, kind: type[CompiledSite], emitter: Emitter, instruction: SsaInstruction
) -> None:
    site = kind(emitter, instruction)
    site.finish(statement(site))


def _emit_nothing(emitter: Emitter, instruction: SsaInstruction) -> None:
    """Only drops."""
    emitter.drop_all(instruction.dropped)


def _emitters(
    statements: Mapping[str, Statement], kind: type[CompiledSite]
) -> dict[str, Callable[[Emitter, SsaInstruction], None]]:
    return {mnemonic: partial(_emit, statement, kind) for mnemonic, statement in statements.items()}


EMITTERS: Final[Mapping[str, Callable[[Emitter, SsaInstruction], None]]] = {
    **dict.fromkeys(("const.ref.zero", "discard.refs", "trace", "print"), _emit_nothing),
    **_emitters(references.STATEMENTS, CompiledSite),
    **_emitters(memory.STATEMENTS, CompiledSite),
    **_emitters(lists.STATEMENTS, QuickSite),
}
