"""Copies in parts give what copies at once do, and end between two of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jitree.api.calls import conversion
from jitree.base import copying, elements
from jitree.base.cancel_scopes import Scope
from jitree.errors import CancelledError
from jitree.types import BY_NAME

SHAPES = [(), (0,), (1,), (100,), (3, 7), (2, 50), (5, 1, 4), (2, 3, 40), (0, 9), (300, 0), (1, 1, 1, 33)]
LISTS: list[Any] = [
    [1, 2, 3] * 20, [1] * 20 + [2.5], [True] * 20 + [7], [1.5] * 20 + [1j], (2**63, *[-1] * 20),
    [[1, 2, 3]] * 10, [[[1.0]] * 30] * 2, [[1, 2]] * 10 + [[3.5, 4]], [[], []], [], 5, [[1] * 40],
    [2**70] * 20, [np.ones(30, np.float32)] * 3, [None] * 20, ["text"] * 20,
]  # fmt: skip


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "PART", 64)
    monkeypatch.setattr(conversion, "_TOGETHER", 8)
    monkeypatch.setattr(elements, "_TOGETHER", 16)


@pytest.mark.parametrize("shape", SHAPES)
def test_copies_are_those_of_numpy(shape: tuple[int, ...]) -> None:
    source = np.arange(np.prod(shape, dtype=int), dtype=np.int32).reshape(shape)
    for array in (source, source.T, source[::-1] if shape else source):
        target = np.full(array.shape, -1, np.int32)
        copying.copy_into(target, array)
        assert (target == array).all()
        copied = copying.copy_of(array, np.float64)
        assert copied.flags.c_contiguous and copied.dtype == np.float64 and (copied == array).all()
        parts = [np.empty(array.shape)[place] for place in copying.parts_of(array)]
        assert sum(part.size for part in parts) == array.size
        assert all(4 * part.size <= 64 for part in parts)


def test_memory_may_be_shared() -> None:
    numbers = np.arange(100)
    copying.copy_into(numbers[1:], numbers[:-1])
    assert numbers.tolist() == [0, *range(99)]


@pytest.mark.parametrize("value", LISTS, ids=repr)
def test_lists_are_those_of_numpy(value: Any) -> None:
    expected, found = np.asarray(value), conversion.numbers_of(value)
    assert found.shape == expected.shape and found.dtype.kind == expected.dtype.kind
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("value", [[[1, 2]] * 20 + [[1]], [1] * 20 + [[1]], [[1]] * 20 + [[[1]]]])
def test_lists_of_no_shape_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="inhomogeneous"):
        conversion.numbers_of(value)


@pytest.mark.parametrize("name", ["i2", "i4", "si4", "ui4"])
@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 100])
def test_packed_elements(name: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    row = BY_NAME[name]
    numbers = np.arange(count) % 4 - (2 if "u" not in name else 0)
    packed = elements.pack_integers(numbers, row)
    assert elements.unpack_integers(packed, row, count).tolist() == numbers.tolist()
    monkeypatch.undo()
    assert packed.tolist() == elements.pack_integers(numbers, row).tolist()


def test_conversions_in_parts() -> None:
    numbers = np.arange(100.0)
    converted = conversion.convert_exactly(numbers, np.dtype(np.float32), "x", "f32", numbers)
    assert converted.dtype == np.float32 and (converted == numbers).all()
    numbers[99] = 0.5
    with pytest.raises(ValueError, match="without loss"):
        conversion.convert_exactly(numbers, np.dtype(np.int32), "x", "i32", numbers)


def test_it_ends_between_parts() -> None:
    target, source = np.zeros(100, np.int8), np.ones(100, np.int8)
    with Scope() as scope:
        place = copying.parts_of(source)
        target[next(place)] = 1
        scope.end(CancelledError("now"))
        with pytest.raises(CancelledError):
            next(place)
        with pytest.raises(CancelledError):
            copying.copy_into(target, source)
        copying.copy_into(target[:10], source[:10])
    assert target.sum() == 64
