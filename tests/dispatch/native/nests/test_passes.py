"""The passes over nests stand in an order in which each has what it needs; so do the rows of contractions."""

from __future__ import annotations

import pytest

from jitree.dispatch.native.nests.passes import PASSES, NestDraft
from jitree.dispatch.native.nests.reductions import CONTRACTIONS, Contraction

_BITS = {"i8": 8, "i16": 16}


def test_each_pass_has_what_it_needs() -> None:
    known = {"loop", "uses"}
    for one in PASSES:
        assert one.purpose and set(one.needs.split()) <= known, one.purpose
        known |= set(one.makes.split())
    assert known == set(NestDraft.__annotations__)


@pytest.mark.parametrize("row", CONTRACTIONS, ids=lambda row: row.factor)
def test_a_word_of_factors_has_32_bits(row: Contraction) -> None:
    assert row.products * _BITS[row.factor] == 32
    assert [other.total for other in CONTRACTIONS].count(row.total) == 1, "a nest has one row"
