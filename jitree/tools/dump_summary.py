"""Prints what a module has: a summary, and its executables."""

from __future__ import annotations

import io
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from jitree.base.records import rows_of
from jitree.cuda import executable_format, ptx
from jitree.errors import StatusError, UnavailableError, is_interruption, not_installed
from jitree.loaders import elf_format
from jitree.loaders.elf_file import bad_elf, read_elf
from jitree.loaders.elf_format import host_architecture
from jitree.loaders.embedded_elf import open_library
from jitree.loaders.environment import Environment
from jitree.loaders.library import NativeExecutable, query_library
from jitree.loaders.processor_needs import (
    executable_formats,
    looked_for,
    need_of,
    targets,
    unstated,
    used,
)
from jitree.loaders.vmvx import kernels as vmvx_kernels
from jitree.loaders.vmvx.kernels import kernels
from jitree.loaders.vmvx.loader import kernel_places
from jitree.modules.releases import origin, releases
from jitree.tools.stub import stub_lines
from jitree.vmfb.archive import IDENTIFIER, Archive
from jitree.vmfb.flatbuffer import table_findings
from jitree.vmfb.instructions import IMPORT_BIT, REF_BIT, REF_MASK, InstructionRecord, read_instructions
from jitree.vmfb.module import read_for_bodies, read_module, read_signatures, releases_of
from jitree.vmfb.refusals import body_faults
from jitree.vmfb.schema import FunctionRow, ModuleTables, RodataRows

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
    """A part for each executable; why the first one is not shown is raised after all of them."""
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
            yield f"  // not shown: {error}"
            damage = damage or error
        yield ""
    if not found:
        yield "No ELF, FatELF or CUDA executables; `--tiers` shows those of VMVX."
    if damage is not None:
        raise damage


def is_executable(data: memoryview) -> bool:
    start = bytes(data[:8])
    return start.startswith((ELF, *_CUDA)) or start[4:] in _CUDA or elf_format.is_fatelf(data)


def _lines(data: memoryview) -> Iterator[str]:
    if elf_format.is_fatelf(data):
        for row in elf_format.slices(data):
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
    except ImportError as error:
        raise UnavailableError(not_installed(error)) from None
    except Exception as error:  # pyelftools raises what it meets: KeyError, struct.error, ELFError ...
        if isinstance(error, StatusError) or is_interruption(error):
            raise
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
        other = _other_machine(segment.data)
        if other:
            yield f"  compiled for {other}; what a library says is read where it can be loaded"
            continue
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


def _other_machine(data: memoryview) -> str:
    """Names the architecture of a library that this machine cannot load, else nothing."""
    host = elf_format.host_architecture()
    if bytes(data[:4]) != ELF or len(data) < 20 or host is None:
        return ""
    (machine,) = _MACHINE.unpack_from(data, 18)
    is_known = data[4] in elf_format.WORD_SIZES and machine != host.machine
    return elf_format.machine_name(machine, data[4]) if is_known else ""


def _native(data: memoryview) -> Named:
    if not elf_format.is_fatelf(data) and bytes(data[:4]) != ELF:
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


_MACHINE: Final = struct.Struct("<H")
"""The machine of an ELF file."""
_IMPORT_PREFIX: Final = "io_parameters."
_SCOPE_ARGUMENT: Final = {"io_parameters.load": 4, "io_parameters.gather": 4, "io_parameters.scatter": 5}
"""Argument that holds the scope, by import. The last three are always key table, keys and spans."""

_KEY = struct.Struct("<II")
"""Where a key lies in the table: offset and length."""
_SPAN = struct.Struct("<QQQ")
"""parameter offset, buffer offset, length"""


_BEGINNINGS: Final = {0: b"PK\x03\x04", 8: IDENTIFIER}
"""What modules inside modules begin with, by offset."""


@dataclass(frozen=True, slots=True)
class NeededParameter:
    scope: str | None
    key: str
    extent: int
    """Bytes that the parameter must have at least."""


def needed_parameters(module: ModuleTables) -> Iterator[NeededParameter]:
    """Parameters whose names are constants of the module, which is how compilers write them."""
    if not any(entry.full_name.startswith(_IMPORT_PREFIX) for entry in module.imports):
        return
    for function in module.functions:
        yield from _needed_by(module, function)


def _needed_by(module: ModuleTables, function: FunctionRow) -> Iterator[NeededParameter]:
    """Follows constants through the ref registers in file order."""
    constants: dict[int, bytes] = {}
    try:
        for record in read_instructions(bytes(module.body(function)), module.bytecode_version[0]):
            operands = dict(
                zip((operand.name for operand in record.instruction.operands), record.operands, strict=True)
            )
            yield from _needed_at(module, operands, constants)
            _follow(module, record, operands, constants)
    except StatusError:
        return  # damaged code; the disassembly shows where


def _follow(
    module: ModuleTables, record: InstructionRecord, operands: dict[str, Any], constants: dict[int, bytes]
) -> None:
    written = [
        entry
        for operand, value in zip(record.instruction.operands, record.operands, strict=True)
        if operand.output
        for entry in (value if isinstance(value, tuple) else (value,))
        if entry & REF_BIT
    ]
    for register in written:
        constants.pop(register & REF_MASK, None)
    if record.instruction.mnemonic == "const.ref.rodata" and operands["segment"] < len(module.rodata):
        constants[operands["out"] & REF_MASK] = bytes(module.rodata[operands["segment"]].data)


