"""FatELF: libraries for several architectures in one file; the slice for the one that loads it is chosen."""

from __future__ import annotations

import struct
from typing import Final

from jitree.errors import InvalidArgumentError, OutOfRangeError, UnimplementedError
from jitree.loaders import elf_format as elf
from jitree.loaders.elf_format import Architecture

MAGIC: Final = b"\xfa\x70\x0e\x1f"
_HEADER: Final = struct.Struct("<4sHBB")
_RECORD: Final = struct.Struct("<HBBBBBBQQ")
_MINIMUM_SIZE: Final = _HEADER.size + _RECORD.size
_VERSION: Final = 1
_SYSTEMS: Final = (0, 3, 255)
"""OS ABIs that run here: none, Linux, stand-alone."""


def select_slice(data: memoryview, architecture: Architecture) -> memoryview:
    """The first library for ``architecture``; ``data`` itself when it is not FatELF.

    UNIMPLEMENTED for another version, INVALID_ARGUMENT for a short record table or without a match,
    OUT_OF_RANGE for a slice outside the data.
    """
    if len(data) < _MINIMUM_SIZE or bytes(data[:4]) != MAGIC:
        return data
    _, version, count, _ = _HEADER.unpack_from(data)
    if version != _VERSION:
        raise UnimplementedError(f"FatELF version {version} cannot be read, only version {_VERSION}")
    end = _HEADER.size + count * _RECORD.size
    if end > len(data):
        raise InvalidArgumentError(f"the FatELF table of {count} records reaches past the end at {len(data)}")
    found = []
    for record in _RECORD.iter_unpack(data[_HEADER.size : end]):
        machine, system, _, word_size, byte_order, _, _, offset, size = record
        if word_size not in elf.WORD_SIZES or byte_order != elf.ELFDATA2LSB or system not in _SYSTEMS:
            continue
        if machine == architecture.machine and word_size == architecture.word_size.elf_class:
            if offset + size > len(data):
                raise OutOfRangeError(
                    f"the FatELF slice for {architecture.name} (bytes {offset} to {offset + size}) reaches "
                    f"past the end at {len(data)}; the data is cut short"
                )
            return data[offset : offset + size]
        found.append(elf.machine_name(machine, word_size))
    raise InvalidArgumentError(
        f"the FatELF file has libraries for {', '.join(found) or 'no known architecture'}, but this machine "
        f"is {architecture.name}; compile the program for {architecture.name}"
    )
