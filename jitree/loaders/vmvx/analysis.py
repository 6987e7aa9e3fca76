"""Reads a kernel's bytecode before it runs: its costs, what it may store to.

*Costs* of a workgroup. A reading goes through the bytecode once, from its beginning to its end, with what
registers hold where that is known: constants, the number of the workgroup, what is computed from them, and
the first values of counters. So the bound of a loop is known, but for sizes that the program computes. This
guess decides which kernels are built first, and when calls wait for them; results do not depend on it.

*Stores*: bits say which bindings a kernel may store to; all of them are set where the bytecode does not say
it. Compilers have kernels take their bindings in the first block, by constant numbers. What registers hold is
told by where references come from anywhere in the function, so this does not follow its ways.
"""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from jitree.base.records import NamedTuple
from jitree.dispatch.native.source import VALUE_TYPES, ModuleSource, mnemonics
from jitree.loaders.vmvx.kernels import CHANGE_LISTS, KEEPS
from jitree.vmfb.words import BASE_OPCODE, OPCODE, TAG_VALUE32, TAG_VALUE64, signed

if TYPE_CHECKING:
    from jitree.dispatch.native.reading import ReadBlock, ReadInstruction
    from jitree.vmfb.program import DecodedFunction, DecodedModule


_UNKNOWN_COUNT: Final = 16
"""How often a loop is thought to go round whose bound is not known."""
_MOST_TIMES: Final = 1e15
"""How often an instruction is thought to run, at most: for days. What many loops say is no float."""
_X, _Y, _Z = 3, 4, 5
"""Arguments of a kernel that are the workgroup's number."""

_HALF: Final = 1 << 63
"""Registers hold whole numbers from ``-_HALF`` on, below this."""

Known = dict[int, int]
"""What is known of registers, by the slot."""


def _divided(number: int, divisor: int) -> int | None:
    return number // divisor if divisor else None


def _rest(number: int, divisor: int) -> int | None:
    return number % divisor if divisor else None


_CHOSEN: Final = {"min": min, "max": max}
_ADD: Final = operator.add
_COMPUTED: Final[dict[str, Callable[[int, int], int | None]]] = {
    "add": _ADD,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": _divided,
    "rem": _rest,
}
_OPERATIONS: Final = {
    OPCODE[name]: operation
    for stem, operation in (_COMPUTED | _CHOSEN).items()
    for kind in ("i32", "i64")
    for name in (f"{stem}.{kind}", f"{stem}.{kind}.s", f"{stem}.{kind}.u")
    if name in OPCODE
}
"""By opcode: of two registers."""
_NOTHING, _UNKNOWN, _NUMBER, _COPY, _COMPUTE, _COMPARE, _GO = range(7)
"""What an instruction does to value registers: it writes none, something that is not known, a constant, what
another one holds, what two hold together, how two compare; or it is a branch."""
_WRITES_NONE: Final = (
    "assign", "buffer.alloc", "buffer.c", "buffer.fill", "buffer.store", "call", "cast", "const.ref",
    "discard", "fail", "list.alloc", "list.re", "list.set", "return",
)  # fmt: skip
_CONSTANT_32: Final = OPCODE["const.i32"]
_CONSTANT_64: Final = OPCODE["const.i64"]
_BRANCH: Final = OPCODE["br"]
_CONDITIONAL: Final = OPCODE["cond_br"]
_COPIED: Final = {
    "ext.i32.i64.s": 1, "ext.i32.i64.u": 1, "trunc.i64.i32": 1, "select.i32": 3, "select.i64": 3,
}  # fmt: skip
"""Which operand. Compilers correct quotients and remainders of negative numbers by selections, which no
workgroup has."""
_PLACES: Final = {OPCODE[name]: place for name, place in _COPIED.items()}


