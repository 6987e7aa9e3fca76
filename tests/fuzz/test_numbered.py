"""A campaign goes on past cases that end their process, or do not end."""

from __future__ import annotations

import os
import time
from collections import Counter

from tests.fuzz.numbered import CASES, Result, campaign


def _check(number: int) -> Result:
    if number == 3:
        os._exit(1)
    while number == 5:
        time.sleep(1)
    return [f"found by {number}"] if number == 4 else [], Counter(cases=1)


def test_cases_that_end_the_process_or_do_not_end_are_findings() -> None:
    found, counts = campaign(_check, iter(range(2 * CASES)), 2, 0.2)
    assert sorted(found) == ["case 3 ends the process", "case 5 does not end", "found by 4"]
    assert counts["cases"] == 2 * CASES


def test_no_case_begins_after_its_time() -> None:
    assert campaign(_check, iter(range(2)), 2, until=0.0)[1]["cases"] == 2
