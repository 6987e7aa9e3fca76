"""A short campaign of random nests; the long one is ``python -m tests.fuzz.nests``."""

from __future__ import annotations

from tests.fuzz.nests import campaign


def test_nests_whose_constants_wrap_end_alike_on_all_tiers() -> None:
    found, counts = campaign(range(48), 8, 1)
    assert not found, "\n".join(found)
    assert counts["nests"] == 48
    assert counts["calls"] > counts["calls that end with a status"] * 4 > 0, "they hit no buffer, or all do"
