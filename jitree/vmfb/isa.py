"""The instruction set: every opcode of bytecode versions 15, 16 and 17, one row each.

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
from functools import cache
from typing import Final

from jitree.base.records import NamedTuple

CORE: Final = "core"
EXT_F32: Final = "f32"
EXT_F64: Final = "f64"
SETS: Final = (CORE, EXT_F32, EXT_F64)

PREFIXES: Final[dict[int, str]] = {0xE0: EXT_F32, 0xE1: EXT_F64}
"""Core opcode bytes that announce an opcode of an extension set."""


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
