"""Emits instructions on memory and references, and slow ones, in compiled functions.

Operands are values. Slow instructions are executed on the registers in memory, by their plain handlers or by
other machine code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from jitree.codegen.ir_text import LLVM_TYPES, UNLIKELY
from jitree.dispatch.native.emitter import Emitter
from jitree.dispatch.native.site import (
    LIST_STATEMENTS,
    MEMORY_STATEMENTS,
    REFERENCE_STATEMENTS,
    Site,
    Statement,
)
from jitree.dispatch.native.ssa import REF, SsaInstruction, Value, Variable, operand
from jitree.regs.layout import SLOW_DONE, SLOW_STOP


def spill_operands(emitter: Emitter, instruction: SsaInstruction) -> set[Variable]:
    """Writes the instruction's registers to the frame: the operands, and the references that it
    overwrites."""
    variables: dict[Variable, Value] = dict(zip(instruction.inputs, instruction.operands, strict=True))
    for variable in instruction.outputs:
        if variable.type == REF:
            variables.setdefault(variable, emitter.registers[variable])
    for variable, value in variables.items():
        emitter.spill(variable, value)
    return set(variables)


def ask(emitter: Emitter, instruction: SsaInstruction, written: set[Variable], record: str = "null") -> None:
    """Has the plain handler execute the instruction, whose registers are ``written`` to the frame; leaves if
    that does not end well, or Python is not to be asked. ``record`` is that of the import which is called."""
    if not emitter.asks:
        refused = emitter.fresh("refused")
        emitter.side_exit_block(refused, instruction, emitter.registers, emitter.fuel_left, written)
        emitter.jump(refused)
        emitter.label(emitter.fresh("never"))
        return
    status = emitter.let(
        "call fastcc i64 @vm.slow(ptr %state, ptr %frame, ptr %values, ptr %refs, "
        f"i64 {emitter.function.record}, i64 {instruction.pc}, ptr {record})"
    )
    stopped, done = emitter.fresh("stopped"), emitter.fresh("asked")
    emitter.branch(emitter.let(f"icmp eq i64 {status}, {SLOW_DONE}"), done, stopped)

    def fuel() -> str:
        is_stopped = emitter.let(f"icmp eq i64 {status}, {SLOW_STOP}")
        return emitter.let(f"select i1 {is_stopped}, i64 0, i64 {emitter.fuel_left()}")

    emitter.side_exit_block(stopped, instruction, emitter.registers, fuel, written)
    emitter.label(done)
    emitter.spend_import()


def emit_slow(emitter: Emitter, instruction: SsaInstruction) -> None:
    """The whole instruction by its plain handler."""
    ask(emitter, instruction, spill_operands(emitter, instruction))
    read_back(emitter, instruction)


def read_back(emitter: Emitter, instruction: SsaInstruction) -> None:
    """Defines what the instruction changed from the frame."""
    for variable, value in instruction.changes:
        emitter.define(value, emitter.load(variable))


class Shortcut:
    """Handles an instruction's common case. The plain handler does others."""

    def __init__(self, emitter: Emitter, instruction: SsaInstruction) -> None:
        self._emitter = emitter
        self._instruction = instruction
        self._slow = emitter.fresh("slow") if emitter.asks else emitter.side_exit()

    def require(self, condition: str) -> None:
        """Goes the slow way unless the condition (i1) holds."""
        emitter = self._emitter
        if not emitter.is_new(condition):
            return
        going_on = emitter.fresh("quick")
        emitter.branch(emitter.let(f"xor i1 {condition}, true"), self._slow, going_on, UNLIKELY)
        emitter.go_on(going_on)

    def finish(self, result: str | None) -> None:
        """Ends the quick way, which has dropped what the instruction overwrites; ``result`` is the value of
        the instruction's only result, if it has one."""
        emitter, instruction = self._emitter, self._instruction
        if not emitter.asks:
            if result is not None:
                emitter.name(instruction.results[0], result)
            return
        ways = [(result, emitter.current_label)]
        joined = emitter.fresh("joined")
        emitter.jump(joined)
        with emitter.aside(self._slow):
            ask(emitter, instruction, spill_operands(emitter, instruction))
            if result is not None:
                ways.append((emitter.let(emitter.load(instruction.outputs[0])), emitter.current_label))
            emitter.jump(joined)
        emitter.label(joined)
        if result is not None:
            value = instruction.results[0]
            edges = ", ".join(f"[ {came}, %{label} ]" for came, label in ways)
            emitter.define(value, f"phi {LLVM_TYPES[value.type]} {edges}")


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
    **_emitters(REFERENCE_STATEMENTS, CompiledSite),
    **_emitters(MEMORY_STATEMENTS, CompiledSite),
    **_emitters(LIST_STATEMENTS, QuickSite),
}
