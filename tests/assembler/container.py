"""FlatBuffer tables and the file around them."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import flatbuffers

_DATA_ALIGNMENT = 16
_HEADER_SIZE = 64
_EXTERNAL_MARK = 0x4A49_5452_0000_0000
"""Placeholder of an external segment's offset until the layout of the file is known."""


class TableBuilder:
    """A thin layer over the flatbuffers builder: tables as ``{slot: (kind, value)}``."""

    def __init__(self) -> None:
        self.builder = flatbuffers.Builder(1024)

    def text(self, value: str) -> int:
        return int(self.builder.CreateString(value))

    def byte_vector(self, value: bytes) -> int:
        return int(self.builder.CreateByteVector(value))

    def structs(self, value: bytes, size: int) -> int:
        self.builder.StartVector(size, len(value) // size, 4)
        for byte in reversed(value):
            self.builder.PrependByte(byte)
        return int(self.builder.EndVector())

    def offsets(self, offsets: Sequence[int]) -> int:
        self.builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            self.builder.PrependUOffsetTRelative(offset)
        return int(self.builder.EndVector())

    def tables(self, tables: Sequence[Mapping[int, Any]]) -> int:
        return self.offsets([self.table(fields) for fields in tables])

    def table(self, fields: Mapping[int, Any]) -> int:
        """Kinds: ``ref`` (offset of something built before, None: absent), ``u32``, ``i32``, ``u64``,
        ``external`` (index of an external segment). Every scalar given is stored."""
        builder = self.builder
        builder.StartObject(max(fields, default=-1) + 1)
        builder.ForceDefaults(True)
        for slot, (kind, value) in fields.items():
            if kind == "ref":
                if value is not None:
                    builder.PrependUOffsetTRelativeSlot(slot, value, 0)
            elif kind == "u32":
                builder.PrependUint32Slot(slot, value, 0)
            elif kind == "i32":
                builder.PrependInt32Slot(slot, value, 0)
            elif kind == "u64":
                builder.PrependUint64Slot(slot, value, 0)
            else:
                builder.PrependUint64Slot(slot, _EXTERNAL_MARK + value, 0)
        return int(builder.EndObject())

    def finish(self, root: int, identifier: bytes) -> bytes:
        """The FlatBuffer with its size prefix."""
        self.builder.FinishSizePrefixed(root, file_identifier=identifier)
        return bytes(self.builder.Output())


def _place(prefixed: bytes, offsets: Sequence[int]) -> bytes:
    """The FlatBuffer with the offsets of its external segments filled in."""
    for index, offset in enumerate(offsets):
        mark = struct.pack("<Q", _EXTERNAL_MARK + index)
        assert prefixed.count(mark) == 1
        prefixed = prefixed.replace(mark, struct.pack("<Q", offset))
    return prefixed


def wrap_plain(prefixed: bytes, external: Sequence[bytes]) -> bytes:
    """The FlatBuffer and the external data after it."""
    if not external:
        return prefixed
    offsets = []
    data = bytearray()
    for segment in external:
        data += bytes(-len(data) % _DATA_ALIGNMENT)
        offsets.append(len(data))
        data += segment
    placed = _place(prefixed, offsets)
    return placed + bytes(-len(placed) % 64) + bytes(data)


def wrap_zip(prefixed: bytes, external: Sequence[bytes]) -> bytes:
    """The same as a ZIP file of stored members, which any unzip tool lists."""
    flatbuffer = prefixed[4:] + bytes(-len(prefixed) % 64)
    base = _HEADER_SIZE + 4 + len(flatbuffer)
    layout: list[tuple[str, int, bytes]] = []
    offsets = []
    position = base
    for index, segment in enumerate(external):
        name = f"rodata_{index}.bin"
        minimum = position + 30 + len(name) + 4
        data_at = (minimum + _DATA_ALIGNMENT - 1) // _DATA_ALIGNMENT * _DATA_ALIGNMENT
        layout.append((name, data_at, segment))
        offsets.append(data_at - base)
        position = data_at + len(segment)
    # The member is N bytes long but starts at the prefix, as compilers write it.
    contents = struct.pack("<I", len(flatbuffer)) + _place(flatbuffer, offsets)
    result = bytearray()
    directory = bytearray()
    _add_member(result, directory, "module.fb", _HEADER_SIZE, contents[: len(flatbuffer)])
    result += contents[len(flatbuffer) :]
    for name, data_at, segment in layout:
        _add_member(result, directory, name, data_at, segment)
    end = struct.pack(
        "<4s4HIIH", b"PK\5\6", 0, 0, len(layout) + 1, len(layout) + 1, len(directory), len(result), 0
    )
    return bytes(result + directory + end)


def _add_member(result: bytearray, directory: bytearray, name: str, data_at: int, data: bytes) -> None:
    """Appends a stored member whose data begins at ``data_at``; an extra field fills the gap."""
    start = len(result)
    fields = struct.pack("<HHHHIII", 0, 0, 0, 0x21, zlib.crc32(data), len(data), len(data))
    filler = data_at - start - 30 - len(name)
    extra = struct.pack("<HH", 0xFECA, filler - 4) + bytes(filler - 4)
    result += b"PK\3\4" + struct.pack("<H", 20) + fields + struct.pack("<HH", len(name), filler)
    result += name.encode() + extra + data
    directory += b"PK\1\2" + struct.pack("<HH", 20, 20) + fields
    directory += struct.pack("<HHHHHII", len(name), 0, 0, 0, 0, 0, start) + name.encode()
