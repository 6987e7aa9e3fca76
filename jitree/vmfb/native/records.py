"""Declares the records of the machine code of loading.

Fields go by names. Functions here read what the file has.
"""

from __future__ import annotations

from jitree.codegen.primitives import store32
from jitree.codegen.record import MemoryRecord, place_of
from jitree.vmfb.native.layout import (
    BLOCK,
    COLUMN,
    COLUMN_READER,
    CONVENTION,
    DECODER,
    EDGE,
    FIELD,
    FINDING,
    FUNCTION_ROW,
    HALFWORD,
    MOVES,
    NODE,
    PART,
    PLAN,
    TABLES,
    UNSIGNED,
    VERIFIER,
)


class Decoder(MemoryRecord, layout=DECODER):
    tables: Tables


class Tables(MemoryRecord, layout=TABLES):
    pass


class FunctionRowRecord(MemoryRecord, layout=FUNCTION_ROW):
    pass


class Convention(MemoryRecord, layout=CONVENTION):
    pass


class BlockRecord(MemoryRecord, layout=BLOCK):
    pass


class EdgeRecord(MemoryRecord, layout=EDGE):
    moves: Moves


class Moves(MemoryRecord, layout=MOVES):
    pass


class OperandPlan(MemoryRecord, layout=PLAN):
    pass


class Node(MemoryRecord, layout=NODE):
    pass


class FoundPart(MemoryRecord, layout=PART):
    pass


class Halfword(MemoryRecord, layout=HALFWORD):
    pass


class Unsigned(MemoryRecord, layout=UNSIGNED):
    pass


class Verifier(MemoryRecord, layout=VERIFIER):
    tables: Tables


class Finding(MemoryRecord, layout=FINDING):
    pass


class Field(MemoryRecord, layout=FIELD):
    pass


class ColumnReader(MemoryRecord, layout=COLUMN_READER):
    pass


class Column(MemoryRecord, layout=COLUMN):
    pass


ROW_SIZE = FUNCTION_ROW.size
BLOCK_SIZE = BLOCK.size
EDGE_SIZE = EDGE.size


def halfword(address: int) -> int:
    return Halfword(address).value


def unsigned(address: int) -> int:
    return Unsigned(address).value


def row_at(decoder: Decoder, ordinal: int) -> FunctionRowRecord:
    return FunctionRowRecord(decoder.functions + ordinal * ROW_SIZE)


def block_at(decoder: Decoder, number: int) -> BlockRecord:
    """Blocks count from 1."""
    return BlockRecord(decoder.blocks + (number - 1) * BLOCK_SIZE)


def edge_at(decoder: Decoder, index: int) -> EdgeRecord:
    return EdgeRecord(decoder.edges + index * EDGE_SIZE)


def convention_at(decoder: Decoder, place: int) -> Convention:
    return Convention(decoder.conventions + 4 * place)


def entry(decoder: Decoder, offset: int, shift: int) -> int:
    """A halfword of the tables."""
    return halfword(place_of(decoder.tables) + 2 * (offset + shift))


def emit(decoder: Decoder, word: int) -> None:
    """Appends a word to the draft."""
    store32(decoder.next_draft, word)
    decoder.next_draft += 4


def drafted(decoder: Decoder) -> int:
    """Words of the draft."""
    return (decoder.next_draft - decoder.draft) >> 2
