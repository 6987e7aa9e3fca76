"""Has arithmetic fail that would wrap around in sizes of memory.

A kernel gets the extents of its tensors one by one, and memory for their product. If that product has
wrapped around, the memory is too small, and no check of the memory can tell. So what flows into 64-bit
arguments of the HAL (lengths, offsets, extents) and into numbers of workgroups is followed backwards through
the module and its globals. The additions, multiplications and so on that are found there become instructions
which fail where the exact result does not fit.

What makes a number of arbitrary bits is not followed: remainders, masks, switches, the upper half of a
number, as hashes take it, and 32 bits that are extended without a sign, as the compiler extends sizes with
one. Programs let such bits wrap on purpose; a view of memory that is too small for it is refused. Before a
``select`` only products are exact, since a sum may be the one that is not chosen: programs add lengths to
2**63 - 1, which stands for the end, and then choose.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from jitree.base.cancel_scopes import require_going_on
from jitree.base.memory import once
from jitree.vmfb.opcode_table import RESULT_SLOTS
from jitree.vmfb.program import DecodedFunction, DecodedModule
from jitree.vmfb.schema import ModuleTables
from jitree.vmfb.words import BASE_OPCODE, EXACT, OPCODE, SUMS, TAG_VALUE32, TAG_VALUE64, TRUNCATION

if TYPE_CHECKING:
    import numpy.typing as npt

    from jitree.vmfb.cconv import RegisterSlot
    from jitree.vmfb.schema import ModuleTables


_WITH_MOVES: Final = {OPCODE[name] for name in ("br", "yield", "break")}
_BARE, _FAIL, _TABLE = OPCODE["br.bare"], OPCODE["fail"], OPCODE["br_table"]
_CONDITIONS: Final = {OPCODE["cond_br"], OPCODE["cond_break"]}
_EXITS: Final = {*_WITH_MOVES, *_CONDITIONS, _BARE, _FAIL, _TABLE, OPCODE["return"]}
_MOST_PARTS: Final = 4
"""Instructions of a superinstruction."""


class WordBlock:
    """A block. Opcode words are those of single instructions; the branch that an edge with moves goes through
    is a block too."""

    __slots__ = ("exit", "moves", "offset", "place", "starts", "targets", "words")

    def __init__(self, words: list[int], place: int, offset: int, starts: list[int]) -> None:
        self.place = place
        """Index of its first word in the program."""
        self.offset = offset
        """Words from the start of the function to the block."""
        self.starts = starts[:-1]
        """Where each instruction but the last begins in ``words``."""
        self.words = words[: starts[-1]]
        self.exit = words[starts[-1] :]
        """The words of the last instruction."""
        opcode = self.exit[0]
        self.moves = self.exit[3 : 3 + 3 * self.exit[2]] if opcode in _WITH_MOVES else []
        """Moves of its only edge: (tag, source, destination) each."""
        exit_word = offset + starts[-1]
        self.targets = [exit_word + displacement for displacement in _displacements(self.exit)]
        """Offsets of the blocks that its edges lead to."""


def _displacements(words: list[int]) -> list[int]:
    opcode = words[0]
    if opcode in _CONDITIONS:
        return words[2:4]
    if opcode == _TABLE:
        return [words[2], *words[4 : 4 + words[3]]]
    if opcode == _FAIL:
        return [words[3]] if words[3] else []
    return [words[1]] if opcode == _BARE or opcode in _WITH_MOVES else []


def blocks_of(program: DecodedModule, function: DecodedFunction) -> list[WordBlock]:
    """The blocks of a function, in the order of their words; the first one is the entry."""
    ends = np.array((function.start, function.end), np.int32)  # of the same type: nothing is copied
    first, end = np.searchsorted(np.asarray(program.instruction_words), ends).tolist()
    positions = program.instruction_words[first:end].tolist()
    words = program.words[function.start : function.end].tolist()
    blocks: list[WordBlock] = []
    starts: list[int] = []
    begin = 0
    for position, following in zip(positions, [*positions[1:], function.end], strict=True):
        at = position - function.start
        words[at] = BASE_OPCODE[words[at]]
        starts.append(at - begin)
        if words[at] in _EXITS:
            after = following - function.start
            blocks.append(WordBlock(words[begin:after], function.start + begin, begin, starts))
            begin, starts = after, []
    return blocks


def replace(program: DecodedModule, block: WordBlock, number: int, opcode: int) -> None:
    """Makes an instruction of a program another one; superinstructions that it is part of are no more."""
    for start in block.starts[max(number - _MOST_PARTS, 0) : number]:
        program.words[block.place + start] = BASE_OPCODE[program.words[block.place + start]]
    program.words[block.place + block.starts[number]] = opcode


_FIRST_COUNT: Final = {
    "hal.command_buffer.dispatch": 3,
    "hal.command_buffer.dispatch2": 3,
    "hal_loader.executable.dispatch": 2,
}
"""Argument that is the first of three numbers of workgroups."""
_SELECTS: Final = {OPCODE["select.i32"], OPCODE["select.i64"]}
_SHIFTS: Final = {opcode for name, opcode in OPCODE.items() if name.startswith(("shl.", "shr."))}
_AND: Final = OPCODE["and.i64"]
_CONSTANT, _ZEROS = OPCODE["const.i64"], (OPCODE["const.i64.zero"], OPCODE["const.i32.zero"])
_CONSTANT_32: Final = OPCODE["const.i32"]
_HALVES: Final = {OPCODE["shr.i32.u"]: 16, OPCODE["shr.i64.u"]: 32}
"""Bits; a shift by so many or more leaves nothing but bits of the upper half."""
_FOLLOWED: Final = {
    OPCODE[f"{name}.{kind}.{sign}"]
    for name in ("div", "shr", "min", "max") for kind in ("i32", "i64") for sign in ("s", "u")
} | {OPCODE["ext.i32.i64.s"], _AND, *_SELECTS, *EXACT, *EXACT.values()}  # fmt: skip
"""Instructions whose operands decide on a size if their result does."""
_INTERNAL, _IMPORT, _RETURN = OPCODE["call.internal"], OPCODE["call.import"], OPCODE["return"]
_LOADS, _STORES = ({OPCODE[f"global.{name}.{kind}"] for kind in ("i32", "i64")} for name in ("load", "store"))
_VALUES: Final = (TAG_VALUE32, TAG_VALUE64)
_COMPUTE: Final = {_INTERNAL, *EXACT, *_LOADS}

_PRODUCTS, _SUMS_TOO, _COUNT = range(3)
"""What has to be exact of what decides on a size; of a number of workgroups the truncation to 32 bits too."""
Sized = dict[int, int]
"""Registers (value slots; of pairs the lower ones) that decide on a size, and what has to be exact."""
Position = tuple[WordBlock, int]
"""A block, and the instruction of it that comes next, counted in ``starts``."""


def check_sizes(module: ModuleTables, program: DecodedModule) -> None:
    """Replaces the opcode words of all arithmetic that decides on a size."""
    sinks = {
        ordinal: _FIRST_COUNT.get(row.full_name)
        for ordinal, row in enumerate(module.imports)
        if row.may_take_sizes
    }
    _Flow(program, sinks).run()


class _Flow:
    """What flows into sizes."""

    def __init__(self, program: DecodedModule, sinks: dict[int, int | None]) -> None:
        self._program = program
        self._blocks: dict[int, list[WordBlock]] = {}
        self._before_each: dict[int, dict[int, list[WordBlock]]] = {}
        """By function and block, those whose edges lead there, once for each edge."""
        self._sinks = sinks
        """By ordinal of an import of which arguments are sizes, its first number of workgroups."""
        self._at_start: list[dict[int, Sized]] = [{} for _ in program.functions]
        """By function and block: what decides on a size from the start of the block on."""
        self._results: list[Sized] = [{} for _ in program.functions]
        """By function, those of its results, by number, that callers make sizes of."""
        self._callers: list[set[int]] = [set() for _ in program.functions]
        self._globals: dict[int, int] = {}
        """By place, what has to be exact of globals that sizes are made of."""
        self._waiting = _having(program, _COMPUTE)
        self._seen: set[int] = set()

    def run(self) -> None:
        while self._waiting:
            ordinal = self._waiting.pop()
            self._seen.add(ordinal)
            before = self._arguments(ordinal)
            self._follow(ordinal)
            if self._arguments(ordinal) != before:
                self._waiting |= self._callers[ordinal]

    def _follow(self, ordinal: int) -> None:
        """Looks at a function's blocks from the last, again where changed. How often that is may grow with
        the square of their number: a deadline ends it."""
        blocks, known = self._blocks_of(ordinal), self._at_start[ordinal]
        before = self._before_each[ordinal]
        waiting = dict.fromkeys(blocks)
        while waiting:
            require_going_on()
            block, _ = waiting.popitem()
            sized = self._before(ordinal, block)
            if sized != known.get(block.offset, {}):
                known[block.offset] = sized
                waiting |= dict.fromkeys(before[block.offset])

    def _blocks_of(self, ordinal: int) -> list[WordBlock]:
        found = self._blocks.get(ordinal)
        if found is None:
            found = self._blocks[ordinal] = blocks_of(self._program, self._program.functions[ordinal])
            before = self._before_each[ordinal] = {block.offset: list[WordBlock]() for block in found}
            for block in found:
                for target in block.targets:
                    before[target].append(block)
        return found

    def _arguments(self, ordinal: int) -> Sized:
        """Registers at the entry of a function that decide on a size."""
        return self._at_start[ordinal].get(0, {})

    def _before(self, ordinal: int, block: WordBlock) -> Sized:
        words, end = block.words, len(block.words)
        sized = self._after(ordinal, block)
        for number in reversed(range(len(block.starts))):
            start = block.starts[number]
            opcode = words[start]
            if width := RESULT_SLOTS[opcode]:
                register = words[end - 1]
                if width == 2:
                    sized.pop(register + 1, None)
                if (extent := sized.pop(register, None)) is None:
                    pass
                elif opcode in _FOLLOWED:
                    self._operands(ordinal, (block, number), words[start + 1 : end - 1], extent, sized)
                elif opcode in _LOADS:
                    self._load(words[start + 1], extent)
            elif opcode in _STORES and words[start + 1] in self._globals:
                _add(sized, [words[start + 2]], self._globals[words[start + 1]])
            elif opcode == _IMPORT:
                self._import(words[start:end], sized)
            elif opcode == _INTERNAL:
                self._call(ordinal, words[start:end], sized)
            end = start
        return sized

    def _after(self, ordinal: int, block: WordBlock) -> Sized:
        """What decides on a size in front of the exit of a block."""
        words = block.exit
        sized: Sized = {}
        if words[0] == _RETURN:
            return {words[3 + 2 * number]: extent for number, extent in self._results[ordinal].items()}
        for target in block.targets:
            extents = dict(self._at_start[ordinal].get(target, {}))
            for source, destination in reversed(_moves(block)):
                if (extent := extents.pop(destination, None)) is not None:
                    _add(extents, [source], extent)
            for register, extent in extents.items():
                _add(sized, [register], extent)
        return sized

    def _operands(
        self, ordinal: int, position: Position, operands: Sequence[int], extent: int, sized: Sized
    ) -> None:
        """Adds operands of an instruction that decides on a size. It makes the instruction exact."""
        block, number = position
        words, start = block.words, block.starts[number]
        opcode = words[start]
        if opcode in _SELECTS:
            operands = operands[1:]  # without the condition
        elif opcode in _SHIFTS:
            operands = operands[:1]  # without the number of bits
        if opcode == TRUNCATION and extent != _COUNT:
            return
        if opcode in _HALVES and self._leaves_upper_half(ordinal, position):
            return
        if opcode == _AND and any(self._is_mask(ordinal, position, operand) for operand in operands):
            return
        if extent != _PRODUCTS or opcode not in SUMS:
            words[start] = EXACT.get(opcode, opcode)
            if words[start] != opcode:
                replace(self._program, block, number, words[start])
        _add(sized, operands, _PRODUCTS if opcode in _SELECTS else min(extent, _SUMS_TOO))

    def _load(self, place: int, extent: int) -> None:
        """A size is made of a global: whatever is stored there has to be exact."""
        if self._globals.get(place, -1) < extent:
            self._globals[place] = extent
            self._waiting |= _having(self._program, _STORES)

    def _import(self, words: Sequence[int], sized: Sized) -> None:
        ordinal, count = words[3:5]
        if not sized and ordinal not in self._sinks:
            return
        pairs = _pairs(words[6:])
        _drop(sized, pairs[count:])
        if ordinal in self._sinks:
            for tag, register in pairs[:count]:
                if tag == TAG_VALUE64:
                    sized[register] = _SUMS_TOO
            if (first := self._sinks[ordinal]) is not None:
                sized.update((register, _COUNT) for _, register in pairs[first : first + 3])

    def _call(self, ordinal: int, words: Sequence[int], sized: Sized) -> None:
        callee, count = words[2:4]
        arguments, results = words[5 : 5 + 3 * count], words[5 + 3 * count :]
        known = dict(self._results[callee])
        for number, (tag, register) in enumerate(_pairs(results)):
            if tag in _VALUES and register in sized:
                _add(self._results[callee], [number], sized[register])
        if self._results[callee] != known or callee not in self._seen:
            self._waiting.add(callee)
        self._callers[callee].add(ordinal)
        _drop(sized, _pairs(results))
        for source, slot in _value_moves(arguments):
            if slot in self._arguments(callee):
                _add(sized, [source], self._arguments(callee)[slot])

    def _leaves_upper_half(self, ordinal: int, position: Position) -> bool:
        """Whether a right shift drops half of the bits, however reached."""
        block, number = position
        start = block.starts[number]
        amounts = self._constants(ordinal, position, block.words[start + 2])
        half = _HALVES[block.words[start]]
        return all(amount is not None and amount % (2 * half) >= half for amount in amounts)

    def _is_mask(self, ordinal: int, position: Position, register: int) -> bool:
        """Whether a register's constant clears more than the lowest bits. Rounding clears those alone."""
        values = list(self._constants(ordinal, position, register))
        return all(value is not None and (value >= 0 or value & -value != -value) for value in values)

    def _constants(self, ordinal: int, position: Position, register: int) -> Iterator[int | None]:
        """What a register may hold in front of an instruction; None for what is no constant."""
        blocks, before = self._blocks_of(ordinal), self._before_each[ordinal]
        waiting, seen = [position], set()
        require_going_on()
        while waiting:
            block, number = waiting.pop()
            writer = _last_writer(block, number, register)
            if writer is not None:
                yield _constant(block.words[writer:])
                continue
            if block is blocks[0]:
                yield None
            for other in before[block.offset]:
                if register in dict(_moves(other)).values():
                    yield None
                elif other.offset not in seen:
                    seen.add(other.offset)
                    waiting.append((other, len(other.starts)))


