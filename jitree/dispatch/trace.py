"""Prints every instruction that is executed, with the values of its operands. Each is a line on stderr."""

from __future__ import annotations

from functools import cached_property
from typing import Final

from jitree.dispatch.plain.handlers import BY_CODE
from jitree.errors import tell
from jitree.regs.machine import Machine
from jitree.regs.records import FunctionRecord
from jitree.vmfb.disassemble import Disassembler, block_numbers
from jitree.vmfb.instructions import MOVE_BIT, REF_BIT, InstructionRecord, read_instructions
from jitree.vmfb.schema import ModuleTables
from jitree.vmfb.words import BASE_OPCODE, OPCODE, TAG_REF_COPY, TAG_VALUE32

_BRANCHES: Final = frozenset((OPCODE["br"], OPCODE["br.bare"]))
_BRANCH_MNEMONICS: Final = frozenset(("br", "break"))


class TraceEngine:
    """The plain tier, printing as it goes."""

    name = "plain"
    entry: Final = None

    def __init__(self) -> None:
        self._printers: dict[int, _TracePrinter] = {}

    def run(self, machine: Machine) -> None:
        """See :meth:`jitree.dispatch.engine.Engine.run`."""
        pc = following = machine.pc
        try:
            while following >= 0:
                pc = following
                if machine.frame:
                    self._print(machine, pc)
                following = BY_CODE[machine.code[pc]](machine, pc)
        except BaseException:
            machine.pc = pc
            raise

    def _print(self, machine: Machine, pc: int) -> None:
        printer = self._printers.get(machine.function.address)
        if printer is None or printer.function is not machine.function:
            printer = self._printers[machine.function.address] = _TracePrinter(machine.function)
        for line in printer.lines(machine, pc):
            tell(f"{line}\n")


class _TracePrinter:
    """The instructions of one function as text."""

    def __init__(self, function: FunctionRecord) -> None:
        self.function = function
        self._prefix = f"{function.module.module.name}.{function.name}"
        self._disassembler = Disassembler(function.module.module, self._value)
        self._machine: Machine
        self._outputs: set[int] = set()
        self._floats: set[int] = set()

    @cached_property
    def _records(self) -> dict[int, InstructionRecord]:
        module: ModuleTables = self.function.module.module
        row = module.functions[self.function.ordinal]
        records = read_instructions(bytes(module.body(row)), module.bytecode_version[0])
        return {record.offset: record for record in records}

    @cached_property
    def _blocks(self) -> dict[int, int]:
        return block_numbers(list(self._records.values()))

    def lines(self, machine: Machine, pc: int) -> list[str]:
        """What to print in front of the instruction at a word; nothing for the stub of a branch."""
        _, offset = self.function.module.program.location(pc)
        record = self._records[offset]
        mnemonic = record.instruction.mnemonic
        if BASE_OPCODE[machine.code[pc]] in _BRANCHES and mnemonic not in _BRANCH_MNEMONICS:
            return []
        self._machine = machine
        self._outputs = _only_written(record)
        self._floats = _float_registers(record)
        head = f"[{self._prefix}+{offset:08X}]    "
        line = head + self._disassembler.instruction(record, self._blocks).strip()
        marker = self._blocks.get(offset - 1)
        return [line] if marker is None else [f"[{self._prefix}+{offset - 1:08X}]    <block>", line]

    def _value(self, tag: int, ordinal: int) -> str:
        """The value of a register in parentheses; nothing for one that is about to be written."""
        machine = self._machine
        if tag == TAG_REF_COPY:
            written = ordinal | REF_BIT in self._outputs
            return "" if written else f"({_describe(machine, machine.refs[ordinal])})"
        if ordinal in self._outputs:
            return ""
        if tag == TAG_VALUE32:
            return f"({machine.f32[ordinal]:g})" if ordinal in self._floats else f"({machine.i32[ordinal]})"
        pair = ordinal >> 1
        return f"({machine.f64[pair]:g})" if ordinal in self._floats else f"({machine.i64[pair]})"


def _only_written(record: InstructionRecord) -> set[int]:
    """Encoded registers that an instruction writes without reading them."""
    read: set[int] = set()
    written: set[int] = set()
    for operand, value in zip(record.instruction.operands, record.operands, strict=True):
        registers = value if isinstance(value, tuple) else (value,)
        if operand.kind.startswith(("r.", "list.")) and operand.kind != "list.segment":
            (written if operand.output else read).update(register & ~MOVE_BIT for register in registers)
    return written - read


def _float_registers(record: InstructionRecord) -> set[int]:
    """Registers that an instruction uses as floats. In lists of any kind and remaps nothing tells."""
    floats: set[int] = set()
    for operand, value in zip(record.instruction.operands, record.operands, strict=True):
        if operand.kind in ("r.f32", "r.f64", "list.f32", "list.f64"):
            floats.update(value if isinstance(value, tuple) else (value,))
    return floats


def _describe(machine: Machine, handle: int) -> str:
    if not handle:
        return "null"
    table = machine.table
    return f"{table.ref_types.name(table.kind(handle))} #{(handle - table.base) >> 6}"