def _needed_at(
    module: ModuleTables, operands: dict[str, Any], constants: dict[int, bytes]
) -> Iterator[NeededParameter]:
    callee = operands.get("callee", 0)
    ordinal = callee & ~IMPORT_BIT
    if not callee & IMPORT_BIT or ordinal >= len(module.imports):
        return
    scope_argument = _SCOPE_ARGUMENT.get(module.imports[ordinal].full_name)
    arguments: Sequence[int] = operands["args"]
    if scope_argument is None or len(arguments) <= scope_argument + 3:
        return
    scope = constants.get(arguments[scope_argument] & REF_MASK)
    table, keys, spans = (constants.get(register & REF_MASK, b"") for register in arguments[-3:])
    if len(table) % _KEY.size or len(spans) % _SPAN.size:
        return
    for (offset, length), (start, _, size) in zip(rows_of(_KEY, table), rows_of(_SPAN, spans), strict=False):
        yield NeededParameter(
            scope=scope.decode("utf-8", "backslashreplace") if scope is not None else None,
            key=keys[offset : offset + length].decode("utf-8", "backslashreplace"),
            extent=start + size,
        )


def summary_lines(module: ModuleTables) -> Iterator[str]:
    """The summary as text; the stub at its end is valid Python."""
    major, minor = module.bytecode_version
    yield f"Module:     {module.name}, version {module.version}"
    yield f"File:       {module.archive.name}, {len(module.archive.data)} bytes"
    yield f"Bytecode:   {major}.{minor} (IREE {releases_of(major)})"
    yield from _origin_lines(module)
    for dependency in module.dependencies:
        need = "" if dependency.required else ", optional"
        yield f"Needs:      {dependency.name} >= {dependency.minimum_version}{need}"
    yield f"Targets:    {', '.join(executable_formats(module)) or 'none: no executables'}"
    yield from _processor_lines(module)
    yield from _parameter_lines(module)
    yield f"State:      {module.globals_size} bytes and {module.ref_global_count} refs of globals"
    yield f"Code:       {len(module.functions)} functions, {len(module.bytecode)} bytes"
    yield f"Constants:  {len(module.rodata)} segments, {sum(len(row.data) for row in module.rodata)} bytes"
    yield ""
    yield "# Python stub"
    yield from stub_lines(module)


def _origin_lines(module: ModuleTables) -> Iterator[str]:
    """The releases that can have compiled it, by the imports; the versions that modules state do not tell."""
    found = origin(module)
    if found.families:
        yield f"HAL ABI:    {_span(found.families)}"
    if found.releases:
        yield f"Compiler:   IREE {_span(found.releases)}"
    else:
        yield f"Compiler:   none of IREE {_span([release.name for release in releases()])}"
    for name in found.unknown:
        yield f"Unknown:    {name}"


def _processor_lines(module: ModuleTables) -> Iterator[str]:
    """Says what machine code is compiled for, and what it uses of that."""
    architecture = host_architecture()
    here = "" if architecture is None else f"-elf-{architecture.name}"
    found = targets(module)
    for target in found:
        which = f" ({target.format})" if len(found) > 1 else ""
        uses = _uses(module, target.features) if here and target.format.endswith(here) else ""
        name = target.cpu or ", ".join(sorted(target.features)) or "any"
        yield f"Processor:  {name}{which}{uses}{_lack(module, target.format)}"
    silent = next((name for name in executable_formats(module) if name.endswith(here)), None)
    if here and not found and silent is not None:
        uses = _uses(module, unstated()) or "; no newer instruction is found in its code"
        yield f"Processor:  not stated{uses}{_lack(module, silent)}"


def _uses(module: ModuleTables, wanted: frozenset[str]) -> str:
    names = used(module, wanted)
    order = [name for name in looked_for() if name in names]
    return f"; its code uses {', '.join(order)}" if order else ""


def _lack(module: ModuleTables, format: str) -> str:
    need = need_of(module, format)
    return "" if need is None else f"; this one lacks {need.lacks()}"


def _span(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


def _parameter_lines(module: ModuleTables) -> Iterator[str]:
    scopes: dict[str | None, list[str]] = defaultdict(list)
    for parameter in needed_parameters(module):
        scopes[parameter.scope].append(f"{parameter.key} ({parameter.extent} bytes)")
    for scope, entries in scopes.items():
        label = f"scope '{scope}'" if scope is not None else "no scope"
        yield f"Parameters: {label}: {', '.join(dict.fromkeys(entries))}"


def findings(archive: Archive) -> Iterator[str]:
    """A line each, of the modules inside the module too."""
    found = table_findings(archive.flatbuffer)
    yield from found
    try:
        module = read_module(archive)
    except StatusError as error:
        if not found:
            yield str(error)
        yield from _damaged_findings(archive)
        return
    yield from _function_findings(module)
    yield from _inner_findings(module)


def _damaged_findings(archive: Archive) -> Iterator[str]:
    """Of a module that cannot be read as a whole."""
    try:
        module = read_for_bodies(archive)
    except StatusError as error:
        yield f"no function is looked at: {error}"
        return
    yield from _function_findings(module)
    if isinstance(module.rodata, RodataRows):
        yield from _inner_findings(module)


def _function_findings(module: ModuleTables) -> Iterator[str]:
    try:
        signatures = read_signatures(module)
    except StatusError as error:
        yield f"no function is looked at: {error}"
        return
    for function in module.functions:
        yield from map(str, body_faults(module, function, signatures))


def _inner_findings(module: ModuleTables) -> Iterator[str]:
    for index, segment in enumerate(module.rodata):
        data = segment.data
        if not any(data[place : place + len(text)] == text for place, text in _BEGINNINGS.items()):
            continue
        try:
            inner = Archive.open(data, f"rodata[{index}]")
        except StatusError as error:
            yield str(error)
            continue
        yield from (f"rodata[{index}]: {line}" for line in findings(inner))
