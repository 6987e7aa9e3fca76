"""Checks operands and ends of blocks, and makes words of them. Machine code.

Functions take the position of an operand in the body and return the one after it, or REFUSED. What is wrong
is not said: :mod:`jitree.vmfb.refusals` finds it again.
"""

from __future__ import annotations

from jitree.codegen.primitives import load8, load32, store32
from jitree.codegen.record import place_of, size_of
from jitree.vmfb.instructions import IMPORT_BIT, MOVE_BIT, REF_BIT, REF_MASK, TARGET_LIMIT
from jitree.vmfb.native.layout import (
    KIND_GLOBAL32,
    KIND_GLOBAL64,
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
    SPECIAL_BR,
    SPECIAL_BR_TABLE,
    SPECIAL_COND_BR,
    SPECIAL_COND_BREAK,
    SPECIAL_FAIL,
    SPECIAL_JUMP,
    BlockRecord,
    Convention,
    Decoder,
    EdgeRecord,
    FunctionRowRecord,
    Halfword,
    Moves,
    OperandPlan,
    Unsigned,
)
from jitree.vmfb.words import OPCODE, TAG_REF_COPY, TAG_REF_MOVE, TAG_VALUE32, TAG_VALUE64

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
    return read_import(decoder, at)


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
    """Writes (tag, register) of an entry that must have that tag."""
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


BR = OPCODE["br"]
BARE = OPCODE["br.bare"]
MOVES_SIZE = size_of(Moves)


def read_exit(decoder: Decoder, plan: OperandPlan, at: int) -> int:
    special = plan.special
    if special == SPECIAL_BR:
        return read_branch(decoder, at)
    if SPECIAL_COND_BR <= special <= SPECIAL_COND_BREAK:
        return read_condition(decoder, plan, at)
    if special == SPECIAL_BR_TABLE:
        return read_table(decoder, plan, at)
    emit(decoder, plan.opcode)
    if special == SPECIAL_JUMP:
        return read_jump(decoder, at)
    if special == SPECIAL_FAIL:
        return read_fail(decoder, at)
    return read_return(decoder, at)


def read_branch(decoder: Decoder, at: int) -> int:
    """``br``, or ``br.bare`` without moves."""
    edge = edge_at(decoder, decoder.edge_count)
    at = read_edge(decoder, 1, at)
    if at < 0:
        return REFUSED
    if not edge.moves:
        emit_branch(decoder)
    else:
        emit(decoder, BR)
        emit(decoder, 0)
        emit_moves(decoder, edge)
    return at


def emit_branch(decoder: Decoder) -> None:
    emit(decoder, BARE)
    emit(decoder, 0)


def emit_moves(decoder: Decoder, edge: EdgeRecord) -> None:
    """Count and moves, which the edge then does not have."""
    if not edge.moves:
        emit(decoder, 0)
        return
    count = edge.moves.count
    emit(decoder, count)
    place = place_of(edge.moves) + MOVES_SIZE
    end = place + 12 * count
    while place < end:
        emit(decoder, load32(place))
        place += 4
    decoder.next_moves = place_of(edge.moves)
    edge.moves = Moves(0)


def read_jump(decoder: Decoder, at: int) -> int:
    """``yield`` and ``break``."""
    edge = edge_at(decoder, decoder.edge_count)
    at = read_edge(decoder, 1, at)
    if at >= 0:
        emit(decoder, 0)
        emit_moves(decoder, edge)
    return at


def read_condition(decoder: Decoder, plan: OperandPlan, at: int) -> int:
    """``cond_br`` and ``cond_break``, both of whose edges are the same."""
    emit(decoder, plan.opcode)
    at = read_value(decoder, at, 0)
    emit(decoder, 0)
    emit(decoder, 0)
    if at < 0:
        return REFUSED
    first = edge_at(decoder, decoder.edge_count)
    at = read_edge(decoder, 2, at)
    if at < 0:
        return REFUSED
    if plan.special == SPECIAL_COND_BR:
        return read_edge(decoder, 3, at)
    second = add_edge(decoder, 3, first.target)
    second.moves = first.moves
    return at


