"""The assembler writes what IREE's compiler would: every instruction survives the way there and back."""

from __future__ import annotations

import doctest

import pytest

import tests.assembler
from jitree.vmfb.archive import Archive
from jitree.vmfb.instructions import BY_MNEMONIC, INSTRUCTIONS
from jitree.vmfb.module import read_module
from tests.assembler import Assembler, AssemblyError


def body(text: str, cconv: str = "0") -> bytes:
    module = read_module(Archive.open(Assembler("m").function("f", cconv, text).build()))
    return bytes(module.body(module.functions[0]))


def test_the_example_of_the_docstring() -> None:
    assert doctest.testmod(tests.assembler).failed == 0


def test_encoding_of_each_operand_kind() -> None:
    """Bytes written out by hand from the operand table."""
    marker = "79"
    assert body("%i2 = add.i32 %i0, %i1") == bytes.fromhex(marker + "22 0000 0100 0200")
    assert body("%i1 = const.i32 -2") == bytes.fromhex(marker + "0d feffffff 0100")
    assert body("%i0 = const.f32 1.5") == bytes.fromhex(marker + "e0 05 0000c03f 0000")
    assert body("%i2 = const.f64 0x8000000000000000") == bytes.fromhex(marker + "e1 05 0000000000000080 0200")
    assert body("global.store.ref 1, 7, %R2") == bytes.fromhex(marker + "09 01000000 07000000 02c0")
    assert body("return [%i0, %r1]") == bytes.fromhex(marker + "5a 0200 0000 0180")
    assert body('fail %i0, "no"') == bytes.fromhex(marker + "5b 0000 0200 6e6f")
    assert body("br ^next {%i0->%i1}\n^next:\nreturn") == bytes.fromhex(
        marker + "56 0c000000 0100 0000 0100" + marker + "5a 0000"
    )


def test_padding_in_front_of_lists() -> None:
    # marker, prefix, opcode, 4 operands: the list would begin at 7, so a zero byte makes it 8.
    assert body("%i0 = switch.f32 %i1, %i2, [%i3]") == bytes.fromhex("79 e0 09 0100 0200 00 0100 0300 0000")


def test_counts_follow_from_the_text() -> None:
    text = "%i9 = add.i32 %i0, %i1\n%r3 = const.ref.zero\nbr ^end\n^end:\nreturn"
    function = read_module(Archive.open(Assembler("m").function("f", "0iI", text).build())).functions[0]
    assert (function.value_count, function.ref_count, function.block_count) == (10, 4, 2)
    function = read_module(Archive.open(Assembler("m").function("f", "0iIr", "return").build())).functions[0]
    assert (function.value_count, function.ref_count) == (4, 1)


def test_mnemonics_are_unique() -> None:
    assert len(BY_MNEMONIC) == len(INSTRUCTIONS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("%i0 = nothing.i32 %i1", "unknown instruction"),
        ("%i0 = add.i32 %i1", "expected register"),
        ("add.i32 %i0, %i1", "has a result"),
        ("%i0 = add.i32 %i1, %i2, %i3", "unexpected %i3"),
        ("br ^nowhere", "no block"),
        ("^a:\nreturn\n^a:\nreturn", "defined twice"),
        ("call @nobody", "no function or import"),
        ("?", "cannot read"),
    ],
)
def test_wrong_text(text: str, message: str) -> None:
    with pytest.raises(AssemblyError, match=message):
        body(text)
