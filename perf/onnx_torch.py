"""Runs ONNX files with the functions of PyTorch, one for each node; used by trained_cuda.py.

It has the operators that the trained models need. Shapes are those of the example that a graph is made
with, so what follows from them alone, and from the weights, is computed once; the rest runs on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch.nn import functional

Attributes = dict[str, Any]
Operator = Callable[..., Any]

_OF_THE_HOST = {
    "Clip": (1, 2),
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "ReduceSum": (1,),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "Slice": (1, 2, 3, 4),
    "Squeeze": (1,),
    "Unsqueeze": (1,),
}
"""The operands that the functions take as numbers and lists of Python."""


def _padding(attributes: Attributes) -> list[int] | None:
    """In torch's order, or none."""
    pads = attributes.get("pads", [0])
    half = len(pads) // 2
    if not any(pads):
        return None
    return [size for pair in reversed(list(zip(pads[:half], pads[half:], strict=True))) for size in pair]


def _padded(value: torch.Tensor, attributes: Attributes, fill: float = 0.0) -> tuple[torch.Tensor, list[int]]:
    """(the value, padded here where its sides differ; the padding that is left to the operator)"""
    padding = _padding(attributes)
    rank = value.dim() - 2
    if padding is None:
        return value, [0] * rank
    if padding[::2] == padding[1::2]:
        return value, padding[::-2]
    return functional.pad(value, padding, value=fill), [0] * rank


def _require(fact: bool, what: str) -> None:
    if not fact:
        raise NotImplementedError(what)


def _conv(attributes: Attributes, value: torch.Tensor, weight: torch.Tensor, bias: Any = None) -> Any:
    _require(attributes.get("auto_pad", b"NOTSET") in (b"NOTSET", b"VALID"), "Conv with automatic padding")
    value, padding = _padded(value, attributes)
    function = (functional.conv1d, functional.conv2d)[value.dim() - 3]
    return function(
        value,
        weight,
        bias,
        attributes.get("strides", 1),
        padding,
        attributes.get("dilations", 1),
        attributes.get("group", 1),
    )


def _transposed_conv(attributes: Attributes, value: torch.Tensor, weight: Any, bias: Any = None) -> Any:
    _require(_padding(attributes) is None, "ConvTranspose with padding")
    return functional.conv_transpose2d(
        value, weight, bias, attributes["strides"], groups=attributes.get("group", 1)
    )


def _max_pool(attributes: Attributes, value: torch.Tensor) -> torch.Tensor:
    value, padding = _padded(value, attributes, -torch.inf)
    return functional.max_pool2d(value, attributes["kernel_shape"], attributes.get("strides", 1), padding)


def _average_pool(attributes: Attributes, value: torch.Tensor) -> torch.Tensor:
    _require(_padding(attributes) is None, "AveragePool with padding")
    return functional.avg_pool2d(value, attributes["kernel_shape"], attributes.get("strides", 1))


def _batch_norm(attributes: Attributes, value: torch.Tensor, *operands: torch.Tensor) -> torch.Tensor:
    scale, bias, mean, variance = operands
    return functional.batch_norm(
        value, mean, variance, scale, bias, eps=float(attributes.get("epsilon", 1e-5))
    )


def _resize(attributes: Attributes, value: torch.Tensor, _: Any, scales: Any, sizes: Any = None) -> Any:
    kind = (attributes["mode"], attributes["coordinate_transformation_mode"], attributes["nearest_mode"])
    _require(kind == (b"nearest", b"asymmetric", b"floor"), f"Resize {kind}")
    rows, columns = sizes[2:] if sizes else (int(value.shape[2 + n] * scales[2 + n]) for n in range(2))
    return functional.interpolate(value, size=(int(rows), int(columns)), mode="nearest")


def _reshape(attributes: Attributes, value: torch.Tensor, shape: list[int]) -> torch.Tensor:
    return value.reshape([size or value.shape[place] for place, size in enumerate(shape)])


def _slice(attributes: Attributes, value: torch.Tensor, *limits: list[int]) -> torch.Tensor:
    starts, ends, axes, *steps = limits
    _require(all(step == 1 for each in steps for step in each), "Slice with steps")
    places = [slice(None)] * value.dim()
    for start, end, axis in zip(starts, ends, axes, strict=True):
        places[axis] = slice(start, min(end, value.shape[axis]))
    return value[tuple(places)]


