"""What is left to the scalar code, and why."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from jitree.dispatch.native import nests
from jitree.dispatch.native.build import build
from jitree.dispatch.native.source import from_program
from jitree.vmfb.decode import BytecodeModule
from tests.dispatch.native.nests.programs import Level, Text, program, refusals
from tests.pages import ROOT

_REASON: Final = re.compile(r'NotANest\("([^"]+)"\)')


def test_an_index_from_memory() -> None:
    def body(text: Text, at: list[str]) -> None:
        index = text.op("ext.i32.i64.s", text.load("i32", 2, at[0]))
        text.store("f32", 0, at[0], text.load("f32", 1, index))

    assert refusals(program([Level(8)], body)) == ["an index through 'ext.i32.i64.s'"]


def test_an_index_out_of_what_is_stored() -> None:
    def body(text: Text, at: list[str]) -> None:
        index = text.op("ext.i32.i64.s", text.load("i32", 0, text.constant(9)))
        text.store("f32", 0, at[0], text.load("f32", 1, index))

    assert refusals(program([Level(8)], body)) == ["an index out of a buffer that is stored to"]


def test_a_division_that_may_fail() -> None:
    def body(text: Text, at: list[str]) -> None:
        quotient = text.op("div.i32.s", text.load("i32", 1, at[0]), text.load("i32", 2, at[0]))
        text.store("i32", 0, at[0], quotient)

    assert refusals(program([Level(8)], body)) == ["'div.i32.s' inside the innermost loop"]


def test_a_division_by_a_constant_is_taken() -> None:
    def body(text: Text, at: list[str]) -> None:
        divisor = text.constant(7, "i32")
        text.store("i32", 0, at[0], text.op("rem.i32.s", text.load("i32", 1, at[0]), divisor))

    assert refusals(program([Level(8)], body)) == []


def test_an_inner_loop_is_taken_where_the_outer_one_is_not() -> None:
    """A store between the loops."""

    def body(text: Text, at: list[str]) -> None:
        text.store("f32", 0, text.index(0, (at[0], 8), (at[1], 1)), text.load("f32", 1, at[1]))

    def outer(text: Text, at: list[str]) -> None:
        text.store("f32", 2, at[0], text.load("f32", 3, at[0]))
        header, inside, end = text.label(), text.label(), text.label()
        zero, one, bound, variable = text.constant(0), text.constant(1), text.constant(8), text.pair()
        text.enter(header, zero, variable)
        text.lines.append(f"{header}:")
        condition = text.op("cmp.lt.i64.s", variable, bound)
        text.lines.append(f"cond_br {condition}, {inside}, {end}")
        text.lines.append(f"{inside}:")
        body(text, [at[0], variable])
        text.lines.append(f"{variable} = add.i64 {variable}, {one}")
        text.lines.append(f"br {header}")
        text.lines.append(f"{end}:")

    function = program([Level(8)], outer)
    found = nests.find(function)
    assert [type(item) for item in found] == [nests.NestRefusal, nests.Nest]
    assert isinstance(found[0], nests.NestRefusal)
    assert "between loops" in found[0].reason


def test_numbers_that_no_buffer_has() -> None:
    def body(text: Text, at: list[str]) -> None:
        text.store("f32", 0, at[0], text.load("f32", 1, at[0]))

    assert refusals(program([Level(2**40)], body)) == ["more than 2**31 iterations"]
    unsigned = program([Level(8, start=-4, compare="cmp.lt.i64.u")], body)
    assert refusals(unsigned) == ["an unsigned comparison with a negative number"]

    def far(text: Text, at: list[str]) -> None:
        text.store("f32", 0, text.index(0, (at[0], 2**62)), text.load("f32", 1, at[0]))

    assert refusals(program([Level(8)], far)) == []
    assert refusals(program([Level(8, start=2**62)], body)) == ["a bound with large factors"]


def _executables(path: Path) -> list[BytecodeModule]:
    """The VMVX modules in a module's constants."""
    segments = BytecodeModule.load(path).module.rodata
    return [BytecodeModule.load(bytes(s.data), path.name) for s in segments if b"IREE" in bytes(s.data[:128])]


_ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize("path", ["examples/digits/digits.vmvx.vmfb", "perf/programs/kernels_vmvx.vmfb"])
def test_compiled_kernels_are_taken(path: str) -> None:
    """All loops of the kernels that come with this package, but for look-ups in tables."""
    modules = _executables(_ROOT / path)
    assert modules
    for module in modules:
        source = from_program(module.program)
        for function in source.functions:
            assert set(refusals(build(source, function.ordinal))) <= {"an index through 'ext.i32.i64.s'"}


def test_the_page_on_loops_has_all_reasons() -> None:
    """What `dump --tiers` says is found there."""
    sources = Path(nests.__file__).parent.glob("*.py")
    reasons = {reason for path in sources for reason in _REASON.findall(path.read_text(encoding="utf-8"))}
    page = (ROOT / "docs" / "loops.md").read_text(encoding="utf-8")
    assert len(reasons) > 20 and {reason for reason in reasons if f"`{reason}`" not in page} == set()