@once
def _base_opcodes() -> npt.NDArray[np.int64]:
    return np.array(BASE_OPCODE, np.int64)


def _having(program: DecodedModule, opcodes: set[int]) -> set[int]:
    """Functions that have one of the instructions."""
    positions = np.array(program.instruction_words)
    wanted = np.zeros(len(OPCODE), np.bool_)
    wanted[[*opcodes]] = True
    found = positions[wanted[_base_opcodes()[program.words[positions]]]]
    starts = [function.start for function in program.functions]
    return set((np.searchsorted(starts, found, "right") - 1).tolist())


def _add(sized: Sized, registers: Iterable[int], extent: int) -> None:
    for register in registers:
        sized[register] = max(extent, sized.get(register, _PRODUCTS))


def _drop(sized: Sized, results: Iterable[RegisterSlot]) -> None:
    """Takes the results of a call away."""
    for tag, register in results:
        if tag in _VALUES:
            sized.pop(register, None)
        if tag == TAG_VALUE64:
            sized.pop(register + 1, None)


def _pairs(words: Sequence[int]) -> list[RegisterSlot]:
    """(tag, register) of each argument of an import, or result."""
    return list(zip(words[::2], words[1::2], strict=True))


def _moves(block: WordBlock) -> list[tuple[int, int]]:
    """(source, destination) of each value that moves at the end of a block."""
    return _value_moves(block.moves)


