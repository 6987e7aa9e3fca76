"""Verifies a FlatBuffer by its schema, and reads columns of its vectors.

Machine code, and its own specification: Python runs the same where that is not there. Every table, vector,
text and union is verified, whether it is read or not. What is found is written down and the rest goes on, so
that all of it can be listed. Each word of the file is read once: memory that changes meanwhile does no harm.
Tables of the schema do not contain each other, so the depth is bounded; sharing is, by the budget.

A column has a number of each table of a vector. The FlatBuffer has been verified as a whole by then, but
memory of a caller may have changed since: nothing outside of it is read.
"""

from __future__ import annotations

from jitree.codegen.primitives import load8, load32, load64, store64
from jitree.codegen.record import layout_of, place_of, size_of
from jitree.vmfb.native.layout import (
    COLUMN_ALIKE,
    COLUMN_COUNT,
    COLUMN_NUMBER,
    COLUMN_NUMBER64,
    COLUMN_PLACE,
    FIELD_SCALAR,
    FIELD_TABLE,
    FIELD_TABLES,
    FIELD_TEXT,
    FIELD_UNION,
    FIELD_UNIONS,
    FIELD_VECTOR,
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
    Column,
    ColumnReader,
    Field,
    Finding,
    Verifier,
)
from jitree.vmfb.native.operands import halfword, unsigned

FINDING_SIZE = size_of(Finding)
FIELD_SIZE = size_of(Field)
TABLE_COST = 8
NOWHERE = -1

COLUMN_SIZE = size_of(Column)
OUTSIDE = -1
SEEN_AT = layout_of(ColumnReader)["seen"]
SEEN = (size_of(ColumnReader) - SEEN_AT) // 8
LONGEST = 256
"""Bytes of a text that is compared."""


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
    else:
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
    """A vector of unions: the vector of their tags is as long.

    Tables of unknown kinds are left alone.
    """
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


def read_columns(reader: ColumnReader) -> int:
    """1 if all could be read."""
    number = 0
    while number < reader.wanted_count:
        column = Column(reader.wanted + COLUMN_SIZE * number)
        values = reader.values + 8 * reader.count * number
        index = 0
        while index < reader.count:
            if column.kind == COLUMN_ALIKE:
                value = first_alike(reader, values, index)
            else:
                value = value_of(reader, column, index)
            if value == OUTSIDE and column.kind != COLUMN_NUMBER64:  # of which it is one, that none allows
                return 0
            store64(values + 8 * index, value)
            index += 1
        number += 1
    return 1


def value_of(reader: ColumnReader, column: Column, index: int) -> int:
    """What a column has for a table."""
    table = leads_to(reader, reader.first + 4 * index)
    if column.outer >= 0 and table > 0:
        table = leads_to(reader, field_of(reader, table, column.outer))
    if table < 0:
        return OUTSIDE
    place = field_of(reader, table, column.slot)
    if place <= 0 or column.kind == COLUMN_PLACE:
        return column.default if place == 0 else place
    if column.kind == COLUMN_NUMBER:
        return unsigned(reader.data + place) if place + 4 <= reader.length else OUTSIDE
    if column.kind == COLUMN_NUMBER64:
        return load64(reader.data + place) if place + 8 <= reader.length else OUTSIDE
    target = leads_to(reader, place)
    if column.kind != COLUMN_COUNT or target < 0:
        return target
    return unsigned(reader.data + target) if target + 4 <= reader.length else OUTSIDE


def leads_to(reader: ColumnReader, place: int) -> int:
    """Where the offset at a place leads to; 0 for none, OUTSIDE if the place is."""
    if place <= 0:
        return place
    return place + unsigned(reader.data + place) if place + 4 <= reader.length else OUTSIDE


def field_of(reader: ColumnReader, table: int, slot: int) -> int:
    """Where a field of a table lies; 0 without it, and for no table."""
    if table == 0:
        return 0
    if table + 4 > reader.length:
        return OUTSIDE
    vtable = table - load32(reader.data + table)
    entry = 4 + 2 * slot
    if vtable < 0 or vtable + 2 > reader.length:
        return OUTSIDE
    if entry + 2 > halfword(reader.data + vtable):
        return 0
    if vtable + entry + 2 > reader.length:
        return OUTSIDE
    offset = halfword(reader.data + vtable + entry)
    return table + offset if offset != 0 else 0


def first_alike(reader: ColumnReader, values: int, index: int) -> int:
    """Finds the first table with this text, among the last few; the text's places and lengths are the two
    columns before."""
    lengths = values - 8 * reader.count
    places = lengths - 8 * reader.count
    place = load64(places + 8 * index)
    length = load64(lengths + 8 * index)
    seen = place_of(reader) + SEEN_AT
    number = reader.texts - SEEN if reader.texts > SEEN else 0
    while number < reader.texts:
        other = load64(seen + 8 * (number % SEEN))
        if load64(lengths + 8 * other) == length and same_text(
            reader, load64(places + 8 * other), place, length
        ):
            return other
        number += 1
    store64(seen + 8 * (reader.texts % SEEN), index)
    reader.texts += 1
    return index


def same_text(reader: ColumnReader, one: int, other: int, length: int) -> bool:
    if one == other:
        return True
    if length > LONGEST or one == 0 or other == 0:
        return False
    last = one if one > other else other
    if last + 4 + length > reader.length:
        return False
    at = 4
    while at < 4 + length:
        if load8(reader.data + one + at) != load8(reader.data + other + at):
            return False
        at += 1
    return True
