"""Verifying a FlatBuffer by its schema: every table, vector, text and union, whether it is read or not.

Machine code, and its own specification: Python runs the same where that is not there.

What is found is written down and the rest goes on, so that all of it can be listed. Each word of the file is
read once: memory that changes meanwhile does no harm. Tables of the schema do not contain each other, so the
depth is bounded; sharing is, by the budget.
"""

from __future__ import annotations

from jitree.codegen.primitives import load8, load32
from jitree.codegen.record import place_of
from jitree.vmfb.native.layout import (
    FIELD,
    FIELD_SCALAR,
    FIELD_TABLE,
    FIELD_TABLES,
    FIELD_TEXT,
    FIELD_UNION,
    FIELD_UNIONS,
    FIELD_VECTOR,
    FINDING,
    FOUND_FIELD,
    FOUND_HEADER,
    FOUND_NULL,
    FOUND_OVERLAP,
    FOUND_TABLE,
    FOUND_TABLE_SIZE,
    FOUND_TEXT,
    FOUND_UNION,
    FOUND_VECTOR,
    FOUND_VECTOR_HEADER,
    FOUND_VTABLE,
    FOUND_VTABLE_SIZE,
)
from jitree.vmfb.native.records import Field, Finding, Verifier, halfword, unsigned

FINDING_SIZE = FINDING.size
FIELD_SIZE = FIELD.size
TABLE_COST = 8
NOWHERE = -1


def verify(verifier: Verifier) -> int:
    """How many findings there are."""
    if verifier.length < 8:
        find(verifier, FOUND_HEADER, 0, -1, 0)
    else:
        check_table(verifier, 0, unsigned(verifier.data))
    return verifier.found


def find(verifier: Verifier, what: int, table: int, slot: int, position: int) -> int:
    """Writes down what is found; gives NOWHERE."""
    if verifier.found < verifier.most:
        finding = Finding(verifier.findings + FINDING_SIZE * verifier.found)
        finding.what = what
        finding.table = table
        finding.slot = slot
        finding.position = position
        verifier.found += 1
    return NOWHERE


def check_table(verifier: Verifier, table: int, position: int) -> None:
    length = verifier.length
    if verifier.budget < 0:
        return
    verifier.budget -= TABLE_COST
    if verifier.budget < 0:
        find(verifier, FOUND_OVERLAP, table, -1, position)
        return
    if position & 3 != 0 or position + 4 > length:
        find(verifier, FOUND_HEADER, table, -1, position)
        return
    vtable = position - load32(verifier.data + position)
    if vtable & 1 != 0 or vtable < 0 or vtable + 4 > length:
        find(verifier, FOUND_VTABLE, table, -1, vtable)
        return
    entries = halfword(verifier.data + vtable)
    size = halfword(verifier.data + vtable + 2)
    if entries & 1 != 0 or entries < 4 or vtable + entries > length:
        find(verifier, FOUND_VTABLE_SIZE, table, -1, vtable)
    elif size < 4:
        find(verifier, FOUND_TABLE_SIZE, table, -1, vtable)
    elif position + size > length:
        find(verifier, FOUND_TABLE, table, -1, position)
    else:
        check_fields(verifier, table, position, vtable, entries, size)


def check_fields(verifier: Verifier, table: int, position: int, vtable: int, entries: int, size: int) -> None:
    schema = place_of(verifier.tables) + 2 * verifier.tables.schema
    field = Field(schema + 2 * halfword(schema + 2 * table))
    tags = 0
    while field.kind != 0:
        place = 4 + 2 * field.slot
        offset = halfword(verifier.data + vtable + place) if place + 2 <= entries else 0
        if offset != 0:
            width = field.size if field.kind == FIELD_SCALAR else 4
            if offset < 4 or offset + width > size or (width > 1 and offset & 3 != 0):
                find(verifier, FOUND_FIELD, table, field.slot, position)
                offset = 0
        if offset != 0:
            check_field(verifier, table, field, position + offset, tags)
        elif tags != 0 and field.kind == FIELD_UNIONS:
            find(verifier, FOUND_UNION, table, field.slot, position)
        tags = position + offset if offset != 0 else 0
        field = Field(place_of(field) + FIELD_SIZE)


