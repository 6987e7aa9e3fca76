"""Modules of real compilers: every instruction decodes, and each word leads back to its bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from jitree.vmfb.archive import Archive
from jitree.vmfb.decode import decode_module
from jitree.vmfb.instructions import read_instructions
from jitree.vmfb.module import read_module
from tests.vmfb.frame_bounds import check_program
from tests.vmfb.words_reader import Decoded, read_function

DATA = Path(__file__).parents[1] / "data"
MODULES = sorted(
    path for folder in ("dump", "programs", "releases") for path in (DATA / folder).glob("*.vmfb")
)
_CALLS = {"call.internal": "call", "call.import": "call"}
_BRANCHES = ("br", "cond_br", "br_table", "call.yieldable", "call.variadic.yieldable")


@pytest.mark.parametrize("path", MODULES, ids=[str(path.relative_to(DATA)) for path in MODULES])
def test_words_lead_back_to_their_instructions(path: Path) -> None:
    module = read_module(Archive.open(path))
    program = decode_module(module)
    check_program(program)
    for function, decoded in zip(module.functions, program.functions, strict=True):
        records = {
            record.offset: record.instruction.mnemonic
            for record in read_instructions(bytes(module.body(function)), module.bytecode_version[0])
        }
        seen = set()
        rows = {row.index: row for row in read_function(program, decoded)}
        for row in rows.values():
            if row.carried is not None:  # its target is that comparison and the branch on it
                compare, registers, if_true, if_false = row.carried
                target = rows[row.operands[0]]
                assert (target.name, target.operands) == (compare, registers)
                condition, *targets = rows[target.end].operands
                assert condition == registers[-1]
                for expected, found in zip(targets, (if_true, if_false), strict=True):
                    assert expected == found or same_stub(rows[expected], rows[found])
            ordinal, offset = program.location(row.index)
            seen.add(offset)
            assert ordinal == function.ordinal
            if row.name in ("br", "br.bare"):
                assert records[offset] in _BRANCHES
            elif row.name in _CALLS:
                assert records[offset].startswith("call")
            else:
                assert records[offset] == row.name.removesuffix(".exact")
        assert seen == {offset for offset, mnemonic in records.items() if mnemonic != "block"}
        # Compilers record exact counts.
        assert decoded.value_count == max(function.value_count + 1 & ~1, 2)
        assert decoded.ref_count == max(function.ref_count, 1)


def same_stub(first: Decoded, second: Decoded) -> bool:
    """Both branches may go through stubs of their own."""
    return first.name == second.name == "br" and first.operands == second.operands


def test_there_are_modules_of_all_bytecode_versions() -> None:
    versions = {read_module(Archive.open(path)).bytecode_version[0] for path in MODULES}
    assert versions >= {15, 17}
