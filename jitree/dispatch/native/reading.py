"""Decoded words of one function → blocks of instructions over variables (register and type)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from jitree.base.records import NamedTuple
from jitree.dispatch.native.source import FunctionSource, ModuleSource
from jitree.dispatch.native.ssa import ENTRY_PC, REF, RESUME, Variable
from jitree.vmfb.isa import BY_MNEMONIC, Operand
from jitree.vmfb.words import BASE_OPCODE, OPCODE_NAMES, TAG_REF_MOVE, TAG_VALUE32, TAG_VALUE64


class Move(NamedTuple):
    """One entry of a remap list."""

    tag: int
    source: int
    destination: int


@dataclass(slots=True)
class ReadInstruction:
    """An instruction as read. Of a movable ref input ``moved`` says whether the register gives it up."""

    pc: int
    mnemonic: str
    inputs: list[Variable] = field(default_factory=list)
    moved: list[bool] = field(default_factory=list)
    """Whether each input gives up its register."""
    literals: list[int] = field(default_factory=list)
    outputs: list[Variable] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    """Word indices; of terminators only."""
    moves: list[Move] = field(default_factory=list)

    def add(self, variable: Variable, moved: bool = False) -> None:
        self.inputs.append(variable)
        self.moved.append(moved)


@dataclass(slots=True)
class ReadBlock:
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
    entry = ReadInstruction(
        ENTRY_PC, RESUME if places else "br.bare", targets=list(places) or [function.start]
    )
    entry.literals = list(places)
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
                read.outputs.append(Variable(kind, words[at]))
            elif kind == REF and operand.movable:
                read.add(Variable(REF, words[at]), words[at + 1] == 1)
                at += 1
            else:
                read.add(Variable(kind, words[at]))
            at += 1

    # -- instructions with operands of variable number -------------------------------------------------

    def branch(self, read: ReadInstruction, at: int) -> None:
        read.targets = [read.pc + self._words[at]]
        if read.mnemonic != "br.bare":
            words = self._words
            first, count = at + 2, words[at + 1]
            read.moves = [Move(*words[w : w + 3]) for w in range(first, first + 3 * count, 3)]

    def conditional(self, read: ReadInstruction, at: int) -> None:
        read.add(Variable("i32", self._words[at]))
        read.targets = [read.pc + self._words[at + 1], read.pc + self._words[at + 2]]

    def table(self, read: ReadInstruction, at: int) -> None:
        words = self._words
        read.add(Variable("i32", words[at]))
        cases = words[at + 3 : at + 3 + words[at + 2]]
        read.targets = [read.pc + distance for distance in (words[at + 1], *cases)]

    def fail(self, read: ReadInstruction, at: int) -> None:
        read.add(Variable("i32", self._words[at]))
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
            read.add(Variable(kind, register), tag == TAG_REF_MOVE)
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
                read.add(Variable(REF, words[first + 1]), words[first] == TAG_REF_MOVE)

    def discard(self, read: ReadInstruction, at: int) -> None:
        words = self._words
        for first in range(at + 1, at + 1 + 2 * words[at], 2):
            read.add(Variable(REF, words[first]), words[first + 1] == 1)

    def switch(self, read: ReadInstruction, at: int) -> None:
        """index, default, count, cases, result"""
        words = self._words
        kind = read.mnemonic.removeprefix("switch.")
        read.add(Variable("i32", words[at]))
        for register in (words[at + 1], *words[at + 3 : at + 3 + words[at + 2]]):
            read.add(Variable(kind, register))
        read.outputs = [Variable(kind, words[at + 3 + words[at + 2]])]

    def switch_ref(self, read: ReadInstruction, at: int) -> None:
        """index, type, (default, move), count, (case, move) each, result"""
        words = self._words
        read.add(Variable("i32", words[at]))
        read.literals = [words[at + 1]]
        count = words[at + 4]
        for first in (at + 2, *range(at + 5, at + 5 + 2 * count, 2)):
            read.add(Variable(REF, words[first]), words[first + 1] == 1)
        read.outputs = [Variable(REF, words[at + 5 + 2 * count])]

    def _tagged(self, read: ReadInstruction, first: int, kinds: Sequence[str]) -> None:
        for number, kind in enumerate(kinds):
            tag, register = self._words[first + 2 * number : first + 2 * number + 2]
            read.add(Variable(kind, register), tag == TAG_REF_MOVE)

    def _outputs(self, read: ReadInstruction, first: int, kinds: Sequence[str]) -> None:
        read.outputs = [
            Variable(kind, self._words[first + 2 * number + 1]) for number, kind in enumerate(kinds)
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
    """Destination → source of every view that net moves copy, all read before any is written."""
    found: dict[Variable, Variable] = {}
    for tag, source, destination in net_moves(moves):
        slots: tuple[tuple[int, int], ...] = ((source, destination),)
        if tag == TAG_VALUE64:
            slots = ((source, destination), (source + 1, destination + 1))
            for kind in ("i64", "f64"):
                found[Variable(kind, destination)] = Variable(kind, source)
        for one, other in slots:
            for kind in ("i32", "f32"):
                found[Variable(kind, other)] = Variable(kind, one)
    return found
