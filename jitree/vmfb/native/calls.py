"""Calls: all become ``call.internal`` or ``call.import``. Machine code."""

from __future__ import annotations

from jitree.codegen.primitives import load32, store8, store32
from jitree.codegen.record import place_of
from jitree.vmfb.instructions import IMPORT_BIT
from jitree.vmfb.native.exits import add_edge, read_target
from jitree.vmfb.native.layout import (
    CONVENTION,
    SPAN,
    SPECIAL_CALL,
    SPECIAL_CALL_YIELDABLE,
)
from jitree.vmfb.native.operands import REFUSED, aligned, emit_register, list_end, tag_at
from jitree.vmfb.native.records import (
    Convention,
    Decoder,
    OperandPlan,
    convention_at,
    drafted,
    emit,
    halfword,
    row_at,
    unsigned,
)
from jitree.vmfb.words import OPCODE

CALL_INTERNAL = OPCODE["call.internal"]
CALL_IMPORT = OPCODE["call.import"]
CONVENTION_SIZE = CONVENTION.size
MOST_REGISTERS = 0xFFFF
"""The most registers of a list."""


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
