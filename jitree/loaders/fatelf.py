"""Chooses this machine's slice of a FatELF file with libraries for several architectures."""

from __future__ import annotations

import struct
from typing import Final

from jitree.base.records import NamedTuple, rows_of
from jitree.errors import InvalidArgumentError, OutOfRangeError, UnimplementedError
from jitree.loaders import elf_format as elf
from jitree.loaders.elf_format import Architecture

_HEADER: Final = struct.Struct("<4sHBB")
_RECORD: Final = struct.Struct("<HBBBBBBQQ")
_MINIMUM_SIZE: Final = _HEADER.size + _RECORD.size
_VERSION: Final = 1
_SYSTEMS: Final = (0, 3, 255)
"""OS ABIs that run here: none, Linux, stand-alone."""


class Slice(NamedTuple):
    """Describes one library of the file: its machine and its place."""

    machine: int
    system: int
    system_version: int
    word_size: int
    byte_order: int
    reserved_0: int
    reserved_1: int
    offset: int
    size: int

    @property
    def name(self) -> str:
        return elf.machine_name(self.machine, self.word_size)

    def content(self, data: memoryview) -> memoryview:
        """The library; OUT_OF_RANGE for one outside the data."""
        end = self.offset + self.size
        if end > len(data):
            raise OutOfRangeError(
                f"the FatELF slice for {self.name} (bytes {self.offset} to {end}) reaches past the end at "
                f"{len(data)}; the data is cut short"
            )
        return data[self.offset : end]


def slices(data: memoryview) -> list[Slice]:
    """Reads the records that may run on some machine.

    UNIMPLEMENTED for another version, INVALID_ARGUMENT for a short table.
    """
    _, version, count, _ = _HEADER.unpack_from(data)
    if version != _VERSION:
        raise UnimplementedError(f"FatELF version {version} cannot be read, only version {_VERSION}")
    end = _HEADER.size + count * _RECORD.size
    if end > len(data):
        raise InvalidArgumentError(f"the FatELF table of {count} records reaches past the end at {len(data)}")
    found = map(Slice._make, rows_of(_RECORD, data[_HEADER.size : end]))
    return [
        row
        for row in found
        if row.word_size in elf.WORD_SIZES and row.byte_order == elf.ELFDATA2LSB and row.system in _SYSTEMS
    ]


def is_fatelf(data: memoryview) -> bool:
    return len(data) >= _MINIMUM_SIZE and bytes(data[:4]) == elf.FATELF_MAGIC


def select_slice(data: memoryview, architecture: Architecture) -> memoryview:
    """The first library for ``architecture``; ``data`` itself when it is not FatELF.

    Raises as :func:`slices` and :meth:`Slice.content` do, and INVALID_ARGUMENT if there is none.
    """
    if not is_fatelf(data):
        return data
    found = slices(data)
    for row in found:
        if row.machine == architecture.machine and row.word_size == architecture.word_size.elf_class:
            return row.content(data)
    names = ", ".join(row.name for row in found)
    raise InvalidArgumentError(
        f"the FatELF file has libraries for {names or 'no known architecture'}, but this machine "
        f"is {architecture.name}; compile the program for {architecture.name}"
    )
