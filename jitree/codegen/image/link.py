"""Links relocatable ELF objects into one flat image.

Reads objects as LLVM writes them (64 bits, little endian): sections, symbols, relocations. No libraries, no
symbols are left to find. How each relocation type of the supported machines patches a word is a row here.
Offsets are inside the image, which is placed at a multiple of 4096, so page-relative forms can be resolved
at link time; only absolute words remain to be rebased when the image is mapped.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from jitree.base.records import NamedTuple, rows_of
from jitree.codegen.image.flat import FlatImage
from jitree.errors import AlreadyExistsError, NotFoundError, UnimplementedError

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

Patch = Callable[[bytearray, int, int], None]
"""Patches the word at a place with a target value (symbol plus addend)."""

_UNWIND_SECTIONS: Final = (".eh_frame", ".ARM.exidx")


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


def _relative32(code: bytearray, place: int, target: int) -> None:
    distance = target - place
    if not -(2**31) <= distance < 2**31:
        raise UnimplementedError(f"machine code of more than 2 GiB: distance {distance}")
    struct.pack_into("<i", code, place, distance)


def absolute64(code: bytearray, place: int, target: int) -> None:
    """Stores an image offset; the place must also be in the image's rebase list."""
    struct.pack_into("<q", code, place, target)


def _number32(least: int) -> Patch:
    def patch(code: bytearray, place: int, number: int) -> None:
        if not least <= number < least + 2**32:
            raise UnimplementedError(f"the number {number} in an instruction for 32 bits")
        struct.pack_into("<I", code, place, number & 0xFFFFFFFF)

    return patch


def _insert(code: bytearray, place: int, bits: int) -> None:
    (word,) = struct.unpack_from("<I", code, place)
    struct.pack_into("<I", code, place, word | bits)


def _branch26(code: bytearray, place: int, target: int) -> None:
    distance = target - place
    if not -(2**27) <= distance < 2**27:
        raise UnimplementedError(f"branch over {distance} bytes")
    _insert(code, place, (distance >> 2) & 0x3FFFFFF)


def _address21(code: bytearray, place: int, value: int) -> None:
    _insert(code, place, (value & 3) << 29 | ((value >> 2) & 0x7FFFF) << 5)


def _page21(code: bytearray, place: int, target: int) -> None:
    _address21(code, place, (target >> 12) - (place >> 12))


def _near21(code: bytearray, place: int, target: int) -> None:
    _address21(code, place, target - place)


def _low12(scale: int) -> Patch:
    def patch(code: bytearray, place: int, target: int) -> None:
        _insert(code, place, ((target & 0xFFF) >> scale) << 10)

    return patch


MACHINES: Final = {62: "EM_X86_64", 183: "EM_AARCH64"}
"""Names of the machines by their number in ELF files."""

RELOCATIONS: Final[dict[str, dict[int, Patch]]] = {
    "EM_X86_64": {
        1: absolute64,  # R_X86_64_64
        2: _relative32,  # R_X86_64_PC32
        4: _relative32,  # R_X86_64_PLT32
    },
    "EM_AARCH64": {
        257: absolute64,  # R_AARCH64_ABS64
        261: _relative32,  # R_AARCH64_PREL32
        274: _near21,  # R_AARCH64_ADR_PREL_LO21
        275: _page21,  # R_AARCH64_ADR_PREL_PG_HI21
        277: _low12(0),  # R_AARCH64_ADD_ABS_LO12_NC
        278: _low12(0),  # R_AARCH64_LDST8_ABS_LO12_NC
        282: _branch26,  # R_AARCH64_JUMP26
        283: _branch26,  # R_AARCH64_CALL26
        284: _low12(1),  # R_AARCH64_LDST16_ABS_LO12_NC
        285: _low12(2),  # R_AARCH64_LDST32_ABS_LO12_NC
        286: _low12(3),  # R_AARCH64_LDST64_ABS_LO12_NC
        299: _low12(4),  # R_AARCH64_LDST128_ABS_LO12_NC
    },
}

NUMBERS: Final[dict[str, dict[int, Patch]]] = {
    "EM_X86_64": {
        10: _number32(0),  # R_X86_64_32
        11: _number32(-(2**31)),  # R_X86_64_32S
    },
    "EM_AARCH64": {},
}
"""Of symbols that are no addresses."""
_TABLE_ALIGNMENT: Final = 16


