"""The instruction table against facts stated elsewhere."""

from __future__ import annotations

from itertools import pairwise

import pytest

from jitree.vmfb.instructions import BY_MNEMONIC, INSTRUCTIONS, PREFIXES, SETS, opcode_table
from jitree.vmfb.module import VERSIONS

KINDS = {
    "r.i32", "r.i64", "r.f32", "r.f64", "r.ref", "imm.i32", "imm.i64", "imm.f32", "imm.f64", "imm.func",
    "imm.gbyte", "imm.gref", "imm.rodata", "imm.type", "target", "string", "remap", "case_table",
    "list.any", "list.i32", "list.i64", "list.f32", "list.f64", "list.ref", "list.segment",
}  # fmt: skip


@pytest.mark.parametrize(("version", "count"), [(15, 259), (16, 261), (17, 265)])
def test_number_of_instructions(version: int, count: int) -> None:
    tables = [opcode_table(version, name) for name in SETS]
    assert sum(row is not None for table in tables for row in table) >= count, "upstream has so many"


def test_no_opcode_was_ever_renumbered() -> None:
    for name in SETS:
        for older, newer in pairwise(VERSIONS):
            for before, after in zip(opcode_table(older, name), opcode_table(newer, name), strict=True):
                assert before is None or before is after


def test_rows_are_consistent() -> None:
    assert len(BY_MNEMONIC) == len(INSTRUCTIONS)
    assert [row.index for row in INSTRUCTIONS] == list(range(len(INSTRUCTIONS)))
    assert len({(row.set, row.opcode) for row in INSTRUCTIONS}) == len(INSTRUCTIONS)
    for row in INSTRUCTIONS:
        assert row.set == "core" or row.mnemonic.count(row.set) >= 1 or "64" in row.mnemonic
        assert row.opcode not in PREFIXES or row.set != "core"
        for operand in row.operands:
            assert operand.kind in KINDS
            if operand.movable:
                assert operand.kind in ("r.ref", "list.ref", "list.any")


@pytest.mark.parametrize(
    ("mnemonic", "set_name", "opcode", "since"),
    [
        ("block", "core", 0x79, 15),
        ("br_table", "core", 0x83, 15),
        ("min.i32.s", "core", 0x7A, 15),
        ("discard.refs", "core", 0x85, 16),
        ("assign.ref", "core", 0x86, 16),
        ("call.yieldable", "core", 0x87, 17),
        ("call.variadic.yieldable", "core", 0x88, 17),
        ("cast.f32.si64", "f32", 0x3A, 15),
        ("cast.ui64.f32", "f32", 0x3D, 15),
        ("max.f64", "f64", 0x3E, 15),
        ("fpowi.f32", "f32", 0x3E, 17),
        ("fpowi.f64", "f64", 0x40, 17),
    ],
)
def test_known_opcodes(mnemonic: str, set_name: str, opcode: int, since: int) -> None:
    row = BY_MNEMONIC[mnemonic]
    assert (row.set, row.opcode, row.since) == (set_name, opcode, since)


def test_terminators() -> None:
    assert {row.mnemonic for row in INSTRUCTIONS if row.terminator} == {
        "br", "cond_br", "br_table", "return", "fail", "yield", "break", "cond_break", "call.yieldable",
        "call.variadic.yieldable",
    }  # fmt: skip
    assert [row.mnemonic for row in INSTRUCTIONS if row.block_marker] == ["block"]
