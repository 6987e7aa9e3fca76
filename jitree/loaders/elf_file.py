"""Checks the headers and tables of an ELF library before they are used.

The latter is read from the laid-out image, whose first byte is address ``file.low``, and only inside its
segments; every table is bounds checked.
"""

from __future__ import annotations

from operator import itemgetter
from typing import Final

from jitree.base.platform import PAGE_SIZE
from jitree.base.records import NamedTuple, rows_of
from jitree.errors import FailedPreconditionError, StatusError, UnavailableError, UnimplementedError
from jitree.loaders import elf_format as elf
from jitree.loaders.elf_format import Architecture, WordSize

MINIMUM_SIZE: Final = 64
"""Bytes of the largest file header."""
MAXIMUM_IMAGE: Final = 1 << 31
"""Bytes between the lowest and the highest address: code addresses its data with 32-bit displacements."""
_MOST_SEGMENTS: Final = 64
"""That are loaded. Linkers write five; each relocation is looked for in all."""
_MOST_SHARED: Final = 16
"""How often the bytes of the string table may be read on average: linkers have one name end another."""


class Segment(NamedTuple):
    """Describes a program header; addresses are those of the file."""

    kind: int
    flags: int
    offset: int
    address: int
    file_size: int
    memory_size: int
    alignment: int

    @property
    def end(self) -> int:
        return self.address + self.memory_size


class ElfFile(NamedTuple):
    """Holds checked headers: ``loads`` in file order, and their address range [low, high)."""

    architecture: Architecture
    loads: tuple[Segment, ...]
    dynamic: Segment
    relro: tuple[Segment, ...]
    low: int
    high: int

    def load_with(self, address: int, size: int, what: str) -> Segment:
        """The loaded segment that holds all of these bytes; FAILED_PRECONDITION if there is none."""
        for load in self.loads:
            if load.address <= address and address + size <= load.address + load.memory_size:
                return load
        raise bad_elf(f"{what} ({size} bytes at {address:#x}) is outside its segments")


def read_elf(data: memoryview, architecture: Architecture) -> ElfFile:
    """Checks the headers of a library for ``architecture``.

    FAILED_PRECONDITION for whatever is not a complete shared object for it.
    """
    if len(data) < MINIMUM_SIZE:
        raise bad_elf(f"it has {len(data)} bytes, fewer than an ELF header")
    if bytes(data[:4]) != b"\x7fELF":
        raise bad_elf(f"it does not start with the ELF identifier but with {bytes(data[:4]).hex(' ')}")
    elf_class, encoding, version = data[4], data[5], data[6]
    word_size = elf.WORD_SIZES.get(elf_class)
    if word_size is None:
        raise bad_elf(f"ELF class {elf_class} is neither 32-bit nor 64-bit")
    if encoding != elf.ELFDATA2LSB:
        raise bad_elf("it is big-endian; only little-endian libraries can be loaded")
    (kind, machine, file_version, _, program_headers, section_headers, _,
     header_size, program_header_size, program_header_count,
     section_header_size, section_header_count, _) = word_size.header.unpack_from(data, 16)  # fmt: skip
    if word_size is not architecture.word_size or machine != architecture.machine:
        raise bad_elf(
            f"it was compiled for {elf.machine_name(machine, elf_class)}, but this machine is "
            f"{architecture.name}; compile the program for {architecture.name}"
        )
    if version != 1 or file_version != 1:
        raise bad_elf(f"ELF version {file_version if version == 1 else version} is not 1")
    if kind != elf.ET_DYN:
        raise bad_elf(f"ELF type {kind} is not a shared object")
    _check_sizes(word_size, header_size, program_header_size, section_header_size)
    _check_table("program", program_headers, program_header_count * program_header_size, len(data))
    _check_table("section", section_headers, section_header_count * section_header_size, len(data))
    segments = _read_segments(data, word_size, program_headers, program_header_count)
    return _classify(len(data), architecture, segments)


def _read_segments(data: memoryview, word_size: WordSize, offset: int, count: int) -> list[Segment]:
    size = word_size.program_header.size
    in_order = itemgetter(*word_size.segment_fields)
    headers = rows_of(word_size.program_header, data[offset : offset + count * size])
    return [*map(Segment._make, map(in_order, headers))]


