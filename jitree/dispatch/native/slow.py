"""Instructions that are executed on the registers in memory, by their plain handlers or by other machine
code."""

from __future__ import annotations

from jitree.codegen.ir_text import LLVM_TYPES, UNLIKELY
from jitree.dispatch.native.emitter import Emitter
from jitree.dispatch.native.ssa import REF, SsaInstruction, Value, Variable
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
    """A fast path for the common case of an instruction, and the plain handler for others."""

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
