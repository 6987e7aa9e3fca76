"""Writing IREE parameter archives: one header, its table of entries, then the bytes of those that have any.

Files are as IREE's tools make them: the same parameters give the same bytes.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from jitree.base.private_files import unique
from jitree.errors import (
    InvalidArgumentError,
    StatusError,
    UnavailableError,
    error_context,
    pass_interruption,
)
from jitree.params import irpa
from jitree.params.entry import ParameterEntry

DEFAULT_ALIGNMENT: Final = 64
"""Bytes; devices use parameters in place that begin at a multiple of this."""
_FILE_ALIGNMENT: Final = 4096
"""What the length of the file is a multiple of: whole pages can be mapped."""
_PATTERN_ROOM: Final = 16


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
        raise InvalidArgumentError(f"alignment {alignment} is no power of two")
    in_table = {entry.key for entry in entries if entry.pattern is not None}
    everything = [*entries, *expanded]
    _check_unique(everything)
    sizes = [
        irpa.ENTRY.size + (irpa.SPLAT if entry.key in in_table else irpa.DATA).size for entry in everything
    ]
    table_length = sum(_aligned(size, irpa.ENTRY_ALIGNMENT) for size in sizes[:-1]) + sum(sizes[-1:])
    names = [entry.key.encode() for entry in everything]
    metadata_start = _aligned(irpa.HEADER.size, irpa.ENTRY_ALIGNMENT) + table_length
    metadata = b"".join(name + entry.metadata for name, entry in zip(names, everything, strict=True))
    stored = len(in_table) < len(everything)
    storage_start = _aligned(metadata_start + len(metadata), alignment if stored else 1)

    table = bytearray()
    parameters = []
    name_offset = storage_length = 0
    for name, entry in zip(names, everything, strict=True):
        table += bytes(-len(table) % irpa.ENTRY_ALIGNMENT)
        metadata_offset = name_offset + len(name) if entry.metadata else 0
        references = (name_offset, len(name), metadata_offset, len(entry.metadata))
        name_offset += len(name) + len(entry.metadata)
        if entry.key in in_table:
            pattern = entry.pattern or b""
            table += irpa.ENTRY.pack(irpa.ENTRY.size + irpa.SPLAT.size, irpa.SPLAT_TYPE, 0, *references, 0)
            table += irpa.SPLAT.pack(entry.length, pattern.ljust(_PATTERN_ROOM, b"\0"), len(pattern))
            parameters.append(Stored(entry, None))
        else:
            offset = _aligned(storage_length, alignment)
            storage_length = offset + entry.length
            table += irpa.ENTRY.pack(
                irpa.ENTRY.size + irpa.DATA.size, irpa.DATA_TYPE, 0, *references, alignment
            )
            table += irpa.DATA.pack(offset, entry.length)
            parameters.append(Stored(entry, storage_start + offset))

    header = irpa.HEADER.pack(
        irpa.MAGIC, 0, 0, irpa.HEADER.size, 0, 0, len(everything),
        _aligned(irpa.HEADER.size, irpa.ENTRY_ALIGNMENT), table_length,
        metadata_start, len(metadata), storage_start, storage_length,
    )  # fmt: skip
    head = header.ljust(_aligned(irpa.HEADER.size, irpa.ENTRY_ALIGNMENT), b"\0") + table + metadata
    size = _aligned(storage_start + storage_length, _FILE_ALIGNMENT)
    return ArchiveLayout(bytes(head), tuple(parameters), size)


def write(path: str | os.PathLike[str], layout: ArchiveLayout, start: int = 0) -> None:
    """Writes the archive, ``start`` bytes into the file; one that is there is replaced when the new one is
    complete, so that parameters may come from it.

    UNAVAILABLE when the file cannot be written, INVALID_ARGUMENT for a path that is no file, naming it.
    """
    target = Path(path)
    with error_context(f"writing parameter archive '{target}'"):
        try:
            if target.exists() and not stat.S_ISREG(target.stat().st_mode):
                raise InvalidArgumentError("it is there and is no file that could be replaced")
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
        except StatusError:
            raise
        except OSError as error:
            pass_interruption(error)
            raise UnavailableError(f"cannot write: {error.strerror or error}") from None
        except ValueError as error:  # a name with a zero in it
            pass_interruption(error)
            raise InvalidArgumentError(f"it is no file name: {error}") from None


def _write_storage(file: BinaryIO, layout: ArchiveLayout, start: int) -> None:
    """The bytes of the parameters. What is zero is left out: the system reads it so, and stores nothing."""
    for entry, offset in layout.parameters:
        if offset is None or (entry.pattern is not None and not any(entry.pattern)):
            continue
        file.seek(start + offset)
        for chunk in entry.chunks():
            file.write(chunk)
    file.truncate(start + layout.size)


def _check_unique(entries: Sequence[ParameterEntry]) -> None:
    seen = set()
    for entry in entries:
        if entry.key in seen:
            raise InvalidArgumentError(f"parameter '{entry.key}' occurs twice")
        seen.add(entry.key)


def _aligned(position: int, alignment: int) -> int:
    return position + -position % alignment