def _kind(opcode: int, name: str) -> int:
    if opcode in _OPERATIONS or name in ("fma.i32", "fma.i64"):
        return _COMPUTE
    if name in _COPIED:
        return _COPY
    if name.startswith(("const.i32", "const.i64")):
        return _NUMBER
    if name.startswith(("cmp.lt.i32.", "cmp.lt.i64.")):
        return _COMPARE
    if name in ("br", "br.bare", "cond_br"):
        return _GO
    return _NOTHING if name.endswith(".ref") or name.startswith(_WRITES_NONE) else _UNKNOWN


_KINDS: Final = tuple(map([_kind(opcode, name) for name, opcode in OPCODE.items()].__getitem__, BASE_OPCODE))
"""By opcode word."""


class KernelCosts:
    """Instructions that workgroups of an executable's kernels run."""

    def __init__(self, program: DecodedModule, ordinals: Sequence[int]) -> None:
        """``ordinals``: of the kernels' functions."""
        self._program = program
        self._ordinals = ordinals

    def of_workgroup(self, kernel: int) -> float:
        """Estimates the first one: tiles at the end of a row or column are smaller, most are not.

        To read one takes as long as some kernels.
        """
        return _Reading(self._program, self._program.functions[self._ordinals[kernel]]).cost()


class _Loop(NamedTuple):
    """From its first word to the branch back."""

    first: int
    last: int
    rounds: int
    """How often it goes round."""


class _Around(NamedTuple):
    """The innermost loop around what is looked at, or the function."""

    last: int
    times: float
    """How often its instructions run."""