def _classify(available: int, architecture: Architecture, segments: list[Segment]) -> ElfFile:
    loads = tuple(s for s in segments if s.kind == elf.PT_LOAD and s.memory_size > 0)
    if not loads:
        raise bad_elf("it has no loadable segment")
    if len(loads) > _MOST_SEGMENTS:
        raise bad_elf(f"it has {len(loads)} loadable segments, more than {_MOST_SEGMENTS}")
    for load in loads:
        _check_load(load, available)
    filled = sum(load.file_size for load in loads)
    if filled > available:  # each may be read as a whole, by who loads and by who looks through its code
        raise bad_elf(f"its segments are filled with {filled} bytes of {available}; the data is damaged")
    units = [max(s.alignment, PAGE_SIZE) for s in loads]
    low = min(s.address & -unit for s, unit in zip(loads, units, strict=True))
    high = max(s.end + unit - 1 & -unit for s, unit in zip(loads, units, strict=True))
    if high - low > MAXIMUM_IMAGE:
        raise bad_elf(f"its segments spread over {high - low} bytes, more than {MAXIMUM_IMAGE}")
    dynamic = [s for s in segments if s.kind == elf.PT_DYNAMIC]
    if not dynamic:
        raise bad_elf("it has no dynamic segment")
    relro = tuple(s for s in segments if s.kind == elf.PT_GNU_RELRO and s.memory_size > 0)
    return ElfFile(architecture, loads, dynamic[0], relro, low, high)


def _check_sizes(word_size: WordSize, header: int, program_header: int, section_header: int) -> None:
    file_header = elf.IDENTIFIER_SIZE + word_size.header.size
    expected = (file_header, word_size.program_header.size, word_size.section_header_size)
    if (header, program_header, section_header) != expected:
        raise bad_elf(
            f"its headers are {header}, {program_header} and {section_header} bytes long; expected "
            f"{expected[0]}, {expected[1]} and {expected[2]}"
        )


def _check_table(name: str, offset: int, size: int, available: int) -> None:
    if offset == 0 or size == 0:
        raise bad_elf(f"it has no {name} header table")
    if offset + size > available:
        raise bad_elf(
            f"its {name} header table (bytes {offset} to {offset + size}) reaches past its end at "
            f"{available}; the data is cut short"
        )


def _check_load(load: Segment, available: int) -> None:
    if load.offset + load.file_size > available:
        raise bad_elf(
            f"a segment (bytes {load.offset} to {load.offset + load.file_size}) reaches past its end at "
            f"{available}; the data is cut short"
        )
    if load.file_size > load.memory_size:
        raise bad_elf(f"a segment of {load.memory_size} bytes is filled with {load.file_size}")
    if load.alignment & (load.alignment - 1):
        raise bad_elf(f"a segment's alignment {load.alignment} is not a power of two")
    # What no linker writes but damage does, and what would be run if it were loaded:
    if load.alignment and (load.address - load.offset) & (load.alignment - 1):
        raise bad_elf(
            f"a segment for address {load.address:#x} is at byte {load.offset:#x}, which differs modulo its "
            f"alignment {load.alignment:#x}; the data is damaged"
        )
    if load.flags & elf.PF_X and load.file_size != load.memory_size:
        raise bad_elf(
            f"a segment of {load.memory_size} bytes of code is filled with {load.file_size}; the data is "
            "damaged"
        )


def bad_elf(reason: str) -> StatusError:
    """FAILED_PRECONDITION: not a library that can be loaded."""
    return FailedPreconditionError(f"the ELF library cannot be loaded: {reason}")


def unsupported_elf(reason: str) -> StatusError:
    """UNIMPLEMENTED: a well-formed library that asks for something that the loader does not do."""
    return UnimplementedError(f"the ELF library cannot be loaded: {reason}")


class RelocationTable(NamedTuple):
    address: int
    size: int
    addends: str
    """"RELA" or "REL"."""


class Dynamic(NamedTuple):
    """Addresses are those of the file."""

    symbol_values: tuple[int, ...]
    symbol_names: tuple[str, ...]
    relocations: tuple[RelocationTable, ...]
    initialiser: int
    initialiser_array: tuple[int, int]
    """Address and number of bytes."""


def read_dynamic(file: ElfFile, image: memoryview) -> Dynamic:
    """Reads the dynamic section.

    FAILED_PRECONDITION for missing or misplaced tables, UNAVAILABLE for symbols that the library wants from
    elsewhere, UNIMPLEMENTED for relocation tables of a form that the architecture does not use.
    """
    entries = _entries(file, image)
    values, names = _symbols(file, image, entries)
    array = entries.get(elf.DT_INIT_ARRAY, 0), entries.get(elf.DT_INIT_ARRAYSZ, 0)
    if array[1]:
        file.load_with(*array, "the initialiser array")
    return Dynamic(values, names, _relocation_tables(file, entries), entries.get(elf.DT_INIT, 0), array)


