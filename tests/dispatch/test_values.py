"""Constants, selects, switches, value globals: bits pass unchanged."""

from __future__ import annotations

import math
import os
import struct

import pytest

from jitree.codegen.numbers import PROCESSOR_NAN as NAN
from jitree.errors import InvalidArgumentError, OutOfRangeError
from tests.assembler import Assembler
from tests.dispatch.harness import TIERS, Vm, load

SIGNALLING_NAN = 0x7FA00001
SIGNALLING_NAN64 = 0x7FF4000000000001


def signed(bits: int, width: int) -> int:
    return bits - (1 << width) if bits >> (width - 1) else bits


@pytest.mark.parametrize("value", [0, 1, -1, 2**31 - 1, -(2**31)])
def test_const_i32(vm: Vm, value: int) -> None:
    assert vm.run("0_i", f"%i1 = const.i32 {value}\nreturn [%i1]") == [value]


@pytest.mark.parametrize("value", [0, 1, -1, 2**32, -(2**63), 2**63 - 1])
def test_const_i64(vm: Vm, value: int) -> None:
    assert vm.run("0_I", f"%i2 = const.i64 {value}\nreturn [%i2:3]") == [value]


def test_constants_overwrite_what_was_there(vm: Vm) -> None:
    text = "%i0 = const.i32.zero\n%i2 = const.i64.zero\n%i4 = const.f32.zero\n%i6 = const.f64.zero\n"
    assert vm.run("0iIfF_iIfF", text + "return [%i0, %i2:3, %i4, %i6:7]", [5, 6, 7.5, 8.5]) == [
        0,
        0,
        0.0,
        0.0,
    ]


def test_floats_move_as_bits(vm: Vm) -> None:
    """A signalling NaN survives constants, select, switch, globals, buffers and lists."""
    program = Assembler("m", globals_size=16)
    text = f"""
        %i0 = const.f32 0x{SIGNALLING_NAN:X}
        %i1 = const.i32 1
        %i2 = select.f32 %i1, %i0, %i1
        %i3 = switch.f32 %i1, %i0, [%i1, %i2]
        global.store.f32 0, %i3
        %i4 = global.load.f32 0
        %i6 = const.i64 8
        %i5 = const.i32 16
        %r0 = buffer.alloc %i6, %i5
        %i8 = const.i64 0
        buffer.store.f32 %r0, %i8, %i4
        %i9 = const.i64.zero
    """.replace("%i9 = const.i64.zero", "%i10 = buffer.load.f32 %r0, %i8")
    text += """
        %r1 = list.alloc f32, %i1
        list.resize %r1, %i1
        %i11 = const.i32.zero
        list.set.f32 %r1, %i11, %i10
        %i12 = list.get.f32 %r1, %i11
        %i13 = bitcast.f32.i32 %i12
        br ^end {%i13->%i0}
        ^end:
        return [%i0]
    """
    vm.add(program.function("f", "0_i", text))
    assert vm.call("f") == [signed(SIGNALLING_NAN, 32)]


def test_doubles_move_as_bits(vm: Vm) -> None:
    text = f"""
        %i0 = const.f64 0x{SIGNALLING_NAN64:X}
        %i2 = const.i32 1
        %i4 = select.f64 %i2, %i0, %i4
        %i6 = switch.f64 %i2, %i0, [%i0, %i4]
        global.store.f64 8, %i6
        %i8 = global.load.f64 8
        %r1 = list.alloc f64, %i2
        list.resize %r1, %i2
        %i3 = const.i32.zero
        list.set.f64 %r1, %i3, %i8
        %i10 = list.get.f64 %r1, %i3
        %i0 = bitcast.f64.i64 %i10
        return [%i0:1]
    """
    vm.add(Assembler("m", globals_size=16).function("f", "0_I", text))
    assert vm.call("f") == [signed(SIGNALLING_NAN64, 64)]


@pytest.mark.parametrize(("index", "expected"), [(0, 10), (1, 20), (2, 99), (-1, 99), (-(2**31), 99)])
def test_switch_takes_the_default_outside(vm: Vm, index: int, expected: int) -> None:
    text = "%i4 = switch.i32 %i0, %i1, [%i2, %i3]\nreturn [%i4]"
    assert vm.run("0iiii_i", text, [index, 99, 10, 20]) == [expected]


def test_switch_i64_keeps_all_bits_of_a_case(vm: Vm) -> None:
    text = "%i6 = switch.i64 %i0, %i2, [%i4]\nreturn [%i6:7]"
    assert vm.run("0iII_I", text, [0, 1, -(2**40)]) == [-(2**40)]


