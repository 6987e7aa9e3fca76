"""Instructions that end a block: their words and edges. Machine code."""

from __future__ import annotations

from jitree.codegen.primitives import load32, store32
from jitree.codegen.record import place_of, size_of
from jitree.vmfb.instructions import MOVE_BIT, REF_BIT, REF_MASK, TARGET_LIMIT
from jitree.vmfb.native.layout import (
    SPECIAL_BR,
    SPECIAL_BR_TABLE,
    SPECIAL_COND_BR,
    SPECIAL_COND_BREAK,
    SPECIAL_FAIL,
    SPECIAL_JUMP,
    Decoder,
    EdgeRecord,
    Moves,
    OperandPlan,
)
from jitree.vmfb.native.operands import (
    REFUSED,
    aligned,
    convention_at,
    edge_at,
    emit,
    emit_register,
    halfword,
    is_ref,
    list_end,
    read_string,
    read_value,
    unsigned,
)
from jitree.vmfb.words import OPCODE, TAG_REF_COPY, TAG_REF_MOVE, TAG_VALUE32, TAG_VALUE64

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
    """What is moved at a position, where two slots that make up a pair on both sides count as one move;
    REFUSED if it is not in the function's registers."""
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
