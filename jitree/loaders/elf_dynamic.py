"""The dynamic section of an embedded ELF library: symbols, relocation tables and initialisers.

Everything is read from the laid-out image, whose first byte is address ``file.low``, and only inside its
segments; every table is bounds checked.
"""

from __future__ import annotations

from jitree.base.records import NamedTuple
from jitree.errors import UnavailableError
from jitree.loaders import elf_format as elf
from jitree.loaders.elf_file import ElfFile, bad_elf, unsupported_elf


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
    for tag, value in layout.iter_unpack(image[start : start + size]):
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
    values, names, undefined = [], [], []
    records = image[table - file.low : table - file.low + size]
    for index, fields in enumerate(word_size.symbol.iter_unpack(records)):
        name = _string(text, fields[name_field])
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
    return text[start:end].decode("utf-8", "replace")


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
