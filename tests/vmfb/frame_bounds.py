"""Checks of decoded words that no tier makes again: registers lie in the frame, branches lead somewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from jitree.vmfb.instructions import BY_MNEMONIC, Operand
from jitree.vmfb.program import DecodedFunction, DecodedModule
from jitree.vmfb.words import TAG_REF_COPY, TAG_REF_MOVE, TAG_VALUE32, TAG_VALUE64
from tests.vmfb.words_reader import Decoded, read_function

_TAG_OF_KIND = {"i32": TAG_VALUE32, "f32": TAG_VALUE32, "i64": TAG_VALUE64, "f64": TAG_VALUE64}


def check_program(program: DecodedModule) -> None:
    for function in program.functions:
        rows = {row.index: row for row in read_function(program, function)}
        for row in rows.values():
            for tag, register in _registers(program, row):
                _check_register(function, tag, register)
            for target in _targets(row):
                assert target in rows


def _check_register(function: DecodedFunction, tag: int, register: int) -> None:
    assert register >= 0
    if tag in (TAG_REF_COPY, TAG_REF_MOVE):
        assert register < function.ref_count
    elif tag == TAG_VALUE64:
        assert register % 2 == 0 and register + 1 < function.value_count
    else:
        assert tag == TAG_VALUE32 and register < function.value_count


def _registers(program: DecodedModule, row: Decoded) -> Iterator[tuple[int, int]]:
    """(tag, register) of all operands."""
    name, operands = row.name, row.operands
    if name in ("cond_br", "cond_break", "br_table", "fail"):
        yield TAG_VALUE32, operands[0]
    elif name in ("br", "yield", "break"):
        yield from _both_ends(operands[1])
    elif name == "return":
        yield from operands[0]
    elif name == "call.internal":
        callee = program.functions[operands[0]]
        for tag, source, destination in operands[1]:
            yield tag, source
            _check_register(callee, tag, destination)
        yield from operands[2]
    elif name == "call.import":
        yield from operands[2]
        yield from operands[3]
    elif name != "br.bare":
        for operand, value in zip(BY_MNEMONIC[name].operands, operands, strict=True):
            yield from _of_operand(operand, value)


def _both_ends(moves: Iterable[tuple[int, int, int]]) -> Iterator[tuple[int, int]]:
    for tag, source, destination in moves:
        yield tag, source
        yield tag, destination


def _of_operand(operand: Operand, value: Any) -> Iterator[tuple[int, int]]:
    kind, _, detail = operand.kind.partition(".")
    if operand.kind == "r.ref":
        yield TAG_REF_COPY, value[0] if isinstance(value, tuple) else value
    elif kind == "r":
        yield _TAG_OF_KIND[detail], value
    elif operand.kind == "list.any":
        yield from value
    elif operand.kind == "list.ref":
        yield from ((TAG_REF_COPY, register) for register, _ in value)
    elif kind == "list":
        yield from ((_TAG_OF_KIND[detail], register) for register in value)


def _targets(row: Decoded) -> Iterator[int]:
    if row.carried is not None:
        yield from row.carried[2:]
    if row.name in ("br", "br.bare", "yield", "break"):
        yield row.operands[0]
    elif row.name in ("cond_br", "cond_break"):
        yield from row.operands[1:]
    elif row.name == "fail":
        yield row.operands[2]
    elif row.name == "br_table":
        yield row.operands[1]
        yield from row.operands[2]
