"""Finds what instructions do to registers, and which references need no counting.

Which values an instruction reads, writes, retains and drops follows the order in which the other tiers read
and write registers, which matters where one instruction names a register twice.

A kernel's caller keeps the arguments, the lists among them keep what is read from them, and the module keeps
its constants. A kernel changes no list, and nothing else changes the lists that it is given while it runs. A
side exit counts the references that it writes to the frame: from there on registers own them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from jitree.dispatch.native.reading import Move, ReadInstruction, copies
from jitree.dispatch.native.ssa import REF, SsaFunction, Value, Variable, variable_of
from jitree.vmfb.words import TAG_REF_COPY, TAG_REF_MOVE

Registers = dict[Variable, Value]

SLOW: Final = frozenset((
    "call.import", "buffer.alloc", "buffer.clone", "buffer.hash", "switch.ref",
))  # fmt: skip
"""Instructions that are executed on the registers in memory, by the plain tier's handler or by machine code
of an imported function. Their operands are put there before and all of their registers read back after."""

BINDINGS: Final = 2
"""The argument of a kernel that is the list of its bindings. All of its elements are buffers, which it has
from its worker context (:mod:`jitree.loaders.vmvx.context`)."""
_FROM_OTHERS: Final = ("list.get.ref", "const.ref.rodata")
_OWN: Final = ("buffer.alloc", "const.ref.zero")
_LOOKING: Final = (
    "buffer.load.",
    "buffer.store.",
    "buffer.fill.",
    "buffer.copy",
    "buffer.length",
    "list.size",
)
_FORGETTING: Final = ("br", "br.bare", "return", "discard.refs")


class Step:
    """One instruction, executed on ``registers``."""

    def __init__(
        self,
        read: ReadInstruction,
        registers: Registers,
        new_result: Callable[[str, list[Value]], Value],
        null: Callable[[], Value],
    ) -> None:
        """``new_result(type, operands)`` makes a value."""
        self._read = read
        self._registers = registers
        self._new_result = new_result
        self._null = null
        self.operands: list[Value] = []
        self.results: list[Value] = []
        self.retained: list[Value] = []
        self.dropped: list[Value] = []
        self.changes: Registers = {}

    def run(self) -> None:
        mnemonic = self._read.mnemonic
        if mnemonic in SLOW:
            self._run_slow()
        elif mnemonic == "select.ref":
            self._run_select()
        else:
            self._take_operands()
            self._write_results()
        if mnemonic == "return":
            self._drop_all()
        if self._read.moves:
            self._move()

    def _set(self, variable: Variable, value: Value) -> None:
        self._registers[variable] = value
        self.changes[variable] = value

    def _take_operands(self) -> None:
        mnemonic = self._read.mnemonic
        looked_at = 1 if mnemonic == "list.set.ref" else 0  # the list
        for number, (given, moved) in enumerate(zip(self._read.inputs, self._read.moved, strict=True)):
            value = self._registers[given]
            self.operands.append(value)
            if given.type != REF:
                continue
            if moved:
                self._set(given, self._null())
                if mnemonic in _DROPPING:
                    self.dropped.append(value)
            elif mnemonic in _TAKING and number >= looked_at:
                self.retained.append(value)

    def _write_results(self) -> None:
        for output in self._read.outputs:
            if output.type == REF:
                self.dropped.append(self._registers[output])
            result = self._new_result(output.type, self.operands)
            self.results.append(result)
            self._registers[output] = self.changes[output] = result

    def _run_select(self) -> None:
        """Retains the chosen one and then drops both that have the move flag."""
        self.operands = [self._registers[variable] for variable in self._read.inputs]
        for variable, moved in zip(self._read.inputs, self._read.moved, strict=True):
            if moved:
                self.dropped.append(self._registers[variable])
                self._set(variable, self._null())
        self._write_results()

    def _run_slow(self) -> None:
        """All registers of the instruction are in memory: those moved away are read back too."""
        read = self._read
        self.operands = [self._registers[variable] for variable in read.inputs]
        given = [variable for variable, moved in zip(read.inputs, read.moved, strict=True) if moved]
        for variable in (*read.outputs, *given):
            if variable not in self.changes:
                result = self._new_result(variable.type, self.operands)
                self.results.append(result)
                self._set(variable, result)

    def _drop_all(self) -> None:
        for variable, value in self._registers.items():
            if variable.type == REF:
                self.dropped.append(value)

    def _move(self) -> None:
        for move in self._read.moves:
            if move.tag in (TAG_REF_COPY, TAG_REF_MOVE):
                self._move_ref(move)
        before = dict(self._registers)
        for destination, source in copies(self._read.moves).items():
            if source in before:
                self._set(destination, before[source])

    def _move_ref(self, move: Move) -> None:
        source, destination = variable_of(REF, move.source), variable_of(REF, move.destination)
        if source == destination:
            return
        value = self._registers[source]
        if move.tag == TAG_REF_MOVE:
            self._set(source, self._null())
        else:
            self.retained.append(value)
        self.dropped.append(self._registers[destination])
        self._set(destination, value)


_DROPPING: Final = frozenset(("discard.refs", "trace", "print"))
"""Instructions that drop references which are moved to them."""
_TAKING: Final = frozenset((
    "assign.ref", "cast.any.ref", "global.store.ref", "global.store.indirect.ref", "list.set.ref",
    "call.internal", "return",
))  # fmt: skip
"""Keep references that are given to them: where a register keeps its own they take another count.
Of others, such as comparisons and loads, references are only looked at."""


def borrowed(function: SsaFunction) -> frozenset[Value] | None:
    """The references of a function that its caller or something else keeps; None if the function does more
    with references than to read them from lists, to look at them and to forget them."""
    found = {value for value in function.arguments if value.type == REF}
    for block in function.blocks:
        if any(parameter.type == REF for parameter in block.parameters):
            return None
        for instruction in block.instructions:
            mnemonic = instruction.mnemonic
            references = [
                value for value in (*instruction.operands, *instruction.results) if value.type == REF
            ]
            if mnemonic in _FROM_OTHERS:
                found.update(instruction.results)
            elif references and not mnemonic.startswith(_LOOKING) and mnemonic not in (*_OWN, *_FORGETTING):
                return None
            if instruction.retained:
                return None
    if not all(value.operands[0] in found for value in found if value.operation == "list.get.ref"):
        return None
    return frozenset(found)
