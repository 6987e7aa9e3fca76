"""The undamaged modules that campaigns start from."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jitree.vmfb.instructions import INSTRUCTIONS, SETS, Instruction
from tests.assembler import Assembler

_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Seed:
    """A module and the device it runs on; empty for modules that need none.

    Kernels are machine code, which a damaged program may well send to a wrong address: modules with kernels
    run on the device that does nothing.
    """

    data: bytes
    device: str


@cache
def seeds() -> dict[str, Seed]:
    """All seeds by name."""
    return {
        "instructions15": Seed(instructions(15).build(), ""),
        "instructions17": Seed(instructions(17).build("plain"), ""),
        "control": Seed(control().build(), ""),
        "empty": Seed(Assembler("empty").function("f", "0v_v", "return").build("plain"), ""),
        "digits": Seed((_ROOT / "examples/digits/digits.llvm-cpu.vmfb").read_bytes(), "null"),
    }


# Register plan of the generated functions: inputs from 0 upwards, one pair each; results after them.
_RESULT = 20
_CONSTANTS = {"i32": "3", "i64": "5", "f32": "1.5", "f64": "2.5"}
_RESULT_TYPES = {"i32": "i", "i64": "I", "f32": "f", "f64": "F", "ref": "r"}


def instructions(bytecode: int, sets: Collection[str] = SETS) -> Assembler:
    """One exported function for each instruction with plain operands, of some of the instruction sets."""
    module = Assembler("instructions", bytecode, globals_size=64, ref_global_count=2)
    module.rodata(bytes(range(64)))
    module.rodata(b"external data " * 300, external=True)
    for row in INSTRUCTIONS:
        kinds = [operand.kind.partition(".") for operand in row.operands]
        simple = all(kind == "r" or (kind == "imm" and detail != "func") for kind, _, detail in kinds)
        if (
            simple
            and row.set in sets
            and row.since <= bytecode
            and not row.terminator
            and not row.block_marker
        ):
            _add_function(module, row)
    return module


def _add_function(module: Assembler, row: Instruction) -> None:
    lines: list[str] = []
    inputs: list[str] = []
    outputs: list[str] = []
    results = ""
    for number, operand in enumerate(row.operands):
        kind, _, detail = operand.kind.partition(".")
        if kind == "imm":
            inputs.append(_immediate(row, detail))
        elif operand.output:
            outputs.append("%r9" if detail == "ref" else f"%i{_RESULT}")
            results += _RESULT_TYPES[detail]
        elif detail == "ref":
            inputs.append(f"%r{number}")
            lines += _reference(row, number)
        else:
            inputs.append(f"%i{2 * number}")
            lines.append(f"%i{2 * number} = const.{detail} {_CONSTANTS[detail]}")
    call = f"{row.mnemonic} {', '.join(inputs)}"
    lines.append(f"{outputs[0]} = {call}" if outputs else call)
    returned = [
        f"%i{_RESULT}:{_RESULT + 1}" if letter in "IF" else output
        for letter, output in zip(results, outputs, strict=True)
    ]
    lines.append(f"return [{', '.join(returned)}]")
    module.function(f"{row.set}.{row.mnemonic}", f"0v_{results or 'v'}", "\n".join(lines))


def _immediate(row: Instruction, detail: str) -> str:
    if detail == "type":
        return "i64" if row.mnemonic == "list.alloc" else "!vm.buffer"
    return {"gbyte": "8", "gref": "1", "rodata": "1"}.get(detail) or _CONSTANTS[detail]


def _reference(row: Instruction, number: int) -> list[str]:
    """Code that makes an object of the kind the instruction works on."""
    if row.mnemonic.startswith("list."):
        element = "!vm.buffer" if row.mnemonic.endswith(".ref") else "!vm.opaque"
        return [
            "%i18 = const.i32 8",
            f"%r{number} = list.alloc {element}, %i18",
            f"list.resize %r{number}, %i18",
        ]
    return [
        "%i16 = const.i64 256",
        "%i18 = const.i32 16",
        f"%r{number} = buffer.alloc %i16, %i18",
    ]


def control(bytecode: int = 17) -> Assembler:
    """Branches, calls, remaps, lists, globals, failure: one function each."""
    module = Assembler("control", bytecode, source="control.mlir", globals_size=32, ref_global_count=2)
    module.import_function("nowhere.thing", "0iCrD_i", optional=True)
    module.rodata(b"some bytes")
    module.function("__init", "0v_v", "%i0 = const.i32 7\nglobal.store.i32 4, %i0\nreturn")
    module.function(
        "sum",
        "0i_I",
        """
        %i2 = const.i64 0
        %i4 = const.i64 0
        %i6 = const.i64 1
        %i8 = ext.i32.i64.u %i0
        br ^head
      ^head:
        %i1 = cmp.lt.i64.s %i4, %i8
        cond_br %i1, ^body, ^done {%i2->%i10, %i3->%i11}
      ^body:
        %i2 = add.i64 %i2, %i4
        %i4 = add.i64 %i4, %i6
        br ^head
      ^done:
        return [%i10:11]""",
    )
    module.function(
        "fibonacci",
        "0i_i",
        """
        %i1 = const.i32 2
        %i2 = cmp.lt.i32.s %i0, %i1
        cond_br %i2, ^small, ^large
      ^small:
        return [%i0]
      ^large:
        %i3 = const.i32 1
        %i4 = sub.i32 %i0, %i3
        %i5 = sub.i32 %i0, %i1
        [%i4] = call @fibonacci [%i4]
        [%i5] = call @fibonacci [%i5]
        %i4 = add.i32 %i4, %i5
        return [%i4]""",
    )
    module.function(
        "table",
        "0i_i",
        """
        %i1 = const.i32 10
        %i2 = const.i32 20
        br_table %i0, ^other {%i1->%i3}, [^a {%i2->%i3}, ^b, ^other {%i0->%i3}]
      ^a:
        return [%i3]
      ^b:
        %i4 = switch.i32 %i0, %i1, [%i2, %i0, %i1]
        return [%i4]
      ^other:
        return [%i3]""",
    )
    module.function(
        "lists",
        "0rI_rI",
        """
        %i4 = const.i32 4
        %i5 = const.i32 2
        %r1 = list.alloc !vm.opaque, %i4
        list.resize %r1, %i4
        list.set.ref %r1, %i5, %r0
        %r2 = list.get.ref %r1, %i5, !vm.buffer
        list.set.i64 %r1, %i4, %i0
        return [%R2, %i0:1]""",
    )
    assigned = "assign.ref %r3" if bytecode > 15 else "select.ref %i0, !vm.buffer, %r3, %r3"
    discarded = "discard.refs [%R3, %R0]" if bytecode > 15 else ""
    module.function(
        "refs",
        "0rr_rr",
        f"""
        %r2 = const.ref.rodata 0
        global.store.ref 1, !vm.buffer, %r2
        %i0 = cmp.eq.ref %r0, %r1
        %r3 = select.ref %i0, !vm.buffer, %r2, %r0
        %r4 = {assigned}
        %r5 = global.load.ref 1, !vm.buffer
        {discarded}
        cond_br %i0, ^a {{%R4->%r6, %R5->%r7}}, ^a {{%R5->%r6, %R4->%r7}}
      ^a:
        return [%R6, %R7]""",
    )
    module.function(
        "fails",
        "0i_v",
        """
        fail %i0, "something is wrong"
      ^after:
        return""",
    )
    module.function(
        "imports",
        "0i_i",
        """
        %i1 = import.resolved @nowhere.thing
        cond_br %i1, ^call, ^skip
      ^call:
        %r0 = const.ref.zero
        [%i1] = call.variadic @nowhere.thing [0xFFFF, 1] [%i0, %r0]
        br ^skip
      ^skip:
        return [%i1]""",
    )
    module.function("yields", "0i_i", "yield ^next {%i0->%i1}\n^next:\nreturn [%i1]")
    module.function("hidden", "0fF_F", "%i4 = ext.f32.f64 %i0\nreturn [%i4:5]", exported=False)
    return module
