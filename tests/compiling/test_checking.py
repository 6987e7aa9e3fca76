"""How results are compared, and what their arguments are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from jitree.compiling.checking import WRONG, check_model, error_of
from jitree.compiling.programs import CompilerWork, MessageLog

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


def test_quantized_values_have_the_range_of_their_type() -> None:
    """One is rounded up here and down there where it lies between two; that is no wrong result."""
    assert error_of(np.array([5, 3], np.int8), np.array([5, 4], np.int8)) == 1 / 127 < WRONG
    assert error_of(np.array([5], np.uint8), np.array([6], np.uint8)) == 1 / 255
    assert error_of(np.array([5], np.uint8), np.array([8], np.uint8)) == 3 / 8
    assert error_of(np.array([3], np.int32), np.array([4], np.int32)) == 0.25


def check(text: str, work: CompilerWork, opset: int = 17) -> str:
    onnx = pytest.importorskip("onnx", reason="onnx is not installed: pip install 'jitree[compile]'")
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> g {text}')
    found = check_model("none.vmfb", model, "local-sync", work)
    assert found.error is None
    return found.about


@pytest.fixture
def work(tmp_path: Path, no_packages: None) -> CompilerWork:
    return CompilerWork(str(tmp_path), MessageLog(str(tmp_path / "log")), float("inf"), lambda text: None)


MISSING = "onnxruntime is not installed (pip install onnxruntime)"


@pytest.mark.parametrize(
    ("text", "about"),
    [
        (
            "(float[2] x) => (float[2] z) { z = RandomNormalLike(x) }",
            "RandomNormalLike '' draws random numbers",
        ),
        (
            "(float[2] x) => (float[2] z) <float r = {0.5}, bool t = {1}> { z = Dropout(x, r, t) }",
            "Dropout '' draws random numbers",
        ),
        ("(float[2] x) => (float[2] z) <float r = {0.5}, bool t = {0}> { z = Dropout(x, r, t) }", MISSING),
        ("(float[2] x) => (float[2] z) { z = Dropout(x) }", MISSING),
        (
            "(bfloat16[2] x) => (bfloat16[2] z) { z = Relu(x) }",
            "it takes elements of type bfloat16, which numpy itself does not have",
        ),
        (
            "(float[1099511627776,1048576] x) => (float[1099511627776,1048576] z) { z = Relu(x) }",
            "its argument 'x' is larger than 1024 MiB",
        ),
    ],
)
def test_what_is_not_compared(text: str, about: str, work: CompilerWork) -> None:
    assert check(text, work) == about


def test_errors_of_other_types() -> None:
    integers = np.array([1, 100], np.uint8)
    assert error_of(integers, np.array([1, 80], np.uint8)) == 0.25
    assert error_of(np.array([-56], np.int8), np.array([200], np.uint8)) == 1.28
    assert error_of(np.array([True, False]), np.array([True, True])) == 1
    assert error_of(np.array([1 + 1j]), np.array([1 + 0j])) == 1