def _entries(file: ElfFile, image: memoryview) -> dict[int, int]:
    dynamic, layout = file.dynamic, file.architecture.word_size.dynamic
    size = dynamic.memory_size // layout.size * layout.size
    file.load_with(dynamic.address, size, "the dynamic section")
    start = dynamic.address - file.low
    entries: dict[int, int] = {}
    for tag, value in rows_of(layout, image[start : start + size]):
        if tag == elf.DT_NULL:
            break
        entries[tag] = value
    symbol, rel, rela = _record_sizes(file)
    for tag, name, expected in (
        (elf.DT_SYMENT, "symbol", symbol), (elf.DT_RELENT, "REL", rel), (elf.DT_RELAENT, "RELA", rela),
    ):  # fmt: skip
        if entries.get(tag, expected) != expected:
            raise bad_elf(f"its {name} records are {entries[tag]} bytes long; expected {expected}")
    return entries


def _record_sizes(file: ElfFile) -> tuple[int, int, int]:
    word_size = file.architecture.word_size
    return word_size.symbol.size, word_size.rel_size, word_size.rela_size


def _required(entries: dict[int, int], tag: int, name: str) -> int:
    if tag not in entries:
        raise bad_elf(f"its dynamic section has no {name}")
    return entries[tag]


def _symbols(
    file: ElfFile, image: memoryview, entries: dict[int, int]
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    strings = _required(entries, elf.DT_STRTAB, "string table")
    strings_size = _required(entries, elf.DT_STRSZ, "string table size")
    table = _required(entries, elf.DT_SYMTAB, "symbol table")
    hashes = _required(entries, elf.DT_HASH, "symbol hash table (DT_HASH)")
    file.load_with(strings, strings_size, "the string table")
    file.load_with(hashes, 8, "the symbol hash table")
    start = hashes - file.low + 4
    count = int.from_bytes(image[start : start + 4], "little")
    word_size = file.architecture.word_size
    size = count * word_size.symbol.size
    file.load_with(table, size, "the symbol table")
    text = bytes(image[strings - file.low : strings - file.low + strings_size])
    name_field, section_field, value_field = word_size.symbol_fields
    values, names, undefined, left = [], [], [], _MOST_SHARED * len(text)
    records = image[table - file.low : table - file.low + size]
    for index, fields in enumerate(rows_of(word_size.symbol, records)):
        name = _string(text, fields[name_field])
        left -= len(name)
        if left < 0:
            raise bad_elf(f"the names of its symbols share the {len(text)} bytes of the string table")
        if fields[section_field] == 0 and index > 0:
            undefined.append(name)
        values.append(fields[value_field])
        names.append(name)
    if undefined:
        raise UnavailableError(
            "the ELF library cannot be loaded: it needs symbols of other libraries "
            f"({', '.join(sorted(undefined))}), but embedded libraries must be self-contained; "
            "compile with --iree-llvmcpu-link-embedded=true"
        )
    return tuple(values), tuple(names)


def _string(text: bytes, start: int) -> str:
    end = text.find(b"\0", start)
    if start >= len(text) or end < 0:
        raise bad_elf(f"a symbol's name at {start} is outside the string table of {len(text)} bytes")
    return text[start:end].decode("utf-8", "backslashreplace")


def _relocation_tables(file: ElfFile, entries: dict[int, int]) -> tuple[RelocationTable, ...]:
    tables = []
    linkage = {elf.DT_REL: "REL", elf.DT_RELA: "RELA"}.get(entries.get(elf.DT_PLTREL, -1), "")
    for address, size, addends in (
        (elf.DT_REL, elf.DT_RELSZ, "REL"),
        (elf.DT_RELA, elf.DT_RELASZ, "RELA"),
        (elf.DT_JMPREL, elf.DT_PLTRELSZ, linkage),
    ):
        length = entries.get(size, 0)
        if address not in entries or length == 0:
            continue
        if addends != file.architecture.addends:
            raise unsupported_elf(
                f"it has a relocation table of kind {addends or 'unknown'}; {file.architecture.name} uses "
                f"{file.architecture.addends}"
            )
        file.load_with(entries[address], length, f"the {addends} relocation table")
        tables.append(RelocationTable(entries[address], length, addends))
    return tuple(tables)
