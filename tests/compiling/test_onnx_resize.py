"""Nearest resizing that is written as rounding down: only where ONNX takes the same elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jitree.compiling.onnx_forms import replace_forms

onnx = pytest.importorskip("onnx", reason="onnx is not installed: it comes with the extra `compile`")

DOWN = {"coordinate_transformation_mode": b"asymmetric", "nearest_mode": b"floor"}


def model_of(attributes: str, scales: str = "1,1,2,2", size: str = "5,3") -> Any:
    text = f"(float[1,2,{size}] x) => (float[N,C,H,W] y) <float[4] s = {{{scales}}}> "
    text += f'{{ y = Resize<mode="nearest"{attributes}>(x, , s) }}'
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {text}')


def modes(model: Any) -> dict[str, bytes]:
    return {one.name: one.s for one in model.graph.node[0].attribute if one.name in DOWN}


def resized(model: Any) -> Any:
    from onnx.reference import ReferenceEvaluator

    sizes = [one.dim_value for one in model.graph.input[0].type.tensor_type.shape.dim]
    x = np.arange(np.prod(sizes), dtype=np.float32).reshape(sizes)
    return ReferenceEvaluator(model).run(None, {"x": x})[0]


@pytest.mark.parametrize("scales", ["1,1,2,2", "1,1,3,2", "1,1,4,1", "1,2,5,7"])
@pytest.mark.parametrize("coordinates", ["asymmetric", "half_pixel", "pytorch_half_pixel", "align_corners"])
@pytest.mark.parametrize("rounding", ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
def test_the_same_elements_are_taken(scales: str, coordinates: str, rounding: str) -> None:
    attributes = f', coordinate_transformation_mode="{coordinates}", nearest_mode="{rounding}"'
    model = model_of(attributes, scales)
    expected, before = resized(model), modes(model)
    replace_forms(model)
    np.testing.assert_array_equal(resized(model), expected)
    assert modes(model) in (before, DOWN)
    halves = coordinates.endswith("half_pixel") and rounding.startswith("round")
    if halves or (coordinates, rounding, scales) == ("asymmetric", "round_prefer_floor", "1,1,2,2"):
        assert modes(model) == DOWN


def test_defaults_are_half_a_pixel() -> None:
    model = model_of("")
    expected = resized(model)
    replace_forms(model)
    assert modes(model) == DOWN
    np.testing.assert_array_equal(resized(model), expected)


def test_sizes_say_factors_too() -> None:
    text = "(float[1,1,4] x) => (float[N,C,H] y) <int64[3] s = {1,1,12}> "
    text += '{ y = Resize<mode="nearest", coordinate_transformation_mode="half_pixel">(x, , , s) }'
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {text}')
    replace_forms(model)
    assert modes(model) == DOWN


UNCHANGED = {
    "another factor": ("", "1,1,1.5,2", "4,4"),
    "smaller": ("", "1,1,0.5,0.5", "4,4"),
    "an open size": ("", "1,1,2,2", "H,4"),
    "no elements": ("", "1,1,2,2", "0,4"),
    "very large": ("", "1,1,1e9,1e9", "4,4"),
    "not a number": ("", "1,1,nan,2", "4,4"),
    "by region": (', coordinate_transformation_mode="tf_crop_and_resize"', "1,1,2,2", "4,4"),
    "by region, as many": (', coordinate_transformation_mode="tf_crop_and_resize"', "1,1,1,1", "4,4"),
    "unknown rounding": (', nearest_mode="up"', "1,1,2,2", "4,4"),
    "some dimensions": (", axes=[2,3]", "1,1,2,2", "4,4"),
    "too few scales": ("", "1,1,2,2", "4"),
    "already so": (
        ', nearest_mode="floor", coordinate_transformation_mode="asymmetric"', "1,1,2,2", "4,4",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UNCHANGED)
def test_other_forms_stay_as_they_are(name: str) -> None:
    attributes, scales, size = UNCHANGED[name]
    values = [float(one) for one in scales.split(",")]
    model = model_of(attributes, "1,1,1,1", size)
    scales_of = onnx.numpy_helper.from_array(np.array(values, np.float32), "s")
    model.graph.initializer[0].CopyFrom(scales_of)
    before = model.SerializeToString()
    replace_forms(model)
    assert model.SerializeToString() == before


def test_linear_resizing_stays() -> None:
    model = model_of("")
    model.graph.node[0].attribute[0].s = b"linear"
    before = model.SerializeToString()
    replace_forms(model)
    assert model.SerializeToString() == before
