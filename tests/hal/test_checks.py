"""Rules on integers, and the table of what they refuse."""

from __future__ import annotations

import itertools
import re
from string import ascii_uppercase
from typing import Any

import pytest

from jitree.errors import InvalidArgumentError, OutOfRangeError, StatusCode, StatusError
from jitree.hal import checks
from jitree.hal.buffer import length_inside
from jitree.hal.checks import compatible_elements
from jitree.hal.heap import HeapAllocator

NUMBERS = {
    name: value for name, value in vars(checks).items() if name[0] in ascii_uppercase and type(value) is int
}
"""The constants of the file: those of refusals, and some that it imports."""
SIZES = (0, 1, 2, 3, 4, 5, 8, 63, 64, 1 << 31, (1 << 63) - 1, -1, -2, -(1 << 63))


def test_every_refusal_has_a_row_with_its_name_and_a_status() -> None:
    rows = checks.refusals()
    names = {number: row[0] for number, row in rows.items()}
    assert all(NUMBERS[name] == number for number, name in names.items())
    assert sorted(names) == list(range(2, 2 + len(names)))
    assert all(row[1] in StatusCode.__members__ and len(row) in (3, 4) for row in rows.values())


@pytest.mark.parametrize("number", sorted(checks.refusals()))
def test_the_text_of_a_refusal_names_operands(number: int) -> None:
    """A text that needs another operand than those that its braces name would fail where it is raised."""
    status, *texts = checks.refusals()[number][1:]
    stated = re.findall(
        r"(?<![\w.])[a-z_]+\w*(?![\w(])", " ".join(re.findall(r"\{(.+?)[}:]", " ".join(texts)))
    )
    operands: dict[str, Any] = dict.fromkeys(stated, 1)
    if "buffer" in operands:
        operands["buffer"] = HeapAllocator().allocate(0, 0, 1)
    error = checks.refused(number, **operands)
    assert error.code == StatusCode[status]
    assert "{" not in str(error)
    with pytest.raises(type(error)):
        checks.require(number, **operands)
    checks.require(0)


def outcome(rule: Any, *arguments: int) -> Any:
    try:
        return rule(*arguments)
    except StatusError as error:
        return type(error)


def test_ranges() -> None:
    for available, offset, length in itertools.product((0, 1, 64, (1 << 63) - 1), SIZES, SIZES):
        whole = available - offset if length == -1 else length
        expected = whole if offset >= 0 and whole >= 0 and offset + whole <= available else -1
        assert length_inside(available, offset, length) == expected
        found = outcome(checks.require_inside, checks.OUTSIDE_BUFFER, available, offset, length)
        assert found == (OutOfRangeError if expected < 0 else expected)


def test_buffers_refuse_ranges_in_the_words_of_the_table() -> None:
    buffer = HeapAllocator().allocate(0, 0, 64)
    for offset, length in ((65, -1), (60, 5), (-1, 2), (0, 65)):
        with pytest.raises(OutOfRangeError) as found:
            buffer.range(offset, length)
        with pytest.raises(OutOfRangeError) as stated:
            checks.require_inside(checks.OUTSIDE_BUFFER, 64, offset, length)
        assert str(found.value) == str(stated.value)


def test_fills() -> None:
    for offset, length, size in itertools.product(range(9), range(9), range(-1, 10)):
        expected = size in (1, 2, 4) and offset % size == 0 and length % size == 0
        assert (outcome(checks.check_fill, offset, length, size) is None) == expected
    checks.check_fill(4, -1, 4)
    with pytest.raises(InvalidArgumentError, match="at offset 3 of -1 bytes"):
        checks.check_fill(3, -1, 2)


@pytest.mark.parametrize(
    ("actual", "expected", "agrees"),
    [
        (0x21000020, 0x21000020, True),
        (0x10000020, 0x13000020, True),
        (0x12000008, 0x10000008, True),
        (0x10000020, 0x10000040, False),
        (0x21000020, 0x10000020, False),
        (0x10000020, 0x21000020, False),
        (0x00000020, 0x21000020, True),
        (0x00000010, 0x21000020, False),
        (0x21000020, 0x00000020, False),
        (0, 0x21000020, True),
        (0x14000020, 0x10000020, False),
        (-0x7F000000 | 0x20, 0x10000020, False),
    ],
)
def test_element_types(actual: int, expected: int, agrees: bool) -> None:
    assert compatible_elements(actual, expected) == agrees


@pytest.mark.parametrize(
    ("counts", "is_refused"),
    [
        ((1, 1, 1), False),
        ((1 << 24, 1 << 24, 1), False),
        ((1 << 24, 1 << 24, 2), True),
        ((0xFFFFFFFF, 0xFFFF, 1), False),
        ((0xFFFFFFFF, 0xFFFFFFFF, 1), True),
        ((0xFFFFFFFF, 0xFFFFFFFF, 0), True),
        ((1, 1, 65535), False),
        ((1, 1, 65536), True),
        ((1 << 32, 1, 1), True),
        ((1 << 40, 1 << 40, 1), True),
    ],
)
def test_workgroups(counts: tuple[int, int, int], is_refused: bool) -> None:
    assert bool(checks.workgroups_refusal(*counts)) == is_refused
