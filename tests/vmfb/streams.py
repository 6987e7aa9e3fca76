"""Random well-formed functions: text for the assembler, and the records that must come back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from jitree.vmfb.instructions import INSTRUCTIONS, Instruction, Operand
from tests.assembler import Assembler

VALUE_SLOTS = 32
REFS = 16
_IMPORT = 1 << 31
_CALLEES = {False: (0, "0v_v"), True: (_IMPORT, "0rIi_Ir")}
"""(function operand, convention) of the internal function and of the import that plain calls name."""
_VARIADIC = (_IMPORT | 1, "0iCrID_i")

_value = st.integers(0, VALUE_SLOTS - 1)
_pair = st.integers(0, VALUE_SLOTS // 2 - 1).map(lambda half: 2 * half)
_ref = st.tuples(st.integers(0, REFS - 1), st.booleans()).map(lambda r: r[0] | 0x8000 | r[1] << 14)
_REGISTERS = {"i32": _value, "f32": _value, "i64": _pair, "f64": _pair, "ref": _ref}
_CHARACTERS = {"i": _value, "f": _value, "I": _pair, "F": _pair, "r": _ref}


@dataclass
class Line:
    """An instruction, its operands as records have them; targets are block numbers."""

    row: Instruction
    operands: tuple[Any, ...]


def _scalar(operand: Operand, mnemonic: str) -> st.SearchStrategy[Any]:
    kind, _, detail = operand.kind.partition(".")
    if kind == "r":
        return _REGISTERS[detail]
    if operand.kind == "imm.gbyte":
        return st.sampled_from([0, 8] if mnemonic.endswith("64") else [0, 4, 8, 12])
    bits = {"imm.f32": 32, "imm.f64": 64}.get(operand.kind)
    if bits:
        return st.integers(0, 2**bits - 1)
    bounds = {"imm.i32": 2**31, "imm.i64": 2**63}.get(operand.kind)
    if bounds:
        return st.integers(-bounds, bounds - 1)
    if operand.kind == "imm.func":  # of import.resolved
        return st.sampled_from([_IMPORT, _IMPORT | 1])
    if kind == "string":
        return st.text('abc "\\\n', max_size=5).map(lambda text: text.encode("latin-1"))
    if kind == "list":
        element = st.one_of(_value, _ref) if detail == "any" else _REGISTERS[detail]
        return st.lists(element, max_size=3).map(tuple)
    assert kind == "imm" and detail in ("gref", "rodata", "type"), mnemonic
    return st.integers(0, 1)


_moves = st.lists(st.one_of(st.tuples(_value, _value), st.tuples(_ref, _ref)), max_size=4).map(tuple)


@st.composite
def _line(draw: st.DrawFn, row: Instruction, block_count: int, version: int) -> Line:
    target = st.integers(0, block_count - 1)
    if row.mnemonic.startswith("call"):
        return Line(row, draw(_call(row, target)))
    operands: list[Any] = []
    for operand in row.operands:
        if operand.kind == "target":
            operands.append(draw(target))
        elif operand.kind == "remap":
            operands.append(draw(_moves))
        elif operand.kind == "case_table":
            operands.append(tuple(draw(st.lists(st.tuples(target, _moves), max_size=3))))
        elif row.mnemonic == "return":
            operands.append(())
        else:
            operands.append(draw(_scalar(operand, row.mnemonic)))
        if operand.kind == "r.ref" and not operand.output and not operand.movable and version >= 16:
            operands[-1] &= ~0x4000  # an error then
    return Line(row, tuple(operands))


@st.composite
def _call(draw: st.DrawFn, row: Instruction, target: st.SearchStrategy[int]) -> tuple[Any, ...]:
    variadic = "variadic" in row.mnemonic
    callee, cconv = _VARIADIC if variadic else _CALLEES[draw(st.booleans())]
    arguments, _, results = cconv[1:].replace("v", "").partition("_")
    segments: tuple[int, ...] = ()
    if variadic:
        count = draw(st.integers(0, 3))
        segments = (0xFFFF, count)
        arguments = "i" + "rI" * count
    registers = tuple(draw(_CHARACTERS[character]) for character in arguments)
    outs = tuple(draw(_CHARACTERS[character]) & ~0x4000 for character in results)
    operands: list[Any] = [callee, segments] if variadic else [callee]
    operands.append(registers)
    if "yieldable" in row.mnemonic:
        operands.append(draw(target))
    return (*operands, outs)


@st.composite
def functions(draw: st.DrawFn, version: int) -> list[list[Line]]:
    """Blocks of one function of a bytecode version."""
    rows = [row for row in INSTRUCTIONS if row.since <= version and not row.block_marker]
    plain = [row for row in rows if not row.terminator]
    leaving = [row for row in rows if row.terminator]
    block_count = draw(st.integers(1, 4))
    blocks = []
    for _ in range(block_count):
        chosen = draw(st.lists(st.sampled_from(plain), max_size=8))
        chosen.append(draw(st.sampled_from(leaving)))
        blocks.append([draw(_line(row, block_count, version)) for row in chosen])
    return blocks


def _register(value: int) -> str:
    if value & 0x8000:
        return f"%{'R' if value & 0x4000 else 'r'}{value & 0x3FFF}"
    return f"%i{value}"


def _text(operand: Operand, value: Any) -> str:
    kind = operand.kind
    if kind.startswith("r."):
        return _register(value)
    if kind in ("imm.f32", "imm.f64"):
        return f"0x{value:X}"
    if kind == "target":
        return f"^block{value}"
    if kind == "remap":
        return "{" + ", ".join(f"{_register(a)}->{_register(b)}" for a, b in value) + "}"
    if kind == "case_table":
        return "[" + ", ".join(f"^block{n} {_text(_REMAP, moves)}" for n, moves in value) + "]"
    if kind == "list.segment":
        return str(list(value))
    if kind.startswith("list."):
        return "[" + ", ".join(map(_register, value)) + "]"
    if kind == "string":
        return '"' + "".join(f"\\x{byte:02x}" for byte in value) + '"'
    return str(value)


_REMAP = Operand("moves", "remap", False, False)


def assembly(blocks: list[list[Line]]) -> str:
    lines = []
    for number, block in enumerate(blocks):
        lines.append(f"^block{number}:")
        for line in block:
            pairs = list(zip(line.row.operands, line.operands, strict=True))
            inputs = ", ".join(_text(operand, value) for operand, value in pairs if not operand.output)
            outputs = ", ".join(_text(operand, value) for operand, value in pairs if operand.output)
            lines.append(f"{outputs}{' = ' if outputs else ''}{line.row.mnemonic} {inputs}")
    return "\n".join(lines)


def module(text: str, version: int, **overrides: int) -> Assembler:
    """A module whose function 1 has that text, and all that generated functions refer to."""
    assembler = Assembler("m", version, globals_size=16, ref_global_count=2)
    assembler.import_function("x.plain", _CALLEES[True][1]).import_function("x.spans", _VARIADIC[1])
    assembler.rodata(b"zero")
    assembler.rodata(b"one")
    assembler.type("i32")
    assembler.type("!vm.buffer")
    assembler.function("nothing", "0v_v", "return")
    return assembler.function(
        "f",
        "0v_v",
        text,
        value_count=VALUE_SLOTS,
        ref_count=REFS,
        requirements=3,
        exported=True,
        attrs=None,
        **overrides,
    )
