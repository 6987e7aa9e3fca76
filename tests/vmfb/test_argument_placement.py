"""Telling from the code where a compiler placed the arguments."""

from __future__ import annotations

import pytest

from jitree.vmfb.archive import Archive
from jitree.vmfb.cconv import EntryRule, ascending_slots, first_fit_slots
from jitree.vmfb.module import choose_entry_rule, read_module
from tests.assembler import Assembler

# Under both rules the arguments of 0iIi are slot 0, pair 2:3 and one more: 4 (upwards) or 1 (first fit).
READS_4 = "%i5 = add.i32 %i0, %i4\nreturn [%i5]"
READS_1 = "%i5 = add.i32 %i0, %i1\nreturn [%i5]"
READS_NEITHER = "%i5 = add.i32 %i0, %i0\nreturn [%i5]"


def rule(module: Assembler) -> EntryRule:
    return choose_entry_rule(read_module(Archive.open(module.build())))


def with_body(text: str, bytecode: int = 15, cconv: str = "0iIi_i") -> Assembler:
    return Assembler("m", bytecode).function("f", cconv, text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (READS_4, ascending_slots),
        (READS_1, first_fit_slots),
        (READS_NEITHER, ascending_slots),
        ("%i4 = const.i32 1\n" + READS_4.replace("%i0", "%i1"), first_fit_slots),
        ("br ^next {%i1->%i4}\n^next:\n" + READS_4, first_fit_slots),
        ("cond_br %i0, ^a, ^b\n^a:\n%i1 = const.i32 2\nbr ^c\n^b:\nbr ^c {%i0->%i1}\n^c:\nreturn [%i1]",
         ascending_slots),
        ("cond_br %i0, ^a, ^c\n^a:\n%i1 = const.i32 2\nbr ^c\n^c:\nreturn [%i1]", first_fit_slots),
        ("br ^head\n^head:\ncond_br %i0, ^body, ^done\n^body:\nbr ^head {%i4->%i0}\n^done:\nreturn [%i0]",
         ascending_slots),
        ("br_table %i0, ^a, [^a, ^b {%i1->%i0}]\n^a:\nreturn [%i0]\n^b:\nreturn [%i0]", first_fit_slots),
        ("%i0 = switch.i32 %i0, %i0, [%i1, %i0]\nreturn [%i0]", first_fit_slots),
    ],
)  # fmt: skip
def test_slots_read_before_they_are_written_decide(text: str, expected: EntryRule) -> None:
    assert rule(with_body(text)) is expected


def test_call_lists_count_as_reads_and_writes() -> None:
    module = Assembler("m", 15).import_function("x.y", "0iI_I").import_function("x.v", "0CID_v")
    module.function("f", "0iIi_i", "%i4:5 = call @x.y [%i0, %i2:3]\nreturn [%i4]")
    assert rule(module) is ascending_slots  # slot 4 is written first: nothing tells
    module = Assembler("m", 15).import_function("x.v", "0CID_v")
    module.function("f", "0iIi_i", "call.variadic @x.v [1] [%i0:1]\nreturn [%i0]")
    assert rule(module) is first_fit_slots  # the pair 0:1 holds slot 1


def test_one_function_decides_for_the_module() -> None:
    module = with_body(READS_NEITHER).function("g", "0iIi_i", READS_1)
    assert rule(module) is first_fit_slots


def test_a_register_count_too_small_for_one_rule_decides() -> None:
    assert rule(Assembler("m", 15).function("f", "0iIi_i", "return [%i0]", value_count=4)) is first_fit_slots


@pytest.mark.parametrize(("version", "expected"), [(2, first_fit_slots), (5, first_fit_slots),
                                                   (0, ascending_slots), (6, ascending_slots),
                                                   (7, ascending_slots)])  # fmt: skip
def test_the_hal_version_tells_the_compiler(version: int, expected: EntryRule) -> None:
    assert rule(with_body(READS_NEITHER).dependency("hal", version)) is expected


@pytest.mark.parametrize("bytecode", [16, 17])
def test_later_bytecode_is_always_ascending(bytecode: int) -> None:
    assert rule(with_body(READS_1, bytecode)) is ascending_slots


def test_damaged_code_decides_nothing() -> None:
    assert rule(with_body("%i5 = add.i32 %i0, %i1\n.bytes 22 00")) is ascending_slots