def read_table(decoder: Decoder, plan: OperandPlan, at: int) -> int:
    """``br_table``"""
    emit(decoder, plan.opcode)
    at = read_value(decoder, at, 0)
    if at >= 0:
        at = read_edge(decoder, 2, at)
    if at < 0 or at + 2 > decoder.length:
        return REFUSED
    count = halfword(decoder.body + at)
    at += 2
    emit(decoder, 0)
    emit(decoder, count)
    case = 0
    while case < count and at >= 0:
        emit(decoder, 0)
        at = read_edge(decoder, 4 + case, at)
        case += 1
    return at


def read_fail(decoder: Decoder, at: int) -> int:
    at = read_value(decoder, at, 0)
    if at >= 0:
        at = read_string(decoder, at)
    if at >= 0:
        emit(decoder, 0)
        if at < decoder.length:
            add_edge(decoder, 3, at)
    return at


def read_return(decoder: Decoder, at: int) -> int:
    end = list_end(decoder, at, 2, 2)
    if end < 0:
        return REFUSED
    at = aligned(at)
    convention = convention_at(decoder, decoder.convention)
    count = halfword(decoder.body + at)
    if count != convention.results:
        return REFUSED
    emit(decoder, count)
    tags = place_of(convention) + 4 * convention.results_at
    at += 2
    while at < end:
        if not emit_register(decoder, halfword(decoder.body + at), load32(tags), True):
            return REFUSED
        tags += 4
        at += 2
    return at


def read_target(decoder: Decoder, at: int) -> int:
    """The byte offset of a block."""
    if at + 4 > decoder.length:
        return REFUSED
    target = unsigned(decoder.body + at)
    return REFUSED if target >= TARGET_LIMIT else target


def add_edge(decoder: Decoder, position: int, target: int) -> EdgeRecord:
    """An edge without moves; ``position`` of its displacement in the exit's words."""
    edge = edge_at(decoder, decoder.edge_count)
    decoder.edge_count += 1
    edge.moves = Moves(0)
    edge.position = position
    edge.target = target
    return edge


def read_edge(decoder: Decoder, position: int, at: int) -> int:
    """A target and its moves, made into the next edge."""
    target = read_target(decoder, at)
    if target < 0:
        return REFUSED
    edge = add_edge(decoder, position, target)
    end = list_end(decoder, at + 4, 4, 2)
    if end < 0:
        return REFUSED
    at = aligned(at + 4) + 2
    moves = Moves(decoder.next_moves)
    place = place_of(moves) + MOVES_SIZE
    count = 0
    while at < end:
        tag = move_tag(decoder, at, end)
        source = halfword(decoder.body + at)
        destination = halfword(decoder.body + at + 2)
        if tag < 0:
            return REFUSED
        if tag >= TAG_REF_COPY:
            source &= REF_MASK
            destination &= REF_MASK
        if source != destination:
            store32(place, tag)
            store32(place + 4, source)
            store32(place + 8, destination)
            place += 12
            count += 1
        at += 8 if tag == TAG_VALUE64 else 4
    if count != 0:
        moves.count = count
        moves.stub = 0
        edge.moves = moves
        decoder.next_moves = place + (place & 4)
    return at


def move_tag(decoder: Decoder, at: int, end: int) -> int:
    """Returns the tag moved at a position, a pair as one; REFUSED if it is not in the function's
    registers."""
    source = halfword(decoder.body + at)
    destination = halfword(decoder.body + at + 2)
    if source & REF_BIT:
        if not (is_ref(decoder, source) and is_ref(decoder, destination)):
            return REFUSED
        return TAG_REF_MOVE if source & MOVE_BIT and decoder.honours_moves else TAG_REF_COPY
    limit = decoder.value_count
    if source >= limit or destination >= limit:
        return REFUSED
    if at + 8 > end or (source | destination) & 1 != 0:
        return TAG_VALUE32
    follows = halfword(decoder.body + at + 4) == source + 1
    if not follows or halfword(decoder.body + at + 6) != destination + 1:
        return TAG_VALUE32
    return TAG_VALUE64 if source + 1 < limit and destination + 1 < limit else TAG_VALUE32