def _expand(attributes: Attributes, value: torch.Tensor, shape: list[int]) -> torch.Tensor:
    return value.expand(torch.broadcast_shapes(value.shape, shape))


def _unsqueeze(attributes: Attributes, value: torch.Tensor, axes: Any = None) -> torch.Tensor:
    for axis in sorted(axes or attributes["axes"]):
        value = value.unsqueeze(axis)
    return value


def _squeeze(attributes: Attributes, value: torch.Tensor, axes: Any = None) -> torch.Tensor:
    return value.squeeze(tuple(axes or attributes["axes"]))


def _reduce_sum(attributes: Attributes, value: torch.Tensor, axes: Any = None) -> torch.Tensor:
    own, keep = _reduced(attributes)
    return value.sum(axes or own, keep)


def _reduced(attributes: Attributes) -> tuple[Any, bool]:
    """(dimensions, whether they are kept)"""
    return attributes.get("axes"), bool(attributes.get("keepdims", 1))


def _softmax(attributes: Attributes, value: torch.Tensor) -> torch.Tensor:
    axis = attributes.get("axis", -1)
    _require(axis in (-1, value.dim() - 1), "Softmax along another dimension than the last")
    return value.softmax(-1)


def _hard_sigmoid(attributes: Attributes, value: torch.Tensor) -> torch.Tensor:
    return (value * attributes.get("alpha", 0.2) + attributes.get("beta", 0.5)).clamp(0.0, 1.0)


