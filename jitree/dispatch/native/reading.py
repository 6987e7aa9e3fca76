"""Reads a function's words as blocks of instructions over typed variables. A variable is a register and a
type.

Which values an instruction reads, writes, retains and drops follows the order in which the other tiers read
and write registers, which matters where one instruction names a register twice.

A kernel's caller keeps the arguments, the lists among them keep what is read from them, and the module keeps
its constants. A kernel changes no list, and nothing else changes the lists that it is given while it runs. A
side exit counts the references that it writes to the frame: from there on registers own them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final

from jitree.base.records import NamedTuple
from jitree.dispatch.native.source import FunctionSource, ModuleSource
from jitree.dispatch.native.ssa import ENTRY_PC, REF, RESUME, SsaFunction, Value, Variable, variable_of
from jitree.vmfb.instructions import BY_MNEMONIC, Operand
from jitree.vmfb.words import BASE_OPCODE, OPCODE_NAMES, TAG_REF_COPY, TAG_REF_MOVE, TAG_VALUE32, TAG_VALUE64


class Move(NamedTuple):
    """One entry of a remap list."""

    tag: int
    source: int
    destination: int


class ReadInstruction:
    """An instruction as read. Of a movable ref input ``moved`` says whether the register gives it up."""

    __slots__ = ("inputs", "literals", "mnemonic", "moved", "moves", "outputs", "pc", "targets")

    def __init__(
        self, pc: int, mnemonic: str, literals: Sequence[int] = (), targets: Sequence[int] = ()
    ) -> None:
        self.pc = pc
        self.mnemonic = mnemonic
        self.inputs: list[Variable] = []
        self.moved: list[bool] = []
        """Whether each input gives up its register."""
        self.literals = list(literals)
        self.outputs: list[Variable] = []
        self.targets = list(targets)
        """Word indices; of terminators only."""
        self.moves: list[Move] = []

    def add(self, variable: Variable, moved: bool = False) -> None:
        self.inputs.append(variable)
        self.moved.append(moved)


class ReadBlock(NamedTuple):
    """Instructions, of which the last one says where it goes on."""

    pc: int
    instructions: list[ReadInstruction]

    @property
    def targets(self) -> list[int]:
        return self.instructions[-1].targets


TERMINATORS: Final = frozenset(
    ("br", "br.bare", "cond_br", "br_table", "yield", "cond_break", "break", "fail", "return", RESUME)
)


def read_blocks(
    source: ModuleSource, function: FunctionSource, places: Sequence[int]
) -> dict[int, ReadBlock]:
    """Blocks by word index, those reachable from ``places`` (word indices of first instructions; none for the
    function's beginning) and a block ENTRY_PC in front that leads to them."""
    reader = _Reader(source, function)
    starts = source.instruction_words
    low, high = bisect_left(starts, function.start), bisect_left(starts, function.end)
    entry = ReadInstruction(ENTRY_PC, RESUME if places else "br.bare", places, places or [function.start])
    leaders = {function.start, *places}
    reads: dict[int, ReadInstruction] = {}
    for at, following in pairwise([*starts[low:high], function.end]):
        read = reads[at] = reader.read(at)
        if read.mnemonic in TERMINATORS:
            leaders.update(read.targets)
            leaders.add(following)
    order = sorted(reads)
    position = {at: number for number, at in enumerate(order)}
    blocks = {ENTRY_PC: ReadBlock(ENTRY_PC, [entry])}
    waiting = list(entry.targets)
    while waiting:
        pc = waiting.pop()
        if pc in blocks:
            continue
        block = blocks[pc] = ReadBlock(pc, [])
        for at in order[position[pc] :]:
            if at != pc and at in leaders:
                block.instructions.append(ReadInstruction(at, "br.bare", targets=[at]))
                break
            block.instructions.append(reads[at])
            if reads[at].mnemonic in TERMINATORS:
                break
        waiting += block.targets
    return blocks


class _Reader:
    def __init__(self, source: ModuleSource, function: FunctionSource) -> None:
        self._source = source
        self._function = function
        self._words = source.words

    def read(self, pc: int) -> ReadInstruction:
        mnemonic = OPCODE_NAMES[BASE_OPCODE[self._words[pc]]]
        read = ReadInstruction(pc, mnemonic)
        special = _SPECIAL.get(mnemonic)
        if special is not None:
            special(self, read, pc + 1)
        else:
            self._fixed(read, BY_MNEMONIC[mnemonic].operands)
        return read

    def _fixed(self, read: ReadInstruction, operands: Sequence[Operand]) -> None:
        words, at = self._words, read.pc + 1
        for operand in operands:
            prefix, _, kind = operand.kind.partition(".")
            if prefix == "imm":
                if kind.endswith("64"):
                    read.literals.append(words[at] & 0xFFFFFFFF | words[at + 1] << 32)
                    at += 1
                else:
                    read.literals.append(words[at])
            elif operand.output:
                read.outputs.append(variable_of(kind, words[at]))
            else:
                read.inputs.append(variable_of(kind, words[at]))
                is_movable = kind == REF and operand.movable
                read.moved.append(is_movable and words[at + 1] == 1)
                at += is_movable
            at += 1

    # -- instructions with operands of variable number -------------------------------------------------

    def branch(self, read: ReadInstruction, at: int) -> None:
        read.targets = [read.pc + self._words[at]]
        if read.mnemonic != "br.bare":
            words = self._words
            first, count = at + 2, words[at + 1]
            read.moves = [Move(*words[w : w + 3]) for w in range(first, first + 3 * count, 3)]

    def conditional(self, read: ReadInstruction, at: int) -> None:
        read.add(variable_of("i32", self._words[at]))
        read.targets = [read.pc + self._words[at + 1], read.pc + self._words[at + 2]]

    def table(self, read: ReadInstruction, at: int) -> None:
        words = self._words
        read.add(variable_of("i32", words[at]))
        cases = words[at + 3 : at + 3 + words[at + 2]]
        read.targets = [read.pc + distance for distance in (words[at + 1], *cases)]

    def fail(self, read: ReadInstruction, at: int) -> None:
        read.add(variable_of("i32", self._words[at]))
        read.literals = [self._words[at + 1]]
        if self._words[at + 2]:
            read.targets = [read.pc + self._words[at + 2]]

    def return_(self, read: ReadInstruction, at: int) -> None:
        self._tagged(read, at + 1, self._function.results)

    def call_internal(self, read: ReadInstruction, at: int) -> None:
        words = self._words
        callee = self._source.functions[words[at + 1]]
        read.literals = [callee.ordinal]
        first = at + 4
        for number, (kind, _) in enumerate(callee.arguments):
            tag, register, _ = words[first + 3 * number : first + 3 * number + 3]
            read.add(variable_of(kind, register), tag == TAG_REF_MOVE)
        first += 3 * len(callee.arguments)
        self._outputs(read, first, callee.results)

    def call_import(self, read: ReadInstruction, at: int) -> None:
        words = self._words
        site = self._source.sites[words[at + 1]]
        read.literals = [words[at + 1], words[at + 2]]
        first = at + 5
        self._tagged(read, first, site.arguments)
        self._outputs(read, first + 2 * len(site.arguments), site.results)

    def message(self, read: ReadInstruction, at: int) -> None:
        """``trace`` and ``print`` only drop the references that they are given."""
        words = self._words
        for first in range(at + 2, at + 2 + 2 * words[at + 1], 2):
            if words[first] not in (TAG_VALUE32, TAG_VALUE64):
                read.add(variable_of(REF, words[first + 1]), words[first] == TAG_REF_MOVE)

    def discard(self, read: ReadInstruction, at: int) -> None:
        words = self._words
        for first in range(at + 1, at + 1 + 2 * words[at], 2):
            read.add(variable_of(REF, words[first]), True)

    def switch(self, read: ReadInstruction, at: int) -> None:
        """index, default, count, cases, result"""
        words = self._words
        kind = read.mnemonic.removeprefix("switch.")
        read.add(variable_of("i32", words[at]))
        for register in (words[at + 1], *words[at + 3 : at + 3 + words[at + 2]]):
            read.add(variable_of(kind, register))
        read.outputs = [variable_of(kind, words[at + 3 + words[at + 2]])]

    def switch_ref(self, read: ReadInstruction, at: int) -> None:
        """index, type, (default, move), count, (case, move) each, result"""
        words = self._words
        read.add(variable_of("i32", words[at]))
        read.literals = [words[at + 1]]
        count = words[at + 4]
        for first in (at + 2, *range(at + 5, at + 5 + 2 * count, 2)):
            read.add(variable_of(REF, words[first]), words[first + 1] == 1)
        read.outputs = [variable_of(REF, words[at + 5 + 2 * count])]

    def _tagged(self, read: ReadInstruction, first: int, kinds: Sequence[str]) -> None:
        for number, kind in enumerate(kinds):
            tag, register = self._words[first + 2 * number : first + 2 * number + 2]
            read.add(variable_of(kind, register), tag == TAG_REF_MOVE)

    def _outputs(self, read: ReadInstruction, first: int, kinds: Sequence[str]) -> None:
        read.outputs = [
            variable_of(kind, self._words[first + 2 * number + 1]) for number, kind in enumerate(kinds)
        ]


_SPECIAL: Final[dict[str, Callable[[_Reader, ReadInstruction, int], None]]] = {
    "br": _Reader.branch,
    "br.bare": _Reader.branch,
    "break": _Reader.branch,
    "yield": _Reader.branch,
    "cond_br": _Reader.conditional,
    "cond_break": _Reader.conditional,
    "br_table": _Reader.table,
    "fail": _Reader.fail,
    "return": _Reader.return_,
    "call.internal": _Reader.call_internal,
    "call.import": _Reader.call_import,
    "trace": _Reader.message,
    "print": _Reader.message,
    "discard.refs": _Reader.discard,
    "switch.i32": _Reader.switch,
    "switch.i64": _Reader.switch,
    "switch.f32": _Reader.switch,
    "switch.f64": _Reader.switch,
    "switch.ref": _Reader.switch_ref,
}


def net_moves(moves: Sequence[Move]) -> list[Move]:
    """What a remap list of values comes to when it is applied at once: moves of pairs wherever both halves
    of a pair come from a pair, else of single slots; refs are left out."""
    net: dict[int, int] = {}
    for tag, source, destination in moves:
        if tag == TAG_VALUE32:
            net[destination] = net.get(source, source)
        elif tag == TAG_VALUE64:
            low, high = net.get(source, source), net.get(source + 1, source + 1)
            net[destination], net[destination + 1] = low, high
    found = []
    for destination, source in sorted(net.items()):
        low = destination & ~1
        if low in net and low + 1 in net and net[low] & 1 == 0 and net[low] + 1 == net[low + 1]:
            if destination == low and source != low:
                found.append(Move(TAG_VALUE64, source, low))
        elif source != destination:
            found.append(Move(TAG_VALUE32, source, destination))
    return found


def copies(moves: Sequence[Move]) -> dict[Variable, Variable]:
    """Maps destinations to sources of views copied, all read first. Only moves that change something
    count."""
    found: dict[Variable, Variable] = {}
    for tag, source, destination in net_moves(moves):
        slots: tuple[tuple[int, int], ...] = ((source, destination),)
        if tag == TAG_VALUE64:
            slots = ((source, destination), (source + 1, destination + 1))
            for kind in ("i64", "f64"):
                found[variable_of(kind, destination)] = variable_of(kind, source)
        for one, other in slots:
            for kind in ("i32", "f32"):
                found[variable_of(kind, other)] = variable_of(kind, one)
    return found


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
        null: Value | None = None
        for number, (given, moved) in enumerate(zip(self._read.inputs, self._read.moved, strict=True)):
            value = self._registers[given]
            self.operands.append(value)
            if given.type != REF:
                continue
            if moved:
                null = null or self._null()
                self._set(given, null)
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
