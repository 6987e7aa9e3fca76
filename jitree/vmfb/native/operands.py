"""Operands of instructions: each is checked while it becomes words of the draft. Machine code.

Functions take the position of an operand in the body and return the one after it, or REFUSED. What is wrong
is not said: :mod:`jitree.vmfb.refusals` finds it again.
"""

from __future__ import annotations

from jitree.codegen.primitives import load8, store32
from jitree.codegen.record import place_of, size_of
from jitree.vmfb.instructions import IMPORT_BIT, MOVE_BIT, REF_BIT, REF_MASK
from jitree.vmfb.native.layout import (
    KIND_GLOBAL32,
    KIND_GLOBAL64,
    KIND_IMPORT,
    KIND_LIST_ANY,
    KIND_LIST_PAIR,
    KIND_LIST_REF,
    KIND_LITERAL32,
    KIND_LITERAL64,
    KIND_PAIR,
    KIND_REF,
    KIND_REF_GLOBAL,
    KIND_REF_KEPT,
    KIND_REF_MOVABLE,
    KIND_RODATA,
    KIND_STRING,
    KIND_TYPE,
    KIND_VALUE,
    BlockRecord,
    Convention,
    Decoder,
    EdgeRecord,
    FunctionRowRecord,
    Halfword,
    OperandPlan,
    Unsigned,
)
from jitree.vmfb.words import TAG_REF_COPY, TAG_REF_MOVE, TAG_VALUE32

REFUSED = -1
PLAN_SIZE = size_of(OperandPlan)
ROW_SIZE = size_of(FunctionRowRecord)
BLOCK_SIZE = size_of(BlockRecord)
EDGE_SIZE = size_of(EdgeRecord)


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


def read_operands(decoder: Decoder, plan: OperandPlan, at: int) -> int:
    kinds = place_of(plan) + PLAN_SIZE
    end = kinds + 2 * plan.count
    while kinds < end and at >= 0:
        at = read_operand(decoder, halfword(kinds), at)
        kinds += 2
    return at


def read_operand(decoder: Decoder, kind: int, at: int) -> int:
    if kind == KIND_VALUE:
        return read_value(decoder, at, 0)
    if kind == KIND_PAIR:
        return read_value(decoder, at, 1)
    if KIND_REF <= kind <= KIND_REF_MOVABLE:
        return read_ref(decoder, at, kind)
    if kind == KIND_LITERAL32:
        return read_literal(decoder, at, 1)
    if kind == KIND_LITERAL64:
        return read_literal(decoder, at, 2)
    if kind == KIND_STRING:
        return read_string(decoder, at)
    if kind > KIND_STRING:
        return read_list(decoder, at, kind)
    if kind == KIND_GLOBAL32:
        return read_ordinal(decoder, at, decoder.globals_size - 3, 3)
    if kind == KIND_GLOBAL64:
        return read_ordinal(decoder, at, decoder.globals_size - 7, 7)
    if kind == KIND_REF_GLOBAL:
        return read_ordinal(decoder, at, decoder.ref_global_count, 0)
    if kind == KIND_RODATA:
        return read_ordinal(decoder, at, decoder.rodata_count, 0)
    if kind == KIND_TYPE:
        return read_ordinal(decoder, at, decoder.type_count, 0)
    if kind == KIND_IMPORT:
        return read_import(decoder, at)
    return REFUSED


def read_value(decoder: Decoder, at: int, pair: int) -> int:
    """A slot, or an even one of which ``pair`` = 1 more follows."""
    if at + 2 > decoder.length:
        return REFUSED
    slot = halfword(decoder.body + at)
    if slot + pair >= decoder.value_count or slot & pair != 0:
        return REFUSED
    emit(decoder, slot)
    return at + 2


def read_ref(decoder: Decoder, at: int, kind: int) -> int:
    if at + 2 > decoder.length:
        return REFUSED
    operand = halfword(decoder.body + at)
    moves = ((operand & MOVE_BIT) != 0) & (decoder.honours_moves != 0)
    if not is_ref(decoder, operand) or (kind == KIND_REF_KEPT and moves):
        return REFUSED
    emit(decoder, operand & REF_MASK)
    if kind == KIND_REF_MOVABLE:
        emit(decoder, 1 if moves else 0)
    return at + 2


def is_ref(decoder: Decoder, operand: int) -> bool:
    return operand >= REF_BIT and (operand & REF_MASK) < decoder.ref_count


def read_literal(decoder: Decoder, at: int, words: int) -> int:
    end = at + 4 * words
    if end > decoder.length:
        return REFUSED
    while at < end:
        emit(decoder, unsigned(decoder.body + at))
        at += 4
    return at


def read_ordinal(decoder: Decoder, at: int, limit: int, clear: int) -> int:
    """A number below a limit; the bits ``clear`` must not be set."""
    if at + 4 > decoder.length:
        return REFUSED
    ordinal = unsigned(decoder.body + at)
    if ordinal >= limit or ordinal & clear != 0:
        return REFUSED
    emit(decoder, ordinal)
    return at + 4


def read_import(decoder: Decoder, at: int) -> int:
    if at + 4 > decoder.length:
        return REFUSED
    ordinal = unsigned(decoder.body + at) - IMPORT_BIT
    if ordinal < 0 or ordinal >= decoder.import_count:
        return REFUSED
    emit(decoder, ordinal)
    return at + 4


def read_string(decoder: Decoder, at: int) -> int:
    end = list_end(decoder, at, 1, 1)
    if end >= 0:
        emit(decoder, decoder.offset + at)
    return end


def aligned(at: int) -> int:
    """Where the count of a list is."""
    return at + (at & 1)


def list_end(decoder: Decoder, at: int, width: int, alignment: int) -> int:
    """The position after a halfword that counts what follows, ``width`` bytes each."""
    at = (at + alignment - 1) & -alignment
    if at + 2 > decoder.length:
        return REFUSED
    end = at + 2 + width * halfword(decoder.body + at)
    return REFUSED if end > decoder.length else end


def read_list(decoder: Decoder, at: int, kind: int) -> int:
    end = list_end(decoder, at, 2, 2)
    if end < 0:
        return REFUSED
    at = aligned(at)
    emit(decoder, halfword(decoder.body + at))
    at += 2
    while at >= 0 and at < end:
        operand = halfword(decoder.body + at)
        if kind == KIND_LIST_REF:
            at = read_ref(decoder, at, KIND_REF)
            emit(decoder, 1 if operand & MOVE_BIT else 0)
        elif kind == KIND_LIST_ANY:
            tag = TAG_REF_COPY if operand & REF_BIT else TAG_VALUE32
            at = at + 2 if emit_register(decoder, operand, tag, True) else REFUSED
        else:
            at = read_value(decoder, at, 1 if kind == KIND_LIST_PAIR else 0)
    return at


def emit_register(decoder: Decoder, operand: int, tag: int, moves: bool) -> bool:
    """(tag, register) of an entry of a list that must hold what the tag says."""
    if tag == TAG_REF_COPY:
        if not is_ref(decoder, operand):
            return False
        emit(decoder, TAG_REF_MOVE if moves and operand & MOVE_BIT else TAG_REF_COPY)
        emit(decoder, operand & REF_MASK)
        return True
    if operand + tag >= decoder.value_count or operand & tag != 0:  # the tag of a pair is 1, of a slot 0
        return False
    emit(decoder, tag)
    emit(decoder, operand)
    return True


def tag_at(decoder: Decoder, index: int) -> int:
    return load8(decoder.tags + index)