def check_field(verifier: Verifier, table: int, field: Field, place: int, tags: int) -> None:
    """``tags`` is where the field in front is, 0 if it is absent."""
    kind = field.kind
    if kind == FIELD_SCALAR:
        return
    target = target_of(verifier, table, field.slot, place)
    if target < 0:
        return
    if kind == FIELD_TABLE:
        check_table(verifier, field.size, target)
    elif kind == FIELD_UNION:
        if tags == 0 or load8(verifier.data + tags) == 0:
            find(verifier, FOUND_UNION, table, field.slot, place)
    elif kind == FIELD_TEXT:
        check_text(verifier, table, field.slot, target)
    elif kind == FIELD_VECTOR:
        vector_size(verifier, table, field.slot, target, field.size)
    elif kind == FIELD_TABLES:
        check_tables(verifier, table, field, target)
    elif kind == FIELD_UNIONS:
        check_unions(verifier, table, field, target, tags)


def target_of(verifier: Verifier, table: int, slot: int, place: int) -> int:
    """Where the offset at a place leads to; NOWHERE without one."""
    offset = unsigned(verifier.data + place)
    return find(verifier, FOUND_NULL, table, slot, place) if offset == 0 else place + offset


def vector_size(verifier: Verifier, table: int, slot: int, position: int, size: int) -> int:
    """How many elements a vector has; NOWHERE if it is damaged."""
    if position & 3 != 0 or position + 4 > verifier.length:
        return find(verifier, FOUND_VECTOR_HEADER, table, slot, position)
    count = unsigned(verifier.data + position)
    if position + 4 + count * size > verifier.length:
        return find(verifier, FOUND_VECTOR, table, slot, position)
    return count


def check_text(verifier: Verifier, table: int, slot: int, position: int) -> None:
    size = vector_size(verifier, table, slot, position, 1)
    end = position + 4 + size
    if size >= 0 and (end >= verifier.length or load8(verifier.data + end) != 0):
        find(verifier, FOUND_TEXT, table, slot, end)


def check_tables(verifier: Verifier, table: int, field: Field, position: int) -> None:
    count = vector_size(verifier, table, field.slot, position, 4)
    index = 0
    while index < count and verifier.budget >= 0:
        place = position + 4 + 4 * index
        target = target_of(verifier, table, field.slot, place)
        if target >= 0:
            check_table(verifier, field.size, target)
        else:
            verifier.budget -= TABLE_COST
        index += 1


def check_unions(verifier: Verifier, table: int, field: Field, position: int, tags: int) -> None:
    """A vector of unions: the vector of their tags is as long. Tables of unknown kinds are left alone."""
    count = vector_size(verifier, table, field.slot, position, 4)
    first = tags + unsigned(verifier.data + tags) if tags != 0 else 0
    if count < 0 or first + 4 > verifier.length:
        return
    known = unsigned(verifier.data + first) if tags != 0 else 0
    if count != known or first + 4 + known > verifier.length:
        find(verifier, FOUND_UNION, table, field.slot, position)
        return
    index = 0
    while index < count and verifier.budget >= 0:
        tag = load8(verifier.data + first + 4 + index)
        place = position + 4 + 4 * index
        if tag != 0:
            target = target_of(verifier, table, field.slot, place)
            if target >= 0 and tag <= field.size:
                check_table(verifier, verifier.tables.unions + tag - 1, target)
        elif unsigned(verifier.data + place) != 0:
            find(verifier, FOUND_UNION, table, field.slot, place)
        verifier.budget -= TABLE_COST
        index += 1
