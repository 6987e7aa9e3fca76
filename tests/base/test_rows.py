"""Rows of a table that one test checks."""

from __future__ import annotations

import pytest

from tests.base.rows import each_row


def test_all_rows_are_checked_and_those_that_fail_are_named() -> None:
    checked = list[int]()

    def check(number: int) -> None:
        checked.append(number)
        if number == 3:
            pytest.fail("three")
        if number == 4:
            pytest.skip("four")
        with pytest.raises(ZeroDivisionError):
            assert 1 / (number - 1) < 1

    with pytest.raises(BaseExceptionGroup) as caught:
        each_row({"one": 1, "two": 2, "three": 3, "four": 4}, check)
    assert checked == [1, 2, 3, 4]
    assert str(caught.value).startswith("3 of 4 rows fail: two, three, four (")
    assert [error.__notes__ for error in caught.value.exceptions] == [
        ["in the row two"], ["in the row three"], ["in the row four"],
    ]  # fmt: skip


def test_rows_that_pass() -> None:
    each_row([1, 2], lambda number: number)
    with pytest.raises(AssertionError, match="no rows"):
        each_row([], print)


def test_an_interrupt_ends_the_test() -> None:
    def interrupt(row: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        each_row([1, 2], interrupt)
