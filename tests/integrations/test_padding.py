"""Any number of rows, by functions of some."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitree
from jitree.errors import FailedPreconditionError, InvalidArgumentError
from jitree.integrations.batching import PaddedFunction, stacked
from tests.api.programs import ARITHMETIC

DIGITS = Path(__file__).parents[2] / "examples" / "digits" / "digits.llvm-cpu.vmfb"


@pytest.fixture(scope="module")
def module() -> Iterator[Any]:
    with jitree.Session("local-sync", tier="plain") as session:
        yield session.load(ARITHMETIC)


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 8, 11])
def test_rows_are_padded_and_cut(module: Any, count: int) -> None:
    x = np.arange(count, dtype=np.float32)
    added = PaddedFunction(module.add)
    assert added.sizes == (4,)
    assert added(x, x + 1).tolist() == (2 * x + 1).tolist()


@pytest.mark.parametrize("count", [0, 1, 5])
def test_any_number_of_rows(module: Any, count: int) -> None:
    x = np.arange(3 * count, dtype=np.float32).reshape(count, 3)
    assert PaddedFunction(module.twice).sizes == ()
    assert np.array_equal(PaddedFunction(module.twice)(x), 2 * x)
    few = PaddedFunction(module.twice, sizes=(2, 4))
    assert few.sizes == (2, 4) and np.array_equal(few(x), 2 * x)


@pytest.mark.parametrize("sizes", [(0,), (2, -1), (2.5,), ("8",)])
def test_sizes_that_are_none(module: Any, sizes: Any) -> None:
    """Calls with no rows get none done: there was no end of them."""
    with pytest.raises(InvalidArgumentError, match="sizes: expected numbers of rows"):
        PaddedFunction(module.twice, sizes=sizes)


def test_functions_of_one_item_are_called_for_each() -> None:
    with jitree.Session("local-sync", tier="plain") as session:
        classify = session.load(DIGITS).classify
        images = np.random.default_rng(1).random((3, 8, 8), np.float32)
        made = PaddedFunction(classify)(images)
        assert made.shape == (3, 10)
        for image, row in zip(images, made, strict=True):
            assert np.array_equal(np.asarray(classify(image)), row)
        assert PaddedFunction(classify)(images[:0]).shape == (0, 10)


def test_what_takes_no_rows(module: Any) -> None:
    for functions in ((), (None,), (module.scale,), (module.nothing,)):
        with pytest.raises(InvalidArgumentError):
            PaddedFunction(*functions)
    x = np.zeros(4, np.float32)
    for arrays in ((), (x,), (x, x[:3]), (x, x[0])):
        with pytest.raises(InvalidArgumentError, match="expected 2 arrays with as many rows each"):
            PaddedFunction(module.add)(*arrays)
    with pytest.raises(InvalidArgumentError, match="shape"):
        PaddedFunction(module.add_named)(np.zeros((2, 4), np.int32), np.zeros((2, 4), np.int32))
    with pytest.raises(FailedPreconditionError, match="as many rows"):
        PaddedFunction(module.consume)(x)


def test_shorter_items_are_filled_up() -> None:
    items = [np.array([1, 2]), np.array([3]), np.array([], int)]
    assert stacked(items, 9).tolist() == [[1, 2], [3, 9], [9, 9]]
    with pytest.raises(ValueError):
        stacked(items, None)


@pytest.mark.parametrize(("fill", "kind"), [(-1, "u1"), (0.5, "i4"), (float("nan"), "i8"), (2, "?")])
def test_what_cannot_be_filled_up_with(fill: float, kind: str) -> None:
    """Rows had another number at their ends."""
    with pytest.raises(InvalidArgumentError, match="fill: arrays of"):
        stacked([np.ones(2, kind), np.ones(1, kind)], fill)
    assert stacked([np.ones(2, "f2"), np.ones(1, "f2")], 0.1)[1, 1] == np.float16(0.1)
