"""Lists the numbers of the ELF format: word sizes, architectures, relocations, FatELF."""

from __future__ import annotations

import struct
import sys
from functools import cache
from typing import Final

from jitree.base.platform import MACHINE
from jitree.base.records import NamedTuple, rows_of
from jitree.errors import InvalidArgumentError, OutOfRangeError, UnimplementedError

ELFCLASS32: Final = 1
ELFCLASS64: Final = 2
ELFDATA2LSB: Final = 1
ET_DYN: Final = 3

PT_LOAD: Final = 1
PT_DYNAMIC: Final = 2
PT_GNU_RELRO: Final = 0x6474E552

PF_X: Final = 1
PF_W: Final = 2

DT_NULL: Final = 0
DT_PLTRELSZ: Final = 2
DT_HASH: Final = 4
DT_STRTAB: Final = 5
DT_SYMTAB: Final = 6
DT_RELA: Final = 7
DT_RELASZ: Final = 8
DT_RELAENT: Final = 9
DT_STRSZ: Final = 10
DT_SYMENT: Final = 11
DT_INIT: Final = 12
DT_REL: Final = 17
DT_RELSZ: Final = 18
DT_RELENT: Final = 19
DT_PLTREL: Final = 20
DT_JMPREL: Final = 23
DT_INIT_ARRAY: Final = 25
DT_INIT_ARRAYSZ: Final = 27


class WordSize(NamedTuple):
    """Lays out the records of 32- and 64-bit files."""

    elf_class: int
    bits: int
    header: struct.Struct
    """The header of the file, from e_type on: type, machine, version, entry, program and section header
    offsets, flags, header size, size and number of program headers, of section headers, name section."""
    program_header: struct.Struct
    segment_fields: tuple[int, ...]
    """Positions of type, flags, offset, vaddr, filesz, memsz, align in a program header."""
    section_header_size: int
    dynamic: struct.Struct
    symbol: struct.Struct
    symbol_fields: tuple[int, ...]
    """Positions of name, section index, value in a symbol."""
    rel_size: int
    rela_size: int
    symbol_shift: int
    """The bit of a relocation's info word above which the symbol is; the type is below."""


WORD_32: Final = WordSize(
    ELFCLASS32, 32, struct.Struct("<HHIIIIIHHHHHH"),
    struct.Struct("<8I"), (0, 6, 1, 2, 4, 5, 7), 40,
    struct.Struct("<iI"), struct.Struct("<IIIBBH"), (0, 5, 1), 8, 12, 8,
)  # fmt: skip
WORD_64: Final = WordSize(
    ELFCLASS64, 64, struct.Struct("<HHIQQQIHHHHHH"),
    struct.Struct("<2I6Q"), (0, 1, 2, 3, 5, 6, 7), 64,
    struct.Struct("<qQ"), struct.Struct("<IBBHQQ"), (0, 3, 4), 16, 24, 32,
)  # fmt: skip
WORD_SIZES: Final = {row.elf_class: row for row in (WORD_32, WORD_64)}
IDENTIFIER_SIZE: Final = 16
FATELF_MAGIC: Final = b"\xfa\x70\x0e\x1f"
"""Begins files of libraries for several architectures."""


class Relocation(NamedTuple):
    """Sums what a place gets: S (symbol), A (addend), B (bias), P (place, subtracted)."""

    name: str
    terms: str
    size: int
    """Bytes stored; 0 stores nothing."""


class Architecture(NamedTuple):
    name: str
    """The name in format strings (``embedded-elf-<name>``)."""
    machine: int
    word_size: WordSize
    addends: str
    """"RELA": addends in the relocation table; "REL": at the place."""
    relative: int
    """The type that almost every relocation has."""
    rows: str
    """A line for each type of relocation: number, name, terms, size."""

    @property
    def relocations(self) -> dict[int, Relocation]:
        return _rows(self.rows)


@cache
def _rows(text: str) -> dict[int, Relocation]:
    rows = {}
    for line in text.strip().splitlines():
        number, name, terms, size = line.split()
        rows[int(number)] = Relocation(name, "" if terms == "-" else terms, int(size))
    return rows


