"""Verifies a FlatBuffer, as a whole and while it is read.

The accessors of the flatbuffers package trust every offset in the file; here each step (vtable, field,
offset, vector, string) is checked against the buffer when it is taken, so that a damaged file ends in one
INVALID_ARGUMENT and never in a read elsewhere or a hang. Scalars are read through casts of one memoryview,
which also makes this several times faster than unpacking each field.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn

import numpy as np

from jitree.base.memory import address_of
from jitree.codegen.record import layout_of, size_of, words_of
from jitree.errors import InvalidArgumentError
from jitree.vmfb.native import compiled, interpreted
from jitree.vmfb.native.layout import ColumnReader, Finding, Verifier

if TYPE_CHECKING:
    import numpy.typing as npt

_READER = words_of(ColumnReader)
_READER_WORDS = size_of(ColumnReader) // 8
_TABLE_COST = 8
_SHARING: Final = 8
"""Offsets may point anywhere forward, so a small file can describe a huge tree by sharing its parts. Writers
share little; what is looked at may exceed the file by this factor."""


class FlatBuffer:
    """The bytes of one FlatBuffer, without size prefix. Positions are byte offsets into ``data``; a place is
    the position of an offset, which points to what is meant, and has been checked."""

    __slots__ = ("_budget", "_halves", "_signed", "_texts", "_vtables", "_words", "address", "data", "length")

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.length = len(data)
        self.address = address_of(np.frombuffer(data, np.uint8))
        self._words = data[: self.length & ~3].cast("I")
        self._signed = data[: self.length & ~3].cast("i")
        self._halves = data[: self.length & ~1].cast("H")
        self._vtables: dict[int, tuple[int, ...]] = {}
        self._texts: dict[int, str] = {}
        # Offsets may point anywhere forward, so a small file can describe a huge tree by sharing its parts.
        # Writers share little; what is read may exceed the file by this factor before it is refused.
        self._budget = _SHARING * self.length + 4096

    def root(self, identifier: bytes) -> Table:
        """The root table, if the file identifier is the given one."""
        if self.length < 8:
            self.fail(0, "the buffer ends before its root")
        found = bytes(self.data[4:8])
        if found != identifier:
            self.fail(4, f"identifier mismatch: expected {identifier.decode()!r}, found {found!r}")
        return self.table(0)

    def fail(self, position: int, what: str) -> NoReturn:
        raise InvalidArgumentError(f"FlatBuffer verification failed: {what} (at byte {position})")

    def table(self, place: int) -> Table:
        """The table of a place, its header and extent checked."""
        offset = self._words[place >> 2]
        position = place + offset
        if not offset:
            self.fail(place, "null offset")
        if position & 3 or position + 4 > self.length:
            self.fail(position, "table header out of range or unaligned")
        vtable = position - self._signed[position >> 2]
        layout = self._vtables.get(vtable) or self._read_vtable(vtable)
        if position + layout[1] > self.length:
            self.fail(position, "table out of range")
        self._spend(_TABLE_COST, position)
        return Table(self, position, layout)

    def vector(self, place: int, element_size: int) -> tuple[int, int]:
        """(position of the first element, element count) of the vector of a place."""
        offset = self._words[place >> 2]
        position = place + offset
        if not offset:
            self.fail(place, "null offset")
        if position & 3 or position + 4 > self.length:
            self.fail(position, "vector header out of range or unaligned")
        count = self._words[position >> 2]
        if position + 4 + count * element_size > self.length:
            self.fail(position, "vector out of range")
        return position + 4, count

    def text(self, place: int) -> str:
        """The string of a place. Bytes that are not UTF-8 show as ``\\xNN``."""
        start, length = self.vector(place, 1)
        known = self._texts.get(start)
        if known is not None:
            return known
        end = start + length
        if end >= self.length or self.data[end] != 0:
            self.fail(start - 4, "string not zero terminated")
        self._spend(length, start - 4)
        text = str(self.data[start:end], "utf-8", "backslashreplace")
        self._texts[start] = text
        return text

    def texts(self, positions: list[int], lengths: list[int]) -> list[str | None]:
        """As :meth:`text`, of many whose lengths are known; None at position 0."""
        self._spend(sum(lengths), max(positions, default=0))
        data = self.data
        return [
            str(data[position + 4 : position + 4 + length], "utf-8", "backslashreplace") if position else None
            for position, length in zip(positions, lengths, strict=True)
        ]

    def tables(self, place: int) -> list[Table]:
        """The elements of the vector of tables of a place."""
        start, count = self.vector(place, 4)
        return [self.table(at) for at in range(start, start + 4 * count, 4)]

    def uint32(self, position: int) -> int:
        return self._words[position >> 2]

    def int32(self, position: int) -> int:
        return self._signed[position >> 2]

    def _read_vtable(self, position: int) -> tuple[int, ...]:
        """The vtable's 16-bit entries: its own size, the table's size, field offsets (0: absent)."""
        if position & 1 or position < 0 or position + 4 > self.length:
            self.fail(position, "vtable offset out of range or unaligned")
        first = position >> 1
        size = self._halves[first]
        if size & 1 or size < 4 or position + size > self.length:
            self.fail(position, "vtable size out of range or unaligned")
        layout = tuple(self._halves[first : first + size // 2])
        if layout[1] < 4:
            self.fail(position, "table size out of range")
        self._vtables[position] = layout
        return layout

    def _spend(self, amount: int, position: int) -> None:
        self._budget -= amount
        if self._budget < 0:
            self.fail(position, "more content than the file can hold: its parts overlap")


class Table:
    """A table. Fields are addressed by slot, the field's number in the schema."""

    __slots__ = ("_layout", "buffer", "position")

    def __init__(self, buffer: FlatBuffer, position: int, layout: tuple[int, ...]) -> None:
        self.buffer = buffer
        self.position = position
        self._layout = layout

    def field(self, slot: int, width: int) -> int:
        """Position of a field of ``width`` bytes, 0 when absent."""
        layout = self._layout
        if slot + 2 >= len(layout):
            return 0
        offset = layout[slot + 2]
        if offset == 0:
            return 0
        # Every scalar wider than a byte is read as 32-bit words, so more than their alignment is not needed.
        if offset < 4 or offset + width > layout[1] or (width > 1 and offset & 3):
            self.buffer.fail(self.position, f"field {slot} out of range or unaligned")
        return self.position + offset

    def uint8(self, slot: int) -> int:
        position = self.field(slot, 1)
        return self.buffer.data[position] if position else 0

    def uint32(self, slot: int, default: int = 0) -> int:
        position = self.field(slot, 4)
        return self.buffer.uint32(position) if position else default

    def int32(self, slot: int) -> int:
        position = self.field(slot, 4)
        return self.buffer.int32(position) if position else 0

    def uint64(self, slot: int) -> int:
        position = self.field(slot, 8)
        if not position:
            return 0
        return self.buffer.uint32(position) | self.buffer.uint32(position + 4) << 32

    def text(self, slot: int) -> str | None:
        position = self.field(slot, 4)
        return self.buffer.text(position) if position else None

    def table(self, slot: int) -> Table | None:
        position = self.field(slot, 4)
        return self.buffer.table(position) if position else None

    def tables(self, slot: int) -> list[Table]:
        """The elements of a vector of tables; none when the field is absent."""
        position = self.field(slot, 4)
        return self.buffer.tables(position) if position else []

    def element(self, slot: int, index: int) -> Table:
        """One element of a vector of tables, which must have it."""
        start, count = self.vector(slot, 4) or (0, 0)
        if not 0 <= index < count:
            self.buffer.fail(self.position, f"field {slot} has no element {index}")
        return self.buffer.table(start + 4 * index)

    def vector(self, slot: int, element_size: int) -> tuple[int, int] | None:
        """(position of the first element, element count) of a vector of scalars or structs."""
        position = self.field(slot, 4)
        return self.buffer.vector(position, element_size) if position else None

    def content(self, slot: int, element_size: int = 1) -> memoryview | None:
        """The bytes of a vector of scalars or structs, aliasing the file."""
        found = self.vector(slot, element_size)
        if found is None:
            return None
        start, count = found
        return self.buffer.data[start : start + count * element_size]


