"""The fields of a module file: where instructions, descriptors and tables keep what a loader has to check."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from jitree.vmfb.archive import Archive
from jitree.vmfb.instructions import CORE, InstructionRecord, Operand, read_instructions
from jitree.vmfb.module import read_module
from jitree.vmfb.schema import ModuleTables

KINDS = ("registers", "branches", "types", "sizes", "tables")
DESCRIPTOR_FIELDS = ((0, 4), (4, 4), (8, 4), (14, 2), (16, 2), (18, 2))
"""(offset, width) of what counts in a 20-byte function descriptor."""


class Place(NamedTuple):
    """A field of a module file."""

    position: int
    width: int


class Layout:
    """Where things lie in an undamaged file. Executables are left alone: they hold machine code."""

    def __init__(self, data: bytes) -> None:
        module = read_module(Archive.open(data))
        archive = module.archive
        self.size = len(data)
        self.flatbuffer = range(
            archive.flatbuffer_offset, archive.flatbuffer_offset + len(archive.flatbuffer)
        )
        self.bodies = self._bodies(data, module)
        self.descriptors = self._descriptors(data, module)
        self.exports = {export.name: self.bodies[export.ordinal] for export in module.exports}
        self.letters = [at for at in self.flatbuffer if 0x20 < data[at] < 0x7F]
        self.fields = self._fields(module)
        self.kinds = [kind for kind in KINDS if self.fields[kind]]

    def _bodies(self, data: bytes, module: ModuleTables) -> list[range]:
        base = data.index(bytes(module.bytecode), self.flatbuffer.start)
        return [
            range(base + function.offset, base + function.offset + function.length)
            for function in module.functions
        ]

    def _descriptors(self, data: bytes, module: ModuleTables) -> list[int]:
        first = module.functions[0]
        row = struct.pack("<iiI", first.offset, first.length, first.requirements)
        start = data.index(row, self.flatbuffer.start)
        return [start + 20 * function.ordinal for function in module.functions]

    def _fields(self, module: ModuleTables) -> dict[str, list[Place]]:
        """The fields by kind."""
        found: dict[str, list[Place]] = {kind: [] for kind in KINDS}
        for body, function in zip(self.bodies, module.functions, strict=True):
            for record in read_instructions(bytes(module.body(function)), module.bytecode_version[0]):
                for kind, place in _fields(record, body.start + record.offset):
                    found[kind].append(place)
        for start in self.descriptors:
            found["sizes"] += [Place(start + offset, 4) for offset in (0, 4)]
            found["sizes"] += [Place(start + offset, 2) for offset in (14, 16, 18)]
        found["tables"] = [Place(position, 4) for position in self.flatbuffer if position % 4 == 0]
        return found


def _fields(record: InstructionRecord, start: int) -> Iterator[tuple[str, Place]]:
    at = start + (2 if record.instruction.set != CORE else 1)
    for operand, value in zip(record.instruction.operands, record.operands, strict=True):
        kind, size, at = _sized(operand, value, at)
        if kind:
            yield kind, Place(at, size)
        at += _extent(operand, value)


def _sized(operand: Operand, value: object, at: int) -> tuple[str, int, int]:
    """The kind of a field, its width, and where it lies; lists are aligned, and begin with their length."""
    if operand.kind.startswith("r."):
        return "registers", 2, at
    if operand.kind == "target":
        return "branches", 4, at
    if operand.kind in ("imm.type", "imm.func", "imm.rodata", "imm.gref", "imm.gbyte"):
        return "types", 4, at
    if operand.kind.startswith("list.") or operand.kind == "remap":
        at += at & 1
        return ("registers", 2, at + 2) if value else ("", 0, at)
    return "", 0, at


def _extent(operand: Operand, value: object) -> int:
    if operand.kind.startswith("r."):
        return 2
    if operand.kind in ("imm.i64", "imm.f64"):
        return 8
    if operand.kind == "string":
        assert isinstance(value, bytes)
        return 2 + len(value)
    if operand.kind.startswith("list."):
        assert isinstance(value, tuple)
        return 2 + 2 * len(value)
    if operand.kind == "remap":
        assert isinstance(value, tuple)
        return 2 + 4 * len(value)
    return 0 if operand.kind == "case_table" else 4
