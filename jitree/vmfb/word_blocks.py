"""Basic blocks of a decoded function, from its words."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from jitree.vmfb.program import DecodedFunction, DecodedModule
from jitree.vmfb.words import BASE_OPCODE, OPCODE

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
        """In words from the start of the function."""
        self.starts = starts[:-1]
        """Where each instruction but the last begins in ``words``."""
        self.words = words[: starts[-1]]
        self.exit = words[starts[-1] :]
        """The words of the last one."""
        opcode = self.exit[0]
        self.moves = self.exit[3 : 3 + 3 * self.exit[2]] if opcode in _WITH_MOVES else []
        """Of its only edge: (tag, source, destination) each."""
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
    first, end = (bisect_left(program.instruction_words, word) for word in (function.start, function.end))
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
