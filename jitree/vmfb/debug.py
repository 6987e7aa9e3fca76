"""The debug database: which source location an instruction came from.

Read only when it is asked for (a failed call, a dump): it is often the largest table of a module.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from jitree.base.records import rows_of
from jitree.errors import StatusError
from jitree.vmfb.flatbuffer import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

_LOCATION_TABLE_TYPES: Final = 0
_LOCATION_TABLE: Final = 1
_FUNCTIONS: Final = 2

_CALL_SITE: Final = 1
_FILE_LINE_COLUMN: Final = 2
_FUSED: Final = 3
_NAME: Final = 4

_SOURCE_MAP_ENTRY: Final = struct.Struct("<ii")
_MAXIMUM_LINES: Final = 64
_MAXIMUM_LOCATIONS: Final = 1024
"""Locations refer to each other by index; fused ones may repeat or loop, and all be of the same many."""


class DebugDatabase:
    """Function names and source locations.

    Source maps are found by the numbers of functions only if there is one for each: release 3.13 stores the
    last function's alone, under the number of the first. Then they are found by names of exports.
    """

    __slots__ = ("_exports", "_function_count", "_maps", "_root")

    def __init__(self, root: Table, function_count: int, exports: Sequence[tuple[str, int]]) -> None:
        """``exports``: names and numbers of functions."""
        self._root = root
        self._function_count = function_count
        self._exports = exports
        self._maps: list[Table] | None = None

    @property
    def location_count(self) -> int:
        """Entries of the location table. INVALID_ARGUMENT if the table is damaged."""
        found = self._root.vector(_LOCATION_TABLE, 4)
        return found[1] if found else 0

    def recorded_name(self, ordinal: int) -> str | None:
        """Returns a function's name in the source map, right or wrong; None without one."""
        try:
            maps = self._source_maps()
            return (maps[ordinal].text(0) or None) if ordinal < len(maps) else None
        except StatusError:
            return None  # the dump tells of the damage where it shows the database

    def function_name(self, ordinal: int) -> str | None:
        """The name in the source, None if not recorded."""
        try:
            found = self._map(ordinal)
            return None if found is None else found.text(0)
        except StatusError:
            return None  # asked for messages only; `locate` tells of the damage

    def locate(self, ordinal: int, offset: int) -> list[str]:
        """Where the instruction at a byte offset of a function comes from: ``file:line:column`` or names.

        The innermost location comes first. Nothing recorded: an empty list. A damaged database is reported
        as the only entry, since the caller is about to report something more important.
        """
        try:
            entries = self._entries(ordinal)
            index = bisect_right(entries, offset, key=lambda entry: entry[0]) - 1
            return [] if index < 0 else self._described([entries[index][1]])
        except StatusError as error:
            return [f"<damaged debug database: {error.message}>"]

    def places(self, ordinal: int) -> list[str]:
        """All locations of a function's instructions, in their order; else as :meth:`locate`."""
        try:
            return self._described([location for _, location in self._entries(ordinal)])
        except StatusError as error:
            return [f"<damaged debug database: {error.message}>"]

    def _source_maps(self) -> list[Table]:
        if self._maps is None:
            self._maps = self._root.tables(_FUNCTIONS)
        return self._maps

    def _map(self, ordinal: int) -> Table | None:
        maps = self._source_maps()
        if len(maps) == self._function_count:
            return maps[ordinal]
        names = {name for name, number in self._exports if number == ordinal}
        return next((found for found in maps if found.text(0) in names), None)

    def _entries(self, ordinal: int) -> list[tuple[int, int]]:
        """Offsets of instructions, and numbers of locations."""
        found = self._map(ordinal)
        content = None if found is None else found.content(1, _SOURCE_MAP_ENTRY.size)
        return [] if content is None else list(rows_of(_SOURCE_MAP_ENTRY, content))

    def _described(self, locations: Sequence[int]) -> list[str]:
        """Lists lines of locations and of theirs, depth first, once. Lines that call others come last: the
        one that exports a model to the compiler is in all of its locations, and says nothing of any of
        them."""
        calls: dict[str, bool] = {}
        seen: set[tuple[int, bool]] = set()
        pending = [(location, False) for location in dict.fromkeys(reversed(locations))]
        while pending and len(calls) < _MAXIMUM_LINES and len(seen) < _MAXIMUM_LOCATIONS:
            index, is_caller = pending.pop()
            if (index, is_caller) in seen:
                continue
            seen.add((index, is_caller))
            kind, table = self._location(index)
            if table is None:
                continue
            if kind == _FILE_LINE_COLUMN:
                line = f"{table.text(0) or '-'}:{table.int32(1)}:{table.int32(2)}"
                if table.int32(1):  # 0: the whole file
                    calls[line] = calls.get(line, False) or is_caller
            elif kind == _CALL_SITE:
                pending += [(table.int32(1), True), (table.int32(0), is_caller)]
            elif kind == _FUSED:
                pending += [(part, is_caller) for part in reversed(_int32_vector(table, 1))]
            elif kind == _NAME:
                calls.setdefault(table.text(0) or "-", is_caller)
                pending.append((table.int32(1), is_caller))
        return sorted(calls, key=calls.__getitem__)

    def _location(self, index: int) -> tuple[int, Table | None]:
        types = self._root.content(_LOCATION_TABLE_TYPES)
        values = self._root.vector(_LOCATION_TABLE, 4)
        if types is None or values is None or not 0 <= index < min(len(types), values[1]) or not types[index]:
            return 0, None
        return types[index], self._root.buffer.table(values[0] + 4 * index)


def _int32_vector(table: Table, slot: int) -> list[int]:
    content = table.content(slot, 4)
    return [] if content is None else list(content[: 4 * _MAXIMUM_LOCATIONS].cast("i"))
