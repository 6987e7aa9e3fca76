"""Scratch memory that a kernel fills is not cleared first: by none of the parts of a workgroup."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from jitree.dispatch.native import lower_function
from jitree.dispatch.native.nests.cutting import Cut, best_cut
from jitree.dispatch.native.nests.passes import Nest
from jitree.dispatch.native.ssa import Value
from tests.hal.native_kernels import aligned
from tests.loaders.vmvx.cut_programs import KernelText
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