ARCHITECTURES: Final = (
    Architecture("x86_64", 0x3E, WORD_64, "RELA", 8, """
        0   R_X86_64_NONE       -    0
        1   R_X86_64_64         SA   8
        2   R_X86_64_PC32       SAP  4
        5   R_X86_64_COPY       S    8
        6   R_X86_64_GLOB_DAT   S    8
        7   R_X86_64_JUMP_SLOT  S    8
        8   R_X86_64_RELATIVE   BA   8
        10  R_X86_64_32         SA   4
        11  R_X86_64_32S        SA   4
    """),
    Architecture("arm_64", 0xB7, WORD_64, "RELA", 1027, """
        0     R_AARCH64_NONE       -   0
        257   R_AARCH64_ABS64      SA  8
        1025  R_AARCH64_GLOB_DAT   SA  8
        1026  R_AARCH64_JUMP_SLOT  SA  8
        1027  R_AARCH64_RELATIVE   BA  8
    """),
    Architecture("riscv_64", 0xF3, WORD_64, "RELA", 3, """
        0  R_RISCV_NONE       -   0
        1  R_RISCV_32         SA  4
        2  R_RISCV_64         SA  8
        3  R_RISCV_RELATIVE   BA  8
        5  R_RISCV_JUMP_SLOT  S   8
    """),
    Architecture("x86_32", 3, WORD_32, "REL", 8, """
        0  R_386_NONE      -    0
        1  R_386_32        SA   4
        2  R_386_PC32      SAP  4
        6  R_386_GLOB_DAT  S    4
        7  R_386_JMP_SLOT  S    4
        8  R_386_RELATIVE  BA   4
    """),
    Architecture("arm_32", 0x28, WORD_32, "REL", 23, """
        0   R_ARM_NONE       -    0
        2   R_ARM_ABS32      SA   4
        3   R_ARM_REL32      SAP  4
        21  R_ARM_GLOB_DAT   S    4
        22  R_ARM_JUMP_SLOT  S    4
        23  R_ARM_RELATIVE   BA   4
    """),
)  # fmt: skip
"""Relocation types that a linked shared object without imports can hold."""

_NAMES: Final = {
    "x86_64": "x86_64", "aarch64": "arm_64", "riscv64": "riscv_64",
    "i686": "x86_32", "i386": "x86_32", "armv7l": "arm_32", "armv8l": "arm_32",
}  # fmt: skip


def machine_name(machine: int, elf_class: int) -> str:
    """Names a file's architecture in messages, from e_machine and class.

    RISC-V has one number for both classes.
    """
    for row in ARCHITECTURES:
        if row.machine == machine and row.word_size.elf_class == elf_class:
            return row.name
    return f"machine {machine:#x} with {WORD_SIZES[elf_class].bits} bits"


@cache
def host_architecture() -> Architecture | None:
    """Finds the row of the process's architecture.

    None where there is none: then no embedded ELF can be loaded.
    """
    name = _NAMES.get(MACHINE)
    bits = 64 if sys.maxsize > 2**32 else 32
    for row in ARCHITECTURES:
        if row.name == name and row.word_size.bits == bits and sys.byteorder == "little":
            return row
    return None


_HEADER: Final = struct.Struct("<4sHBB")
_RECORD: Final = struct.Struct("<HBBBBBBQQ")
_MINIMUM_SIZE: Final = _HEADER.size + _RECORD.size
_VERSION: Final = 1
_SYSTEMS: Final = (0, 3, 255)
"""OS ABIs that run here: none, Linux, stand-alone."""


class Slice:
    """Describes one library of the file: its machine and its place."""

    __slots__ = ("byte_order", "machine", "offset", "size", "system", "word_size")

    def __init__(self, *record: int) -> None:
        self.machine, self.system, _, self.word_size, self.byte_order, _, _, self.offset, self.size = record

    @property
    def name(self) -> str:
        return machine_name(self.machine, self.word_size)

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
    found = [Slice(*record) for record in rows_of(_RECORD, data[_HEADER.size : end])]
    return [
        row
        for row in found
        if row.word_size in WORD_SIZES and row.byte_order == ELFDATA2LSB and row.system in _SYSTEMS
    ]


def is_fatelf(data: memoryview) -> bool:
    return len(data) >= _MINIMUM_SIZE and bytes(data[:4]) == FATELF_MAGIC


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
