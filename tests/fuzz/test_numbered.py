"""A campaign goes on past cases that end their process, or do not end, and makes what it finds smaller."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.fuzz.campaign import CASES, Campaign, Result
from tests.fuzz.mutations import fewer_changes
from tests.fuzz.numbered import LIFE, minimised, numbers_from, run_numbers


async def _awaits_nothing() -> None:
    await asyncio.get_running_loop().create_future()


def _check(number: int) -> Result:
    if number == 3:
        os._exit(1)
    while number == 5:
        time.sleep(1)
    if number == 12:
        asyncio.run(_awaits_nothing())
    if number == 6:
        raise ValueError("of no status")
    return ["found"] if number == 4 else [], Counter({CASES: 1})


def test_cases_that_end_the_process_or_do_not_end_are_findings() -> None:
    batches = (range(first, first + 4) for first in (0, 4, 8))
    found, counts = run_numbers(_check, batches, 2, 0.2)
    ends = {finding.number: finding.text.splitlines()[-1] for finding in found}
    assert ends == {
        3: "ends the process (status 1)",
        4: "found",
        5: "does not end",
        6: "ValueError: of no status",
    }
    assert counts[CASES] == 12


def test_a_case_that_does_not_end_says_where_it_is() -> None:
    found, _ = run_numbers(_check, iter([range(5, 6)]), 1, 0.2)
    assert "in _check" in found[0].text
    found, _ = run_numbers(_check, iter([range(12, 13)]), 1, 0.2)
    assert "awaits Future PENDING" in found[0].text and "_awaits_nothing" in found[0].text


def test_no_batch_begins_after_its_time() -> None:
    assert run_numbers(_check, numbers_from(0, 1), 2, until=0.0)[1][CASES] == 2


@pytest.mark.parametrize(("computed", "processes"), [(0.0, 1), (LIFE + 1, 2)])
def test_a_process_is_old_by_what_it_has_computed(
    monkeypatch: pytest.MonkeyPatch, computed: float, processes: int
) -> None:
    """Not by the time that passes, in which a busy machine may not have prepared it."""
    monkeypatch.setattr(time, "process_time", lambda: computed)
    batches = iter([range(0, 1), range(1, 2)])
    _, counts = run_numbers(lambda number: ([], Counter({f"process {os.getpid()}": 1})), batches, 1)
    assert len(counts) == processes


def test_findings_are_made_smaller() -> None:
    whole = bytes(64)

    def run(case: bytes) -> Result:
        return ["two bytes"] if case[7] and case[40] else [], Counter({CASES: 1})

    def smaller(case: bytes) -> Iterator[bytes]:
        return fewer_changes(whole, case)

    least = minimised(Campaign("bytes", bytes, run, smaller), bytes([1]) * 64, float("inf"))
    assert [at for at, byte in enumerate(least) if byte] == [7, 40]
