"""Instructions as text where the notation differs from "results = mnemonic inputs"."""

from __future__ import annotations

import pytest

from jitree.errors import StatusError
from jitree.vmfb.disassemble import Disassembler, block_numbers, hexadecimal_offsets
from jitree.vmfb.instructions import read_instructions
from jitree.vmfb.words import TAG_REF_COPY, TAG_VALUE64
from tests.assembler import Assembler
from tests.vmfb.modules import read


def lines(text: str, bytecode: int = 17, cconv: str = "0") -> list[str]:
    module = Assembler("m", bytecode, globals_size=16, ref_global_count=1)
    module.import_function("x.y", "0i_i").import_function("x.v", "0iCrD_i")
    module.rodata(b"12345")
    module.type("!vm.buffer")
    module.type("i8")
    module.function("f", cconv, text, requirements=3)
    module.function("hidden", "0i_i", "return [%i0]", exported=False)
    module.function("shown", "0i_i", "return [%i0]")
    parsed = read(module)
    return list(Disassembler(parsed).function(parsed.functions[0]))[3:-1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%i2 = add.i32 %i0, %i1", "%i2 = vm.add.i32 %i0, %i1"),
        ("%i2 = shl.i64 %i4, %i1", "%i2:3 = vm.shl.i64 %i4:5, %i1"),
        ("%i0 = const.i32 -1", "%i0 = vm.const.i32 -1  // 0xFFFFFFFF"),
        ("%i0 = const.i64 16", "%i0:1 = vm.const.i64 16  // 0x0000000000000010"),
        ("%i0 = const.i32.zero", "%i0 = vm.const.i32.zero"),
        ("%i0 = const.f32 0.1", "%i0 = vm.const.f32 0.100000001"),
        ("%i0 = const.f64 0.1", "%i0:1 = vm.const.f64 0.10000000000000001"),
        ("%i0 = const.f32 0xFFC00000", "%i0 = vm.const.f32 -nan"),
        ("%i0 = const.f32 0x7F800001", "%i0 = vm.const.f32 0x7F800001"),
        ("%i0 = const.f64 0xFFF0000000000000", "%i0:1 = vm.const.f64 -inf"),
        ("%r0 = const.ref.rodata 0", "%r0 = vm.const.ref.rodata 0  // 5b"),
        ("%i0 = global.load.i32 8", "%i0 = vm.global.load.i32 .rwdata[8]"),
        ("global.store.f64 8, %i0", "vm.global.store.f64 %i0:1, .rwdata[8]"),
        ("global.store.indirect.i32 %i1, %i0", "vm.global.store.indirect.i32 %i0, .rwdata[%i1]"),
        ("%r0 = global.load.ref 0, 0", "%r0 = vm.global.load.ref .refs[0] : !vm.buffer"),
        ("global.store.ref 0, 0, %R1", "vm.global.store.ref %R1, .refs[0] : !vm.buffer"),
        (
            "global.store.indirect.ref %i3, 0, %r1",
            "vm.global.store.indirect.ref %r1, .refs[%i3] : !vm.buffer",
        ),
        ("%r0 = list.alloc 1, %i0", "%r0 = vm.list.alloc %i0 : !vm.list<i8>"),
        ("%r0 = list.get.ref %r1, %i0, 0", "%r0 = vm.list.get.ref %r1, %i0 : !vm.buffer"),
        ("%i0 = select.i64 %i9, %i2, %i4", "%i0:1 = vm.select.i64 %i9 ? %i2:3 : %i4:5"),
        ("%r0 = select.ref %i9, 0, %R2, %r4", "%r0 = vm.select.ref %i9 ? %R2 : %r4 -> !vm.buffer"),
        ("%i0 = switch.i64 %i9, %i2, [%i4, %i6]", "%i0:1 = vm.switch.i64 %i9[%i4, %i6] else %i2:3"),
        ("%r0 = cast.any.ref %R1, 0", "%r0 = vm.cast.any.ref %R1 : !vm.ref<?> -> !vm.buffer"),
        ("buffer.store.i64 %r0, %i0, %i2", "vm.buffer.store.i64 %i2:3, %r0, %i0:1"),
        ("%i0 = call @x.y [%i1]", "%i0 = vm.call @x.y(%i1)"),
        ("%i0 = call @hidden [%i1]", "%i0 = vm.call @m:1(%i1)"),
        ("%i0 = call @shown [%i1]", "%i0 = vm.call @m:2(%i1)"),
        ("%i0 = call.variadic @x.v [0xFFFF, 1] [%i1, %R2]",
         "%i0 = vm.call.variadic @x.v segments[65535, 1](%i1, %R2)"),
        ("%i0 = import.resolved @x.y", "%i0 = vm.import.resolved @x.y"),
        ('trace "a\\tb" [%i0, %R1]', 'vm.trace "a\\09b"(%i0, %R1)'),
        ("discard.refs [%R0, %R1]", "vm.discard.refs %R0, %R1"),
        ("%r0 = const.ref.rodata 9", "%r0 = vm.const.ref.rodata 9"),
        ("%r0 = list.alloc 7, %i0", "%r0 = vm.list.alloc %i0 : !vm.list<<type 7 of 2>>"),
        ("call 77", "vm.call @<function 77 of 3>()"),
        ("call 0x80000007", "vm.call @<import 7 of 2>()"),
    ],
)  # fmt: skip
def test_instructions(text: str, expected: str) -> None:
    assert lines(f"{text}\nreturn")[0] == f"  {expected}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("br ^a {%i0->%i1, %R0->%r1}", "vm.br ^bb1(%i0->%i1, %R0->%r1)"),
        ("cond_br %i0, ^a, ^a {%i1->%i2}", "vm.cond_br %i0, ^bb1(), ^bb1(%i1->%i2)"),
        ("br_table %i0, ^a {%i1->%i2}, [^a, ^a {%i3->%i4}]",
         "vm.br_table %i0 { default: ^bb1(%i1->%i2), 0: ^bb1(), 1: ^bb1(%i3->%i4) }"),
        ("yield ^a", "vm.yield ^bb1()"),
        ("cond_break %i0, ^a", "vm.cond_break %i0, ^bb1()"),
        ("%i0 = call.yieldable @x.y [%i1], ^a", "vm.call.yieldable @x.y(%i1) -> ^bb1(%i0)"),
        ("%i0 = call.variadic.yieldable @x.v [0xFFFF, 0] [%i1], ^a",
         "vm.call.variadic.yieldable @x.v segments[65535, 0](%i1) -> ^bb1(%i0)"),
        ("br 99", "vm.br ^<no block at 00000063>()"),
        ('fail %i0, "no"', 'vm.fail %i0, "no"'),
        (r'fail %i0, "a \"b\" \\c\t"', r'vm.fail %i0, "a "b" \c\09"'),
    ],
)  # fmt: skip
def test_exits(text: str, expected: str) -> None:
    assert lines(f"{text}\n^a:\nreturn") == [f"  {expected}", "^bb1:", "  vm.return"]


