"""Short campaigns of random kernels, and of nests and kernels in sandboxes; the long ones are
``python -m tests.fuzz.kernels`` and ``python -m tests.fuzz.sandboxes``."""

from __future__ import annotations

from itertools import chain

from tests.fuzz import kernels, sandboxes
from tests.fuzz.numbered import campaign

CUT = (22, 54, 218, 405)
"""Kernels that can be cut into parts. The last two read scratch memory that their loops may not fill."""


def test_kernels_end_alike_on_all_tiers_and_in_parts() -> None:
    found, counts = campaign(lambda number: kernels.differences(number, 8), chain(range(8), CUT), 1)
    assert not found, "\n".join(found)
    assert counts["cases"] == 8 + len(CUT)
    assert counts["nests"] >= 8 and counts["calls in parts"] > 0, "no machine code of nests runs"
    assert counts["calls"] > counts["calls that end with a status"] * 2 > 0


def test_nests_and_kernels_in_sandboxes_end_as_outside() -> None:
    found, counts = campaign(lambda number: sandboxes.differences(number, 4), iter(range(2, 8)), 1)
    assert not found, "\n".join(found)
    assert counts["cases"] == 6
    assert counts["calls"] > counts["calls that end with a status"] > 0
