"""A module's FlatBuffer as JSON, field by field as the file has it, in the layout of the reference tool.

Fields are those of IREE's ``bytecode_module_def.fbs``, in slot order; a field that the file leaves out, since
it has its default, is left out here.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from typing import Final

from jitree.base.layout import rows_of
from jitree.vmfb.archive import IDENTIFIER, Archive, loading
from jitree.vmfb.flatbuffer import FlatBuffer, Table
from jitree.vmfb.schema import FEATURES
from jitree.vmfb.tables import LOCATION_TYPES, TABLES

_BINDING_FLAGS: Final = {1: "REQUIRED", 2: "OPTIONAL"}

_FUNCTION_DESCRIPTOR: Final = (
    ("bytecode_offset", "i"),
    ("bytecode_length", "i"),
    ("requirements", "I"),
    ("reserved", "h"),
    ("block_count", "h"),
    ("i32_register_count", "h"),
    ("ref_register_count", "h"),
)
_LOCATION: Final = (("bytecode_offset", "i"), ("location", "i"))


def flatbuffer_json(archive: Archive, *, pretty: bool) -> Iterator[str]:
    """Pieces of the JSON text. Raises INVALID_ARGUMENT for a damaged file."""
    with loading(archive.name):
        root = FlatBuffer(archive.flatbuffer).root(IDENTIFIER)
        yield _Printer(pretty).table(root, "module", 0)
        if pretty:
            yield "\n"


class _Printer:
    def __init__(self, pretty: bool) -> None:
        self.pretty = pretty
        self.colon = ": " if pretty else ":"
        self.readers: dict[str, Callable[[Table, int, int], str | None]] = {
            "text": self._text,
            "u8": lambda table, slot, level: _present(table, slot, 1, table.uint8),
            "u32": lambda table, slot, level: _present(table, slot, 4, table.uint32),
            "i32": lambda table, slot, level: _present(table, slot, 4, table.int32),
            "u64": lambda table, slot, level: _present(table, slot, 8, table.uint64),
            "features": lambda table, slot, level: _flags(table, slot, FEATURES),
            "binding": lambda table, slot, level: _flags(table, slot, _BINDING_FLAGS),
            "bytes": lambda table, slot, level: self._numbers(table, slot, "B", level),
            "i32s": lambda table, slot, level: self._numbers(table, slot, "<i", level),
            "descriptors": lambda table, slot, level: self._structs(table, slot, _FUNCTION_DESCRIPTOR, level),
            "source_locations": lambda table, slot, level: self._structs(table, slot, _LOCATION, level),
            "location_types": self._location_types,
            "locations": self._locations,
            "compression": lambda table, slot, level: None,
        }

    def _line(self, level: int) -> str:
        return "\n" + "  " * level if self.pretty else ""

    def table(self, table: Table, kind: str, level: int) -> str:
        fields = []
        for slot, name, field_kind in TABLES[kind]:
            text = self._field(table, slot, field_kind, level + 1)
            if text is not None:
                fields.append(f'{self._line(level + 1)}"{name}"{self.colon}{text}')
        return "{" + ",".join(fields) + self._line(level) + "}"

    def _field(self, table: Table, slot: int, kind: str, level: int) -> str | None:
        if kind.endswith("*"):
            if not table.field(slot, 4):
                return None
            entries = [self.table(entry, kind[:-1], level + 1) for entry in table.tables(slot)]
            return "[" + ",".join(entries) + self._line(level) + "]"
        if kind in self.readers:
            return self.readers[kind](table, slot, level)
        child = table.table(slot)
        return None if child is None else self.table(child, kind, level)

    def _text(self, table: Table, slot: int, level: int) -> str | None:
        text = table.text(slot)
        return None if text is None else json.dumps(text, ensure_ascii=not text.isprintable())

    def _list(self, entries: list[str], level: int) -> str:
        separator = self._line(level + 1)
        return "[" + ",".join(separator + entry for entry in entries) + self._line(level) + "]"

    def _numbers(self, table: Table, slot: int, layout: str, level: int) -> str | None:
        content = table.content(slot, struct.calcsize(layout))
        if content is None:
            return None
        return self._list([str(value) for (value,) in rows_of(struct.Struct(layout), content)], level)

    def _structs(
        self, table: Table, slot: int, fields: tuple[tuple[str, str], ...], level: int
    ) -> str | None:
        layout = struct.Struct("<" + "".join(text for _, text in fields))
        content = table.content(slot, layout.size)
        if content is None:
            return None
        return self._list([self._struct(row, fields, level + 1) for row in rows_of(layout, content)], level)

    def _struct(self, row: tuple[int, ...], fields: tuple[tuple[str, str], ...], level: int) -> str:
        texts = []
        for value, (name, _) in zip(row, fields, strict=True):
            text = _flag_names(value, FEATURES) if name == "requirements" else str(value)
            texts.append(f'{self._line(level + 1)}"{name}"{self.colon}{text}')
        return "{" + ",".join(texts) + self._line(level) + "}"

    def _location_types(self, table: Table, slot: int, level: int) -> str | None:
        content = table.content(slot)
        if content is None:
            return None
        return self._list(
            [json.dumps(name) if name else str(tag) for tag, name in _location_names(content)], level
        )

    def _locations(self, table: Table, slot: int, level: int) -> str | None:
        """A vector of unions; the tags are in the slot in front."""
        tags, found = table.content(slot - 1), table.vector(slot, 4)
        if tags is None or found is None:
            return None
        start, count = found
        entries = []
        for index, (_, name) in zip(range(count), _location_names(tags), strict=False):
            if name is None or name == "NONE":
                entries.append("null")
                continue
            buffer = table.buffer
            entry = buffer.table(buffer.target(start + 4 * index))
            entries.append(self.table(entry, name, level + 1))
        return "[" + ",".join(entries) + self._line(level) + "]"


def _location_names(tags: memoryview) -> Iterator[tuple[int, str | None]]:
    for tag in tags:
        yield tag, LOCATION_TYPES[tag] if tag < len(LOCATION_TYPES) else None


def _present(table: Table, slot: int, width: int, read: Callable[[int], int]) -> str | None:
    return str(read(slot)) if table.field(slot, width) else None


def _flags(table: Table, slot: int, names: dict[int, str]) -> str | None:
    return _flag_names(table.uint32(slot), names) if table.field(slot, 4) else None


def _flag_names(value: int, names: dict[int, str]) -> str:
    """The names of the bits in one string; a number when there are none or one has no name."""
    if value == 0 or value & ~sum(names):
        return str(value)
    return json.dumps(" ".join(name for bit, name in names.items() if value & bit))
