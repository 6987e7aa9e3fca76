"""Comparison of results with expected values: tolerances, texts, kinds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitree.tools import values as hv
from jitree.tools.run import EXACT, Tolerances, compare
from jitree.tools.values import ValueFiles, array_tensor, parse_value

APPROXIMATE = Tolerances({"f16": 0.001, "bf16": 0.01, "f32": 0.0001, "f64": 0.0001}, 1e-5)


def value(text: str, kind: str = "r") -> hv.HostValue:
    with ValueFiles() as files:
        return parse_value(text, kind, files)[0]


def differences(actual: str, wanted: str, kind: str = "r", tolerances: Tolerances = APPROXIMATE) -> list[str]:
    return compare([value(actual, kind)], [value(wanted, kind)], tolerances, 1024)


def matches(actual: str, wanted: str, kind: str = "r", tolerances: Tolerances = APPROXIMATE) -> bool:
    return not differences(actual, wanted, kind, tolerances)


@pytest.mark.parametrize(
    ("actual", "wanted", "equal"),
    [
        ("2xf32=1,2", "2xf32=1,2.0001", True),
        ("2xf32=1,2", "2xf32=1,2.001", False),
        ("1xf32=1e6", "1xf32=1000009", True),
        ("1xf32=1e6", "1xf32=1000020", False),
        ("1xf16=1", "1xf16=1.001", True),
        ("1xf16=1", "1xf16=1.01", False),
        ("1xbf16=1", "1xbf16=1.0078125", True),
        ("1xf64=1", "1xf64=1.00005", True),
        ("2xf32=nan,inf", "2xf32=nan,inf", True),
        ("1xf32=nan", "1xf32=1", False),
        ("1xf32=1", "1xf32=nan", False),
        ("1xf32=inf", "1xf32=-inf", False),
        ("1xf32=3e38", "1xf32=inf", False),
        ("1xf32=-0", "1xf32=0", True),
        ("1xf8E5M2=1", "1xf8E5M2=1.25", False),
        ("1xcf64=1+2j", "1xcf64=1.00001+2j", False),
        ("2xi32=1,2", "2xi32=1,2", True),
        ("2xi32=1,2", "2xi32=1,3", False),
        ("2xi32=1,-2", "2xsi32=1,-2", True),
        ("2xui32=1,2", "2xsi32=1,2", False),
        ("3xi4=1,2,-3", "3xi4=1,2,-3", True),
        ("3xi4=1,2,-3", "3xi4=1,2,3", False),
        ("2xf32=1", "1x2xf32=1", False),
        ("2xf32=1", "2xi32=1", False),
        ("(null)", "(null)", True),
        ("(null)", "2xf32", False),
        ("2xf32", "(null)", False),
        ("&2xf32=1", "&2xf32=1", True),
        ("&2xf32=1", "&2xf32=2", False),
        ("0xf32", "0xf32", True),
    ],
)
def test_which_values_match(actual: str, wanted: str, equal: bool) -> None:
    assert matches(actual, wanted) is equal


def test_exact_mode_compares_bytes() -> None:
    assert not matches("1xf32=1", "1xf32=1.00000012", tolerances=EXACT)
    assert not matches("1xf32=0", "1xf32=-0", tolerances=EXACT)
    assert matches("1xf32=nan", "1xf32=nan", tolerances=EXACT)


def test_ignored_accepts_any_result() -> None:
    for actual, kind in (("7", "i"), ("2xf32=1", "r"), ("(null)", "r")):
        assert matches(actual, "(ignored)", kind)


@pytest.mark.parametrize(("actual", "wanted", "kind", "equal"), [
    ("7", "7", "i", True), ("7", "8", "i", False), ("7", "7", "I", True), ("1.5", "1.50001", "f", True),
    ("1.5", "1.6", "f", False), ("nan", "nan", "F", True),
])  # fmt: skip
def test_scalars(actual: str, wanted: str, kind: str, equal: bool) -> None:
    assert matches(actual, wanted, kind) is equal


def test_texts() -> None:
    assert differences("7", "8", "i") == [
        "[FAILED] result[0]: i32 values differ\n  expected: 8\n  actual: 7\n"
    ]
    assert differences("2x2xf32=1,2,3,4", "2x2xf32=1,2,3.5,9") == [
        "[FAILED] result[0]: element at index 2 (3) does not match the expected (3.5); "
        "expected that the view is equal to contents of a view of 2x2xf32\n"
        "  expected:\n2x2xf32=[1 2][3.5 9]\n  actual:\n2x2xf32=[1 2][3 4]\n"
        "  2 of 4 elements differ; largest |a-e| = 5 at [1,1]\n"
    ]
    assert differences("2xf32=1", "2xf16=1")[0].startswith(
        "[FAILED] result[0]: metadata is 2xf32; expected that the view matches 2xf16; "
        "expected that the view is equal to contents of a view of 2xf16\n  expected:\n"
    )
    assert differences("(null)", "2xf32") == [
        "[FAILED] result[0]: variant types mismatch; expected hal.buffer_view but got empty\n"
    ]
    assert compare([], [hv.NULL], EXACT, 9) == ["[FAILED] expected 1 list elements but 0 provided\n"]


def test_every_differing_result_is_reported() -> None:
    results = [value("1xi32=1"), value("1xi32=2"), value("1xi32=3")]
    wanted = [value("1xi32=9"), value("1xi32=2"), value("1xi32=9")]
    texts = compare(results, wanted, EXACT, 1024)
    assert [text[:20] for text in texts] == ["[FAILED] result[0]: ", "[FAILED] result[2]: "]


@given(st.lists(st.tuples(st.floats(width=32), st.floats(width=32)), min_size=1, max_size=6))
def test_the_rule_is_the_one_of_the_specification(pairs: list[tuple[float, float]]) -> None:
    def passes(a: float, e: float) -> bool:
        if np.isnan(a) or np.isnan(e) or np.isinf(a) or np.isinf(e):
            return a == e or bool(np.isnan(a) and np.isnan(e))
        return abs(a - e) <= 0.0001 + 1e-5 * abs(e)

    actual, wanted = (np.array([pair[side] for pair in pairs], np.float32) for side in (0, 1))
    failures = compare([array_tensor(actual)], [array_tensor(wanted)], APPROXIMATE, 1024)
    bad = [index for index, pair in enumerate(pairs) if not passes(*pair)]
    assert bool(failures) == bool(bad)
    if bad:
        assert f"element at index {bad[0]} (" in failures[0]
        assert f"{len(bad)} of {len(pairs)} elements differ" in failures[0]


@pytest.mark.parametrize("dtype", [np.int8, np.uint64, np.float64])
def test_the_largest_difference_is_found(dtype: Any) -> None:
    wanted = np.arange(24).reshape(2, 3, 4).astype(dtype)
    actual = wanted.copy()
    actual[0, 1, 2] += 3
    actual[1, 2, 0] += 5
    (text,) = compare([array_tensor(actual)], [array_tensor(wanted)], EXACT, 4)
    assert "2 of 24 elements differ; largest |a-e| = 5 at [1,2,0]" in text
