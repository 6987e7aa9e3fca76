"""Tables of vector math that are computed piece by piece."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from jitree.codegen.vector_math import tables


def test_elements_of_the_table_of_erf() -> None:
    """Each is computed when it is asked for, and all are what integers give."""
    values, rests = tables.erf_values(), tables.erf_rests()
    for n in (0, 1, 77, 256, tables.ERF_MASK):
        exact = tables.error_function(n * Fraction(tables.ERF_STEP))
        assert values[n] == exact / tables.ONE and math.isclose(values[n], math.erf(n / 256), rel_tol=1e-14)
        assert abs(Fraction(values[n]) + Fraction(rests[n]) - Fraction(exact, tables.ONE)) < Fraction(
            1, 1 << 105
        )
    assert len(values) == len(rests) == tables.ERF_MASK + 1
    with pytest.raises(IndexError):
        values[tables.ERF_MASK + 1]
    tables.erf_pair.cache_clear()
    values[5]
    assert tables.erf_pair.cache_info().currsize == 1
