"""Function bodies: verified, and decoded block by block. Machine code."""

from __future__ import annotations

from jitree.codegen.primitives import load8, store32
from jitree.codegen.record import place_of
from jitree.vmfb.native.calls import read_call
from jitree.vmfb.native.exits import emit_branch, read_exit
from jitree.vmfb.native.fusing import fuse
from jitree.vmfb.native.joining import join, words_so_far
from jitree.vmfb.native.layout import (
    PREFIXED_SETS,
    SIZES_ALWAYS,
    SPECIAL_CALL,
    SPECIAL_CALL_YIELDABLE,
    SPECIAL_NONE,
    TABLES,
)
from jitree.vmfb.native.operands import REFUSED, read_operands
from jitree.vmfb.native.records import (
    Decoder,
    FunctionRowRecord,
    OperandPlan,
    block_at,
    convention_at,
    drafted,
    emit,
    halfword,
    row_at,
)
from jitree.vmfb.words import OPCODE

PLANS = TABLES.size
MULTIPLY_ADD = OPCODE["fma.f32"]
PREFIXES = 2
"""Sets of opcodes beside the first; the feature bit of each is its number's."""


def decode(decoder: Decoder) -> int:
    """Decodes all functions; 1 if they are accepted."""
    ordinal = 0
    while ordinal < decoder.function_count:
        if not decode_function(decoder, row_at(decoder, ordinal)):
            return 0
        ordinal += 1
    return 1


def decode_function(decoder: Decoder, row: FunctionRowRecord) -> bool:
    begin(decoder, row)
    at = 0
    while at < decoder.length:
        if load8(decoder.body + at) != decoder.tables.marker:
            return False
        at = read_block(decoder, at)
        if at < 0:
            return False
    if decoder.block_count != row.block_count:
        return False
    if decoder.sizes & SIZES_ALWAYS or (decoder.sizes != 0 and has_arguments(decoder)):
        decoder.sized = 1
    row.start = words_so_far(decoder)
    first = decoder.instruction_count
    if not join(decoder):
        return False
    row.end = words_so_far(decoder)
    fuse(decoder, first)
    return True


def has_arguments(decoder: Decoder) -> bool:
    return convention_at(decoder, decoder.convention).items > 0


def begin(decoder: Decoder, row: FunctionRowRecord) -> None:
    decoder.body = decoder.bytecode + row.offset
    decoder.offset = row.offset
    decoder.length = row.length
    decoder.requirements = row.requirements
    decoder.value_count = row.value_count
    decoder.ref_count = row.ref_count
    decoder.convention = row.convention
    decoder.block_count = 0
    decoder.edge_count = 0
    decoder.next_moves = decoder.moves
    decoder.next_draft = decoder.draft
    decoder.draft_count = 0
    decoder.sizes = 0


def read_block(decoder: Decoder, marker: int) -> int:
    """Reads instructions up to the block's exit; returns the position after it, or REFUSED."""
    decoder.block_count += 1
    block = block_at(decoder, decoder.block_count)
    store32(decoder.marks + 4 * marker, decoder.block_count)
    block.first_word = drafted(decoder)
    block.first_instruction = decoder.draft_count
    block.first_edge = decoder.edge_count
    block.first_site = decoder.site_count
    block.offset = marker
    at = marker + 1
    while True:
        plan = find_plan(decoder, at)
        if not plan:
            return REFUSED
        offset = at
        special = plan.special
        decoder.sizes |= plan.sizes
        at += 1 if load8(decoder.body + at) < PREFIXED_SETS else 2
        if special == SPECIAL_NONE:
            note(decoder, offset)
            emit(decoder, decoder.multiply_add if plan.opcode == MULTIPLY_ADD else plan.opcode)
            at = read_operands(decoder, plan, at)
        elif special >= SPECIAL_CALL:
            note(decoder, offset)
            at = read_call(decoder, plan, at)
        if at < 0:
            return REFUSED
        if special >= SPECIAL_CALL_YIELDABLE or SPECIAL_NONE < special < SPECIAL_CALL:
            block.exit_word = drafted(decoder)
            block.exit_offset = offset
            note(decoder, offset)
            if special > SPECIAL_CALL:
                emit_branch(decoder)
            else:
                at = read_exit(decoder, plan, at)
            block.end_word = drafted(decoder)
            return at


def note(decoder: Decoder, offset: int) -> None:
    """Says that an instruction begins here, which is at a byte offset."""
    place = 4 * decoder.draft_count
    store32(decoder.draft_starts + place, drafted(decoder))
    store32(decoder.draft_offsets + place, offset)
    decoder.draft_count += 1


def find_plan(decoder: Decoder, at: int) -> OperandPlan:
    """How to read the instruction at a position; OperandPlan(0) if it is unknown there or a block marker."""
    if at >= decoder.length:
        return OperandPlan(0)
    opcode = load8(decoder.body + at)
    index = opcode
    if opcode >= PREFIXED_SETS and opcode < PREFIXED_SETS + PREFIXES:
        number = opcode - PREFIXED_SETS
        if decoder.requirements >> number & 1 == 0 or at + 1 >= decoder.length:
            return OperandPlan(0)
        index = 256 * (number + 1) + load8(decoder.body + at + 1)
    tables = place_of(decoder.tables)
    offset = halfword(tables + PLANS + 2 * index)
    plan = OperandPlan(tables + 2 * offset)
    return plan if offset != 0 and plan.since <= decoder.version else OperandPlan(0)
