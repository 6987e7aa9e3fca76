"""Relocatable ELF objects as LLVM writes them: sections, symbols, relocations. 64 bits, little endian."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from jitree.base.layout import rows_of
from jitree.base.records import NamedTuple
from jitree.errors import UnimplementedError

_IDENTIFICATION: Final = b"\x7fELF\x02\x01"
_RELOCATABLE: Final = 1
_FILE_HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION_HEADER: Final = struct.Struct("<IIQQQQIIQQ")
_SYMBOL: Final = struct.Struct("<IBBHQQ")
_RELOCATION: Final = struct.Struct("<QQq")

SECTION_SYMBOLS: Final = 2
SECTION_RELOCATIONS: Final = 4
SECTION_ZEROS: Final = 8
FLAG_ALLOCATED: Final = 2
_RESERVED_SECTIONS: Final = 0xFF00
UNDEFINED: Final = 0
_LOCAL: Final = 0


class Section(NamedTuple):
    name: str
    kind: int
    flags: int
    alignment: int
    size: int
    data: bytes
    target: int
    """The number of the section that the relocations in this one change."""


class Symbol(NamedTuple):
    name: str
    section: int
    """Number of the section that defines it, UNDEFINED for one that another object must define."""
    value: int
    local: bool


class ObjectRelocation(NamedTuple):
    offset: int
    kind: int
    symbol: int
    addend: int


class ObjectFile:
    """A parsed object. What is read comes from LLVM in this process, so damage is not looked for."""

    def __init__(self, data: bytes) -> None:
        """UNIMPLEMENTED for any other kind of file."""
        header = _FILE_HEADER.unpack_from(data)
        if data[: len(_IDENTIFICATION)] != _IDENTIFICATION or header[1] != _RELOCATABLE:
            raise UnimplementedError(
                "the compiler's output is no relocatable ELF file of 64 bits, little endian"
            )
        self.machine: int = header[2]
        rows = [
            _SECTION_HEADER.unpack_from(data, header[6] + number * header[11]) for number in range(header[12])
        ]
        contents = [b"" if row[1] == SECTION_ZEROS else data[row[4] : row[4] + row[5]] for row in rows]
        names = contents[header[13]]
        self.sections: list[Section] = [
            Section(_text(names, row[0]), row[1], row[2], max(row[8], 1), row[5], content, row[7])
            for row, content in zip(rows, contents, strict=True)
        ]
        self.symbols: list[Symbol] = []
        for row, content in zip(rows, contents, strict=True):
            if row[1] == SECTION_SYMBOLS:
                strings = contents[row[6]]
                self.symbols = [
                    Symbol(_text(strings, name), section, value, info >> 4 == _LOCAL)
                    for name, info, _, section, value, _ in rows_of(_SYMBOL, content)
                ]

    def relocations(self, section: Section) -> Iterator[ObjectRelocation]:
        for offset, info, addend in rows_of(_RELOCATION, section.data):
            yield ObjectRelocation(offset, info & 0xFFFFFFFF, info >> 32, addend)


def is_defined(symbol: Symbol) -> bool:
    """Whether its section is one of the object's."""
    return UNDEFINED < symbol.section < _RESERVED_SECTIONS


def _text(table: bytes, offset: int) -> str:
    return table[offset : table.index(b"\0", offset)].decode()
