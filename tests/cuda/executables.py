"""CUDA executables for tests: flatbuffers of both generations around any PTX text."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import flatbuffers


class KernelExport(NamedTuple):
    name: str
    block: tuple[int, int, int]
    constant_count: int
    binding_count: int
    shared_memory: int = 0
    location: tuple[str, int] | None = None


def executable_bytes(
    ptx: bytes,
    exports: Sequence[KernelExport | tuple[str, tuple[int, int, int], int, int]],
    sources: dict[str, bytes] | None = None,
) -> bytes:
    """A ``CDA1`` flatbuffer without header, as releases 20240828 to 3.8 have it."""
    builder = flatbuffers.Builder(1024)
    tables = [_export(builder, KernelExport(*export)) for export in exports]
    module = _table(builder, {0: builder.CreateString(ptx)})
    files = [
        _table(builder, {0: builder.CreateString(path), 1: builder.CreateByteVector(content)})
        for path, content in (sources or {}).items()
    ]
    vectors = {0: _vector(builder, tables), 1: _vector(builder, [module]), 2: _vector(builder, files)}
    builder.Finish(_table(builder, vectors), file_identifier=b"CDA1")
    return bytes(builder.Output())


def with_header(flatbuffer: bytes, version: int = 0, size: int | None = None) -> bytes:
    """The form of releases from 3.9.0 on."""
    content = len(flatbuffer) if size is None else size
    return struct.pack("<4sIQ48x", b"CDA1", version, content) + flatbuffer


def legacy_executable_bytes(
    ptx: bytes, exports: Sequence[KernelExport], block_sizes: int | None = None
) -> bytes:
    """A ``CUDA`` flatbuffer, as releases up to 20240724 have it; ``block_sizes`` of them, if not one a
    kernel."""
    builder = flatbuffers.Builder(1024)
    names = _vector(builder, [builder.CreateString(export.name) for export in exports])
    blocks = [export.block for export in exports][:block_sizes]
    builder.StartVector(12, len(blocks), 4)
    for block in reversed(blocks):
        for size in reversed(block):
            builder.PrependUint32(size)
    sizes = builder.EndVector()
    builder.StartVector(4, len(exports), 4)
    for export in reversed(exports):
        builder.PrependUint32(export.shared_memory)
    shared = builder.EndVector()
    image = builder.CreateString(ptx)
    locations = [_location(builder, *export.location) for export in exports if export.location]
    fields = {0: names, 1: sizes, 2: shared, 3: image}
    if locations:
        fields[4] = _vector(builder, locations)
    builder.Finish(_table(builder, fields), file_identifier=b"CUDA")
    return bytes(builder.Output())


def _export(builder: flatbuffers.Builder, export: KernelExport) -> int:
    name = builder.CreateString(export.name)
    builder.StartVector(8, export.binding_count, 8)
    for _ in range(export.binding_count):
        builder.PrependUint64(0)
    flags = builder.EndVector()
    debug = 0
    if export.location is not None:
        location = _location(builder, *export.location)
        debug = _table(builder, {0: builder.CreateString(export.name), 1: location})
    builder.StartObject(7)
    builder.PrependUint32Slot(0, 0, 0)
    builder.PrependUOffsetTRelativeSlot(1, name, 0)
    builder.Prep(4, 12)
    for size in reversed(export.block):
        builder.PrependUint32(size)
    builder.PrependStructSlot(2, builder.Offset(), 0)
    builder.PrependUint32Slot(3, export.shared_memory, 0)
    builder.PrependUint32Slot(4, export.constant_count, 0)
    builder.PrependUOffsetTRelativeSlot(5, flags, 0)
    if debug:
        builder.PrependUOffsetTRelativeSlot(6, debug, 0)
    return int(builder.EndObject())


def _location(builder: flatbuffers.Builder, path: str, line: int) -> int:
    name = builder.CreateString(path)
    builder.StartObject(2)
    builder.PrependUOffsetTRelativeSlot(0, name, 0)
    builder.PrependUint32Slot(1, line, 0)
    return int(builder.EndObject())


def _table(builder: flatbuffers.Builder, offsets: dict[int, int]) -> int:
    builder.StartObject(max(offsets) + 1)
    for slot, offset in offsets.items():
        builder.PrependUOffsetTRelativeSlot(slot, offset, 0)
    return int(builder.EndObject())


def _vector(builder: flatbuffers.Builder, offsets: Sequence[int]) -> int:
    builder.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        builder.PrependUOffsetTRelative(offset)
    return int(builder.EndVector())
