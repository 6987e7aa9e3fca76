"""Scratch memory that the loops of a kernel fill is not cleared for it, which must not be seen.

A kernel that runs in machine code fills what it reads. Where a guard fails the VM runs its loops, with
numbers that no guard has let pass: the memory is cleared on the way there.
"""

from __future__ import annotations

import numpy as np
import pytest

from jitree.dispatch.native import nests
from jitree.dispatch.native.build import build
from jitree.dispatch.native.lower_function import find_cut
from jitree.dispatch.native.nests import cutting
from jitree.dispatch.native.source import from_program
from jitree.errors import OutOfRangeError
from jitree.vmfb.decode import BytecodeModule
from tests.dispatch.native.nests.programs import LoopText
from tests.hal.native_kernels import aligned
from tests.loaders.vmvx.cut_programs import KernelText, compiled, most_parts, run_whole

COLUMNS = 64
ELEMENTS = 64 * COLUMNS
OUT = 3


def _filled(shape: str) -> KernelText:
    """Scratch memory that is filled, if the first loops run as often as the second ones, and read."""
    text = KernelText(1)
    rows = text.op("shl.i64", text.push_constant(0), text.op("buffer.load.i32", "%r1", text.constant(1)))
    elements = text.op("mul.i64", rows, text.constant(COLUMNS))
    sums, seven = text.scratch(ELEMENTS), text.constant(7, "i32")

    def fill(at: list[str]) -> None:
        if shape == "divided":
            at = [text.op(f"{name}.i64.s", at[0], text.constant(COLUMNS)) for name in ("div", "rem")]
        factors = (1,) if shape == "merged" else (COLUMNS, 1)
        text.store("i32", sums, text.index(0, *zip(at, factors, strict=True)), seven)

    def read(at: list[str]) -> None:
        place = text.index(0, (at[0], COLUMNS), (at[1], 1))
        text.store("i32", OUT, place, text.load("i32", sums, place))

    text.loops([rows, COLUMNS] if shape in ("alike", "unsigned") else [elements], fill)
    text.loops([rows, COLUMNS], read, "cmp.lt.i64.u" if shape == "unsigned" else "cmp.lt.i64.s")
    return text


@pytest.mark.parametrize(("shape", "constants"), [
    ("unsigned", (-1, 0)), ("merged", (1, 58)), ("divided", (1, 58))
])  # fmt: skip
def test_scratch_memory_is_zero_where_loops_do_not_fill_it(shape: str, constants: tuple[int, int]) -> None:
    """The guards fail, and the VM runs the loops: the first ones not once, the second ones for long."""
    executable = compiled(_filled(shape))
    assert most_parts(executable) > 1
    block = aligned(np.full(ELEMENTS, 1, np.int32))
    run_whole(executable, 1, (60, 0), [block])
    assert (block[: 60 * COLUMNS] == 7).all(), "what another workgroup leaves in scratch memory"
    with pytest.raises(OutOfRangeError, match="16384 bytes"):
        run_whole(executable, 1, constants, [block])
    assert not block.any()


def _filled_from_a_number_on(rows: int) -> KernelText:
    """Loops that fill scratch memory begin at a number from outside, and one that reads it at 0; all run as
    often if no bound wraps. Rows and columns become one loop."""
    text = KernelText(1)
    number = text.op("shl.i64", text.push_constant(0), text.op("buffer.load.i32", "%r1", text.constant(1)))
    first = text.op("sub.i64", number, text.constant(8))
    columns, zero, one = ELEMENTS // rows, text.constant(0), text.constant(1)
    end = text.op("add.i64", first, text.constant(columns))
    sums, seven = text.scratch(ELEMENTS), text.constant(7, "i32")

    def fill(at: list[str]) -> None:
        column = text.op("sub.i64", at[1], first)
        text.store("i32", sums, text.index(0, (at[0], columns), (column, 1)), seven)

    def read(at: list[str]) -> None:
        text.store("i32", OUT, at[0], text.load("i32", sums, at[0]))

    outer = LoopText("cmp.lt.i64.s", zero, text.constant(rows), one)
    text.nest([outer, LoopText("cmp.lt.i64.s", first, end, one)], fill)
    text.loops([ELEMENTS], read)
    return text


@pytest.mark.parametrize("rows", [1, 4])
def test_scratch_memory_is_zero_where_a_bound_wraps(rows: int) -> None:
    """2**63 - 8 is the first number: the loop that fills does not run."""
    executable = compiled(_filled_from_a_number_on(rows))
    assert most_parts(executable) > 1
    block = aligned(np.full(ELEMENTS, 1, np.int32))
    run_whole(executable, 1, (1, 3), [block])
    assert (block == 7).all(), "what another workgroup leaves in scratch memory"
    run_whole(executable, 1, (1, 63), [block])
    assert not block.any()


@pytest.mark.parametrize("shape", ["alike", "unsigned", "merged", "divided"])
def test_it_is_not_cleared_where_loops_run_alike(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "LEAST_WORK", 0)
    function = build(from_program(BytecodeModule.load(_filled(shape).module().build()).program), 0)
    found = [nest for nest in nests.find(function) if isinstance(nest, nests.Nest)]
    cut = find_cut(function, found)
    assert len(found) == 2 and cut is not None
    assert len(cut.filled) == (shape != "merged")
