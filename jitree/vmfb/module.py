"""Reads the tables of a module file, and what they say of its functions.

Everything but the function bodies is checked here; a module that passes can be walked without further range
checks. What needs the registered ref types (does each type name resolve?) is checked when a context is made.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from jitree.errors import InvalidArgumentError, ResourceExhaustedError, StatusError, UnimplementedError
from jitree.vmfb.archive import IDENTIFIER, Archive, loading, truncated
from jitree.vmfb.cconv import EntryRule, ascending_slots, first_fit_slots, parse, register_counts
from jitree.vmfb.flatbuffer import FlatBuffer, Table, columns_of, require_whole
from jitree.vmfb.native.layout import (
    COLUMN_ALIKE,
    COLUMN_COUNT,
    COLUMN_NUMBER,
    COLUMN_NUMBER64,
    COLUMN_PLACE,
    COLUMN_TARGET,
)
from jitree.vmfb.program import FunctionSignature, Signatures
from jitree.vmfb.schema import (
    FEATURE_EXT_F32,
    FEATURE_EXT_F64,
    FEATURE_UNWIND,
    FEATURE_YIELD,
    MAXIMUM_REFS,
    MAXIMUM_VALUE_SLOTS,
    Attr,
    Dependency,
    Export,
    FunctionRow,
    FunctionRows,
    Import,
    ModuleTables,
    RodataRows,
    RodataSegment,
    Rows,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jitree.vmfb.debug import DebugDatabase


VERSIONS: Final = (15, 16, 17)
"""Major bytecode versions that the verifier and the decoder know."""

_NAME, _VERSION, _REQUIREMENTS, _ATTRS, _TYPES, _DEPENDENCIES, _IMPORTS, _EXPORTS = range(8)
_SIGNATURES, _RODATA, _RWDATA, _STATE, _DESCRIPTORS, _BYTECODE_VERSION, _BYTECODE, _DEBUG = range(8, 16)
"""Slots of the root table."""

_OPTIONAL: Final = 2
"""Flag of dependencies and imports; their flags default to 1, required."""

_IMPORT_COLUMNS: Final = np.array((
    (COLUMN_TARGET, -1, 0, 0), (COLUMN_COUNT, -1, 0, 0), (COLUMN_TARGET, 1, 0, 0), (COLUMN_COUNT, 1, 0, 0),
    (COLUMN_PLACE, 1, 1, 0), (COLUMN_NUMBER, -1, 2, 1),
), np.int32)  # fmt: skip
"""Names, conventions, whether there are attributes, flags."""
_TYPE_COLUMNS: Final = np.array(((COLUMN_TARGET, -1, 0, 0), (COLUMN_COUNT, -1, 0, 0)), np.int32)
_SIGNATURE_COLUMNS: Final = np.array((
    (COLUMN_TARGET, -1, 0, 0), (COLUMN_COUNT, -1, 0, 0), (COLUMN_ALIKE, -1, 0, 0),
), np.int32)  # fmt: skip
_RODATA_COLUMNS: Final = np.array((
    (COLUMN_PLACE, -1, 0, 0), (COLUMN_TARGET, -1, 2, 0), (COLUMN_COUNT, -1, 2, 0),
    (COLUMN_NUMBER64, -1, 3, 0), (COLUMN_NUMBER64, -1, 4, 0),
), np.int32)  # fmt: skip
"""Whether there are flags; content in the FlatBuffer, its length; offset and length of content after it."""
_DESCRIPTOR: Final = np.dtype({
    "names": ["offset", "length", "requirements", "block_count", "value_count", "ref_count"],
    "formats": ["<i4", "<i4", "<u4", "<i2", "<i2", "<i2"],
    "offsets": [0, 4, 8, 14, 16, 18],
})  # fmt: skip
_DESCRIBED: Final = _DESCRIPTOR.names or ()

_ANY: Final = 1 << 40
"""More than ordinals and offsets of instructions name."""
_OVERLAP: Final = 4
_OVERLAP_SLACK: Final = 1 << 20


@cache
def release_rows() -> tuple[list[str], ...]:
    """Reads ``releases.tsv``: its header, then a row for each release, oldest first."""
    with open(os.path.join(os.path.dirname(__file__), "releases.tsv"), encoding="utf-8") as file:
        return tuple(line.split("\t") for line in file.read().splitlines() if line[0] != "#")


def releases_of(major: int) -> str:
    """Names the releases that write a major bytecode version."""
    names = [name for name, kind, version, *_ in release_rows() if (kind, version) == ("release", str(major))]
    return " to ".join(dict.fromkeys((names[0], names[-1])))


def known_features(major: int) -> int:
    """The requirement bits that a bytecode version defines."""
    features = FEATURE_EXT_F32 | FEATURE_EXT_F64
    return features | FEATURE_YIELD | FEATURE_UNWIND if major >= 17 else features


def read_module(archive: Archive) -> ModuleTables:
    """Parses and checks the tables of an archive.

    INVALID_ARGUMENT for a damaged file or a bytecode version that is not supported, UNIMPLEMENTED for
    compressed data.
    """
    with loading(archive.name):
        require_whole(archive.flatbuffer)
        return _read_root(FlatBuffer(archive.flatbuffer).root(IDENTIFIER), archive)


def _read_root(root: Table, archive: Archive) -> ModuleTables:
    bytecode_version = _read_bytecode_version(root)
    _check_requirements(root, bytecode_version[0])
    bytecode = root.content(_BYTECODE)
    if bytecode is None:
        bytecode = archive.flatbuffer[:0]
    functions = _read_functions(root, len(bytecode))
    exports = _read_exports(root, len(functions))
    state = root.table(_STATE)
    debug = root.table(_DEBUG)
    return ModuleTables(
        name=_required_text(root, _NAME, "module name"),
        version=root.uint32(_VERSION),
        requirements=root.uint32(_REQUIREMENTS),
        attrs=tuple(Attr(*pair) for pair in _read_attrs(root, _ATTRS).items()),
        types=_read_types(root),
        dependencies=_read_dependencies(root),
        imports=_read_imports(root),
        exports=exports,
        functions=functions,
        rodata=_read_rodata(root, archive),
        globals_size=_capacity(state, 0, "global byte capacity"),
        ref_global_count=_capacity(state, 1, "global ref count"),
        bytecode_version=bytecode_version,
        bytecode=bytecode,
        debug=_debug_database(debug, len(functions), exports) if debug else None,
        archive=archive,
    )


def read_for_bodies(archive: Archive) -> ModuleTables:
    """Reads a damaged file's tables as far as bodies need them. What cannot be read allows everything, so
    that only what is wrong for certain is found. INVALID_ARGUMENT if the functions cannot be read."""
    with loading(archive.name):
        root = FlatBuffer(archive.flatbuffer).root(IDENTIFIER)
        bytecode = root.content(_BYTECODE)
        bytecode = archive.flatbuffer[:0] if bytecode is None else bytecode
        functions = _read_functions(root, len(bytecode))
        return ModuleTables(
            name="", version=0, attrs=(), debug=None, archive=archive, bytecode=bytecode, functions=functions,
            requirements=root.uint32(_REQUIREMENTS),
            bytecode_version=_read_bytecode_version(root),
            types=_read_or(lambda: root.tables(_TYPES), range(_ANY)),
            dependencies=_read_or(lambda: _read_dependencies(root), ()),
            imports=_read_or(lambda: _read_imports(root), _UnknownImports()),
            exports=_read_or(lambda: _read_exports(root, len(functions)), ()),
            rodata=_read_or(lambda: _read_rodata(root, archive), range(_ANY)),
            globals_size=_read_or(lambda: _capacity(root.table(_STATE), 0, "bytes"), _ANY),
            ref_global_count=_read_or(lambda: _capacity(root.table(_STATE), 1, "refs"), _ANY),
        )  # fmt: skip


class _UnknownImports(Rows[None]):
    """Imports that cannot be read: one for each ordinal, of which nothing is known."""

    __slots__ = ()

    def __len__(self) -> int:
        return _ANY

    def __getitem__(self, ordinal: int) -> None:  # type: ignore[override]  # no slices
        return None


def _read_or(read: Callable[[], Any], unknown: Any) -> Any:
    """What is read; ``unknown`` where that fails."""
    try:
        return read()
    except StatusError:
        return unknown


def _debug_database(table: Table, function_count: int, exports: Sequence[Export]) -> DebugDatabase:
    from jitree.vmfb.debug import DebugDatabase  # most modules have none

    return DebugDatabase(table, function_count, exports)


def _read_bytecode_version(root: Table) -> tuple[int, int]:
    recorded = root.uint32(_BYTECODE_VERSION)
    major, minor = recorded >> 16, recorded & 0xFFFF
    if major in VERSIONS and minor == 0:
        return major, minor
    supported = ", ".join(f"{version}.0 (IREE {releases_of(version)})" for version in VERSIONS)
    if major < VERSIONS[0]:
        oldest = releases_of(VERSIONS[0]).split()[0]
        origin = f"a release before {oldest}: compile the program again with a later one"
    elif major > VERSIONS[-1] or minor > 0:
        origin = f"a release after {releases_of(VERSIONS[-1]).split()[-1]}: a later jitree may run it"
    raise InvalidArgumentError(
        f"bytecode version mismatch; runtime supports {supported}; module has {major}.{minor} ({origin})"
    )


def _check_requirements(root: Table, major: int) -> None:
    unknown = root.uint32(_REQUIREMENTS) & ~known_features(major)
    if unknown:
        raise InvalidArgumentError(
            f"module requires features that bytecode version {major} does not define: 0x{unknown:08X}"
        )


def _required_text(table: Table, slot: int, what: str) -> str:
    text = table.text(slot)
    if not text:
        raise InvalidArgumentError(f"{what} missing or empty")
    return text


def _read_attrs(table: Table, slot: int) -> dict[str, str]:
    return {entry.text(0) or "": entry.text(1) or "" for entry in table.tables(slot)}


def _read_types(root: Table) -> tuple[str, ...]:
    names = tuple(name or "" for name in root.buffer.texts(*columns_of(root, _TYPES, _TYPE_COLUMNS).tolist()))
    if not all(names):
        raise InvalidArgumentError(f"types[{names.index('')}] name missing or empty")
    return names


def _read_dependencies(root: Table) -> tuple[Dependency, ...]:
    return tuple(
        Dependency(
            name=_required_text(table, 0, f"dependencies[{index}] name"),
            minimum_version=table.uint32(1),
            required=not table.uint32(2, default=1) & _OPTIONAL,
        )
        for index, table in enumerate(root.tables(_DEPENDENCIES))
    )


def _read_imports(root: Table) -> tuple[Import, ...]:
    columns = columns_of(root, _IMPORTS, _IMPORT_COLUMNS).tolist()
    names = root.buffer.texts(columns[0], columns[1])
    conventions = root.buffer.texts(columns[2], columns[3])
    imports = []
    for index, (name, cconv, attrs, flags) in enumerate(
        zip(names, conventions, columns[4], columns[5], strict=True)
    ):
        if not name:
            raise InvalidArgumentError(f"imports[{index}] full name missing or empty")
        signature = root.element(_IMPORTS, index).table(1) if attrs else None
        described = _read_attrs(signature, 1) if signature else {}
        imports.append(Import._make((name, cconv, described, bool(flags & _OPTIONAL))))
    return tuple(imports)


def _read_exports(root: Table, function_count: int) -> tuple[Export, ...]:
    exports = []
    for index, table in enumerate(root.tables(_EXPORTS)):
        export = Export(_required_text(table, 0, f"exports[{index}] local name"), table.int32(1))
        if not 0 <= export.ordinal < function_count:
            raise InvalidArgumentError(
                f"exports[{index}] '{export.name}' internal ordinal {export.ordinal} out of range "
                f"[0, {function_count})"
            )
        exports.append(export)
    return tuple(exports)


def _read_functions(root: Table, bytecode_size: int) -> FunctionRows:
    content = root.content(_DESCRIPTORS, _DESCRIPTOR.itemsize)
    descriptors = np.frombuffer(b"" if content is None else content, _DESCRIPTOR)
    places, lengths, alike = columns_of(root, _SIGNATURES, _SIGNATURE_COLUMNS).tolist()
    if len(places) != len(descriptors):
        raise InvalidArgumentError(f"{len(places)} function signatures for {len(descriptors)} descriptors")
    columns = {name: descriptors[name].astype(np.int64) for name in _DESCRIBED}
    first = [*set(alike)]
    texts = root.buffer.texts([places[index] for index in first], [lengths[index] for index in first])
    distinct = dict(zip(first, (text or "" for text in texts), strict=True))
    conventions = [*map(distinct.__getitem__, alike)]

    def make(ordinal: int) -> FunctionRow:
        signature = root.element(_SIGNATURES, ordinal)
        attrs = _read_attrs(signature, 1) if signature.field(1, 4) else {}
        numbers = {name: int(column[ordinal]) for name, column in columns.items()}
        return FunctionRow(ordinal=ordinal, cconv=conventions[ordinal], attrs=attrs, **numbers)

    functions = FunctionRows(columns, conventions, make)
    offsets, lengths = columns["offset"], columns["length"]
    wrong = (offsets < 0) | (lengths < 1) | (offsets + lengths > bytecode_size)
    wrong |= (columns["block_count"] < 1) | (columns["ref_count"] > MAXIMUM_REFS)
    for ordinal in wrong.nonzero()[0].tolist():
        _check_place(functions[ordinal], bytecode_size)
    # Functions may share bodies, but each is decoded by itself: without a limit a small file takes hours.
    if lengths.sum() > _OVERLAP * bytecode_size + _OVERLAP_SLACK:
        raise InvalidArgumentError("function bodies overlap: their lengths far exceed the bytecode data")
    return functions


def _check_place(function: FunctionRow, bytecode_size: int) -> None:
    where = f"functions[{function.ordinal}]"
    if function.block_count < 1:
        raise InvalidArgumentError(f"{where} block count {function.block_count} is not positive")
    if function.length < 1:
        raise InvalidArgumentError(f"{where} bytecode length {function.length} is not positive")
    if function.offset < 0 or function.offset + function.length > bytecode_size:
        raise InvalidArgumentError(
            f"{where} body of {function.length} bytes at {function.offset} lies outside the bytecode data "
            f"({bytecode_size} bytes)"
        )
    if function.ref_count > MAXIMUM_REFS:  # value slots: the 16-bit field cannot exceed their maximum
        raise InvalidArgumentError(f"{where} uses {function.ref_count} refs; the most is {MAXIMUM_REFS}")


def _read_rodata(root: Table, archive: Archive) -> RodataRows:
    flags, embedded, counts, starts, sizes = columns_of(root, _RODATA, _RODATA_COLUMNS)
    available = max(len(archive.data) - archive.rodata_base, 0)
    first, last = starts.view(np.uint64), sizes.view(np.uint64)
    outside = (last > 0) & ((last > available) | (first > available) | (first + last > available))
    is_embedded = embedded > 0
    rows = RodataRows(
        np.where(is_embedded, archive.flatbuffer_offset + embedded + 4, archive.rodata_base + starts),
        np.where(is_embedded, counts, sizes),
        lambda index: _read_segment(root.element(_RODATA, index), index, archive),
    )
    wrong = (flags > 0) | outside & ~is_embedded
    for index in wrong.nonzero()[0].tolist():
        _ = rows[index]  # which says what is wrong, if it is
    return rows


def whole_length(archive: Archive) -> int:
    """Tells how long a file should be, by the segments at its end."""
    table = FlatBuffer(archive.flatbuffer).root(IDENTIFIER)
    segments = [segment for segment in table.tables(_RODATA) if segment.vector(2, 1) is None]
    ends = (segment.uint64(3) + segment.uint64(4) for segment in segments)
    return archive.rodata_base + max(ends, default=0)


def _read_segment(table: Table, index: int, archive: Archive) -> RodataSegment:
    if table.uint8(0) != 0:
        raise UnimplementedError(f"rodata[{index}] is compressed; no IREE compiler writes this")
    embedded = table.vector(2, 1)
    if embedded is not None:
        start, length = embedded
        data = archive.flatbuffer[start : start + length]
        return RodataSegment(data, external=False, file_offset=archive.flatbuffer_offset + start)
    start, length = archive.rodata_base + table.uint64(3), table.uint64(4)
    if length == 0:
        return RodataSegment(archive.data[:0], external=True, file_offset=start)
    if start + length > len(archive.data):
        raise InvalidArgumentError(
            f"rodata[{index}] external reference out of range: {length} bytes at {start}; "
            f"{truncated(whole_length(archive), archive.data)}"
        )
    return RodataSegment(archive.data[start : start + length], external=True, file_offset=start)


def _capacity(state: Table | None, slot: int, what: str) -> int:
    value = state.int32(slot) if state else 0
    if value < 0:
        raise InvalidArgumentError(f"module state: {what} {value} is negative")
    return value


_FIRST_ASCENDING_VERSION: Final = 16
"""Bytecode version whose compilers all number upwards."""
_LAST_FIRST_FIT_HAL: Final = 5
"""Releases that demand at most this version of the hal module (none later than 3.3.0) use first fit."""
_FIRST_ASCENDING_HAL: Final = 7
_DECISIVE: Final = ("requirements", "value_count", "ref_count")
"""What decides on the signature of a function, beside its convention."""


def read_signatures(module: ModuleTables) -> Signatures:
    """Checks descriptors and conventions of all functions and finds where arguments lie at entry.

    INVALID_ARGUMENT, UNIMPLEMENTED (another convention version) or RESOURCE_EXHAUSTED (register counts), with
    the function as context.
    """
    numbers = [module.functions.columns[name].tolist() for name in _DECISIVE]
    kinds: dict[tuple[str | int, ...], int] = {}
    column, functions = list[int](), list[FunctionRow]()
    for ordinal, key in enumerate(zip(module.functions.conventions, *numbers, strict=True)):
        kind = kinds.setdefault(key, len(functions))
        if kind == len(functions):
            functions.append(module.functions[ordinal])
        column.append(kind)
    for function in functions:
        try:
            _check_descriptor(module, function)
        except StatusError as error:
            raise error.with_context(f"function '{module.function_name(function.ordinal)}'") from None
    rule = choose_entry_rule(module)
    return Signatures(
        [_signature(module, function, rule) for function in functions],
        np.array(column, np.int64),
    )


def _signature(module: ModuleTables, function: FunctionRow, rule: EntryRule) -> FunctionSignature:
    cconv = parse(function.cconv)
    tags = cconv.argument_tags or ()
    slots = rule(tags)
    needed_values, needed_refs = register_counts(slots)
    value_count, ref_count = max(function.value_count, 0), max(function.ref_count, 0)
    if needed_values > value_count or needed_refs > ref_count:
        raise InvalidArgumentError(
            f"insufficient register storage: the arguments of {function.cconv!r} need {needed_values} "
            f"value slots and {needed_refs} refs, the function has {value_count} and {ref_count}",
            f"function '{module.function_name(function.ordinal)}'",
        )
    return FunctionSignature(cconv, tags, slots, value_count, ref_count)


def choose_entry_rule(module: ModuleTables) -> EntryRule:
    """The rule for all functions of a module, which one compiler wrote."""
    if module.bytecode_version[0] >= _FIRST_ASCENDING_VERSION:
        return ascending_slots
    for dependency in module.dependencies:
        if dependency.name == "hal" and 1 <= dependency.minimum_version <= _LAST_FIRST_FIT_HAL:
            return first_fit_slots
        if dependency.name == "hal" and dependency.minimum_version >= _FIRST_ASCENDING_HAL:
            return ascending_slots
    from jitree.vmfb.argument_placement import rule_of_code  # old programs without devices only

    return rule_of_code(module)


def _check_descriptor(module: ModuleTables, function: FunctionRow) -> None:
    unknown = function.requirements & ~known_features(module.bytecode_version[0])
    if unknown:
        raise InvalidArgumentError(f"requires unknown features 0x{unknown:08X}")
    if _rounded(function.value_count) > MAXIMUM_VALUE_SLOTS or _rounded(function.ref_count) > MAXIMUM_REFS:
        raise ResourceExhaustedError(
            f"register count overflow: {function.value_count} value slots and {function.ref_count} refs; "
            f"rounded up to powers of two the most are {MAXIMUM_VALUE_SLOTS} and {MAXIMUM_REFS}"
        )
    if parse(function.cconv).has_spans:
        raise InvalidArgumentError(
            f"calling convention {function.cconv!r} has a variadic span; only imports can"
        )


def _rounded(count: int) -> int:
    """The smallest power of two that is at least ``count`` and 1."""
    return 1 << max(count - 1, 0).bit_length()
