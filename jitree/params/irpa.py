"""Reads and writes IREE parameter archives (``.irpa``), version 0.

An archive has one or several linked tables of entries. Everything is little-endian and packed; offsets count
from the header they belong to. Layout as documented in IREE's schemas/parameter_archive.h.
What is written has one header, its table of entries, then the bytes of those that have any, as IREE's tools
make it: the same parameters give the same bytes.
"""

from __future__ import annotations

import os
import stat
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from jitree import errors
from jitree.base.copying import PROGRESS
from jitree.base.private_files import unique
from jitree.params.entry import ParameterEntry, ParameterFile, check_range, splat_entry, tensor_type

MAGIC: Final = int.from_bytes(b"IRPA", "little")
PREFIX: Final = struct.Struct("<IHHQQQ")
"""magic, major version, minor version, header size, offset of the next header or 0, flags"""
HEADER: Final = struct.Struct("<IHHQQQQQQQQQQ")
"""The prefix, entry count, and (offset, length) of the entry, metadata and storage segments."""
ENTRY: Final = struct.Struct("<QIQQQQQQ")
"""size, type, flags, (offset, length) of the name and of the metadata, minimum alignment"""
SPLAT: Final = struct.Struct("<Q16sB")
"""length, pattern, pattern length; after the entry"""
DATA: Final = struct.Struct("<QQ")
"""offset and length in the storage segment; after the entry"""

SKIP_TYPE: Final = 0
SPLAT_TYPE: Final = 1
DATA_TYPE: Final = 2
EXTERNAL_TYPE: Final = 3

ENTRY_ALIGNMENT: Final = 16
"""The alignment of headers and of entries in the table."""

DEFAULT_ALIGNMENT: Final = 64
"""Bytes; devices use parameters in place that begin at a multiple of this."""
_FILE_ALIGNMENT: Final = 4096
"""What the length of the file is a multiple of: whole pages can be mapped."""
_PATTERN_ROOM: Final = 16
_MOST_SHARED: Final = 16
"""How often the bytes of a file may be read on average, as entries, names and metadata."""
_MOST_TEXT: Final = 1 << 28
"""Bytes of all names and metadata, which are some millions of them."""


@dataclass(frozen=True, slots=True)
class _Tables:
    """One header's segments, as positions in the file that have been checked."""

    entry_count: int
    entries: tuple[int, int]
    metadata: tuple[int, int]
    storage: tuple[int, int]


class _Claims:
    """Counts what tables claim: those that share bytes make much of a small file, and take long. So do
    texts of a sparse file, which has any number of bytes."""

    def __init__(self, size: int) -> None:
        """``size``: bytes of the file."""
        self._size = size
        self._claimed = 0
        self._texts = 0

    def add(self, length: int) -> None:
        """OUT_OF_RANGE for too many bytes in all."""
        self._claimed += length
        if self._claimed > _MOST_SHARED * self._size:
            raise errors.OutOfRangeError(
                f"entries, names and metadata claim more than {_MOST_SHARED} times the {self._size} bytes of "
                "the file: they overlap; it is damaged"
            )

    def add_text(self, length: int) -> None:
        """INVALID_ARGUMENT for more than is kept, before it is."""
        self.add(length)
        self._texts += length
        if self._texts > _MOST_TEXT:
            raise errors.InvalidArgumentError(
                f"names and metadata claim {self._texts} bytes; at most {_MOST_TEXT}: write the archive "
                "without metadata, or as several"
            )


def read(file: ParameterFile) -> list[ParameterEntry]:
    """All entries of all linked headers, in order.

    UNIMPLEMENTED for versions and entry types that are not known, OUT_OF_RANGE and INVALID_ARGUMENT for a
    file that was cut short or that is not consistent in itself.
    """
    entries: list[ParameterEntry] = []
    claims, base = _Claims(len(file.view)), 0
    while True:
        following = _check_prefix(file.view, base)
        tables = _read_header(file.view, base)
        entries += _read_entries(file, tables, claims)
        if not following:
            return entries
        base += following


def _check_prefix(view: memoryview, base: int) -> int:
    """Offset of the next header from this one, 0 for the last."""
    if len(view) - base < PREFIX.size:
        raise errors.InvalidArgumentError(
            f"not enough bytes for an archive header at {base}: the file has {len(view)}; "
            "it is empty or was cut short"
        )
    magic, major, minor, size, following, _ = PREFIX.unpack_from(view, base)
    if magic != MAGIC:
        raise errors.InvalidArgumentError(
            f"no archive header at {base}: it must begin with 'IRPA' but begins with "
            f"{bytes(view[base : base + 4])!r}"
        )
    if (major, minor) != (0, 0):
        raise errors.UnimplementedError(f"archive version {major}.{minor} is not known; known is 0.0")
    if size != HEADER.size:
        raise errors.InvalidArgumentError(f"the header claims {size} bytes; version 0.0 has {HEADER.size}")
    if following % ENTRY_ALIGNMENT:
        raise errors.InvalidArgumentError(f"the next header at {base + following} is not aligned to 16 bytes")
    return int(following)


