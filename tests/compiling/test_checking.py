"""How results are compared, and what their arguments are."""

from __future__ import annotations

import numpy as np
import pytest

from jitree.compiling.checking import error_of

NAN, INF = np.nan, np.inf


@pytest.mark.parametrize(
    ("result", "expected", "error"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0),
        ([1.0, 2.5], [1.0, 2.0], 0.25),
        ([1.0, -4.0], [1.0, -4.5], 0.5 / 4.5),
        ([0.0, 2e-6], [0.0, 1e-6], 1e-6 / 1e-3),  # small ones are relative to a thousandth
        ([0.0], [0.0], 0),
        ([NAN, 1.0], [NAN, 1.0], 0),
        ([INF, 1.0], [INF, 1.0], 0),
        ([INF, 1.0], [-INF, 1.0], INF),
        ([NAN, 1.0], [0.0, 1.0], INF),
        ([1.0], [NAN], INF),
        ([1.0, 2.0, 3.0], [1.0, 2.0], INF),
        ([], [], 0),
    ],
)
def test_errors_of_numbers(result: list[float], expected: list[float], error: float) -> None:
    given, wanted = np.array(result, np.float32), np.array(expected, np.float32)
    assert error_of(given, wanted) == pytest.approx(error, rel=1e-5)


def test_errors_of_other_types() -> None:
    integers = np.array([1, 100], np.uint8)
    assert error_of(integers, np.array([1, 80], np.uint8)) == 0.25
    assert error_of(np.array([-56], np.int8), np.array([200], np.uint8)) == 1.28
    assert error_of(np.array([True, False]), np.array([True, True])) == 1
    assert error_of(np.array([1 + 1j]), np.array([1 + 0j])) == 1
