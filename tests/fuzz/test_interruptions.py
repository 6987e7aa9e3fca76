"""A short campaign of calls that end early; the long one is ``python -m tests.fuzz.interruptions``."""

from __future__ import annotations

from tests.fuzz.interruptions import check
from tests.fuzz.numbered import campaign

CASES = 6
ROUNDS = 12


def test_calls_that_end_early_leave_a_session_as_it_was() -> None:
    found, counts = campaign(lambda number: check(number, ROUNDS), iter(range(CASES)), 1)
    assert not found, "\n".join(found)
    assert counts["cases"] == CASES and counts["rounds"] == CASES * ROUNDS
