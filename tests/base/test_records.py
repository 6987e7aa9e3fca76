"""Named tuples, rows, flags and enumerations of ``jitree.base.records``."""

from __future__ import annotations

import copy
import enum
import operator
import pickle
import subprocess
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import jitree
from jitree.base.records import Enumeration, Flags, NamedTuple


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


_PACKAGE = Path(jitree.__file__).parent
_SCRIPT = """
import gc, struct
from jitree.base.records import rows_of

class Holder:
    pass

rows = memoryview(bytes(16))  # older than what refers to it: the collector comes to it first
holder = Holder()
holder.circle, holder.numbers = holder, rows_of(struct.Struct("<q"), rows)
assert next(holder.numbers) == (0,)
del rows, holder
assert gc.collect()
"""


def test_rows_that_are_garbage_do_not_crash() -> None:
    """With what an iterator of ``struct`` over a memoryview does, the process ends."""
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr


def test_no_other_code_iterates_over_rows_of_memory() -> None:
    users = [path.name for path in _PACKAGE.rglob("*.py") if "iter_unpack(" in path.read_text("utf-8")]
    assert users == ["records.py"]


class Bits(Flags):
    """Bits."""

    OPTIMAL = 0x1
    VISIBLE = 0x2
    CACHED = 0x8
    DEVICE = 0x10
    LOCAL = 0x30
    """Another bit that has no name of its own."""
    ALL = 0x46


class TheirBits(enum.IntFlag):
    OPTIMAL = 0x1
    VISIBLE = 0x2
    CACHED = 0x8
    DEVICE = 0x10
    LOCAL = 0x30
    ALL = 0x46


@pytest.mark.skipif(
    sys.version_info < (3, 11, 7), reason="enum of early 3.11 names parts of members by numbers"
)
def test_names() -> None:
    for value in range(0x200):
        quick: Any = Bits(value)
        standard: Any = TheirBits(value)
        assert (quick, quick.value, quick.name) == (standard, standard.value, standard.name)
        assert repr(quick) == repr(standard).replace("TheirBits", "Bits")
        assert f"{quick} {quick!s} {quick:x}" == f"{standard} {standard!s} {standard:x}"


@pytest.mark.parametrize("other", [0, 3, 0x70])
def test_operations(other: int) -> None:
    for value in range(0x80):
        quick, standard = Bits(value), TheirBits(value)
        pairs = [
            (quick | other, standard | other), (other | quick, other | standard),
            (quick & other, standard & other), (other & quick, other & standard),
            (quick ^ other, standard ^ other), (quick | Bits(other), standard | TheirBits(other)),
            (~quick, ~standard),
        ]  # fmt: skip
        assert [int(ours) for ours, _ in pairs] == [int(theirs) for _, theirs in pairs]
        assert all(type(ours) is Bits for ours, _ in pairs)
        assert (Bits(other) in quick) == (TheirBits(other) in standard)


@pytest.mark.parametrize("operation", [operator.or_, operator.and_, operator.xor])
@pytest.mark.parametrize("other", ["3", 2.5, b"3"])
def test_what_is_no_integer_is_refused(operation: Callable[[Any, Any], Any], other: object) -> None:
    for bits in (Bits, TheirBits):
        with pytest.raises(TypeError):
            operation(bits.OPTIMAL, other)
        with pytest.raises(TypeError):
            operation(other, bits.OPTIMAL)


def test_members_of_flags() -> None:
    assert list(map(int, Bits)) == list(map(int, TheirBits))
    assert list(Bits.__members__) == list(TheirBits.__members__)
    assert Bits["LOCAL"] is Bits.LOCAL and Bits.LOCAL.name == "LOCAL" and Bits(0x30) == Bits.LOCAL
    assert {Bits.OPTIMAL: 1}[Bits(1)] == 1 and Bits.OPTIMAL and not Bits(0)
    assert pickle.loads(pickle.dumps(Bits.LOCAL | 1)) == 0x31
    assert Bits.__doc__ == "Bits."
    with pytest.raises(KeyError):
        Bits["NOTHING"]


class Number(Enumeration):
    """Numbers."""

    NONE = 0
    ONE = 1
    MANY = 7


class TheirNumber(enum.IntEnum):
    NONE = 0
    ONE = 1
    MANY = 7


def test_members_of_enumerations() -> None:
    assert list(map(int, Number)) == list(map(int, TheirNumber)) and len(Number) == len(TheirNumber)
    assert list(Number.__members__) == list(TheirNumber.__members__)
    assert Number(7) is Number.MANY and Number["MANY"] is Number.MANY and Number(Number.ONE) is Number.ONE
    names: dict[int, str] = {Number.ONE: "one"}
    assert names[1] == names[Number(1)] == "one" and not Number.NONE
    numbers: Any = Number
    assert 7 in numbers and 8 not in numbers and Number.__doc__ == "Numbers."
    with pytest.raises(KeyError):
        Number["NOTHING"]


def test_texts() -> None:
    quick: Any
    for quick, standard in zip(Number, TheirNumber, strict=True):
        assert (quick.name, quick.value) == (standard.name, standard.value)
        assert repr(quick) == repr(standard).replace("TheirNumber", "Number")
        assert f"{quick} {quick!s} {quick:x}" == f"{standard} {standard!s} {standard:x}"


@pytest.mark.parametrize("number", [2, -1, None])
def test_other_numbers(number: Any) -> None:
    for cls in (Number, TheirNumber):
        with pytest.raises(ValueError, match=f"{number} is not a valid {cls.__name__}"):
            cls(number)


def test_there_is_one_object_of_each() -> None:
    for member in Number:
        assert pickle.loads(pickle.dumps(member)) is member
        assert copy.copy(member) is member and copy.deepcopy([member])[0] is member
