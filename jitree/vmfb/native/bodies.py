"""Verifies function bodies and decodes them block by block, calls among them.

Machine code. All calls become ``call.internal`` or ``call.import``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jitree.codegen.primitives import load8, load32, store8, store32
from jitree.codegen.record import place_of, size_of
from jitree.vmfb.instructions import IMPORT_BIT
from jitree.vmfb.native.checking import read_columns, verify
from jitree.vmfb.native.joining import fuse, join, words_so_far
from jitree.vmfb.native.layout import (
    PREFIXED_SETS,
    SIZES_ALWAYS,
    SPAN,
    SPECIAL_CALL,
    SPECIAL_CALL_YIELDABLE,
    SPECIAL_NONE,
    Convention,
    Decoder,
    FunctionRowRecord,
    OperandPlan,
    Tables,
)
from jitree.vmfb.native.operands import (
    REFUSED,
    add_edge,
    aligned,
    block_at,
    convention_at,
    drafted,
    emit,
    emit_branch,
    emit_register,
    halfword,
    list_end,
    read_exit,
    read_operands,
    read_target,
    row_at,
    tag_at,
    unsigned,
)
from jitree.vmfb.words import OPCODE

if TYPE_CHECKING:
    from jitree.codegen.image.generated import Generated

CALL_INTERNAL = OPCODE["call.internal"]
CALL_IMPORT = OPCODE["call.import"]
CONVENTION_SIZE = size_of(Convention)
MOST_REGISTERS = 0xFFFF
"""The most registers of a list."""

PLANS = size_of(Tables)
MULTIPLY_ADD = OPCODE["fma.f32"]
PREFIXES = 2
"""Sets of opcodes beside the first; the feature bit of each is its number's."""


def read_call(decoder: Decoder, plan: OperandPlan, at: int) -> int:
    """A call, and the edge of those that end in a branch."""
    special = plan.special
    if at + 4 > decoder.length:
        return REFUSED
    callee = unsigned(decoder.body + at)
    at += 4
    segments = 0
    if (special - SPECIAL_CALL) & 1:
        segments = aligned(at)
        at = list_end(decoder, at, 2, 2)
        if at < 0 or callee < IMPORT_BIT:
            return REFUSED
    arguments = aligned(at)
    at = list_end(decoder, at, 2, 2)
    if at < 0:
        return REFUSED
    target = 0
    yields = special >= SPECIAL_CALL_YIELDABLE
    if yields:
        target = read_target(decoder, at)
        at += 4
        if target < 0:
            return REFUSED
    results = aligned(at)
    at = list_end(decoder, at, 2, 2)
    if at < 0:
        return REFUSED
    if callee >= IMPORT_BIT:
        if not call_import(decoder, callee - IMPORT_BIT, segments, arguments, results):
            return REFUSED
    elif not call_internal(decoder, callee, arguments, results):
        return REFUSED
    if yields:
        add_edge(decoder, 1, target)
    return at


def call_import(decoder: Decoder, ordinal: int, segments: int, arguments: int, results: int) -> bool:
    if ordinal >= decoder.import_count:
        return False
    place = load32(decoder.imports + 4 * ordinal)
    if place < 0:
        return False
    convention = convention_at(decoder, place)
    count = halfword(decoder.body + arguments)
    if flatten(decoder, convention, segments) != count:
        return False
    site = decoder.site_count
    decoder.site_count += 1
    store32(decoder.site_words + 4 * site, drafted(decoder))
    store32(decoder.site_segments + 4 * site, decoder.offset + segments if segments != 0 else -1)
    emit(decoder, CALL_IMPORT)
    emit(decoder, 6 + 2 * count + 2 * convention.results)
    emit(decoder, site)
    emit(decoder, ordinal)
    emit(decoder, count)
    emit(decoder, convention.results)
    index = 0
    while index < count:
        operand = halfword(decoder.body + arguments + 2 + 2 * index)
        if not emit_register(decoder, operand, tag_at(decoder, index), decoder.honours_moves != 0):
            return False
        index += 1
    return emit_results(decoder, convention, results)


def call_internal(decoder: Decoder, callee: int, arguments: int, results: int) -> bool:
    if callee >= decoder.function_count:
        return False
    convention = convention_at(decoder, row_at(decoder, callee).convention)
    count = halfword(decoder.body + arguments)
    if flatten(decoder, convention, 0) != count:
        return False
    emit(decoder, CALL_INTERNAL)
    emit(decoder, 5 + 3 * count + 2 * convention.results)
    emit(decoder, callee)
    emit(decoder, count)
    emit(decoder, convention.results)
    slots = place_of(convention) + 4 * convention.slots_at
    index = 0
    while index < count:
        operand = halfword(decoder.body + arguments + 2 + 2 * index)
        if not emit_register(decoder, operand, tag_at(decoder, index), True):
            return False
        emit(decoder, load32(slots + 4 * index))
        index += 1
    return emit_results(decoder, convention, results)


def emit_results(decoder: Decoder, convention: Convention, at: int) -> bool:
    count = halfword(decoder.body + at)
    if count != convention.results:
        return False
    tags = place_of(convention) + 4 * convention.results_at
    index = 0
    while index < count:
        operand = halfword(decoder.body + at + 2 + 2 * index)
        if not emit_register(decoder, operand, load32(tags + 4 * index), False):
            return False
        index += 1
    return True


def flatten(decoder: Decoder, convention: Convention, segments: int) -> int:
    """Writes the tag of each argument register and counts them; REFUSED if the segment counts at a position,
    0 for none, do not fit."""
    items = convention.items
    if segments != 0 and halfword(decoder.body + segments) != items:
        return REFUSED
    place = place_of(convention) + CONVENTION_SIZE
    total = 0
    item = 0
    while item < items:
        width = load32(place) - SPAN
        place += 4
        if width < 0:
            if total >= MOST_REGISTERS:
                return REFUSED
            store8(decoder.tags + total, width + SPAN)
            total += 1
        else:
            if segments == 0:
                return REFUSED
            end = total + width * halfword(decoder.body + segments + 2 + 2 * item)
            if end > MOST_REGISTERS:
                return REFUSED
            fill_tags(decoder, place, width, total, end)
            total = end
            place += 4 * width
        item += 1
    return total


def fill_tags(decoder: Decoder, tags: int, width: int, first: int, end: int) -> None:
    """The tags of a span, again and again."""
    index = 0
    while first < end:
        store8(decoder.tags + first, load32(tags + 4 * index))
        first += 1
        index = 0 if index + 1 == width else index + 1


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


_ENTRIES: Final = (decode, verify, read_columns)


def generate() -> Generated:
    """The image of loading."""
    from jitree.codegen import functions  # here: only builders have Numba
    from jitree.codegen.image.generated import one_unit
    from jitree.vmfb.native import tables

    names = [function.__name__ for function in _ENTRIES]
    return one_unit(functions.texts(_ENTRIES), names, tables.generate())
