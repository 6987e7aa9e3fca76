"""How to read each opcode's operands while loading: struct formats and operand classes from the table.

Instructions whose operands are all of fixed size have a plan; the walk reads them in one ``unpack`` and
compares each field with the limit of its class. All others have a function each.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from jitree.base.records import NamedTuple
from jitree.vmfb.calls import CALL_INSTRUCTIONS
from jitree.vmfb.isa import Instruction, Operand, opcode_table
from jitree.vmfb.operand_classes import (
    FIRST_MOVING_VERSION,
    GLOBAL32,
    GLOBAL64,
    LITERAL,
    PAIR,
    REF,
    REF_BORROWED,
    REF_GLOBAL,
    REF_KEPT,
    REF_MOVABLE,
    RODATA,
    TYPE,
    VALUE,
)
from jitree.vmfb.special import SPECIAL_INSTRUCTIONS

if TYPE_CHECKING:
    from jitree.vmfb.operands import OperandReader

_FIXED: Final[dict[str, tuple[str, tuple[int, ...]]]] = {
    "r.i32": ("H", (VALUE,)),
    "r.f32": ("H", (VALUE,)),
    "r.i64": ("H", (PAIR,)),
    "r.f64": ("H", (PAIR,)),
    "imm.i32": ("i", (LITERAL,)),
    "imm.f32": ("i", (LITERAL,)),
    "imm.i64": ("ii", (LITERAL, LITERAL)),
    "imm.f64": ("ii", (LITERAL, LITERAL)),
    "imm.gref": ("I", (REF_GLOBAL,)),
    "imm.rodata": ("I", (RODATA,)),
    "imm.type": ("I", (TYPE,)),
}
"""Struct format and classes of operand kinds."""

Special = Callable[["OperandReader", int, int], int]
"""(walk, opcode word, position of the operands) → position after the instruction."""


class ReadingPlan(NamedTuple):
    opcode: int
    """Opcode word."""
    size: int
    """Bytes of the operands."""
    unpack: Callable[[bytes, int], tuple[Any, ...]]
    classes: tuple[int, ...]
    special: Special | None
    """Reads the instruction instead when set."""


@cache
def plan_table(version: int, set_name: str) -> list[ReadingPlan | None]:
    """The plans of a set's opcodes that :func:`find` has been asked for, at their bytes. Modules have a third
    of all instructions."""
    return [None] * 256


def find(version: int, set_name: str, opcode: int) -> ReadingPlan | None:
    """The plan of an opcode; None if it is unknown, a prefix or the block marker."""
    table = plan_table(version, set_name)
    if table[opcode] is None:
        row = opcode_table(version, set_name)[opcode]
        if row is not None and not row.block_marker:
            table[opcode] = _plan(row, version)
    return table[opcode]


def _plan(row: Instruction, version: int) -> ReadingPlan:
    special = SPECIAL_INSTRUCTIONS.get(row.mnemonic) or CALL_INSTRUCTIONS.get(row.mnemonic)
    formats: list[str] = []
    classes: list[int] = []
    if special is None:
        for operand in row.operands:
            text, of_operand = _fixed(row, operand, version)
            formats.append(text)
            classes += of_operand
    layout = struct.Struct("<" + "".join(formats))
    return ReadingPlan(row.index, layout.size, layout.unpack_from, tuple(classes), special)


def _fixed(row: Instruction, operand: Operand, version: int) -> tuple[str, tuple[int, ...]]:
    if operand.kind == "imm.gbyte":
        return "I", (GLOBAL64 if row.mnemonic.endswith("64") else GLOBAL32,)
    if operand.kind == "r.ref":
        moving = version >= FIRST_MOVING_VERSION
        if operand.output:
            return "H", (REF,)
        if operand.movable:
            return "H", (REF_MOVABLE if moving else REF_BORROWED,)
        return "H", (REF_KEPT if moving else REF,)
    return _FIXED[operand.kind]
