"""Shapes of inputs of ONNX models, with stand-ins for what onnx reads; names and types of declarations."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from jitree.api.calls.declaration import parse_declaration
from jitree.compiling.onnx_files import declaration_of
from jitree.compiling.onnx_inputs import TYPES, fix_shapes, shape_text
from jitree.compiling.onnx_nodes import shape_of
from jitree.errors import InvalidArgumentError
from jitree.types import BY_NAME

F32 = 1


class Dimensions(list[Any]):
    """A repeated field."""

    def add(self) -> None:
        self.append(dimension(None))


def dimension(size: int | str | None) -> SimpleNamespace:
    made = SimpleNamespace(
        dim_value=size if isinstance(size, int) else 0, dim_param=size if isinstance(size, str) else ""
    )
    made.HasField = lambda field: made.dim_value > 0
    return made


def value(name: str, sizes: Sequence[int | str | None] | None, element: int = F32) -> SimpleNamespace:
    shape = SimpleNamespace(dim=Dimensions(map(dimension, sizes or ())))
    tensor = SimpleNamespace(shape=shape, elem_type=element, HasField=lambda field: sizes is not None)
    return SimpleNamespace(name=name, type=SimpleNamespace(tensor_type=tensor))


def model(*inputs: SimpleNamespace, outputs: Sequence[SimpleNamespace] = (), weights: str = "") -> Any:
    initializer = [SimpleNamespace(name=name) for name in weights.split()]
    return SimpleNamespace(graph=SimpleNamespace(input=[*inputs], output=[*outputs], initializer=initializer))


def test_open_sizes_get_values_wherever_they_have_the_name() -> None:
    x, mask = value("x", ["batch", 3, "length"]), value("mask", ["batch", "length"])
    y = value("y", ["batch", "other"])
    fix_shapes(model(x, mask, outputs=[y]), {"x": (2, 3, 7)})
    assert [shape_of(one) for one in (x, mask, y)] == [(2, 3, 7), (2, 7), (2, None)]


def test_sizes_without_a_name_are_their_own() -> None:
    x = value("x", [-1, 3, "?", "?"])
    fix_shapes(model(x), {"": (1, 3, 48, 192)})
    assert shape_of(x) == (1, 3, 48, 192)


def test_sizes_may_stay_open() -> None:
    x = value("x", ["batch", 3, None])
    fix_shapes(model(x), {"x": (None, 3, 5)})
    assert shape_of(x) == (None, 3, 5)
    assert shape_text(shape_of(x)) == "?x3x5"


def test_weights_are_no_inputs() -> None:
    x, w = value("x", [None]), value("w", [4])
    fix_shapes(model(x, w, weights="w"), {"": (2,)})
    assert shape_of(x) == (2,)


REFUSED: dict[str, dict[str, tuple[int | None, ...]]] = {
    "shape: there is no input 'z'; the model has x: f32[batchx3x?], y: i64[4]": {"z": (1,)},
    "shape: it takes the name of an input (<name>=…); the model has x: f32[batchx3x?], y: i64[4]": {"": (1,)},
    "shape of input 'x': 1x3 has 2 dimensions, and the model has 3: x: f32[batchx3x?]": {"x": (1, 3)},
    "shape of input 'x': 1x4x5 has 4 at dimension 1, which is 3 in the model: x: f32[batchx3x?]": {
        "x": (1, 4, 5)
    },
    "shape of input 'y': 5 has 5 at dimension 0, which is 4 in the model: y: i64[4]": {"y": (5,)},
}


@pytest.mark.parametrize("message", REFUSED)
def test_shapes_that_do_not_fit(message: str) -> None:
    given = model(value("x", ["batch", 3, None]), value("y", [4], 7))
    with pytest.raises(InvalidArgumentError) as caught:
        fix_shapes(given, REFUSED[message])
    assert caught.value.message == message


def test_one_name_has_one_size() -> None:
    given = model(value("x", ["n"]), value("y", ["n"]))
    with pytest.raises(
        InvalidArgumentError, match=r"has 3 at dimension 0, which is 2 in the model: y: f32\[n\]"
    ):
        fix_shapes(given, {"x": (2,), "y": (3,)})


def test_an_input_of_unknown_rank_gets_one() -> None:
    x = value("x", None)
    assert shape_of(x) is None
    assert shape_text(shape_of(x)) == "of any shape"
    fix_shapes(model(x), {"x": (2, 5)})
    assert [one.dim_value for one in x.type.tensor_type.shape.dim] == [2, 5]


def test_declarations_have_names_that_python_and_the_runtime_take() -> None:
    inputs = [value("serving_default:0", [1, None], 7), value("serving_default_0", [], 9)]
    inputs += [value("3/x", [2], 16), value("u", [2], 2)]
    outputs = [value("", None), value("y.1", [4], 2), value("z", [], 12)]
    text = declaration_of(model(*inputs, outputs=outputs))
    assert text == (
        "sync func @main(%serving_default_0: tensor<1x?xi64>, %serving_default_0_: tensor<i1>, "
        "%_3_x: tensor<2xbf16>, %u: tensor<2xui8>) -> "
        "(%_: !hal.buffer_view, %y_1: tensor<4xui8>, %z: tensor<ui32>)"
    )
    parsed = parse_declaration(text)
    assert parsed is not None
    types = ["tensor<1x?xi64>", "tensor<i1>", "tensor<2xbf16>", "tensor<2xui8>"]
    assert [str(one.tensor) for one in parsed[0]] == types


def test_element_types_are_those_of_the_runtime() -> None:
    assert set(TYPES.values()) <= BY_NAME.keys()
