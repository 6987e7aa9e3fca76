"""Numbers of the tables of one vector, a column for each that is wanted. Machine code, and its own
specification: Python runs the same where that is not there.

The FlatBuffer has been verified as a whole, but memory of a caller may have changed since: nothing outside of
it is read.
"""

from __future__ import annotations

from jitree.codegen.primitives import load8, load32, load64, store64
from jitree.codegen.record import place_of
from jitree.vmfb.native.layout import (
    COLUMN,
    COLUMN_ALIKE,
    COLUMN_COUNT,
    COLUMN_NUMBER,
    COLUMN_NUMBER64,
    COLUMN_PLACE,
    COLUMN_READER,
)
from jitree.vmfb.native.records import Column, ColumnReader, halfword, unsigned

COLUMN_SIZE = COLUMN.size
OUTSIDE = -1
SEEN_AT = COLUMN_READER["seen"]
SEEN = (COLUMN_READER.size - SEEN_AT) // 8
LONGEST = 256
"""Bytes of a text that is compared."""


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
    """The first table with the same text as this one, among those of the last few texts; the text's places
    and lengths are the two columns before."""
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