def columns_of(parent: Table, slot: int, columns: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """Reads rows of columns (kind, outer, slot, default) from a vector of tables. The FlatBuffer has been
    verified as a whole; no tables when the field is absent."""
    first, count = parent.vector(slot, 4) or (0, 0)
    values = np.zeros((len(columns), count), np.int64)
    buffer = parent.buffer
    record = np.zeros(_READER_WORDS, np.int64)
    record[: _READER.texts] = (
        buffer.address, buffer.length, first, count, address_of(columns), len(columns), address_of(values),
    )  # fmt: skip
    if not (compiled() or interpreted()).read_columns(address_of(record)):
        buffer.fail(first, "what has been verified has changed since")
    return values


_SLACK: Final = 4096
_MOST_FINDINGS: Final = 1000
_WHAT: Final = (
    "table header out of range or unaligned",
    "vtable offset out of range or unaligned",
    "vtable size out of range or unaligned",
    "table size out of range",
    "table out of range",
    "field out of range or unaligned",
    "null offset",
    "vector header out of range or unaligned",
    "vector out of range",
    "string not zero terminated",
    "a union and its type do not belong together",
    "more content than the file can hold: its parts overlap",
)
"""What is wrong, by the number that machine code gives (FOUND_*)."""


def require_whole(flatbuffer: memoryview) -> None:
    """INVALID_ARGUMENT if any table is damaged, also one that is never read."""
    found = _findings(flatbuffer, 1)
    if len(found):
        raise InvalidArgumentError(f"FlatBuffer verification failed: {_text(found[0])}")


def table_findings(flatbuffer: memoryview) -> list[str]:
    """All that is wrong with the tables of a file."""
    found = [_text(finding) for finding in _findings(flatbuffer, _MOST_FINDINGS)]
    if len(found) == _MOST_FINDINGS:
        found.append(f"there may be more than these {_MOST_FINDINGS} faults in tables")
    return found


def _findings(flatbuffer: memoryview, most: int) -> list[list[int]]:
    """The fields of Finding records."""
    code = compiled() or interpreted()
    content = np.frombuffer(flatbuffer, np.uint8)
    findings = np.zeros((most, size_of(Finding) // 8), np.int64)
    record = np.zeros(size_of(Verifier) // 8, np.int64)
    named = words_of(Verifier)
    values = {
        "data": address_of(content),
        "length": len(content),
        "tables": code.tables,
        "budget": _SHARING * len(content) + _SLACK,
        "findings": address_of(findings),
        "most": most,
    }
    for name, value in values.items():
        record[getattr(named, name)] = value
    count = code.verify(address_of(record))
    return findings.view(np.int32)[:count].tolist()  # type: ignore[no-any-return]


def _text(finding: list[int]) -> str:
    from jitree.vmfb.tables import TABLES as NAMED

    what, table, slot, place = finding[: len(layout_of(Finding).offsets)]
    name, fields = list(NAMED.items())[table]
    where = next((f"{name}.{field}" for number, field, _ in fields if number == slot), name)
    return f"{_WHAT[what]} (at byte {place}, {where})"
