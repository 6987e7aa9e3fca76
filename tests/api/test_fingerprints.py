"""How outputs of two programs are laid side by side where there are many: as one by one, in less time."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest

from jitree.observe import fingerprints
from jitree.observe.fingerprints import TensorFingerprint, align, suspects

Arrays = list[npt.NDArray[np.float32]]


def fingerprinted(arrays: Arrays, operation: str = "matmul") -> list[TensorFingerprint]:
    return [
        TensorFingerprint(
            number, 0, f"f_dispatch_{number}_{operation}_4x16_f32", "4x16xf32", array.size,
            fingerprints.digest(array), fingerprints._samples(array), fingerprints._bag(array),
            fingerprints._figures(array), (number - 1,),
        )
        for number, array in enumerate(arrays)
    ]  # fmt: skip


def tensors(count: int) -> Arrays:
    random = np.random.default_rng(count)
    return [random.standard_normal(64).astype(np.float32) for _ in range(count)]


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts how often two outputs are looked at."""
    looked = [0]
    near, rearranged = TensorFingerprint.is_near, fingerprints.Figures.agree

    def is_near(one: TensorFingerprint, other: TensorFingerprint) -> bool:
        looked[0] += 1
        return near(one, other)

    def agree(one: fingerprints.Figures, other: fingerprints.Figures) -> bool:
        looked[0] += 1
        return rearranged(one, other)

    monkeypatch.setattr(TensorFingerprint, "is_near", is_near)
    monkeypatch.setattr(fingerprints.Figures, "agree", agree)
    return looked


def test_rows_with_gaps_are_found(compared: list[int]) -> None:
    arrays = tensors(200)
    rounded = [array * np.float32(1.00001) for array in arrays]
    kept = [number for number in range(200) if number % 7]
    pairs, rearranged = align(fingerprinted(arrays), fingerprinted([rounded[number] for number in kept]))
    near = [(a.ordinal, kept[b.ordinal]) for a, b in pairs if a.is_near(b)]
    assert near == [(number, number) for number in kept] and not rearranged
    assert all(a[0].ordinal < b[0].ordinal and a[1].ordinal < b[1].ordinal for a, b in pairwise(pairs))


def test_lengths_that_are_far_apart() -> None:
    """The window moves with neither side."""
    for counts in ((300, 5), (5, 300)):
        one, other = (fingerprinted(tensors(7)[:2] + tensors(count)) for count in counts)
        pairs, _ = align(one, other)
        assert [(a.ordinal, b.ordinal) for a, b in pairs][:2] == [(0, 0), (1, 1)]


@pytest.mark.parametrize("count", [100, 400])
def test_work_grows_with_the_number(compared: list[int], count: int) -> None:
    arrays = tensors(count)
    rounded = [np.flip(array) * np.float32(1.00001) for array in arrays]
    one, other = fingerprinted(arrays), fingerprinted(rounded)
    text = suspects((one, other[: count // 2]), (0, 0), (count - 1, count - 1))
    assert compared[0] <= 20 * count
    in_one = text.partition(" in a")[0]
    assert in_one.startswith(f"by f_dispatch_{count // 2}_"), "the first half is in the other as well"
    assert in_one.count("(dispatch ") == 12 and in_one.endswith(f" and {count - count // 2 - 12} more")


def test_what_departs_and_comes_near_again_is_still_compared() -> None:
    """In another layout: only what is the same for sure tells that what it is made of agrees."""
    arrays = tensors(6)
    factors = [1, 1, 1.2, 1.05, 1 + 4e-4, 1 + 3e-4]
    other = [np.flip(array) * np.float32(factor) for array, factor in zip(arrays, factors, strict=True)]
    other[5] = np.flip(other[5])
    pairs, rearranged = align(fingerprinted(arrays), fingerprinted(other))
    assert [(a.ordinal, b.ordinal) for a, b in pairs] == [(2, 2), (3, 3), (5, 5)]
    assert [(a.ordinal, a.has_elements_of(b)) for a, b in rearranged] == [(0, True), (1, True), (4, False)]
    other[5] = arrays[5] * np.float32(1 + 1e-7)
    assert [(a.ordinal, b.ordinal) for a, b in align(fingerprinted(arrays), fingerprinted(other))[0]] == [
        (5, 5)
    ]


def test_a_tensor_of_which_a_part_departs_is_one_though_dispatches_are_others() -> None:
    arrays = tensors(4)
    masked = [array.copy() for array in arrays]
    masked[2][:12], masked[3][:12] = -1e9, 7
    pairs, _ = align(fingerprinted(arrays), fingerprinted(masked, "elementwise"))
    assert [(a.ordinal, b.ordinal) for a, b in pairs] == [(number, number) for number in range(4)]
    masked[3] = arrays[3] * (arrays[3] > 0)
    pairs, _ = align(fingerprinted(arrays), fingerprinted(masked, "elementwise"))
    assert [a.ordinal for a, _ in pairs] == [0, 1, 2], "half of the elements do not make it one"


def test_the_same_elements_in_another_order_are_not_near() -> None:
    """Though nearly all of them are alike; a few that have changed places are a departure."""
    random = np.random.default_rng(1)
    saturated = [np.tanh(random.standard_normal(64) + 4).astype(np.float32) for _ in range(3)]
    shuffled = [random.permutation(array) for array in saturated]
    pairs, rearranged = align(fingerprinted(saturated), fingerprinted(shuffled))
    assert not pairs and [(a.ordinal, b.ordinal) for a, b in rearranged] == [(0, 0), (1, 1), (2, 2)]
    swapped = saturated[2].copy()
    swapped[[3, 9]] = swapped[[9, 3]]
    pairs, rearranged = align(fingerprinted(saturated), fingerprinted([*saturated[:2], swapped]))
    assert len(pairs) == 3 and not rearranged
