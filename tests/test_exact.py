"""What `perf/exact.py` says of runtimes that compute less exactly: they count for nothing, and are shown."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

PERF = Path(__file__).resolve().parent.parent / "perf"


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(PERF))
    return importlib.import_module("exact")


def _timed(exact: Any, seconds: float, error: float) -> Any:
    return exact.Timed(np.array([1.0, -2.0 + 2 * error]), seconds)


def test_the_fastest_counts_where_it_is_as_exact(exact: Any) -> None:
    timed = {
        "jitree": _timed(exact, 2.0, 2e-6),
        "onnxruntime": _timed(exact, 3.0, 1e-6),
        "MNN": _timed(exact, 2.5, 7e-6),
        "MNN-Winograd": _timed(exact, 1.0, 1e-4),
        "llvm-cpu": _timed(exact, 0.5, 0.0),
    }
    text, ratios = exact.compared(timed, np.array([1.0, -2.0]))
    assert ratios == {
        "against onnxruntime": 1.5,
        "against MNN": 1.25,
        "against MNN-Winograd (less exact)": 0.5,
        "against llvm-cpu": 0.25,
        "against best": 1.25,
        "against best of any error": 0.5,
    }
    assert "MNN-Winograd 1000.000 ms 1e-04!" in text
    assert text.count("!") == 1


def test_a_less_exact_onnxruntime_widens_what_counts(exact: Any) -> None:
    """Its error is the common measure: peers as exact as that count, to jitree's disadvantage."""
    timed = {
        "jitree": _timed(exact, 2.0, 1e-7),
        "onnxruntime": _timed(exact, 3.0, 1e-3),
        "MNN-Winograd": _timed(exact, 1.0, 3e-3),
    }
    _, ratios = exact.compared(timed, np.array([1.0, -2.0]))
    assert ratios["against best"] == 0.5


def test_what_is_no_number_is_never_exact(exact: Any) -> None:
    timed = {"jitree": _timed(exact, 2.0, 1e-7), "OpenVINO": _timed(exact, 1.0, float("nan"))}
    text, ratios = exact.compared(timed, np.array([1.0, -2.0]))
    assert ratios == {"against OpenVINO (less exact)": 0.5, "against best of any error": 0.5}
    assert "inf!" in text


def test_the_reference_computes_in_64_bits(exact: Any, tmp_path: Path) -> None:
    """Constants, attributes and conversions to f32 are widened: a sum that f32 rounds to 1 is not 1."""
    onnx = pytest.importorskip("onnx", reason="onnx is not installed: it comes with the extra `compile`")
    helper, numbers = onnx.helper, onnx.numpy_helper
    small = numbers.from_array(np.full((1, 2, 3), 2.0**-30, np.float32), "small")
    nodes = [
        helper.make_node("Add", ["x", "small"], ["sum"]),
        helper.make_node("Cast", ["sum"], ["same"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Constant", [], ["two"], value=numbers.from_array(np.float32(2))),
        helper.make_node("Mul", ["same", "two"], ["double"]),
        helper.make_node("GlobalMaxPool", ["double"], ["y"]),
    ]
    floats = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in "xy"]
    graph = helper.make_graph(nodes, "sums", floats[:1], floats[1:], [small])
    model = tmp_path / "sums.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)]), model)
    result = exact.reference(model, [np.ones((1, 2, 3), np.float32)])
    np.testing.assert_array_equal(result, np.full((1, 2, 1), 2 + 2.0**-29))