def _read_header(view: memoryview, base: int) -> _Tables:
    check_range("archive header", base, HEADER.size, len(view))
    count, *segments = HEADER.unpack_from(view, base)[6:]
    ranges = []
    for index, name in enumerate(("entry table", "metadata segment", "storage segment")):
        offset, length = segments[2 * index : 2 * index + 2]
        if length:
            check_range(name, base + offset, length, len(view))
        ranges.append((base + offset, length))
    if count * ENTRY.size > ranges[0][1]:
        raise errors.OutOfRangeError(f"the header claims {count} entries in a table of {ranges[0][1]} bytes")
    return _Tables(count, *ranges)


def _read_entries(file: ParameterFile, tables: _Tables, claims: _Claims) -> list[ParameterEntry]:
    entries = []
    position, remaining = tables.entries
    for number in range(tables.entry_count):
        if remaining < ENTRY.size:
            raise errors.OutOfRangeError(f"the entry table ends in entry {number} of {tables.entry_count}")
        size, kind, _, *references, alignment = ENTRY.unpack_from(file.view, position)
        if not ENTRY.size <= size <= remaining:
            raise errors.OutOfRangeError(
                f"entry {number} claims {size} bytes with {remaining} left in the entry table"
            )
        claims.add(size)
        name = _metadata(file.view, tables, f"name of entry {number}", *references[:2])
        claims.add_text(len(name))
        try:
            key = str(name, "utf-8")
        except UnicodeDecodeError:
            raise errors.InvalidArgumentError(
                f"the name of entry {number} is not UTF-8: {bytes(name)!r}"
            ) from None
        described = _metadata(file.view, tables, f"metadata of parameter '{key}'", *references[2:])
        claims.add_text(len(described))
        metadata = bytes(described)
        if kind == SPLAT_TYPE:
            entries.append(_splat(file.view, position, size, key, metadata))
        elif kind == DATA_TYPE:
            entries.append(_data(file, tables, position, size, key, metadata, alignment))
        elif kind != SKIP_TYPE:
            what = "is in another file (external)" if kind == EXTERNAL_TYPE else f"has type {kind}"
            raise errors.UnimplementedError(f"parameter '{key}' {what}, which is not supported")
        step = size + -size % ENTRY_ALIGNMENT
        position += step
        remaining -= step
    return entries


def _metadata(view: memoryview, tables: _Tables, what: str, offset: int, length: int) -> memoryview:
    if not length:
        return memoryview(b"")
    start, available = tables.metadata
    check_range(what, offset, length, available)
    return view[start + offset : start + offset + length]


def _splat(view: memoryview, position: int, size: int, key: str, metadata: bytes) -> ParameterEntry:
    _check_size(key, size, SPLAT.size)
    length, pattern, pattern_length = SPLAT.unpack_from(view, position + ENTRY.size)
    if pattern_length > len(pattern):
        raise errors.InvalidArgumentError(
            f"parameter '{key}' claims a pattern of {pattern_length} bytes; 16 at most"
        )
    return splat_entry(key, pattern[:pattern_length], length, metadata, tensor_type(metadata))


def _data(
    file: ParameterFile, tables: _Tables, position: int, size: int, key: str, metadata: bytes, alignment: int
) -> ParameterEntry:
    _check_size(key, size, DATA.size)
    offset, length = DATA.unpack_from(file.view, position + ENTRY.size)
    start, available = tables.storage
    check_range(f"parameter '{key}' in the storage segment", offset, length, available)
    if alignment & (alignment - 1):
        raise errors.InvalidArgumentError(
            f"parameter '{key}' wants alignment {alignment}, which is no power of two"
        )
    if alignment and length and (start + offset) % alignment:
        raise errors.InvalidArgumentError(
            f"parameter '{key}' is misaligned: it begins at {start + offset} of the file and the archive "
            f"promises a multiple of {alignment}"
        )
    storage = file.storage(start + offset if length else 0, length)
    return ParameterEntry(key, length, storage, metadata, tensor_type(metadata))


def _check_size(key: str, size: int, needed: int) -> None:
    if size < ENTRY.size + needed:
        raise errors.OutOfRangeError(
            f"the entry of parameter '{key}' has {size} bytes; it needs {ENTRY.size + needed}"
        )


class Stored(NamedTuple):
    """A parameter in the archive that is written."""

    entry: ParameterEntry
    offset: int | None
    """Where its bytes begin in the file; None for a pattern in the table."""


@dataclass(frozen=True, slots=True)
class ArchiveLayout:
    """An archive before its bytes are written."""

    head: bytes
    """Header, entries, names and metadata."""
    parameters: tuple[Stored, ...]
    size: int
    """Bytes of the file."""


