"""A short campaign of random nests; the long one is ``python -m tests.fuzz.nests``."""

from __future__ import annotations

from itertools import chain

from tests.fuzz.nests import differences
from tests.fuzz.numbered import campaign

DIVIDED = 1476
"""A loop whose few iterations are divided by 2**31: it did not end where it was split by the divisor."""


def test_nests_whose_constants_wrap_end_alike_on_all_tiers() -> None:
    found, counts = campaign(lambda number: differences(number, 8), chain(range(48), [DIVIDED]), 1)
    assert not found, "\n".join(found)
    assert counts["cases"] == 49
    assert counts["calls"] > counts["calls that end with a status"] * 4 > 0, "they hit no buffer, or all do"
