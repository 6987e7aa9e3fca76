"""Flags behave as those of the standard library."""

from __future__ import annotations

import enum
import pickle
from typing import Any

import pytest

from jitree.base.records import Flags


class Quick(Flags):
    """Bits."""

    OPTIMAL = 0x1
    VISIBLE = 0x2
    CACHED = 0x8
    DEVICE = 0x10
    LOCAL = 0x30
    """Another bit that has no name of its own."""
    ALL = 0x46


class Standard(enum.IntFlag):
    OPTIMAL = 0x1
    VISIBLE = 0x2
    CACHED = 0x8
    DEVICE = 0x10
    LOCAL = 0x30
    ALL = 0x46


def test_names() -> None:
    for value in range(0x200):
        quick: Any = Quick(value)
        standard: Any = Standard(value)
        assert (quick, quick.value, quick.name) == (standard, standard.value, standard.name)
        assert repr(quick) == repr(standard).replace("Standard", "Quick")
        assert f"{quick} {quick!s} {quick:x}" == f"{standard} {standard!s} {standard:x}"


@pytest.mark.parametrize("other", [0, 3, 0x70])
def test_operations(other: int) -> None:
    for value in range(0x80):
        quick, standard = Quick(value), Standard(value)
        pairs = [
            (quick | other, standard | other), (other | quick, other | standard),
            (quick & other, standard & other), (other & quick, other & standard),
            (quick ^ other, standard ^ other), (quick | Quick(other), standard | Standard(other)),
            (~quick, ~standard),
        ]  # fmt: skip
        assert [int(ours) for ours, _ in pairs] == [int(theirs) for _, theirs in pairs]
        assert all(type(ours) is Quick for ours, _ in pairs)
        assert (Quick(other) in quick) == (Standard(other) in standard)


def test_members() -> None:
    assert list(map(int, Quick)) == list(map(int, Standard))
    assert list(Quick.__members__) == list(Standard.__members__)
    assert Quick["LOCAL"] is Quick.LOCAL and Quick.LOCAL.name == "LOCAL" and Quick(0x30) == Quick.LOCAL
    assert {Quick.OPTIMAL: 1}[Quick(1)] == 1 and Quick.OPTIMAL and not Quick(0)
    assert pickle.loads(pickle.dumps(Quick.LOCAL | 1)) == 0x31
    assert Quick.__doc__ == "Bits."
    with pytest.raises(KeyError):
        Quick["NOTHING"]