def plan(
    entries: Sequence[ParameterEntry],
    expanded: Sequence[ParameterEntry] = (),
    alignment: int = DEFAULT_ALIGNMENT,
) -> ArchiveLayout:
    """Where everything goes: ``entries`` (patterns in the table), then ``expanded``, whose patterns are
    written out.

    INVALID_ARGUMENT for an alignment that is no power of two and for a key that occurs twice.
    """
    if alignment < 1 or alignment & (alignment - 1):
        raise errors.InvalidArgumentError(f"alignment {alignment} is no power of two")
    in_table = {entry.key for entry in entries if entry.pattern is not None}
    everything = [*entries, *expanded]
    _check_unique(everything)
    sizes = [ENTRY.size + (SPLAT if entry.key in in_table else DATA).size for entry in everything]
    table_length = sum(_aligned(size, ENTRY_ALIGNMENT) for size in sizes[:-1]) + sum(sizes[-1:])
    names = [_name(entry.key) for entry in everything]
    metadata_start = _aligned(HEADER.size, ENTRY_ALIGNMENT) + table_length
    metadata = b"".join(name + entry.metadata for name, entry in zip(names, everything, strict=True))
    stored = len(in_table) < len(everything)
    storage_start = _aligned(metadata_start + len(metadata), alignment if stored else 1)

    table = bytearray()
    parameters = []
    name_offset = storage_length = 0
    for name, entry in zip(names, everything, strict=True):
        table += bytes(-len(table) % ENTRY_ALIGNMENT)
        metadata_offset = name_offset + len(name) if entry.metadata else 0
        references = (name_offset, len(name), metadata_offset, len(entry.metadata))
        name_offset += len(name) + len(entry.metadata)
        if entry.key in in_table:
            pattern = entry.pattern or b""
            table += ENTRY.pack(ENTRY.size + SPLAT.size, SPLAT_TYPE, 0, *references, 0)
            table += SPLAT.pack(entry.length, pattern.ljust(_PATTERN_ROOM, b"\0"), len(pattern))
            parameters.append(Stored(entry, None))
        else:
            offset = _aligned(storage_length, alignment)
            storage_length = offset + entry.length
            table += ENTRY.pack(ENTRY.size + DATA.size, DATA_TYPE, 0, *references, alignment)
            table += DATA.pack(offset, entry.length)
            parameters.append(Stored(entry, storage_start + offset))

    header = HEADER.pack(
        MAGIC, 0, 0, HEADER.size, 0, 0, len(everything),
        _aligned(HEADER.size, ENTRY_ALIGNMENT), table_length,
        metadata_start, len(metadata), storage_start, storage_length,
    )  # fmt: skip
    head = header.ljust(_aligned(HEADER.size, ENTRY_ALIGNMENT), b"\0") + table + metadata
    size = _aligned(storage_start + storage_length, _FILE_ALIGNMENT)
    return ArchiveLayout(bytes(head), tuple(parameters), size)


def write(path: str | os.PathLike[str], layout: ArchiveLayout, start: int = 0) -> None:
    """Writes the archive, ``start`` bytes into the file; one that is there is replaced when the new one is
    complete, so that parameters may come from it.

    UNAVAILABLE when the file cannot be written, INVALID_ARGUMENT for a path that is no file, naming it.
    """
    target = Path(path)
    with errors.error_context(f"writing parameter archive '{target}'"):
        try:
            if target.exists() and not stat.S_ISREG(target.stat().st_mode):
                raise errors.InvalidArgumentError("it is there and is no file that could be replaced")
            unfinished = target.with_name(f".{target.name}.{unique()}")
            file = open(unfinished, "xb")  # never through a link that has this name
            try:
                with file:
                    file.seek(start)
                    file.write(layout.head)
                    _write_storage(file, layout, start)
                os.replace(unfinished, target)
            finally:
                unfinished.unlink(missing_ok=True)
        except errors.StatusError:
            raise
        except OSError as error:
            errors.pass_interruption(error)
            raise errors.UnavailableError(f"cannot write: {error.strerror or error}") from None
        except ValueError as error:  # a name with a zero in it
            errors.pass_interruption(error)
            raise errors.InvalidArgumentError(f"it is no file name: {error}") from None


def _write_storage(file: BinaryIO, layout: ArchiveLayout, start: int) -> None:
    """The bytes of the parameters.

    What is zero is left out: the system reads it so, and stores nothing.
    """
    told = sys.modules.get(PROGRESS)
    for entry, offset in layout.parameters:
        if told is not None:
            told.report("writing parameters", offset or 0, layout.size, "bytes")
        if offset is None or (entry.pattern is not None and not any(entry.pattern)):
            continue
        file.seek(start + offset)
        for chunk in entry.chunks():
            file.write(chunk)
    file.truncate(start + layout.size)
    if told is not None:
        told.report("writing parameters", layout.size, layout.size, "bytes")


def _name(key: str) -> bytes:
    try:
        return key.encode()
    except UnicodeEncodeError:
        raise errors.InvalidArgumentError(f"parameter {key!r}: archives have names of UTF-8 only") from None


def _check_unique(entries: Sequence[ParameterEntry]) -> None:
    seen = set()
    for entry in entries:
        if entry.key in seen:
            raise errors.InvalidArgumentError(f"parameter '{entry.key}' occurs twice")
        seen.add(entry.key)


def _aligned(position: int, alignment: int) -> int:
    return position + -position % alignment