class _Reading:
    """The way through one function. Word indices count from its first word."""

    def __init__(self, program: DecodedModule, function: DecodedFunction) -> None:
        starts = program.instruction_words
        first, last = bisect_left(starts, function.start), bisect_left(starts, function.end)
        self._starts = [start - function.start for start in starts[first:last]]
        self._words: list[int] = program.words[function.start : function.end].tolist()
        self._known: Known = {function.argument_slots[place][1]: 0 for place in (_X, _Y, _Z)}
        self._compared: dict[int, tuple[int, int]] = {}
        """The registers that a truth in a register compares."""
        self._bounds: dict[int, tuple[int, int | None]] = {}
        """By the place of a conditional branch: the counter that it looks at, and how far that has to go."""
        self._conditions: list[int] = []
        """The places of these branches, in order."""
        self._steps: dict[int, tuple[int, int]] = {}
        """Where a register was last added to, and what."""
        self._loops: list[_Loop] = []

    def cost(self) -> float:
        self._read()
        cost, around = float(len(self._starts)), [_Around(len(self._words), 1.0)]
        for loop in sorted(self._loops, key=lambda loop: (loop.first, -loop.last)):
            while around[-1].last < loop.first:
                around.pop()
            outer = around[-1].times
            times = min(loop.rounds * outer, _MOST_TIMES)
            cost += (times - outer) * self._instructions(loop.first, loop.last)
            around.append(_Around(loop.last, times))
        return cost

    def _read(self) -> None:
        """Goes through the instructions in their order. A call waits for it: most take one step here."""
        words, known = self._words, self._known
        for at, following in pairwise([*self._starts, len(words)]):
            kind = _KINDS[words[at]]
            if kind == _GO:
                self._go(at)
            elif kind != _NOTHING:
                result = words[following - 1]
                value = None if kind == _UNKNOWN else self._value(kind, at, result)
                if value is None:
                    known.pop(result, None)
                else:
                    known[result] = value

    def _value(self, kind: int, at: int, result: int) -> int | None:
        """What an instruction writes, where that is known."""
        if kind == _COMPUTE:
            value = self._computed(at, result)
            return value if value is None or -_HALF <= value < _HALF else signed(value, 64)
        if kind == _NUMBER:
            return self._number(at)
        if kind == _COPY:
            return self._known.get(self._words[at + _PLACES[BASE_OPCODE[self._words[at]]]])
        self._compared[result] = self._words[at + 1], self._words[at + 2]
        return None

    def _number(self, at: int) -> int:
        words, opcode = self._words, BASE_OPCODE[self._words[at]]
        if opcode == _CONSTANT_64:
            return words[at + 1] & 0xFFFFFFFF | words[at + 2] << 32
        return words[at + 1] if opcode == _CONSTANT_32 else 0

    def _computed(self, at: int, result: int) -> int | None:
        words, known = self._words, self._known
        operation, first, second = _OPERATIONS.get(BASE_OPCODE[words[at]]), words[at + 1], words[at + 2]
        one, other = known.get(first), known.get(second)
        if operation is _ADD and result in (first, second):
            step = other if result == first else one
            if step:
                self._steps[result] = at, step
            return one  # the counter of a loop, as it begins
        if one is None or other is None:
            return (other if one is None else one) if operation is min or operation is max else None
        if operation is not None:
            return operation(one, other)
        more = known.get(words[at + 3])
        return None if more is None else one * other + more

    def _go(self, at: int) -> None:
        opcode = BASE_OPCODE[self._words[at]]
        if opcode == _CONDITIONAL:
            self._look(at)
            return
        self._branch(at, at + self._words[at + 1])
        if opcode == _BRANCH:
            self._move(at + 2)

    def _move(self, at: int) -> None:
        """Moves of a branch; those of a branch back leave counters as they were at the beginning."""
        words = self._words
        moved = [
            (words[place + 2], self._known.get(words[place + 1]))
            for place in range(at + 1, at + 1 + 3 * words[at], 3)
        ]
        for destination, value in moved:
            if value is None:
                self._known.pop(destination, None)
            else:
                self._known[destination] = value

    def _branch(self, at: int, target: int) -> None:
        if target <= at:
            self._loops.append(_Loop(target, at, self._rounds(target, at)))

    def _look(self, at: int) -> None:
        """At a conditional branch: one that leaves a loop says how often it goes round."""
        compared = self._compared.get(self._words[at + 1])
        if compared is not None:
            counter, bound = (self._known.get(register) for register in compared)
            length = None if counter is None or bound is None else bound - counter
            self._bounds[at] = compared[0], length
            self._conditions.append(at)
        for displacement in self._words[at + 2 : at + 4]:
            self._branch(at, at + displacement)

    def _rounds(self, first: int, last: int) -> int:
        """How often a loop goes round that ends here: its first condition says it."""
        leaving = bisect_left(self._conditions, first)
        if leaving == len(self._conditions) or self._conditions[leaving] > last:
            return _UNKNOWN_COUNT
        counter, length = self._bounds[self._conditions[leaving]]
        if length is None:
            return _UNKNOWN_COUNT
        place, step = self._steps.get(counter, (0, 1))
        return max(-(-length // abs(step if place >= first else 1)), 1)

    def _instructions(self, first: int, last: int) -> int:
        """How many there are from one word to another."""
        return bisect_left(self._starts, last + 1) - bisect_left(self._starts, first)


_REF: Final = VALUE_TYPES["r"]
ALL: Final = -1
_NONE: Final = 0
_MOST: Final = 64
_OWN_MEMORY: Final = ("buffer.alloc", "buffer.clone", "const.ref.zero")
"""Instructions whose result is memory of the kernel, or none. Constants of its module are no bindings."""
_STORES: Final = ("buffer.store", "buffer.fill", "buffer.copy", "call")
"""Beginnings of mnemonics of what changes memory; that of any buffer among the operands, to be brief."""
_WIDE: Final = ("i64", "f64")
_NUMBERS: Final = ("const.i32", "const.i32.zero")
_LIST, _EITHER, _OTHER = range(3)
"""What the register of the bindings holds: their list as it was given, that is not known, something else."""
_LOCAL, _CONSTANTS, _BINDINGS = range(3)
"""References among the arguments of a kernel, in their order."""


def stored_bindings(source: ModuleSource, ordinal: int) -> int:
    """Gives a bit for each binding that a kernel may store to. The kernel is a function of the module."""
    from jitree.dispatch.native.reading import read_blocks  # what kernels cost is told without it

    return stored_in(source, ordinal, read_blocks(source, source.functions[ordinal], ()))


def stored_in(source: ModuleSource, ordinal: int, blocks: Mapping[int, ReadBlock]) -> int:
    """As :func:`stored_bindings`, of a kernel that has been read."""
    function = source.functions[ordinal]
    references = [register for kind, register in function.arguments if kind == _REF]
    list_register = references[_BINDINGS]
    held = dict.fromkeys((references[_LOCAL], references[_CONSTANTS], list_register), _NONE)
    keeps = not KEEPS.isdisjoint(mnemonics(source))
    changed = set[int]()
    for block, holds in _with_lists(blocks, function.start, list_register):
        numbers: dict[int, int] = {}  # by slot
        for instruction in block.instructions:
            if instruction.mnemonic.startswith(_STORES):
                given = {variable.slot for variable in instruction.inputs if variable.type == _REF}
                if list_register in given and holds != _OTHER:
                    return ALL
                changed |= given
            if keeps and instruction.mnemonic == "call.internal":  # which finds bindings in globals
                return ALL
            _hold(instruction, list_register if holds == _LIST else None, held, numbers)
            if list_register in _written(instruction):
                holds = _OTHER
    stored = _NONE
    for register in changed:
        stored |= held.get(register, ALL)
    return stored


def _with_lists(
    blocks: Mapping[int, ReadBlock], start: int, register: int
) -> Iterator[tuple[ReadBlock, int]]:
    """Blocks, and what the register of the bindings holds where they begin.

    Compilers use it again for something else in the first block, once they have taken all bindings.
    """
    instructions = [(pc, instruction) for pc, block in blocks.items() for instruction in block.instructions]
    changing = {pc for pc, instruction in instructions if register in _written(instruction)}
    is_start_only = sum(start in block.targets for block in blocks.values()) == 1
    first = _LIST if is_start_only or not changing else _EITHER
    if any(instruction.mnemonic.startswith(CHANGE_LISTS) for _, instruction in instructions):
        first = _EITHER
    later = _OTHER if start in changing else _EITHER if changing else first
    for pc, block in blocks.items():
        yield block, first if pc == start else later


def _written(instruction: ReadInstruction) -> set[int]:
    """Registers of references that an instruction writes."""
    written = {output.slot for output in instruction.outputs if output.type == _REF}
    return written | _moved_to(instruction) if instruction.moves else written


def _moved_to(instruction: ReadInstruction) -> set[int]:
    """Registers to which a branch moves references."""
    return {move.destination for move in instruction.moves if move.tag not in (TAG_VALUE32, TAG_VALUE64)}


def _hold(
    instruction: ReadInstruction, bindings: int | None, held: dict[int, int], numbers: dict[int, int]
) -> None:
    """Adds an instruction's results to its registers and its block's numbers."""
    for output in instruction.outputs:
        if output.type == _REF:
            held[output.slot] = held.get(output.slot, _NONE) | _taken(instruction, bindings, numbers)
        else:
            numbers.pop(output.slot, None)
            numbers.pop(output.slot + 1 if output.type in _WIDE else output.slot, None)
    if instruction.mnemonic in _NUMBERS:
        numbers[instruction.outputs[0].slot] = instruction.literals[0] if instruction.literals else 0
    if instruction.moves:
        held.update(dict.fromkeys(_moved_to(instruction), ALL))


def _taken(instruction: ReadInstruction, bindings: int | None, numbers: Mapping[int, int]) -> int:
    """What the result of an instruction may be."""
    if instruction.mnemonic in _OWN_MEMORY:
        return _NONE
    if instruction.mnemonic != "list.get.ref" or instruction.inputs[0].slot != bindings:
        return ALL
    number = numbers.get(instruction.inputs[1].slot, _MOST)
    return 1 << number if 0 <= number < _MOST - 1 else ALL