def link(
    object_files: Sequence[bytes],
    entries: Iterable[str],
    notes: bytes = b"",
    base: FlatImage | None = None,
    values: Mapping[str, int | bytes] = MappingProxyType({}),
) -> FlatImage:
    """Lays out and relocates objects after a copy of ``base``. They may call its entries. ``entries`` names
    the functions to be called from outside, ``values`` symbols that no object defines: numbers, and the bytes
    of tables.

    Raises NOT_FOUND for symbols that no object defines, ALREADY_EXISTS for those that two define,
    UNIMPLEMENTED for relocation types or machines without a row in
    :mod:`~jitree.codegen.image.link` and for writable or zero-filled data.
    """
    layout = _Layout([ObjectFile(data) for data in object_files], base or FlatImage(b"", b"", {}), values)
    rebase = layout.relocate()
    if any(place & 7 for place in rebase):
        raise UnimplementedError("an address constant that is not aligned to 8")
    missing = [name for name in entries if name not in layout.defined]
    if missing:
        raise NotFoundError(f"the object does not define {', '.join(missing)}")
    table = struct.pack(f"<{len(rebase)}I", *rebase)
    if base is not None:
        table = base.rebase + table
    return FlatImage(bytes(layout.code), table, {name: layout.defined[name] for name in entries}, notes)


class _Layout:
    """Objects placed one after the other."""

    def __init__(
        self, objects: Sequence[ObjectFile], base: FlatImage, values: Mapping[str, int | bytes]
    ) -> None:
        """``base`` stays where it is: what it refers to by pages (aarch64) cannot move."""
        self.code = bytearray(base.code)
        self._objects = objects
        self._placed = [self._place(item) for item in objects]
        self.defined = dict(base.entries)
        self._numbers = {name: value for name, value in values.items() if isinstance(value, int)}
        for name, value in values.items():
            if isinstance(value, bytes):
                self.defined[name] = self._append(value, _TABLE_ALIGNMENT)
        for item, placed in zip(objects, self._placed, strict=True):
            for symbol in item.symbols:
                if symbol.local or not is_defined(symbol) or symbol.section not in placed:
                    continue
                if symbol.name in self.defined:
                    raise AlreadyExistsError(f"two units of an image define {symbol.name}")
                self.defined[symbol.name] = placed[symbol.section] + symbol.value

    def _place(self, item: ObjectFile) -> dict[int, int]:
        """Appends the object's sections; the offset of each by its number."""
        placed: dict[int, int] = {}
        for number, section in enumerate(item.sections):
            if not section.flags & FLAG_ALLOCATED or section.name in _UNWIND_SECTIONS:
                continue
            if section.kind == SECTION_ZEROS and section.size > 0:
                raise UnimplementedError(f"zero-filled data in section {section.name}")
            if section.name == ".data" and section.size > 0:
                raise UnimplementedError("writable data: state belongs into the block that is passed in")
            placed[number] = self._append(section.data, section.alignment)
        return placed

    def _append(self, data: bytes, alignment: int) -> int:
        """The place that data gets."""
        self.code += bytes(-len(self.code) % alignment)
        place = len(self.code)
        self.code += data
        return place

    def relocate(self) -> list[int]:
        """Patches all code; the offsets of the words that hold image offsets."""
        rebase: list[int] = []
        for item, placed in zip(self._objects, self._placed, strict=True):
            name = MACHINES.get(item.machine)
            if name is None:
                raise UnimplementedError(f"no relocations known for machine {item.machine}")
            for section in item.sections:
                if section.kind != SECTION_RELOCATIONS or section.target not in placed:
                    continue
                start = placed[section.target]
                for relocation in item.relocations(section):
                    symbol = item.symbols[relocation.symbol]
                    number = self._numbers.get(symbol.name)
                    patch = (RELOCATIONS if number is None else NUMBERS)[name].get(relocation.kind)
                    if patch is None:
                        raise UnimplementedError(f"relocation type {relocation.kind} of {name}")
                    place = start + relocation.offset
                    target = self._address(symbol, placed) if number is None else number
                    patch(self.code, place, target + relocation.addend)
                    if patch is absolute64:
                        rebase.append(place)
        return rebase

    def _address(self, symbol: Symbol, placed: dict[int, int]) -> int:
        if symbol.section in placed:
            return placed[symbol.section] + symbol.value
        if symbol.name in self.defined:
            return self.defined[symbol.name]
        raise NotFoundError(
            f"machine code refers to {symbol.name or f'section {symbol.section}'}, which it does not contain"
        )