def _gemm(
    attributes: Attributes, left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    _require(attributes.get("alpha", 1.0) == attributes.get("beta", 1.0) == 1.0, "Gemm with factors")
    _require(not attributes.get("transA", 0), "Gemm of a transposed operand")
    return torch.addmm(bias, left, right.t() if attributes.get("transB", 0) else right)


def _gather(attributes: Attributes, value: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    axis = attributes.get("axis", 0)
    found = value.index_select(axis, indices.reshape(-1))
    return found.reshape((*value.shape[:axis], *indices.shape, *value.shape[axis + 1 :]))


def _constant(attributes: Attributes) -> torch.Tensor:
    return _tensor(attributes["value"])


def _filled(attributes: Attributes, shape: list[int]) -> torch.Tensor:
    return _tensor(attributes["value"]).expand(shape)


def _divide(attributes: Attributes, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return left / right if left.is_floating_point() else torch.div(left, right, rounding_mode="trunc")


def _cast(attributes: Attributes, value: torch.Tensor) -> torch.Tensor:
    element = onnx.helper.tensor_dtype_to_np_dtype(attributes["to"])
    return value.to(torch.from_numpy(np.empty(0, element)).dtype)


_OPERATORS: dict[str, Operator] = {
    "Add": lambda _, left, right: left + right,
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "Cast": _cast,
    "Clip": lambda _, value, low=None, high=None: value.clamp(low, high),
    "Concat": lambda attributes, *values: torch.cat(values, attributes["axis"]),
    "Constant": _constant,
    "ConstantOfShape": _filled,
    "Conv": _conv,
    "ConvTranspose": _transposed_conv,
    "Div": _divide,
    "Equal": lambda _, left, right: left == right,
    "Exp": lambda _, value: value.exp(),
    "Expand": _expand,
    "Gather": _gather,
    "Gemm": _gemm,
    "GlobalAveragePool": lambda _, value: value.mean(tuple(range(2, value.dim())), True),
    "GlobalMaxPool": lambda _, value: value.amax(tuple(range(2, value.dim())), True),
    "HardSigmoid": _hard_sigmoid,
    "Identity": lambda _, value: value,
    "MatMul": lambda _, left, right: left @ right,
    "Max": lambda _, left, right: torch.maximum(left, right),
    "MaxPool": _max_pool,
    "Mul": lambda _, left, right: left * right,
    "Pow": lambda _, left, right: left**right,
    "Reciprocal": lambda _, value: value.reciprocal(),
    "ReduceMax": lambda attributes, value: value.amax(*_reduced(attributes)),
    "ReduceMean": lambda attributes, value: value.mean(*_reduced(attributes)),
    "ReduceSum": _reduce_sum,
    "Relu": lambda _, value: value.relu(),
    "Reshape": _reshape,
    "Resize": _resize,
    "Shape": lambda _, value: torch.tensor(value.shape),
    "Sigmoid": lambda _, value: value.sigmoid(),
    "Slice": _slice,
    "Softmax": _softmax,
    "Sqrt": lambda _, value: value.sqrt(),
    "Squeeze": _squeeze,
    "Sub": lambda _, left, right: left - right,
    "Tanh": lambda _, value: value.tanh(),
    "Transpose": lambda attributes, value: value.permute(attributes["perm"]),
    "Unsqueeze": _unsqueeze,
}


def _tensor(value: Any) -> torch.Tensor:
    return torch.from_numpy(onnx.numpy_helper.to_array(value).copy())


def _lstm(attributes: Attributes, operands: Sequence[Any]) -> Operator:
    """The layer of torch with the weights of the operands; its gates come in another order."""
    inputs, recurrent, bias = operands[1:4]
    both = attributes.get("direction", b"forward") == b"bidirectional"
    layer = torch.nn.LSTM(inputs.shape[2], attributes["hidden_size"], bidirectional=both)
    halves = bias.reshape(len(bias), 2, -1)

    def ordered(part: torch.Tensor) -> torch.Tensor:
        gate_i, gate_o, gate_f, gate_c = part.chunk(4)
        return torch.cat([gate_i, gate_f, gate_c, gate_o])

    with torch.no_grad():
        for direction, suffix in enumerate(("", "_reverse")[: 1 + both]):
            for name, part in (
                ("weight_ih", inputs[direction]),
                ("weight_hh", recurrent[direction]),
                ("bias_ih", halves[direction, 0]),
                ("bias_hh", halves[direction, 1]),
            ):
                getattr(layer, f"{name}_l0{suffix}").copy_(ordered(part))
    _require(all(not state.any() for state in operands[5:7]), "LSTM with an initial state")
    layer.eval()

    def run(_: Attributes, value: torch.Tensor, *__: Any) -> torch.Tensor:
        if layer.bias_ih_l0.device != value.device:
            layer.to(value.device)
        found = layer(value)[0]
        length, batch, _width = found.shape
        return found.reshape(length, batch, 1 + both, -1).transpose(1, 2)

    return run


class Graph:
    """A file's graph for inputs of the shape of the example, on a device of torch."""

    def __init__(self, path: Path, example: np.ndarray[Any, Any], device: str) -> None:
        model = onnx.load(path)
        self._device = device
        self._input = next(item.name for item in model.graph.input)
        self._output = model.graph.output[0].name
        self._constants = {item.name: _tensor(item) for item in model.graph.initializer}
        self._values: dict[str, Any] = {self._input: torch.from_numpy(example), **self._constants}
        with torch.inference_mode():
            steps = [step for node in model.graph.node if (step := self._step(node)) is not None]
        self._steps = [self._placed(*step) for step in steps]
        del self._values, self._constants

    def _step(self, node: onnx.NodeProto) -> tuple[Operator, Attributes, list[Any], str] | None:
        """Runs a node on the host; (what the device is to run, None where that is a constant)"""
        attributes = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
        of_host = _OF_THE_HOST.get(node.op_type, ())
        operands: list[Any] = list(node.input)
        for place, name in enumerate(node.input):
            if not name:
                operands[place] = None
            elif place in of_host:
                operands[place] = self._constants[name].tolist()
        values = [self._values[item] if isinstance(item, str) else item for item in operands]
        operator = _lstm(attributes, values) if node.op_type == "LSTM" else _OPERATORS[node.op_type]
        result = operator(attributes, *values)
        self._values[node.output[0]] = result
        names = [item for item in operands if isinstance(item, str)]
        if node.op_type == "Shape" or all(name in self._constants for name in names):
            self._constants[node.output[0]] = result
            return None
        return operator, attributes, operands, node.output[0]

    def _placed(self, operator: Operator, attributes: Attributes, operands: list[Any], output: str) -> Any:
        """A step with the constants on the device."""

        def placed(item: Any) -> Any:
            is_constant = isinstance(item, str) and item in self._constants
            return self._constants[item].to(self._device) if is_constant else item

        return operator, attributes, list(map(placed, operands)), output

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            values: dict[str, Any] = {self._input: value}
            for operator, attributes, operands, output in self._steps:
                values[output] = operator(
                    attributes, *[values[item] if isinstance(item, str) else item for item in operands]
                )
            found: torch.Tensor = values[self._output]
            return found
