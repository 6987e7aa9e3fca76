"""Shows the contents of a module file: ``jitree dump``.

The FlatBuffer as JSON, and its tables and sizes as text, are laid out as IREE's dump tool prints them. Fields
of the JSON are those of IREE's ``bytecode_module_def.fbs``, in slot order; a field that the file leaves out,
since it has its default, is left out here.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

from jitree.base.records import rows_of
from jitree.base.tables import TextTable
from jitree.errors import InvalidArgumentError, NotFoundError, StatusError
from jitree.tools.dump_summary import summary_lines
from jitree.tools.flags import ParsedFlags, command, flag_set
from jitree.tools.reporting import in_colours
from jitree.vmfb.archive import IDENTIFIER, Archive, loading, standard_input
from jitree.vmfb.cconv import parse
from jitree.vmfb.disassemble import (
    Disassembler,
    OffsetColumn,
    function_symbol,
    hexadecimal_offsets,
    no_offsets,
)
from jitree.vmfb.flatbuffer import FlatBuffer, Table
from jitree.vmfb.module import read_module, whole_length
from jitree.vmfb.schema import (
    FEATURE_EXT_F32,
    FEATURE_EXT_F64,
    FEATURES,
    FunctionRow,
    ModuleTables,
    RodataSegment,
)
from jitree.vmfb.tables import LOCATION_TYPES, TABLES

_BINDING_FLAGS: Final = {1: "REQUIRED", 2: "OPTIONAL"}

_FUNCTION_DESCRIPTOR: Final = (
    ("bytecode_offset", "i"),
    ("bytecode_length", "i"),
    ("requirements", "I"),
    ("reserved", "h"),
    ("block_count", "h"),
    ("i32_register_count", "h"),
    ("ref_register_count", "h"),
)
_LOCATION: Final = (("bytecode_offset", "i"), ("location", "i"))

_WIDTH: Final = 120
_NUMBERS: Final = 6
"""Columns of numbers in the table of functions."""
_RULE: Final = f"//==={'-' * (_WIDTH - 10)}===//"
_REF_BYTES: Final = 16
"""What the reference counts for a ref global."""
_SHOWN_CHARACTERS: Final = 32
_NAMED_FEATURES: Final = {FEATURE_EXT_F32: "EXT_F32", FEATURE_EXT_F64: "EXT_F64"}
"""Requirement bits that the table shows by name; others as a number."""


def flatbuffer_json(archive: Archive, *, pretty: bool) -> Iterator[str]:
    """Pieces of the JSON text. Raises INVALID_ARGUMENT for a damaged file."""
    with loading(archive.name):
        root = FlatBuffer(archive.flatbuffer).root(IDENTIFIER)
        yield _Printer(pretty).table(root, "module", 0)
        if pretty:
            yield "\n"


class _Printer:
    def __init__(self, pretty: bool) -> None:
        self.pretty = pretty
        self.colon = ": " if pretty else ":"
        self.readers: dict[str, Callable[[Table, int, int], str | None]] = {
            "text": self._text,
            "u8": lambda table, slot, level: _present(table, slot, 1, table.uint8),
            "u32": lambda table, slot, level: _present(table, slot, 4, table.uint32),
            "i32": lambda table, slot, level: _present(table, slot, 4, table.int32),
            "u64": lambda table, slot, level: _present(table, slot, 8, table.uint64),
            "features": lambda table, slot, level: _flags(table, slot, FEATURES),
            "binding": lambda table, slot, level: _flags(table, slot, _BINDING_FLAGS),
            "bytes": lambda table, slot, level: self._numbers(table, slot, "B", level),
            "i32s": lambda table, slot, level: self._numbers(table, slot, "<i", level),
            "descriptors": lambda table, slot, level: self._structs(table, slot, _FUNCTION_DESCRIPTOR, level),
            "source_locations": lambda table, slot, level: self._structs(table, slot, _LOCATION, level),
            "location_types": self._location_types,
            "locations": self._locations,
            "compression": lambda table, slot, level: None,
        }

    def _line(self, level: int) -> str:
        return "\n" + "  " * level if self.pretty else ""

    def table(self, table: Table, kind: str, level: int) -> str:
        fields = []
        for slot, name, field_kind in TABLES[kind]:
            text = self._field(table, slot, field_kind, level + 1)
            if text is not None:
                fields.append(f'{self._line(level + 1)}"{name}"{self.colon}{text}')
        return "{" + ",".join(fields) + self._line(level) + "}"

    def _field(self, table: Table, slot: int, kind: str, level: int) -> str | None:
        if kind.endswith("*"):
            if not table.field(slot, 4):
                return None
            entries = [self.table(entry, kind[:-1], level + 1) for entry in table.tables(slot)]
            return "[" + ",".join(entries) + self._line(level) + "]"
        if kind in self.readers:
            return self.readers[kind](table, slot, level)
        child = table.table(slot)
        return None if child is None else self.table(child, kind, level)

    def _text(self, table: Table, slot: int, level: int) -> str | None:
        text = table.text(slot)
        return None if text is None else json.dumps(text, ensure_ascii=not text.isprintable())

    def _list(self, entries: list[str], level: int) -> str:
        separator = self._line(level + 1)
        return "[" + ",".join(separator + entry for entry in entries) + self._line(level) + "]"

    def _numbers(self, table: Table, slot: int, layout: str, level: int) -> str | None:
        content = table.content(slot, struct.calcsize(layout))
        if content is None:
            return None
        return self._list([str(value) for (value,) in rows_of(struct.Struct(layout), content)], level)

    def _structs(
        self, table: Table, slot: int, fields: tuple[tuple[str, str], ...], level: int
    ) -> str | None:
        layout = struct.Struct("<" + "".join(text for _, text in fields))
        content = table.content(slot, layout.size)
        if content is None:
            return None
        return self._list([self._struct(row, fields, level + 1) for row in rows_of(layout, content)], level)

    def _struct(self, row: tuple[int, ...], fields: tuple[tuple[str, str], ...], level: int) -> str:
        texts = []
        for value, (name, _) in zip(row, fields, strict=True):
            text = _flag_names(value, FEATURES) if name == "requirements" else str(value)
            texts.append(f'{self._line(level + 1)}"{name}"{self.colon}{text}')
        return "{" + ",".join(texts) + self._line(level) + "}"

    def _location_types(self, table: Table, slot: int, level: int) -> str | None:
        content = table.content(slot)
        if content is None:
            return None
        return self._list(
            [json.dumps(name) if name else str(tag) for tag, name in _location_names(content)], level
        )

    def _locations(self, table: Table, slot: int, level: int) -> str | None:
        """A vector of unions; the tags are in the slot in front."""
        tags, found = table.content(slot - 1), table.vector(slot, 4)
        if tags is None or found is None:
            return None
        start, count = found
        entries = []
        for index, (_, name) in zip(range(count), _location_names(tags), strict=False):
            if name is None or name == "NONE":
                entries.append("null")
                continue
            entry = table.buffer.table(start + 4 * index)
            entries.append(self.table(entry, name, level + 1))
        return "[" + ",".join(entries) + self._line(level) + "]"


def _location_names(tags: memoryview) -> Iterator[tuple[int, str | None]]:
    for tag in tags:
        yield tag, LOCATION_TYPES[tag] if tag < len(LOCATION_TYPES) else None


def _present(table: Table, slot: int, width: int, read: Callable[[int], int]) -> str | None:
    return str(read(slot)) if table.field(slot, width) else None


def _flags(table: Table, slot: int, names: dict[int, str]) -> str | None:
    return _flag_names(table.uint32(slot), names) if table.field(slot, 4) else None


def _flag_names(value: int, names: dict[int, str]) -> str:
    """The names of the bits in one string; a number when there are none or one has no name."""
    if value == 0 or value & ~sum(names):
        return str(value)
    return json.dumps(" ".join(name for bit, name in names.items() if value & bit))


def metadata_lines(module: ModuleTables) -> Iterator[str]:
    """All sections; one without content is left out."""
    yield from _header(f"@{module.name} : version {module.version}")
    yield from _tables(module)
    yield from _header("Sections")
    yield from _sections(module)
    yield from _header(f"Bytecode : version {module.bytecode_version[1]}")
    yield from _functions(module)
    if module.debug is not None:
        yield ""
        yield from _header("Debug Information")[:-1]
        yield "// NOTE: debug databases are large and should be stripped in deployed artifacts."
        yield ""
        yield f"Locations: {module.debug.location_count}"


def _header(title: str) -> list[str]:
    return [_RULE, f"// {title}", _RULE, ""]


def _tables(module: ModuleTables) -> Iterator[str]:
    if module.requirements:
        yield f"Requirements: {requirements_text(module.requirements)}"
        yield ""
    if module.attrs:
        yield "Attributes:"
        yield from (f"  {attr.key}: {attr.value}" for attr in module.attrs)
        yield ""
    if module.types:
        yield "Required Types:"
        yield from (f"  [{index:3}] {name}" for index, name in enumerate(module.types))
        yield ""
    if module.dependencies:
        yield "Module Dependencies:"
        for dependency in module.dependencies:
            need = "required" if dependency.required else "optional"
            yield f"  {dependency.name}, version >= {dependency.minimum_version}, {need}"
        yield ""
    if module.imports:
        yield "Imported Functions:"
        for index, entry in enumerate(module.imports):
            optional = "?" if entry.optional else ""
            yield f"  [{index:3}] {optional}{entry.full_name}{signature_text(entry.cconv)}"
            yield from _attributes(entry.attrs)
        yield ""
    if module.exports:
        yield "Exported Functions:"
        for index, export in enumerate(module.exports):
            function = module.functions[export.ordinal]
            yield f"  [{index:3}] {export.name}{signature_text(function.cconv)}"
            yield from _attributes(function.attrs)
        yield ""


def _attributes(attrs: Mapping[str, str]) -> Iterator[str]:
    return (f"        {key}: {value}" for key, value in attrs.items())


def signature_text(cconv: str | None) -> str:
    """``(i32) -> (f32)``; a convention that cannot be read shows as it is."""
    try:
        return str(parse(cconv or ""))
    except StatusError:
        return f"<{cconv}>"


def requirements_text(requirements: int) -> str:
    """``EXT_F32 | 0000000C``"""
    names = [name for bit, name in _NAMED_FEATURES.items() if requirements & bit]
    rest = requirements & ~sum(_NAMED_FEATURES)
    return " | ".join([*names, f"{rest:08X}"] if rest else names)


def _sections(module: ModuleTables) -> Iterator[str]:
    if module.globals_size or module.ref_global_count:
        total = module.globals_size + _REF_BYTES * module.ref_global_count
        yield "Module State:"
        yield f"  {module.globals_size} bytes, {module.ref_global_count} refs, ~{total} bytes total"
        yield ""
    yield f"FlatBuffer: {len(module.archive.flatbuffer)} bytes"
    yield f"  Bytecode: {len(module.bytecode)} bytes"
    yield from (
        f"  .rodata[{index:3}] {_segment_text(module, segment)}"
        for index, segment in enumerate(module.rodata)
    )
    yield ""
    external = sum(len(segment.data) for segment in module.rodata if segment.external)
    if external:
        yield f"External .rodata: ~{external} bytes"
        yield ""


def _segment_text(module: ModuleTables, segment: RodataSegment) -> str:
    size = len(segment.data)
    if segment.external:
        start = segment.file_offset - module.archive.rodata_base
        return f"external {size:8} bytes (offset {start} / {start:X}h to {start + size:X}h)"
    shown = bytes(segment.data[:_SHOWN_CHARACTERS]).partition(b"\0")[0]
    if size == 0 or not all(0x20 <= byte < 0x7F for byte in shown):
        return f"embedded {size:8} bytes"
    ellipsis = "..." if len(shown) == _SHOWN_CHARACTERS else ""
    return f"embedded {size:8} bytes `{shown.decode()}`{ellipsis}"


def _functions(module: ModuleTables) -> Iterator[str]:
    lines = ["  # | Offset   |   Length | Blocks | i32 # | ref # | Requirements | Aliases"]
    lines += [_function_row(module, function) for function in module.functions]
    cells = [[cell.strip() for cell in line.split(" | ", _NUMBERS)] for line in lines]
    lines.insert(1, "----+----------+----------+--------+-------+-------+--------------+".ljust(_WIDTH, "-"))
    yield TextTable.of("\n".join(lines), cells)


def _function_row(module: ModuleTables, function: FunctionRow) -> str:
    aliases = ", ".join(export.name for export in module.exports if export.ordinal == function.ordinal)
    requirements = requirements_text(function.requirements)
    return (
        f"{function.ordinal:3} | {function.offset:08X} | {function.length:8} | {function.block_count:6} | "
        f"{function.value_count:5} | {function.ref_count:5} | {requirements:12} | {aliases}"
    )


_STANDARD_INPUT: Final = "-"
_MOST_MISSING: Final = 1 << 30
"""Bytes of a cut file that are made up to show the rest."""

FLAGS: Final = flag_set("dump", "shows what a compiled module holds", "dump", positional="module")


@command(FLAGS)
def main(flags: ParsedFlags) -> int:
    """Runs the command; raises StatusError for a file that cannot be read or a function that is not there.
    A damaged function body shows as far as it goes, and its error follows all output."""
    path, *others = flags.texts("module") or [""]
    if not path:
        print("Syntax: jitree dump [--output=...] module.vmfb", file=sys.stderr)
        return 1
    if others:
        print(f"jitree: one file is shown, '{path}'; not {', '.join(map(repr, others))}", file=sys.stderr)
    archive = Archive.open(standard_input(), "<stdin>") if path == _STANDARD_INPUT else Archive.open(path)
    if flags.text("output") == "flatbuffer-binary":
        sys.stdout.flush()
        sys.stdout.buffer.write(archive.flatbuffer)
        return 0
    if flags.text("output") == "flatbuffer-json":
        sys.stdout.writelines(flatbuffer_json(archive, pretty=flags.boolean("pretty")))
        return 0
    in_colours(sys.stdout)
    if flags.boolean("verify"):
        from jitree.tools.dump_summary import findings

        found = list(findings(archive))
        _print(found or [f"{archive.name}: nothing is wrong"])
        return int(bool(found))
    module, cut = _read(archive)
    _print(_native_lines(module, flags) if _asks_for_native(flags) else _lines(module, flags))
    if cut is not None:
        raise cut
    return 0


def _read(archive: Archive) -> tuple[ModuleTables, InvalidArgumentError | None]:
    """Reads tables. Bytes that are missing at the end of a file are taken for zeros.

    It gives what is wrong, too."""
    try:
        return read_module(archive), None
    except InvalidArgumentError as error:
        with suppress(StatusError):
            missing = whole_length(archive) - len(archive.data)
            if 0 < missing <= _MOST_MISSING:
                return read_module(Archive.open(bytes(archive.data) + bytes(missing), archive.name)), error
        raise


def _asks_for_native(flags: ParsedFlags) -> bool:
    return any(flags.boolean(name) for name in ("tiers", "time", "llvm", "asm"))


def _native_lines(read: ModuleTables, flags: ParsedFlags) -> Iterator[str]:
    from jitree.tools import dump_code
    from jitree.vmfb.decode import BytecodeModule, decode_module

    module = BytecodeModule(read, decode_module(read))
    if flags.boolean("tiers"):
        from jitree.api.tiers import tier_lines

        yield from tier_lines(module)
    if flags.boolean("time"):
        yield from dump_code.time_lines(module)
    renderers = [
        renderer
        for name, renderer in (("llvm", dump_code.llvm_lines), ("asm", dump_code.assembly_lines))
        if flags.boolean(name)
    ]
    if not renderers:
        return
    if not flags.text("function"):
        raise InvalidArgumentError("--llvm and --asm need --function=<name or ordinal>")
    yield from dump_code.code_lines(module, flags.text("function"), _answers_to, renderers)


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        if isinstance(line, TextTable):
            sys.stdout.write(line)
            line = ""
        sys.stdout.write(line + "\n")


def _lines(module: ModuleTables, flags: ParsedFlags) -> Iterator[str]:
    output = flags.text("output")
    if output == "executables":
        from jitree.tools.dump_summary import executable_lines

        yield from executable_lines(module)
        return
    if output == "locations":
        from jitree.tools.dump_summary import location_lines

        yield from location_lines(module)
        return
    if output == "summary":
        yield from summary_lines(module)
        return
    if output in ("all", "metadata"):
        yield from metadata_lines(module)
        yield ""
    if output == "all":
        yield ""
    if output in ("all", "disassembly"):
        selected = select_functions(module, flags.text("function"))
        column = hexadecimal_offsets if flags.boolean("bytecode_offsets") else no_offsets
        yield from disassembly_lines(module, selected, column)


def select_functions(module: ModuleTables, text: str) -> Sequence[FunctionRow]:
    """The functions of a name or ordinal; all of them for empty text.

    NOT_FOUND if there is none.
    """
    if not text:
        return module.functions
    found = [function for function in module.functions if _answers_to(module, function, text)]
    if not found:
        names = ", ".join(sorted(export.name for export in module.exports))
        raise NotFoundError(
            f"no function `{text}` in the module; it exports {names or 'nothing'} and has "
            f"{len(module.functions)} functions, which can be named by ordinal; --llvm shows the "
            "code of a dispatch of VMVX"
        )
    return tuple(found)


def _answers_to(module: ModuleTables, function: FunctionRow, text: str) -> bool:
    if text == str(function.ordinal) or text == function_symbol(module, function.ordinal):
        return True
    return any(export.name == text and export.ordinal == function.ordinal for export in module.exports)


def disassembly_lines(
    module: ModuleTables, functions: Sequence[FunctionRow], column: OffsetColumn = no_offsets
) -> Iterator[str]:
    """Declarations and the text of functions; the first damage found is raised after all of them."""
    yield f"vm.module @{module.name} version {module.version}"
    yield from (f"vm.type {name}" for name in module.types)
    for entry in module.imports:
        optional = "optional " if entry.optional else ""
        yield f'vm.import {optional}@{entry.full_name} cconv "{entry.cconv or ""}"'
    for index, segment in enumerate(module.rodata):
        yield f"vm.rodata[{index}] = {segment.data.hex().upper()}"
    disassembler = Disassembler(module)
    damage: StatusError | None = None
    for function in functions:
        yield ""
        try:
            yield from disassembler.function(function, column)
        except StatusError as error:
            damage = damage or error
    if damage is not None:
        raise damage
