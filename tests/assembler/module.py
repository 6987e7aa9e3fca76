"""Whole modules: tables, function bodies and container."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from jitree.vmfb.schema import FEATURE_UNWIND, FEATURE_YIELD
from tests.assembler.body import AssemblyError, Body, Names, assemble_body
from tests.assembler.container import TableBuilder, wrap_plain, wrap_zip

_DESCRIPTOR = struct.Struct("<iiIhhhh")
_IMPORT_BIT = 1 << 31


@dataclass
class _Function:
    name: str
    cconv: str
    text: str
    attrs: dict[str, str]
    overrides: dict[str, int]


@dataclass
class _Segment:
    data: bytes
    external: bool


Container: TypeAlias = Literal["zip", "plain"]
"""What is around the FlatBuffer of a module."""


@dataclass
class Assembler:
    """Collects the parts of a module; see the package's docstring."""

    name: str = "module"
    bytecode: int = 17
    version: int = 0
    source: str | None = None
    globals_size: int = 0
    ref_global_count: int = 0
    _attrs: dict[str, str] = field(default_factory=dict)
    _types: list[str] = field(default_factory=list)
    _dependencies: list[tuple[str, int, int]] = field(default_factory=list)
    _imports: list[tuple[str, str | None, int]] = field(default_factory=list)
    _exports: list[tuple[str, str]] = field(default_factory=list)
    _functions: list[_Function] = field(default_factory=list)
    _rodata: list[_Segment] = field(default_factory=list)

    def function(
        self,
        name: str,
        cconv: str,
        text: str,
        *,
        exported: bool = True,
        attrs: dict[str, str] | None = None,
        **overrides: int,
    ) -> Assembler:
        """Adds a function; ``overrides`` are fields of its descriptor."""
        self._functions.append(_Function(name, cconv, text, attrs or {}, overrides))
        if exported:
            self.export(name, name)
        return self

    def text(self, name: str) -> str:
        """The text of a function."""
        return next(function.text for function in self._functions if function.name == name)

    def export(self, name: str, function: str) -> Assembler:
        self._exports.append((name, function))
        return self

    def import_function(self, full_name: str, cconv: str | None, *, optional: bool = False) -> Assembler:
        self._imports.append((full_name, cconv, 2 if optional else 1))
        return self

    def dependency(self, name: str, minimum_version: int = 0, *, optional: bool = False) -> Assembler:
        self._dependencies.append((name, minimum_version, 2 if optional else 1))
        return self

    def attr(self, key: str, value: str) -> Assembler:
        self._attrs[key] = value
        return self

    def rodata(self, data: bytes, *, external: bool = False) -> int:
        """Adds a segment and returns its ordinal."""
        self._rodata.append(_Segment(data, external))
        return len(self._rodata) - 1

    def type(self, name: str) -> int:
        """The ordinal of a type, added to the type table if new."""
        if name not in self._types:
            self._types.append(name)
        return self._types.index(name)

    def build(
        self,
        container: Container = "zip",
        *,
        requirements: int | None = None,
        bytecode_version: int | None = None,
    ) -> bytes:
        """The bytes of the file."""
        bodies = [self._assemble(function) for function in self._functions]
        external: list[bytes] = []
        builder = TableBuilder()
        table = self._root(
            builder,
            bodies,
            external,
            self._requirements(bodies) if requirements is None else requirements,
            self.bytecode << 16 if bytecode_version is None else bytecode_version,
        )
        prefixed = builder.finish(table, b"IREE")
        return wrap_zip(prefixed, external) if container == "zip" else wrap_plain(prefixed, external)

    def _assemble(self, function: _Function) -> Body:
        body = assemble_body(function.text, function.cconv, Names(self._function_ordinal, self.type))
        if self.bytecode < 17:
            body.requirements &= ~(FEATURE_YIELD | FEATURE_UNWIND)
        return body

    def _function_ordinal(self, name: str) -> int:
        for ordinal, function in enumerate(self._functions):
            if function.name == name:
                return ordinal
        for ordinal, (full_name, _, _) in enumerate(self._imports):
            if full_name == name:
                return ordinal | _IMPORT_BIT
        raise AssemblyError(f"no function or import @{name}")

    def _requirements(self, bodies: list[Body]) -> int:
        union = 0
        for function, body in zip(self._functions, bodies, strict=True):
            union |= function.overrides.get("requirements", body.requirements)
        return union

    def _root(
        self,
        builder: TableBuilder,
        bodies: list[Body],
        external: list[bytes],
        requirements: int,
        version: int,
    ) -> int:
        functions = self._functions
        descriptors, bytecode = self._descriptors(bodies)
        state = None
        if self.globals_size or self.ref_global_count:
            state = builder.table({0: ("i32", self.globals_size), 1: ("i32", self.ref_global_count)})
        ordinals = {function.name: ordinal for ordinal, function in enumerate(functions)}
        return builder.table(
            {
                0: ("ref", builder.text(self.name)),
                1: ("u32", self.version),
                2: ("u32", requirements),
                3: ("ref", self._attr_table(builder, self._attrs)),
                4: ("ref", builder.tables([{0: ("ref", builder.text(name))} for name in self._types])),
                5: ("ref", builder.tables([self._dependency(builder, *row) for row in self._dependencies])),
                6: ("ref", builder.tables([self._import(builder, *row) for row in self._imports])),
                7: (
                    "ref",
                    builder.tables(
                        [
                            {0: ("ref", builder.text(name)), 1: ("i32", ordinals[target])}
                            for name, target in self._exports
                        ]
                    ),
                ),
                8: (
                    "ref",
                    builder.tables([self._signature(builder, row.cconv, row.attrs) for row in functions]),
                ),
                9: ("ref", builder.tables(self._segments(builder, external))),
                11: ("ref", state),
                12: ("ref", builder.structs(descriptors, _DESCRIPTOR.size)),
                13: ("u32", version),
                14: ("ref", builder.byte_vector(bytecode)),
                15: ("ref", self._debug(builder, bodies)),
            }
        )

    def _descriptors(self, bodies: list[Body]) -> tuple[bytes, bytes]:
        rows = bytearray()
        bytecode = bytearray()
        for function, body in zip(self._functions, bodies, strict=True):
            recorded = {
                "offset": len(bytecode),
                "length": len(body.data),
                "requirements": body.requirements,
                "reserved": 0,
                "block_count": body.block_count,
                "value_count": body.value_count,
                "ref_count": body.ref_count,
            }
            unknown = function.overrides.keys() - recorded.keys()
            if unknown:
                raise AssemblyError(f"descriptors have no {', '.join(unknown)}")
            rows += _DESCRIPTOR.pack(*(recorded | function.overrides).values())
            bytecode += body.data + bytes(-len(body.data) % 8)
        return bytes(rows), bytes(bytecode)

    def _attr_table(self, builder: TableBuilder, attrs: dict[str, str]) -> int | None:
        if not attrs:
            return None
        return builder.tables(
            [{0: ("ref", builder.text(key)), 1: ("ref", builder.text(value))} for key, value in attrs.items()]
        )

    def _dependency(self, builder: TableBuilder, name: str, version: int, flags: int) -> dict[int, object]:
        return {0: ("ref", builder.text(name)), 1: ("u32", version), 2: ("u32", flags)}

    def _import(self, builder: TableBuilder, name: str, cconv: str | None, flags: int) -> dict[int, object]:
        signature = None if cconv is None else builder.table(self._signature(builder, cconv, {}))
        return {0: ("ref", builder.text(name)), 1: ("ref", signature), 2: ("u32", flags)}

    def _signature(self, builder: TableBuilder, cconv: str, attrs: dict[str, str]) -> dict[int, object]:
        return {0: ("ref", builder.text(cconv)), 1: ("ref", self._attr_table(builder, attrs))}

    def _segments(self, builder: TableBuilder, external: list[bytes]) -> list[dict[int, object]]:
        rows: list[dict[int, object]] = []
        for segment in self._rodata:
            if segment.external:
                # Resolved by the container, which knows where the data will lie.
                rows.append({3: ("external", len(external)), 4: ("u64", len(segment.data))})
                external.append(segment.data)
            else:
                rows.append({2: ("ref", builder.byte_vector(segment.data))})
        return rows

    def _debug(self, builder: TableBuilder, bodies: list[Body]) -> int | None:
        if self.source is None:
            return None
        lines = sorted({line for body in bodies for _, line in body.locations})
        file_name = builder.text(self.source)
        locations = [
            builder.table({0: ("ref", file_name), 1: ("i32", line), 2: ("i32", 1)}) for line in lines
        ]
        maps: list[dict[int, object]] = []
        for function, body in zip(self._functions, bodies, strict=True):
            entries = b"".join(
                struct.pack("<ii", offset, lines.index(line)) for offset, line in body.locations
            )
            maps.append({0: ("ref", builder.text(function.name)), 1: ("ref", builder.structs(entries, 8))})
        return builder.table(
            {
                0: ("ref", builder.byte_vector(b"\2" * len(lines))),
                1: ("ref", builder.offsets(locations)),
                2: ("ref", builder.tables(maps)),
            }
        )