GLOBALS = Assembler("g", globals_size=24)
for _kind, _register in (("i32", "%i0"), ("f32", "%i0"), ("i64", "%i0"), ("f64", "%i0")):
    _letter = {"i32": "i", "f32": "f", "i64": "I", "f64": "F"}[_kind]
    _list = "%i0" if _kind.endswith("32") else "%i0:1"
    for _offset in (0, 8, 24 - int(_kind[1:]) // 8):
        GLOBALS.function(
            f"store_{_kind}_{_offset}", f"0{_letter}_v", f"global.store.{_kind} {_offset}, %i0\nreturn []"
        )
        GLOBALS.function(
            f"load_{_kind}_{_offset}",
            f"0v_{_letter}",
            f"%i0 = global.load.{_kind} {_offset}\nreturn [{_list}]",
        )
    GLOBALS.function(
        f"store_indirect_{_kind}",
        f"0i{_letter}_v",
        f"global.store.indirect.{_kind} %i0, %i{1 if '32' in _kind else 2}\nreturn []",
    )
    GLOBALS.function(
        f"load_indirect_{_kind}",
        f"0i_{_letter}",
        f"%i2 = global.load.indirect.{_kind} %i0\nreturn [{_list.replace('0', '2').replace(':1', ':3')}]",
    )
LOADED_GLOBALS = load(GLOBALS)
VALUES = {"i32": -7, "f32": 1.5, "i64": -(2**40), "f64": math.pi}


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("where", [0, 8, -1], ids=["start", "middle", "last"])
def test_value_globals(vm: Vm, kind: str, where: int) -> None:
    offset = 24 - int(kind[1:]) // 8 if where < 0 else where
    vm.add(LOADED_GLOBALS)
    assert vm.call(f"load_{kind}_{offset}") == [0]
    vm.call(f"store_{kind}_{offset}", VALUES[kind])
    assert vm.call(f"load_{kind}_{offset}") == [VALUES[kind]]
    assert vm.call(f"load_indirect_{kind}", offset) == [VALUES[kind]]


@pytest.mark.parametrize("kind", VALUES)
def test_indirect_globals_are_checked(vm: Vm, kind: str) -> None:
    vm.add(LOADED_GLOBALS)
    width = int(kind[1:]) // 8
    vm.call(f"store_indirect_{kind}", 24 - width, VALUES[kind])
    assert vm.call(f"load_indirect_{kind}", 24 - width) == [VALUES[kind]]
    vm.call(f"store_indirect_{kind}", 5, VALUES[kind])  # literal offsets must be aligned, these need not
    assert vm.call(f"load_indirect_{kind}", 5) == [VALUES[kind]]
    for offset in (24 - width + 1, 24, -1, -width, 2**31 - 1):
        with pytest.raises(OutOfRangeError):
            vm.call(f"store_indirect_{kind}", offset, VALUES[kind])
        with pytest.raises(OutOfRangeError):
            vm.call(f"load_indirect_{kind}", offset)


def test_globals_alias_bytes(vm: Vm) -> None:
    vm.add(LOADED_GLOBALS)
    vm.call("store_f32_8", 1.5)
    assert vm.call("load_i32_8") == [struct.unpack("<i", struct.pack("<f", 1.5))[0]]


@pytest.mark.parametrize("operation", ["div.i32.s", "div.i32.u", "rem.i32.s", "rem.i32.u"])
def test_division_by_zero_fails_the_call(vm: Vm, operation: str) -> None:
    vm.add(Assembler("m").function("f", "0ii_i", f"%i0 = {operation} %i0, %i1\nreturn [%i0]"))
    with pytest.raises(InvalidArgumentError, match="division by zero"):
        vm.call("f", 1, 0)
    if operation.endswith("s"):
        with pytest.raises(InvalidArgumentError, match="overflow"):
            vm.call("f", -(2**31), -1)
    assert vm.call("f", 7, 7) == [1 if operation.startswith("div") else 0]


_QUIET = 0x7FF8000000000000


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the values are those of x86-64")
@pytest.mark.parametrize(
    ("operation", "operands", "expected"),
    [
        ("log.f64", [-1.0], _QUIET),
        ("log.f64", [-math.inf], _QUIET),
        ("log2.f64", [-0.5], _QUIET),
        ("log10.f64", [-1.0], _QUIET),
        ("log10.f64", [-math.inf], _QUIET),
        ("log1p.f64", [-2.0], _QUIET - 2**63),
        ("sqrt.f64", [-1.0], _QUIET - 2**63),
        ("rsqrt.f64", [-1.0], _QUIET - 2**63),
        ("pow.f64", [-2.0, 0.5], _QUIET - 2**63),
        ("rem.f64", [1.0, 0.0], _QUIET - 2**63),
        ("sin.f64", [math.inf], _QUIET - 2**63),
        ("cos.f64", [-math.inf], _QUIET - 2**63),
        ("div.f64", [0.0, -0.0], _QUIET - 2**63),
        ("sub.f64", [math.inf, math.inf], _QUIET - 2**63),
        ("mul.f64", [math.inf, 0.0], _QUIET - 2**63),
    ],
)
def test_sign_of_nan_is_that_of_the_official_runtime(
    vm: Vm, operation: str, operands: list[float], expected: int
) -> None:
    """Seen in iree.runtime 3.13 (whose wheel calls the C library's old versions of log and log2)."""
    registers = ", ".join(f"%i{2 * number}" for number in range(len(operands)))
    text = f"%i8 = {operation} {registers}\n%i10 = bitcast.f64.i64 %i8\nreturn [%i10:11]"
    assert vm.run(f"0{'F' * len(operands)}_I", text, operands) == [expected]


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the values are those of x86-64")
@pytest.mark.parametrize(
    ("operation", "operand", "expected"),
    [
        ("log10.f32", -1.0, 0x7FC00000),
        ("log10.f32", -math.inf, 0x7FC00000),
        ("log.f32", -1.0, -0x400000),
        ("log2.f32", -1.0, -0x400000),
        ("log1p.f32", -2.0, -0x400000),
        ("sin.f32", math.inf, -0x400000),
    ],
)
def test_sign_of_nan_of_binary32_is_that_of_the_c_library(
    vm: Vm, operation: str, operand: float, expected: int
) -> None:
    text = f"%i2 = {operation} %i0\n%i4 = bitcast.f32.i32 %i2\nreturn [%i4]"
    assert vm.run("0f_i", text, [operand]) == [expected]


@pytest.mark.parametrize("width", [32, 64])
def test_arithmetic_of_constants_makes_the_processors_nan(vm: Vm, width: int) -> None:
    """The same bits on every tier, whatever a compiler would make of it."""
    infinity = {32: 0x7F800000, 64: 0x7FF0000000000000}[width]
    text = f"""
        %i4 = const.f{width}.zero
        %i6 = const.f{width} 0x{infinity:X}
        %i8 = div.f{width} %i4, %i4
        %i10 = sub.f{width} %i6, %i6
        %i12 = bitcast.f{width}.i{width} %i8
        %i14 = bitcast.f{width}.i{width} %i10
        return [%i12{"" if width == 32 else ":13"}, %i14{"" if width == 32 else ":15"}]
    """
    (expected,) = struct.unpack({32: "<i", 64: "<q"}[width], struct.pack({32: "<f", 64: "<d"}[width], NAN))
    assert vm.run("0v_ii" if width == 32 else "0v_II", text) == [expected, expected]


@pytest.mark.parametrize(
    "text",
    [
        "%i1 = mul.f32 %i0, %i4",
        "%i1 = mul.f32 %i0, %i5",
        "%i1 = div.f32 %i0, %i5",
        "%i1 = sub.f32 %i6, %i0",
        "%i1 = fma.f32 %i0, %i5, %i6",
        "%i1 = neg.f32 %i0\n%i1 = add.f32 %i4, %i1",
        "%i1 = neg.f32 %i0\n%i1 = sub.f32 %i4, %i1",
        "%i1 = neg.f32 %i0\n%i2 = neg.f32 %i4\n%i1 = mul.f32 %i1, %i2",
        "%i2 = mul.f32 %i0, %i4\n%i1 = neg.f32 %i2",
        "%i7 = const.i64 1\n%i1 = fpowi.f32 %i0, %i8",
    ],
)
@pytest.mark.parametrize("bits", [0x7FC00000, -0x400000, SIGNALLING_NAN, SIGNALLING_NAN - (1 << 31)])
def test_arithmetic_with_neutral_constants_keeps_the_sign_of_a_nan(text: str, bits: int) -> None:
    """LLVM would take ``x * -1`` for a negation, ``-0 - x`` as well, and leave out ``x * 1``."""
    program = f"""
        %i0 = bitcast.i32.f32 %i0
        %i4 = const.f32 1
        %i5 = const.f32 -1
        %i6 = const.f32 0x80000000
        {text.replace("%i7", "%i8")}
        %i1 = bitcast.f32.i32 %i1
        return [%i1]
    """
    seen = {tier: Vm(tier).run("0i_i", program, [bits]) for tier in TIERS}
    assert seen["native"] == seen["fast"] == seen["plain"]
