"""Lanes lie along the rows of a transposed matrix of bytes that one row meets."""

from __future__ import annotations

import numpy as np
import pytest

from jitree.dispatch.native.nests import reductions, writer
from tests.dispatch.native.nests.checking import check, check_one_of_many, some_memory
from tests.dispatch.native.nests.harness import Compiled
from tests.dispatch.native.nests.programs import (
    Body,
    Bound,
    Level,
    Text,
    argument,
    only_nest,
    product_ends,
    program,
)
from tests.dispatch.native.nests.test_dots import SIGNS, _processor, product

__all__ = ["_processor"]  # each test runs as on each of them
SQUARES = "load <4 x i32>"
"""Pieces of 16 rows that would change places in registers."""


def row(columns: int, depth: int, signs: tuple[str, str] = ("s", "s")) -> Body:
    return product((1, columns, depth), signs, True)


def has_rows(body: Body, bounds: list[Bound]) -> bool:
    """Whether whole registers of rows are multiplied."""
    nest = only_nest(program([Level(bound) for bound in bounds], body))
    return nest.plan.product is not None and SQUARES not in Compiled(nest).text


@pytest.mark.parametrize("signs", SIGNS)
@pytest.mark.parametrize(
    ("columns", "depth"), [(16, 64), (64, 128), (70, 70), (40, 191), (16, 256), (21, 67), (32, 63)]
)
def test_row(columns: int, depth: int, signs: tuple[str, str]) -> None:
    """Columns that fill tiles, vectors or neither; a depth that leaves registers, words and bytes."""
    body = row(columns, depth, signs)
    if reductions.dot_lanes() and depth >= 64 and columns % 16 == 0:
        assert has_rows(body, [1, columns, depth])
    left, right = product_ends((1, columns, depth), True)
    check_one_of_many(program([Level(1), Level(columns), Level(depth)], body), ends={1: left, 2: right})


def test_two_reductions() -> None:
    """A convolution of one place has such loops: each iteration of the outer ones adds up new sums."""

    def body(text: Text, at: list[str]) -> None:
        column, part, k = at
        out = text.index(3, (column, 1))
        left = text.load("i8.s", 1, text.index(0, (part, 70), (k, 1)))
        right = text.load("i8.s", 2, text.index(0, (column, 210), (part, 70), (k, 1)))
        text.store("i32", 0, out, text.op("fma.i32", left, right, text.load("i32", 0, out)))

    check(program([Level(48), Level(3), Level(66)], body))


@pytest.mark.parametrize("bounds", [(1, 32, argument(0)), (20, 32, 64)])
def test_others_are_made_in_squares(bounds: tuple[Bound, ...]) -> None:
    """A depth of the call, and rows that several sums share."""
    sizes = (bounds[0] if isinstance(bounds[0], int) else 1, 32, 64)
    body = product(sizes, ("s", "s"), True)
    nest = only_nest(program([Level(bound) for bound in bounds], body))
    assert nest.plan.product is None or SQUARES in Compiled(nest).text
    check(program([Level(bound) for bound in bounds], body), (64,))


def test_greatest_sums() -> None:
    """The least and the greatest bytes, whose moved products are the largest."""
    function = program([Level(1), Level(16), Level(256)], row(16, 256))
    memory = some_memory(function)
    memory[1][:], memory[2][:] = 128, np.where(np.arange(len(memory[2])) % 3, 127, 128)
    check(function, memory=memory)


def test_loops_look_after_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "WORK", 64)
    check(program([Level(1), Level(32), Level(256)], row(32, 256)))
