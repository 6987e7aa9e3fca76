"""Enumerations behave as those of the standard library."""

from __future__ import annotations

import copy
import enum
import pickle
from typing import Any

import pytest

from jitree.base.records import Enumeration


class Quick(Enumeration):
    """Numbers."""

    NONE = 0
    ONE = 1
    MANY = 7


class Standard(enum.IntEnum):
    NONE = 0
    ONE = 1
    MANY = 7


def test_members() -> None:
    assert list(map(int, Quick)) == list(map(int, Standard)) and len(Quick) == len(Standard)
    assert list(Quick.__members__) == list(Standard.__members__)
    assert Quick(7) is Quick.MANY and Quick["MANY"] is Quick.MANY and Quick(Quick.ONE) is Quick.ONE
    names: dict[int, str] = {Quick.ONE: "one"}
    assert names[1] == names[Quick(1)] == "one" and not Quick.NONE
    numbers: Any = Quick
    assert 7 in numbers and 8 not in numbers and Quick.__doc__ == "Numbers."
    with pytest.raises(KeyError):
        Quick["NOTHING"]


def test_texts() -> None:
    quick: Any
    for quick, standard in zip(Quick, Standard, strict=True):
        assert (quick.name, quick.value) == (standard.name, standard.value)
        assert repr(quick) == repr(standard).replace("Standard", "Quick")
        assert f"{quick} {quick!s} {quick:x}" == f"{standard} {standard!s} {standard:x}"


@pytest.mark.parametrize("number", [2, -1, None])
def test_other_numbers(number: Any) -> None:
    for cls in (Quick, Standard):
        with pytest.raises(ValueError, match=f"{number} is not a valid {cls.__name__}"):
            cls(number)


def test_there_is_one_object_of_each() -> None:
    for member in Quick:
        assert pickle.loads(pickle.dumps(member)) is member
        assert copy.copy(member) is member and copy.deepcopy([member])[0] is member
