"""Reads decoded words by the layout that ``jitree/vmfb/words.py`` documents, without help of the decoder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jitree.vmfb.instructions import BY_MNEMONIC, Operand
from jitree.vmfb.program import DecodedFunction, DecodedModule
from jitree.vmfb.superinstructions import LOOP_OPCODE
from jitree.vmfb.words import BASE_OPCODE, OPCODE_NAMES

_LOOPS = {opcode: loop for loop, opcode in LOOP_OPCODE.items()}


@dataclass
class Decoded:
    index: int
    name: str
    operands: list[Any]
    end: int
    carried: tuple[str, list[int], int, int] | None = None
    """Comparison that a branch carries: mnemonic, its words, targets if true and if false."""


class _Reader:
    def __init__(self, words: list[int], position: int) -> None:
        self.words = words
        self.start = position
        self.position = position + 1

    def word(self) -> int:
        self.position += 1
        return self.words[self.position - 1]

    def tuples(self, width: int, count: int | None = None) -> list[tuple[int, ...]]:
        count = self.word() if count is None else count
        return [tuple(self.word() for _ in range(width)) for _ in range(count)]

    def target(self) -> int:
        return self.start + self.word()

    def operand(self, operand: Operand) -> Any:
        kind = operand.kind
        if kind == "r.ref" and operand.movable and not operand.output:
            return (self.word(), self.word())
        if kind in ("imm.i64", "imm.f64"):
            return (self.word() & 0xFFFFFFFF | self.word() << 32) % 2**64
        if kind in ("list.ref", "list.any"):
            return self.tuples(2)
        if kind.startswith("list."):
            return [entry for (entry,) in self.tuples(1)]
        if kind == "target":
            return self.target()
        if kind == "remap":
            return self.tuples(3)
        return self.word()


def read_word_instruction(words: list[int], index: int) -> Decoded:
    """The instruction whose opcode word is at an index; branch targets as word indices. Of a
    superinstruction, the first one."""
    reader = _Reader(words, index)
    name = OPCODE_NAMES[BASE_OPCODE[words[index]]]
    operands: list[Any]
    if name == "br.bare":
        operands = [reader.target()]
    elif name == "host.exit":
        operands = []
    elif name == "cond_br" or name == "cond_break":
        operands = [reader.word(), reader.target(), reader.target()]
    elif name == "br_table":
        operands = [reader.word(), reader.target()]
        operands.append([reader.target() for _ in range(reader.word())])
    elif name == "fail":
        operands = [reader.word(), reader.word(), reader.target()]
    elif name == "return":
        operands = [reader.tuples(2)]
    elif name == "call.internal":
        size, function, argument_count, result_count = (reader.word() for _ in range(4))
        operands = [function, reader.tuples(3, argument_count), reader.tuples(2, result_count)]
        assert reader.position == index + size
    elif name == "call.import":
        size, site, ordinal, argument_count, result_count = (reader.word() for _ in range(5))
        operands = [site, ordinal, reader.tuples(2, argument_count), reader.tuples(2, result_count)]
        assert reader.position == index + size
    else:
        operands = [reader.operand(operand) for operand in BY_MNEMONIC[name].operands]
    carried = None
    if words[index] in _LOOPS:
        compare = _LOOPS[words[index]].compare
        registers = [reader.word() for _ in BY_MNEMONIC[compare].operands]
        carried = (compare, registers, reader.target(), reader.target())
    return Decoded(index, name, operands, reader.position, carried)


def read_function(program: DecodedModule, function: DecodedFunction) -> Iterator[Decoded]:
    """Every instruction of a function, branch stubs included."""
    words = program.words.tolist()
    position = function.start
    while position < function.end:
        decoded = read_word_instruction(words, position)
        yield decoded
        position = decoded.end
    assert position == function.end
