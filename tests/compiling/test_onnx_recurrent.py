"""Recurrent operators that are written as products and steps, against what ONNX says of them, in numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from jitree.compiling.onnx_forms import replace_forms
from jitree.errors import UnimplementedError

onnx = pytest.importorskip("onnx", reason="onnx is not installed: it comes with the extra `compile`")

INPUTS, HIDDEN, BATCH = 3, 4, 2
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)), "Tanh": np.tanh, "Relu": lambda x: np.maximum(x, 0),
}  # fmt: skip
USUAL = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}
Arrays = dict[str, Any]


def stepped(operator: str, x: Any, parts: Arrays, names: list[str], late: bool) -> list[Any]:
    """One direction, forwards: all results, and the last states."""
    f, g, h = ([FUNCTIONS[name] for name in names] * 3)[:3]
    state, memory = parts["h"], parts["c"]
    w, r, p = parts["W"], parts["R"], parts["P"]
    wb, rb = np.split(parts["B"], 2)
    found = []
    for row in x:
        if operator == "RNN":
            state = f(row @ w.T + wb + state @ r.T + rb)
        elif operator == "GRU":
            (wz, wr, wh), (rz, rr, rh) = np.split(w, 3), np.split(r, 3)
            (wbz, wbr, wbh), (rbz, rbr, rbh) = np.split(wb, 3), np.split(rb, 3)
            update = f(row @ wz.T + wbz + state @ rz.T + rbz)
            reset = f(row @ wr.T + wbr + state @ rr.T + rbr)
            inner = reset * (state @ rh.T + rbh) if late else (reset * state) @ rh.T + rbh
            state = (1 - update) * g(row @ wh.T + wbh + inner) + update * state
        else:
            pi, po, pf = np.split(p, 3)
            i, o, forget, c = np.split(row @ w.T + wb + state @ r.T + rb, 4, axis=-1)
            memory, before = f(forget + pf * memory) * memory, memory
            memory = memory + f(i + pi * before) * g(c)
            state = f(o + po * memory) * h(memory)
        found.append(state)
    return [np.stack(found), state, memory]


def expected(
    operator: str, x: Any, arrays: Arrays, names: list[str], direction: str, late: bool
) -> list[Any]:
    made = []
    count = len(USUAL[operator])
    sides = [False, True] if direction == "bidirectional" else [direction == "reverse"]
    for place, backwards in enumerate(sides):
        parts = {name: array[place] for name, array in arrays.items()}
        own = names[place * count : (place + 1) * count]
        y, *states = stepped(operator, x[::-1] if backwards else x, parts, own, late)
        made.append([y[::-1] if backwards else y, *states])
    y, *states = zip(*made, strict=True)
    return [np.stack(y, axis=1), *(np.stack(state) for state in states)][: 3 if operator == "LSTM" else 2]


def model_of(operator: str, arrays: Arrays, steps: int, given: list[str], **settings: Any) -> Any:
    """A model of one operator with the arrays as constants, but for the states where they begin."""
    names = ["x", *(name if name in given else "" for name in ("W", "R", "B"))]
    names += ["", *(name if name in given else "" for name in ("h", "c", "P"))]
    results = ["Y", "Y_h", "Y_c"][: 3 if operator == "LSTM" else 2]
    settings = {"hidden_size": HIDDEN} | settings
    node = onnx.helper.make_node(operator, names[: 8 if operator == "LSTM" else 6], results, **settings)
    floats, sides = onnx.TensorProto.FLOAT, len(arrays["W"])
    arguments = [onnx.helper.make_tensor_value_info("x", floats, (steps, BATCH, INPUTS))]
    arguments += [
        onnx.helper.make_tensor_value_info(name, floats, (sides, BATCH, HIDDEN))
        for name in "hc" if name in given
    ]  # fmt: skip
    outputs = [onnx.helper.make_tensor_value_info(name, floats, None) for name in results]
    constants = [
        onnx.numpy_helper.from_array(arrays[name], name) for name in ("W", "R", "B", "P") if name in given
    ]
    graph = onnx.helper.make_graph([node], "g", arguments, outputs, constants)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)


def arrays_of(operator: str, sides: int, given: list[str]) -> Arrays:
    random, wide = np.random.default_rng(0), GATES[operator] * HIDDEN
    shapes = {
        "W": (wide, INPUTS), "R": (wide, HIDDEN), "B": (2 * wide,), "P": (3 * HIDDEN,),
        "h": (BATCH, HIDDEN), "c": (BATCH, HIDDEN),
    }  # fmt: skip
    return {
        name: random.standard_normal((sides, *shape)).astype(np.float32) * (name in given)
        for name, shape in shapes.items()
    }


ALL = ["W", "R", "B", "h", "c", "P"]
CASES: dict[str, tuple[str, int, list[str], dict[str, Any]]] = {
    "RNN": ("RNN", 5, ["W", "R", "B"], {}),
    "RNN that goes back, in rounds": ("RNN", 50, ["W", "R", "h"], {"direction": "reverse"}),
    "RNN of other functions": ("RNN", 3, ["W", "R"], {"activations": ["Relu"]}),
    "GRU that resets states": ("GRU", 6, ["W", "R", "B", "h"], {}),
    "GRU that resets products": ("GRU", 6, ["W", "R", "B"], {"linear_before_reset": 1}),
    "GRU without biases": ("GRU", 1, ["W", "R"], {"linear_before_reset": 1}),
    "GRU of both directions in rounds": (
        "GRU", 33, ["W", "R", "B", "h"], {"direction": "bidirectional", "linear_before_reset": 1},
    ),
    "LSTM of one step": ("LSTM", 1, ["W", "R", "B", "h", "c"], {}),
    "LSTM without rounds": ("LSTM", 32, ["W", "R", "B"], {}),
    "LSTM in full rounds": ("LSTM", 48, ["W", "R", "B"], {}),
    "LSTM with everything": ("LSTM", 37, ALL, {"direction": "bidirectional"}),
    "GRU without bounds": ("GRU", 5, ["W", "R", "B", "h"], {"activations": ["Sigmoid", "Relu"]}),
    "LSTM of other functions": (
        "LSTM", 4, ["W", "R", "P"],
        {"direction": "bidirectional", "activations": ["sigmoid", "Relu", "Tanh", "Tanh", "Sigmoid", "relu"]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_steps_are_what_onnx_says(name: str) -> None:
    from onnx.reference import ReferenceEvaluator

    operator, steps, given, settings = CASES[name]
    direction, late = settings.get("direction", "forward"), settings.get("linear_before_reset", 0)
    sides = 2 if direction == "bidirectional" else 1
    arrays = arrays_of(operator, sides, given)
    x = np.random.default_rng(1).standard_normal((steps, BATCH, INPUTS)).astype(np.float32)
    names = [one.capitalize() for one in settings.get("activations", USUAL[operator] * sides)]
    wanted = expected(operator, x, arrays, names, direction, bool(late))
    model = onnx.shape_inference.infer_shapes(model_of(operator, arrays, steps, given, **settings))
    replace_forms(model)
    onnx.checker.check_model(model, full_check=True)
    operators = [node.op_type for node in model.graph.node]
    assert operator not in operators
    assert operators.count("Scan") == (sides if steps > 32 else 0)
    found = ReferenceEvaluator(model).run(None, {"x": x} | {n: arrays[n] for n in "hc" if n in given})
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:overflow")
def test_infinite_results_are_infinite() -> None:
    """They were no number: infinity less infinity."""
    from onnx.reference import ReferenceEvaluator

    arrays = arrays_of("GRU", 1, ["W", "R"])
    arrays["W"][:], arrays["R"][:], arrays["W"][0, -HIDDEN:] = 0, 0, 3e38
    model = model_of("GRU", arrays, 1, ["W", "R"], activations=["Sigmoid", "Relu"])
    replace_forms(model)
    found = ReferenceEvaluator(model).run(None, {"x": np.ones((1, BATCH, INPUTS), np.float32)})
    assert np.isposinf(found[0]).all()


SMALL = onnx.numpy_helper.from_array(np.ones((1, 4, 2), np.float32), "R")
WORDS = onnx.helper.make_tensor("R", onnx.TensorProto.STRING, (1, 12, 4), ["w"] * 48)
UNCHANGED: dict[str, tuple[str, dict[str, Any], Callable[[Any], None]]] = {
    "gates that are one": ("LSTM", {"input_forget": 1}, lambda graph: None),
    "gates without bounds": ("GRU", {"activations": ["Relu", "Tanh"]}, lambda graph: None),
    "batch first": ("GRU", {"layout": 1}, lambda graph: None),
    "no direction": ("GRU", {"direction": "sideways"}, lambda graph: None),
    "attributes of other types": ("GRU", {"direction": [1, 2], "activations": 3}, lambda graph: None),
    "words as weights": ("GRU", {}, lambda graph: graph.initializer[1].CopyFrom(WORDS)),
    "functions of one direction": ("LSTM", {"activations": ["Tanh"]}, lambda graph: None),
    "another size": ("LSTM", {"hidden_size": 7}, lambda graph: None),
    "computed weights": ("GRU", {}, lambda graph: graph.initializer.pop(0)),
    "weights of other sizes": (
        "RNN", {}, lambda graph: graph.initializer[1].CopyFrom(SMALL),
    ),
    "an open size": (
        "LSTM", {}, lambda graph: graph.input[0].type.tensor_type.shape.dim[0].ClearField("value"),
    ),
    "no steps": (
        "LSTM", {}, lambda graph: graph.input[0].type.tensor_type.shape.dim[0].__setattr__("dim_value", 0),
    ),
    "a state of another size": (
        "RNN", {}, lambda graph: graph.input[1].type.tensor_type.shape.dim[1].__setattr__("dim_value", 1),
    ),
    "no result": ("GRU", {}, lambda graph: graph.node[0].output.__delitem__(slice(None))),
}  # fmt: skip


@pytest.mark.parametrize("name", UNCHANGED)
def test_other_forms_stay_as_they_are(name: str) -> None:
    operator, settings, change = UNCHANGED[name]
    given = ["W", "R", "h"]
    model = model_of(operator, arrays_of(operator, 1, given), 3, given, **settings)
    change(model.graph)
    before = model.SerializeToString()
    replace_forms(model)
    assert model.SerializeToString() == before


def test_lengths_of_all_steps_are_none() -> None:
    given = ["W", "R", "h"]
    model = model_of("GRU", arrays_of("GRU", 1, given), 3, given)
    model.graph.node[0].input[4] = "lengths"
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([3, 3], np.int32), "lengths"))
    batch_first = onnx.ModelProto()
    batch_first.CopyFrom(model)
    batch_first.graph.node[0].attribute.append(onnx.helper.make_attribute("layout", 1))
    replace_forms(model)
    assert "GRU" not in {node.op_type for node in model.graph.node}
    with pytest.raises(UnimplementedError, match="has lengths of rows, which"):
        replace_forms(batch_first)


REFUSED: dict[str, tuple[str, dict[str, Any], Callable[[Any], None]]] = {
    "clipped values": ("RNN", {"clip": 1.0}, lambda graph: None),
    "functions other than Sigmoid, Tanh and Relu": (
        "GRU", {"activations": ["HardSigmoid", "Tanh"]}, lambda graph: None,
    ),
    "lengths of rows": ("GRU", {}, lambda graph: graph.node[0].input.__setitem__(4, "lengths")),
    "lengths of rows, peepholes": (
        "LSTM", {}, lambda graph: graph.node[0].input.__setitem__(slice(4, 8), ["l", "h", "", "P"]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_importer_leaves_out_is_refused(name: str) -> None:
    """It has no result, or has one as if this were not there, which only onnxruntime could tell."""
    operator, settings, change = REFUSED[name]
    given = ["W", "R", "h"]
    model = model_of(operator, arrays_of(operator, 1, given), 3, given, **settings)
    change(model.graph)
    with pytest.raises(
        UnimplementedError, match=f"{operator} that makes 'Y, Y_h.*' has {name}, which the imp"
    ):
        replace_forms(model)
