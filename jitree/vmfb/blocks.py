"""A function between bytes and words: basic blocks with their exits.

The walk over the bytes (:mod:`jitree.vmfb.walk`) makes blocks; :class:`CodeLayout` joins them to one run of
words with displacements.
"""

from __future__ import annotations

from collections.abc import Sequence

from jitree.base.records import NamedTuple
from jitree.vmfb.words import OPCODE


class Edge(NamedTuple):
    """A branch out of a block."""

    position: int
    """Where in the exit's words the displacement belongs."""
    target: int
    """Byte offset of the target block's marker."""
    moves: list[int]
    """Words (tag, source, destination) of each move that this edge needs and the exit's words do not carry;
    such an edge goes through a ``br`` stub."""


class Exit:
    """The instruction that ends a block."""

    __slots__ = ("edges", "offset", "words")

    def __init__(self, offset: int, words: list[int], edges: list[Edge]) -> None:
        self.offset = offset
        """Its byte offset."""
        self.words = words
        """Opcode word and operands; displacements are 0 until the layout is known."""
        self.edges = edges


class CodeBlock:
    """A block's instructions but the last, and its exit."""

    __slots__ = ("call_sites", "exit", "offset", "offsets", "starts", "words")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        """Byte offset of the marker."""
        self.words: list[int] = []
        self.starts: list[int] = []
        """Where each instruction begins in ``words``."""
        self.offsets: list[int] = []
        """Byte offset of each instruction."""
        self.call_sites: list[int] = []
        """Position in ``words`` of each import call, in the order of their call sites."""
        self.exit: Exit


class CodeLayout:
    """Words of a module under construction."""

    def __init__(self) -> None:
        self.words: list[int] = []
        self.instruction_words: list[int] = []
        """Word index of each instruction, ascending."""
        self.instruction_offsets: list[int] = []
        """Byte offset of each in its function."""
        self.call_words: list[int] = []
        """Word index of each call site."""

    def add(self, blocks: Sequence[CodeBlock]) -> None:
        """Appends the words of one function. Every edge must lead to one of its blocks."""
        words = self.words
        starts: dict[int, int] = {}
        stubs: dict[int, int] = {}
        branches: list[tuple[int, int, Edge]] = []
        for block in blocks:
            start = len(words)
            starts[block.offset] = start
            words += block.words
            self.instruction_words += [start + position for position in block.starts]
            self.instruction_offsets += block.offsets
            self.call_words += [start + position for position in block.call_sites]
            last = block.exit
            start = len(words)
            words += last.words
            self.instruction_words.append(start)
            self.instruction_offsets.append(last.offset)
            branches += [(start, last.offset, edge) for edge in last.edges]
        for start, offset, edge in branches:
            target = starts[edge.target]
            if edge.moves:
                stub = stubs.setdefault(id(edge.moves), len(words))  # shared where a branch carries the edge
                if stub == len(words):
                    words += branch_words(edge.moves)
                    words[stub + 1] = target - stub
                    self.instruction_words.append(stub)
                    self.instruction_offsets.append(offset)
                target = stub
            words[start + edge.position] = target - start


def branch_words(moves: list[int]) -> list[int]:
    """An unconditional branch that applies the moves; its displacement is word 1."""
    if not moves:
        return [OPCODE["br.bare"], 0]
    return [OPCODE["br"], 0, len(moves) // 3, *moves]