def _value_moves(moves: Sequence[int]) -> list[tuple[int, int]]:
    """(source, destination) of each move of a value: refs have registers of the same numbers."""
    triples = zip(moves[::3], moves[1::3], moves[2::3], strict=True)
    return [(source, destination) for tag, source, destination in triples if tag in _VALUES]


def _last_writer(block: WordBlock, number: int, register: int) -> int | None:
    """Finds the last instruction before a place that writes a register."""
    words, starts = block.words, block.starts
    ends = [*starts[1:], len(words)]
    for start, end in reversed(list(zip(starts[:number], ends[:number], strict=True))):
        opcode = words[start]
        if opcode == _IMPORT:
            results = words[start + 6 + 2 * words[start + 4] : end]
        elif opcode == _INTERNAL:
            results = words[start + 5 + 3 * words[start + 3] : end]
        else:
            first = words[end - 1]
            results = [word for slot in range(RESULT_SLOTS[opcode]) for word in (TAG_VALUE32, first + slot)]
        if any(tag in _VALUES and slot == register for tag, slot in _pairs(results)):
            return start
    return None


def _constant(words: Sequence[int]) -> int | None:
    if words[0] in _ZEROS:
        return 0
    if words[0] == _CONSTANT_32:
        return words[1] & 0xFFFFFFFF
    return (words[1] & 0xFFFFFFFF) | (words[2] << 32) if words[0] == _CONSTANT else None