def test_a_tracer_may_add_values() -> None:
    module = read(Assembler("m").function("f", "0", "%i2:3 = const.i64 5\nbr ^a {%R1->%r0}\n^a:\nreturn"))
    values = {(TAG_VALUE64, 2): "(5)", (TAG_REF_COPY, 1): "(!vm.buffer)"}
    disassembler = Disassembler(module, lambda tag, ordinal: values.get((tag, ordinal), ""))
    records = list(read_instructions(bytes(module.body(module.functions[0])), 17))
    texts = [disassembler.instruction(record, block_numbers(records)) for record in records]
    assert texts[1].startswith("  %i2:3(5) = vm.const.i64 5")
    assert texts[2] == "  vm.br ^bb1(%R1(!vm.buffer)->%r0)"


def test_offsets_stand_in_front() -> None:
    module = read(Assembler("m").function("f", "0", "%i0 = const.i32 1\nreturn"))
    found = list(Disassembler(module).function(module.functions[0], hexadecimal_offsets))
    assert found[2].startswith("[00000000]^bb0:") and found[4] == "[00000008]  vm.return"


def test_damage_is_shown_and_raised() -> None:
    module = read(Assembler("m").function("f", "0", "%i0 = const.i32 1\n.bytes 22 00"))
    found = []
    with pytest.raises(StatusError, match=r"OUT_OF_RANGE.*function 'f'"):
        for line in Disassembler(module).function(module.functions[0]):
            found.append(line)
    assert found[-1] == "}" and "damaged: OUT_OF_RANGE" in found[-2] and "const.i32" in found[-3]


def test_a_damaged_convention_does_not_hide_the_code() -> None:
    module = read(Assembler("m").function("f", "0x", "return"))
    found = list(Disassembler(module).function(module.functions[0]))
    assert "INVALID_ARGUMENT" in found[1] and found[3] == "  vm.return"
