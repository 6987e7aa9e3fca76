"""Scratch memory that a kernel fills is not cleared first: by none of the parts of a workgroup."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from jitree.dispatch.native import lower_function
from jitree.dispatch.native.nests.cutting import Cut, best_cut
from jitree.dispatch.native.nests.passes import Nest
from jitree.dispatch.native.ssa import Value
from jitree.loaders.vmvx.kernels import ENTRY_CONVENTION
from tests.assembler import Assembler
from tests.hal.native_kernels import aligned
from tests.loaders.vmvx.cut_programs import KernelText, compiled, run_whole
from tests.loaders.vmvx.programs import load
from tests.loaders.vmvx.test_parts import same


def _rest_of_rows(columns: int) -> KernelText:
    """Sums of what 16 of 40 rows of an image hold; the last workgroup has 8. One loop is rows and columns, as
    compilers write windows of single channels."""
    text = KernelText(2)
    sums, zero = text.scratch(16 * columns), text.pair()
    text.lines.append(f"{zero} = const.f32.zero")
    first = text.op("mul.i64", text.workgroup(), text.constant(16))
    rest = text.op("sub.i64", text.constant(40), first)
    rows = text.op("min.i64.s", rest, text.constant(16))
    text.loops(
        [rows, columns],
        lambda at: text.store("f32", sums, text.index(0, (at[0], columns), (at[1], 1)), zero),
    )

    def add(at: list[str]) -> None:
        row = text.op("div.i64.u", at[0], text.constant(columns))
        column = text.op("rem.i64.u", at[0], text.constant(columns))
        image = text.index(0, (text.op("add.i64", first, row), columns + 2), (column, 1), (at[1], 1))
        place = text.index(0, (row, columns), (column, 1))
        value = text.op("add.f32", text.load("f32", sums, place), text.load("f32", 3, image))
        text.store("f32", sums, place, value)

    text.loops([text.op("mul.i64", rows, text.constant(columns)), 3], add)

    def put(at: list[str]) -> None:
        place = text.index(0, (text.op("add.i64", first, at[0]), columns), (at[1], 1))
        text.store("f32", 4, place, text.load("f32", sums, text.index(0, (at[0], columns), (at[1], 1))))

    text.loops([rows, columns], put)
    return text


def test_parts_clear_no_scratch_memory_that_is_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part would clear all of it, which takes longer than a small part; here the rows of the last
    workgroup decide how much is filled."""
    cuts: list[Cut | None] = []

    def noted(nests: Sequence[Nest], scratch: set[Value]) -> Cut | None:
        cuts.append(best_cut(nests, scratch))
        return cuts[-1]

    monkeypatch.setattr(lower_function, "best_cut", noted)
    image = np.random.default_rng(5).normal(0, 1, 40 * 22).astype(np.float32)
    assert same(_rest_of_rows(20), 3, (), [aligned(image), aligned(np.zeros(800, np.float32))]) > 1
    assert [len(cut.filled) for cut in cuts if cut is not None] == [1]


def _filled_where_assumed(assumed: str, value: int) -> KernelText:
    """Scratch memory that is filled whole if what the guard checks holds, and is given back then."""
    text = KernelText(1)
    scratch, size, zero = text.scratch(64), text.push_constant(0), text.constant(0)

    def place(counter: str) -> str:
        if assumed == "a sign":
            return text.op("select.i64", text.op("cmp.lt.i64.s", size, zero), zero, counter)
        if assumed == "no product wraps":
            large = text.op("mul.i64", counter, text.constant(2**58))
            return text.op("select.i64", text.op("cmp.lt.i64.s", text.constant(-1), large), counter, zero)
        moved = text.op("mul.i64", text.op("add.i64", counter, size), text.constant(4))
        quarter = text.op("div.i64.s", text.op("add.i64", moved, text.constant(1)), text.constant(4))
        return text.op("sub.i64", quarter, size)

    count = size if assumed == "no product wraps" else 64
    stored = text.constant(value, "i32")
    text.loops([count], lambda at: text.store("i32", scratch, place(at[0]), stored))
    text.loops([count], lambda at: text.store("i32", 3, at[0], text.load("i32", scratch, at[0])))
    return text


class _TwoKernels:
    """A module of two."""

    def __init__(self, *texts: KernelText) -> None:
        self._texts = texts

    def module(self) -> Assembler:
        made = Assembler("kernels")
        for name, text in zip("fg", self._texts, strict=True):
            made = made.function(name, ENTRY_CONVENTION, "\n".join([*text.lines, "return []"]))
        return made


@pytest.mark.parametrize(("assumed", "fails"), [("a sign", -1), ("no product wraps", 64), ("a quotient", -5)])
def test_what_a_failed_guard_leaves_is_cleared(assumed: str, fails: int) -> None:
    """Indices may have been concluded from what the guard checks: the interpreter would read what another
    kernel has left."""
    kernels: Any = _TwoKernels(_filled_where_assumed(assumed, 7), _filled_where_assumed("a sign", 1234))
    found = []
    for executable in (load(kernels.module(), "plain"), compiled(kernels)):
        out = aligned(np.zeros(64, np.int32))
        run_whole(executable, 1, [1], [out], 1)
        assert set(out.tolist()) == {1234}
        out = aligned(np.zeros(64, np.int32))
        run_whole(executable, 1, [fails], [out], 0)
        found.append(out.tolist())
    assert found[0] == found[1]
