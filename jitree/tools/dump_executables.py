"""Shows a module's machine code: sections, symbols, notes and source locations.

``jitree dump --output=executables``: pyelftools reads them, as it knows every section and note there is. The
loaders' own reader looks first, since it says what is wrong with a damaged file.
``jitree dump --output=locations``: libraries of machine code are loaded, as a session does, and say where
functions and dispatches come from. Those for other processors only show their format.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import Any, Final

from jitree.cuda import executable_format, ptx
from jitree.errors import StatusError
from jitree.loaders import elf_format, fatelf
from jitree.loaders.elf_file import bad_elf, read_elf
from jitree.loaders.embedded_elf import open_library
from jitree.loaders.environment import Environment
from jitree.loaders.library import NativeExecutable, query_library
from jitree.loaders.vmvx import kernels as vmvx_kernels
from jitree.loaders.vmvx.kernels import kernels
from jitree.loaders.vmvx.loader import kernel_places
from jitree.vmfb.schema import ModuleTables

ELF: Final = b"\x7fELF"
_CUDA: Final = (b"CUDA", b"CDA1")
_SECTION_FLAGS: Final = {1: "W", 2: "A", 4: "X", 0x10: "M", 0x20: "S", 0x400: "T"}
"""Writable, in memory, code, mergeable, strings, one for each thread."""
_TEXT_LIMIT: Final = 16
"""Characters shown for each byte of a file: the names of a damaged one may all be the same long text."""
_SMALLEST_SECTION_HEADER: Final = 40

Named = Iterator[tuple[str, list[str]]]
"""Names of functions and their lines of the source."""


def executable_lines(module: ModuleTables) -> Iterator[str]:
    """A part for each executable; the first damage found is raised after all of them."""
    damage: StatusError | None = None
    found = False
    for index, segment in enumerate(module.rodata):
        if not is_executable(segment.data):
            continue
        found = True
        yield f"Executable in .rodata[{index}], {len(segment.data)} bytes:"
        try:
            yield from _lines(segment.data)
        except StatusError as error:
            error.with_context(f"reading the executable in .rodata[{index}] of {module.archive.name}")
            yield f"  // damaged: {error}"
            damage = damage or error
        yield ""
    if not found:
        yield "No ELF, FatELF or CUDA executables; `--tiers` shows those of VMVX."
    if damage is not None:
        raise damage


def is_executable(data: memoryview) -> bool:
    start = bytes(data[:8])
    return start.startswith((ELF, *_CUDA)) or start[4:] in _CUDA or fatelf.is_fatelf(data)


def _lines(data: memoryview) -> Iterator[str]:
    if fatelf.is_fatelf(data):
        for row in fatelf.slices(data):
            yield f"FatELF slice for {row.name}, {row.size} bytes:"
            yield from _elf_lines(row.content(data))
    elif bytes(data[:4]) == ELF:
        yield from _elf_lines(data)
    else:
        yield from _cuda_lines(data)


def _cuda_lines(data: memoryview) -> Iterator[str]:
    description = executable_format.read(data)
    for index, image in enumerate(description.images):
        names = ", ".join(export.name for export in description.exports if export.module == index)
        cubin = ptx.is_cubin(image)
        yield f"  {'Cubin' if cubin else 'PTX'} of {len(image)} bytes with kernels: {names}"
        if cubin:
            yield from _elf_lines(memoryview(image))


def _elf_lines(data: memoryview) -> Iterator[str]:
    _check(data)
    left = _TEXT_LIMIT * len(data)
    try:
        for line in _parts(data):
            yield f"  {line}"
            left -= len(line)
            if left < 0:
                raise bad_elf("its sections or names overlap; the data is damaged")
    except StatusError:
        raise
    except Exception as error:  # pyelftools raises what it meets: KeyError, struct.error, ELFError ...
        raise bad_elf(f"pyelftools finds {type(error).__name__}: {error}; the data is damaged") from error


def _check(data: memoryview) -> None:
    """What the loaders check, where they know the machine; FAILED_PRECONDITION says what is wrong."""
    machine = int.from_bytes(data[18:20], "little")
    for row in elf_format.ARCHITECTURES:
        if row.machine == machine and row.word_size.elf_class == data[4]:
            read_elf(data, row)


def _parts(data: memoryview) -> Iterator[str]:
    from elftools.elf.elffile import ELFFile
    from elftools.elf.sections import NoteSection, SymbolTableSection

    elf: Any = ELFFile(io.BytesIO(data))
    header = elf.header
    if elf.num_sections() * _SMALLEST_SECTION_HEADER > len(data):
        raise bad_elf(f"it states {elf.num_sections()} sections, more than it has room for")
    yield f"{elf.elfclass}-bit {header.e_machine}, {header.e_type}, entry {header.e_entry:#x}"
    yield "Sections:"
    yield "    # | Address          | Offset   | Size     | Flags | Type               | Name"
    for index, section in enumerate(elf.iter_sections()):
        flags = "".join(letter for bit, letter in _SECTION_FLAGS.items() if section["sh_flags"] & bit)
        yield (
            f"  {index:3} | {section['sh_addr']:016x} | {section['sh_offset']:08x} | "
            f"{section['sh_size']:8} | {flags:5} | {section['sh_type']!s:18} | {section.name}"
        )
    for section in elf.iter_sections():
        if isinstance(section, SymbolTableSection):
            yield f"Symbols in {section.name}:"
            yield "    Value            | Size     | Type        | Binding    | Section   | Name"
            yield from map(_symbol_line, section.iter_symbols())
        if isinstance(section, NoteSection):
            yield f"Notes in {section.name}:"
            yield from map(_note_line, section.iter_notes())


def _symbol_line(symbol: Any) -> str:
    info = symbol["st_info"]
    return (
        f"    {symbol['st_value']:016x} | {symbol['st_size']:8} | {info['type']!s:11} | "
        f"{info['bind']!s:10} | {symbol['st_shndx']!s:9} | {symbol.name}"
    )


def _note_line(note: Any) -> str:
    return f"    {note['n_name']}, {note['n_type']}: {note['n_descdata'].hex(' ')}"


def location_lines(module: ModuleTables) -> Iterator[str]:
    """Functions of the program, then those of its executables; the first damage is raised after all."""
    debug, rows = module.debug, module.functions
    yield f"Functions of @{module.name}:"
    yield from _places(
        (module.function_name(row.ordinal), debug.places(row.ordinal) if debug else []) for row in rows
    )
    damage: StatusError | None = None
    for index, segment in enumerate(module.rodata):
        if not is_executable(segment.data):
            continue
        yield f"Executable in .rodata[{index}]:"
        try:
            yield from _places(_native(segment.data))
        except StatusError as error:
            yield f"  {error}"
            damage = damage or error
    for executable in vmvx_kernels.executables(module):
        names = [export.name for export in kernels(executable.module)]
        yield f"VMVX executable @{executable.name}:"
        yield from _places((name, kernel_places(executable.module, row)) for row, name in enumerate(names))
    if damage is not None:
        raise damage


def _places(functions: Iterable[tuple[str, list[str]]]) -> Iterator[str]:
    for name, places in functions:
        yield f"  {name}: {', '.join(places) or 'the module does not say'}"


def _native(data: memoryview) -> Named:
    if not fatelf.is_fatelf(data) and bytes(data[:4]) != ELF:
        for export in executable_format.read(data).exports:
            stages = [f"{place} ({stage})" for stage, place in export.stages.items()]
            yield export.name, [*([str(export.location)] if export.location else ()), *stages]
        return
    image, query = open_library(data)
    environment = Environment(())
    executable = NativeExecutable(query_library(image, query, environment.address), environment, image)
    for number in range(executable.function_count):
        yield executable.function_label(number), executable.places(number)
    for path, content in executable.source_files().items():
        yield path, [f"{len(content)} bytes of source in the executable"]
