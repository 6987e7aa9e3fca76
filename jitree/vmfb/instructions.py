"""Reads the instruction table, and raw instructions by it.

The form that the disassembler, data flow and tests read. Nothing is judged here but that the bytes can be
read; registers are raw operand words with their flag bits. Machine code loads modules, by the same table
(``native/``): every opcode of bytecode versions 15, 16 and 17, one row each.

The table (``isa.tsv``) is the only place that states an instruction. The decoder, verifier, disassembler,
test assembler and the tiers derive from it. No opcode was ever renumbered; a row names the first bytecode
version that has it.

Operand kinds (sizes in bytes, little endian, packed unless said otherwise):

=============  ==========================================================================================
``r.i32 r.f32``  u16 ordinal of a 32-bit slot of the value bank
``r.i64 r.f64``  u16 ordinal of the even, low slot of a pair
``r.ref``        u16, bit 15 set, bit 14 move flag, bits 0-13 ordinal in the ref bank
``imm.*``        i32 i64 f32 f64 literals; u32 func (bit 31: import), gbyte, gref, rodata, type ordinals
``target``       u32 byte offset of a block marker in the function
``string``       u16 length and bytes
``list.*``       aligned to 2: u16 count, then u16 each; ``any`` mixes banks, ``segment`` counts tuples
``remap``        aligned to 2: u16 count, then (u16 source, u16 destination) each, applied in order
``case_table``   u16 count, then (target, remap) each
=============  ==========================================================================================
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final

from jitree.base.records import NamedTuple
from jitree.errors import InvalidArgumentError, OutOfRangeError

CORE: Final = "core"
EXT_F32: Final = "f32"
EXT_F64: Final = "f64"
SETS: Final = (CORE, EXT_F32, EXT_F64)

PREFIXES: Final[dict[int, str]] = {0xE0: EXT_F32, 0xE1: EXT_F64}
"""Core opcode bytes that announce an opcode of an extension set."""

REF_BIT: Final = 0x8000
"""The bit of a register operand that means the ref bank."""
MOVE_BIT: Final = 0x4000
"""The bit of a ref operand whose source register is given up."""
REF_MASK: Final = 0x3FFF
IMPORT_BIT: Final = 0x80000000
"""The bit of a function operand whose other bits are an import ordinal."""
TARGET_LIMIT: Final = 0xFFFFFF
"""Branch targets lie below."""

Moves = tuple[tuple[int, int], ...]
"""(source, destination) register operands, applied in order."""


class Operand(NamedTuple):
    """One operand of an instruction."""

    name: str
    kind: str
    output: bool
    movable: bool
    """Bit 14 of the ref ordinal is the move flag here."""


class Instruction(NamedTuple):
    """One row of the table."""

    index: int  # type: ignore[assignment]  # instead of the method of tuples
    """Dense number over all three sets: the opcode word of decoded code."""
    set: str
    opcode: int
    since: int
    mnemonic: str
    operands: tuple[Operand, ...]
    terminator: bool
    block_marker: bool


@cache
def _operands(text: str) -> tuple[Operand, ...]:
    return tuple(map(_operand, text.split()))


@cache
def _operand(text: str) -> Operand:
    name, kind = text.lstrip(">").rstrip("*").split(":")
    return Operand(name, kind, text.startswith(">"), text.endswith("*"))


def _rows() -> tuple[Instruction, ...]:
    # importlib.resources would take longer to import than everything else here to load.
    with open(os.path.join(os.path.dirname(__file__), "isa.tsv"), encoding="utf-8") as file:
        lines = file.read().splitlines()
    rows: list[Instruction] = []
    for line in lines:
        if line.startswith("#"):
            continue
        set_name, opcode, since, flags, mnemonic, *others = line.split(None, 5)
        operands = _operands(others[0]) if others else ()
        terminator, block_marker = "T" in flags, "B" in flags
        rows.append(
            Instruction(
                len(rows), set_name, int(opcode, 16), int(since), mnemonic, operands, terminator, block_marker
            )
        )
    return tuple(rows)


INSTRUCTIONS: Final = _rows()
"""All rows, in the order of :attr:`Instruction.index`."""

BY_MNEMONIC: Final = {row.mnemonic: row for row in INSTRUCTIONS}


@cache
def opcode_table(version: int, set_name: str) -> tuple[Instruction | None, ...]:
    """256 entries: the instruction of each opcode byte of a set in a bytecode version, None if unknown."""
    table: list[Instruction | None] = [None] * 256
    for row in INSTRUCTIONS:
        if row.set == set_name and row.since <= version:
            table[row.opcode] = row
    return tuple(table)


class InstructionRecord(NamedTuple):
    """An instruction as it stands in a function body.

    ``operands`` follow the table's row: int for registers, literals, ordinals and targets (the bits of float
    literals), bytes for a string, a tuple of ints for a list, a tuple of pairs for a remap, a tuple of
    (target, remap) for a case table.
    """

    offset: int
    """Byte offset in the function."""
    length: int
    instruction: Instruction
    operands: tuple[Any, ...]

    @property
    def named(self) -> dict[str, Any]:
        """Operands by their names in the table."""
        return {row.name: value for row, value in zip(self.instruction.operands, self.operands, strict=True)}

    def exits(self) -> Iterator[tuple[int, Moves]]:
        """Lists where a block goes on, and what is moved there."""
        named = self.named
        for operand in self.instruction.operands:
            if operand.kind == "target":
                yield named[operand.name], named.get(f"{operand.name}_moves", named.get("moves", ()))
            elif operand.kind == "case_table":
                yield from named[operand.name]


_Reader = Callable[[bytes, int], tuple[Any, int]]


def _scalar(text: str) -> _Reader:
    layout = struct.Struct(text)

    def read(body: bytes, at: int) -> tuple[Any, int]:
        (value,) = layout.unpack_from(body, at)
        return value, at + layout.size

    return read


def _string(body: bytes, at: int) -> tuple[bytes, int]:
    (length,) = struct.unpack_from("<H", body, at)
    (data,) = struct.unpack_from(f"{length}s", body, at + 2)
    return data, at + 2 + length


def _list(body: bytes, at: int) -> tuple[tuple[int, ...], int]:
    at += at & 1
    (count,) = struct.unpack_from("<H", body, at)
    return struct.unpack_from(f"<{count}H", body, at + 2), at + 2 + 2 * count


def _remap(body: bytes, at: int) -> tuple[Moves, int]:
    at += at & 1
    (count,) = struct.unpack_from("<H", body, at)
    registers = struct.unpack_from(f"<{2 * count}H", body, at + 2)
    return tuple(zip(registers[::2], registers[1::2], strict=True)), at + 2 + 4 * count


def _case_table(body: bytes, at: int) -> tuple[tuple[tuple[int, Moves], ...], int]:
    (count,) = struct.unpack_from("<H", body, at)
    at += 2
    cases: list[tuple[int, Moves]] = []
    for _ in range(count):
        (target,) = struct.unpack_from("<I", body, at)
        moves, at = _remap(body, at + 4)
        cases.append((target, moves))
    return tuple(cases), at


_U16, _U32 = _scalar("<H"), _scalar("<I")
_READERS: Final[dict[str, _Reader]] = {
    "r.i32": _U16, "r.f32": _U16, "r.i64": _U16, "r.f64": _U16, "r.ref": _U16,
    "imm.i32": _scalar("<i"), "imm.i64": _scalar("<q"), "imm.f32": _U32, "imm.f64": _scalar("<Q"),
    "imm.func": _U32, "imm.gbyte": _U32, "imm.gref": _U32, "imm.rodata": _U32, "imm.type": _U32,
    "target": _U32, "string": _string, "remap": _remap, "case_table": _case_table, "list.segment": _list,
    "list.any": _list, "list.i32": _list, "list.i64": _list, "list.f32": _list, "list.f64": _list,
    "list.ref": _list,
}  # fmt: skip


def read_instruction(body: bytes, offset: int, version: int) -> InstructionRecord:
    """Reads the instruction at a byte offset, by bytecode major version.

    Raises OUT_OF_RANGE when the body ends inside it, INVALID_ARGUMENT for an unknown opcode.
    """
    try:
        set_name, at = CORE, offset + 1
        opcode = body[offset]
        if opcode in PREFIXES:
            set_name, at = PREFIXES[opcode], offset + 2
            opcode = body[offset + 1]
        row = opcode_table(version, set_name)[opcode]
        if row is None:
            raise InvalidArgumentError(
                f"unknown opcode 0x{opcode:02X} of the {set_name} set in bytecode version {version}",
                f"at byte offset {offset}",
            )
        operands: list[Any] = []
        for operand in row.operands:
            value, at = _READERS[operand.kind](body, at)
            operands.append(value)
    except (struct.error, IndexError):
        raise OutOfRangeError("the body ends inside an instruction", f"at byte offset {offset}") from None
    return InstructionRecord(offset, at - offset, row, tuple(operands))


def read_instructions(body: bytes, version: int) -> Iterator[InstructionRecord]:
    """Every instruction of a function body in file order; errors as of :func:`read_instruction`."""
    offset = 0
    while offset < len(body):
        record = read_instruction(body, offset, version)
        yield record
        offset += record.length
