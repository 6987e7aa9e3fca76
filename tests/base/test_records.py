"""Named tuples that are made quickly behave as those of the standard library."""

from __future__ import annotations

import pickle
import typing
from typing import Any

import pytest

from jitree.base.records import NamedTuple


class Quick(NamedTuple):
    """A pair."""

    left: int
    right: str = "r"
    """With a default."""

    @property
    def both(self) -> str:
        return f"{self.left}{self.right}"

    @classmethod
    def of(cls, left: int) -> Quick:
        return cls(left)

    def __str__(self) -> str:
        return "a pair"


class Standard(typing.NamedTuple):
    left: int
    right: str = "r"


def test_the_same_tuples() -> None:
    for cls in (Quick, Standard):
        assert cls._fields == ("left", "right") and cls._field_defaults == {"right": "r"}
        assert cls(1) == (1, "r") and cls(right="x", left=2)._replace(left=3) == (3, "x")
        assert set(cls.__annotations__) == {"left", "right"}
        with pytest.raises(TypeError):
            cls()  # type: ignore[call-arg]
        with pytest.raises(AttributeError):
            cls(1).left = 2  # type: ignore[misc]


def test_members_and_names() -> None:
    value = Quick.of(4)
    assert value.both == "4r" and str(value) == "a pair" and repr(value) == "Quick(left=4, right='r')"
    assert Quick.__doc__ == "A pair." and Quick.__module__ == __name__ and Quick.__qualname__ == "Quick"
    assert pickle.loads(pickle.dumps(value)) == value


@pytest.mark.parametrize("count", [0, 1, 2, 5, 12, 13, 20])
def test_any_number_of_fields(count: int) -> None:
    names = [f"name{number}" for number in range(count)]
    metaclass: Any = type(NamedTuple)
    cls = metaclass("Many", (NamedTuple,), {"__annotations__": dict.fromkeys(names, int)})
    values = tuple(range(count))
    assert cls(*values) == cls(**dict(zip(names, values, strict=True))) == values
    assert [getattr(cls(*values), name) for name in names] == list(values)
    with pytest.raises(TypeError, match=r"Many.__new__\(\)"):
        cls(*values, 1)
