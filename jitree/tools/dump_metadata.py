"""The tables and sizes of a module as text, laid out as IREE's dump tool prints them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from jitree.errors import StatusError
from jitree.vmfb.cconv import parse
from jitree.vmfb.schema import FEATURE_EXT_F32, FEATURE_EXT_F64, FunctionRow, ModuleTables, RodataSegment

_WIDTH: Final = 120
_RULE: Final = f"//==={'-' * (_WIDTH - 10)}===//"
_REF_BYTES: Final = 16
"""What the reference counts for a ref global."""
_SHOWN_CHARACTERS: Final = 32
_NAMED_FEATURES: Final = {FEATURE_EXT_F32: "EXT_F32", FEATURE_EXT_F64: "EXT_F64"}
"""Requirement bits that the table shows by name; others as a number."""


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
    yield "  # | Offset   |   Length | Blocks | i32 # | ref # | Requirements | Aliases"
    yield "----+----------+----------+--------+-------+-------+--------------+".ljust(_WIDTH, "-")
    for function in module.functions:
        yield _function_row(module, function)


def _function_row(module: ModuleTables, function: FunctionRow) -> str:
    aliases = ", ".join(export.name for export in module.exports if export.ordinal == function.ordinal)
    requirements = requirements_text(function.requirements)
    return (
        f"{function.ordinal:3} | {function.offset:08X} | {function.length:8} | {function.block_count:6} | "
        f"{function.value_count:5} | {function.ref_count:5} | {requirements:12} | {aliases}"
    )
