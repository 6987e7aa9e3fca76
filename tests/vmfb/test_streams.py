"""Properties of any well-formed function, and of any bytes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jitree.errors import StatusError
from jitree.vmfb.archive import Archive
from jitree.vmfb.decode import decode_module
from jitree.vmfb.disassemble import Disassembler, operand_register
from jitree.vmfb.instructions import InstructionRecord, Operand, read_instructions
from jitree.vmfb.module import read_module
from jitree.vmfb.schema import ModuleTables
from tests.assembler import Assembler
from tests.vmfb.frame_bounds import check_program
from tests.vmfb.streams import Line, assembly, functions, module
from tests.vmfb.words_reader import read_function

pytestmark = pytest.mark.filterwarnings("error")
relaxed = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def read(blocks: list[list[Line]], version: int) -> tuple[ModuleTables, list[InstructionRecord]]:
    parsed = read_module(Archive.open(module(assembly(blocks), version).build()))
    return parsed, list(read_instructions(bytes(parsed.body(parsed.functions[1])), version))


@pytest.mark.parametrize("version", [15, 16, 17])
@given(data=st.data())
@relaxed
def test_records_are_what_was_assembled(data: st.DataObject, version: int) -> None:
    blocks = data.draw(functions(version))
    _, records = read(blocks, version)
    markers = [record.offset for record in records if record.instruction.block_marker]
    expected = []
    for block in blocks:
        expected.append(("block", ()))
        for line in block:
            expected.append((line.row.mnemonic, tuple(_with_offsets(line, markers))))
    assert [(record.instruction.mnemonic, record.operands) for record in records] == expected


def _with_offsets(line: Line, markers: list[int]) -> list[Any]:
    """Operands with byte offsets for block numbers."""
    operands: list[Any] = []
    for operand, value in zip(line.row.operands, line.operands, strict=True):
        if operand.kind == "target":
            value = markers[value]
        elif operand.kind == "case_table":
            value = tuple((markers[number], moves) for number, moves in value)
        operands.append(value)
    return operands


@pytest.mark.parametrize("version", [15, 16, 17])
@given(data=st.data())
@relaxed
def test_words_say_the_same(data: st.DataObject, version: int) -> None:
    blocks = data.draw(functions(version))
    parsed, records = read(blocks, version)
    program = decode_module(parsed)
    decoded = list(read_function(program, program.functions[1]))
    by_offset = {record.offset: record for record in records}
    offsets = []
    for row in decoded:
        ordinal, offset = program.location(row.index)
        assert ordinal == 1
        record = by_offset[offset]
        if record.instruction.mnemonic == row.name and _is_plain(record):
            assert row.operands == _plain_words(record, version)
        if offset not in offsets:
            offsets.append(offset)
    plain = [record.offset for record in records if not record.instruction.block_marker]
    assert offsets == plain
    for ordinal, offset in [program.location(word) for word in range(program.functions[1].start)]:
        assert ordinal == 0 and offset == 1


def _is_plain(record: InstructionRecord) -> bool:
    kinds = {operand.kind for operand in record.instruction.operands}
    return not kinds & {"target", "string", "list.any", "case_table"} and "imm.func" not in kinds


def _plain_words(record: InstructionRecord, version: int) -> list[Any]:
    words: list[Any] = []
    for operand, value in zip(record.instruction.operands, record.operands, strict=True):
        words.append(_plain_word(operand, value, version))
    return words


def _plain_word(operand: Operand, value: Any, version: int) -> Any:
    if operand.kind == "r.ref":
        if operand.movable and not operand.output:
            return (value & 0x3FFF, value >> 14 & 1 if version >= 16 else 0)
        return value & 0x3FFF
    if operand.kind == "list.ref":
        return [(entry & 0x3FFF, entry >> 14 & 1) for entry in value]
    if operand.kind.startswith("list."):
        return list(value)
    if operand.kind in ("imm.i64", "imm.f64"):
        return value % 2**64
    if operand.kind == "imm.f32":
        return value - 2**32 if value >= 2**31 else value
    return value


@pytest.mark.parametrize("version", [15, 17])
@given(data=st.data())
@relaxed
def test_disassembly_names_every_instruction_and_register(data: st.DataObject, version: int) -> None:
    parsed, records = read(data.draw(functions(version)), version)
    lines = list(Disassembler(parsed).function(parsed.functions[1]))
    assert lines[1].startswith("vm.func @f(") and lines[-1] == "}"
    assert len(lines) == len(records) + 3
    for line, record in zip(lines[2:-1], records, strict=True):
        if record.instruction.block_marker:
            assert line.startswith("^bb")
            continue
        assert f"vm.{record.instruction.mnemonic}" in line
        for operand, value in zip(record.instruction.operands, record.operands, strict=True):
            if operand.kind.startswith("r."):
                assert operand_register(value) in line


def decode_and_print(parsed: ModuleTables) -> None:
    """Both must end, with nothing but a StatusError; what decodes is safe to run."""
    try:
        check_program(decode_module(parsed))
    except StatusError as error:
        assert "function 'f'" in str(error)
    lines = Disassembler(parsed).function(parsed.functions[-1])
    try:
        for line in lines:
            assert isinstance(line, str)
    except StatusError as error:
        assert "function 'f'" in str(error)


@pytest.mark.parametrize("version", [15, 17])
@given(body=st.binary(min_size=1, max_size=80))
@settings(relaxed, max_examples=200)
def test_any_bytes_are_decoded_or_refused(body: bytes, version: int) -> None:
    text = f".bytes {body.hex(' ')}"
    assembler = Assembler("m", version, globals_size=8, ref_global_count=1)
    assembler.function("f", "0i_i", text, requirements=3, block_count=1, value_count=8, ref_count=4)
    decode_and_print(read_module(Archive.open(assembler.build())))


@given(data=st.data(), version=st.sampled_from([15, 16, 17]))
@settings(relaxed, max_examples=200)
def test_damaged_functions_are_decoded_or_refused(data: st.DataObject, version: int) -> None:
    blocks = data.draw(functions(version))
    parsed, _ = read(blocks, version)
    body = bytearray(parsed.body(parsed.functions[1]))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    damaged = module(f".bytes {body.hex(' ')}", version, block_count=len(blocks))
    decode_and_print(read_module(Archive.open(damaged.build())))
