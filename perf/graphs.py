"""Builds ONNX graphs of usual models from a few operators, with random weights; used by `unseen_models.py`.

Batch normalisation is folded into convolutions, as exporters leave it. What is an argument of several
functions: ``x``, the name of a value in planes (batch, channels, rows, columns).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]


class Graph:
    """A graph that grows by one value a call; each function gives the name of its value."""

    def __init__(self, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._channels: dict[str, int] = {}
        self._count = 0

    def input(self, shape: Sequence[int], kind: int = TensorProto.FLOAT) -> str:
        name = f"input{len(self._inputs)}"
        self._inputs.append(helper.make_tensor_value_info(name, kind, shape))
        if len(shape) > 1:
            self._channels[name] = shape[1]
        return name

    def constant(self, value: Any, kind: Any = np.float32) -> str:
        name = f"w{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(np.asarray(value, kind), name))
        return name

    def shape(self, *sizes: int) -> str:
        return self.constant(sizes, np.int64)

    def weight(self, *sizes: int, inputs: int) -> str:
        """Random numbers which keep the variance of so many inputs about as it is."""
        return self.constant(self.random.standard_normal(sizes) * (1.6 / inputs) ** 0.5)

    def bias(self, size: int) -> str:
        return self.constant(self.random.standard_normal(size) * 0.1)

    def op(self, operator: str, *operands: str, **attributes: Any) -> str:
        (result,) = self.ops(operator, *operands, results=1, **attributes)
        return result

    def ops(self, operator: str, *operands: str, results: int, **attributes: Any) -> list[str]:
        names = [f"v{self._count + index}" for index in range(results)]
        self._count += results
        self._nodes.append(helper.make_node(operator, operands, names, **attributes))
        if operands and operands[0] in self._channels:
            self._channels.update(dict.fromkeys(names, self._channels[operands[0]]))
        return names

    def conv(
        self, x: str, features: int, kernel: int = 3, stride: int = 1, groups: int = 1, pad: int = -1
    ) -> str:
        """A convolution with bias; the padding keeps the size unless it is given."""
        channels = self._channels[x] // groups
        weight = self.weight(features, channels, kernel, kernel, inputs=channels * kernel * kernel)
        pads = [kernel // 2 if pad < 0 else pad] * 4
        result = self.op(
            "Conv", x, weight, self.bias(features),
            kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=pads, group=groups,
        )  # fmt: skip
        self._channels[result] = features
        return result

    def depthwise(self, x: str, kernel: int, stride: int = 1) -> str:
        return self.conv(x, self._channels[x], kernel, stride, groups=self._channels[x])

    def conv1d(self, x: str, features: int, kernel: int, stride: int = 1, dilation: int = 1) -> str:
        channels = self._channels[x]
        weight = self.weight(features, channels, kernel, inputs=channels * kernel)
        result = self.op(
            "Conv", x, weight, self.bias(features),
            kernel_shape=[kernel], strides=[stride], pads=[kernel // 2 * dilation] * 2, dilations=[dilation],
        )  # fmt: skip
        self._channels[result] = features
        return result

    def transposed(self, x: str, features: int, kernel: int, pad: int) -> str:
        """A transposed convolution, which doubles rows and columns."""
        channels = self._channels[x]
        weight = self.weight(channels, features, kernel, kernel, inputs=channels * kernel * kernel // 4)
        result = self.op(
            "ConvTranspose", x, weight, self.bias(features),
            kernel_shape=[kernel] * 2, strides=[2, 2], pads=[pad] * 4,
        )  # fmt: skip
        self._channels[result] = features
        return result

    def channels(self, x: str) -> int:
        return self._channels[x]

    def concatenated(self, *values: str) -> str:
        result = self.op("Concat", *values, axis=1)
        self._channels[result] = sum(map(self.channels, values))
        return result

    def relu(self, x: str) -> str:
        return self.op("Relu", x)

    def relu6(self, x: str) -> str:
        return self.op("Clip", x, self.constant(0.0), self.constant(6.0))

    def silu(self, x: str) -> str:
        return self.op("Mul", x, self.op("Sigmoid", x))

    def gelu(self, x: str) -> str:
        """The exact one, in the operators that exporters write for opset 17."""
        error = self.op("Erf", self.op("Div", x, self.constant(2**0.5)))
        twice = self.op("Mul", x, self.op("Add", error, self.constant(1.0)))
        return self.op("Mul", twice, self.constant(0.5))

    def squeezed(self, x: str, inner: int, act: str = "Relu", gate: str = "HardSigmoid") -> str:
        """Squeeze and excitation: a factor for each channel, from the mean of all."""
        attributes = {"alpha": 1 / 6, "beta": 0.5} if gate == "HardSigmoid" else {}
        mean = self.op("GlobalAveragePool", x)
        hidden = self.conv(mean, inner, 1)
        hidden = self.silu(hidden) if act == "Silu" else self.op(act, hidden)
        return self.op("Mul", x, self.op(gate, self.conv(hidden, self._channels[x], 1), **attributes))

    def linear(self, x: str, inputs: int, outputs: int, bias: bool = True) -> str:
        product = self.op("MatMul", x, self.weight(inputs, outputs, inputs=inputs))
        return self.op("Add", product, self.bias(outputs)) if bias else product

    def classified(self, x: str, classes: int) -> str:
        channels = self._channels[x]
        flat = self.op("Flatten", self.op("GlobalAveragePool", x))
        return self.op(
            "Gemm", flat, self.weight(classes, channels, inputs=channels), self.bias(classes), transB=1
        )

    def layer_norm(self, x: str, size: int) -> str:
        return self.op(
            "LayerNormalization", x, self.constant(np.ones(size)), self.bias(size), axis=-1, epsilon=1e-5
        )

    def rms_norm(self, x: str, size: int) -> str:
        square = self.op("Mul", x, x)
        mean = self.op("ReduceMean", square, axes=[-1], keepdims=1)
        root = self.op("Sqrt", self.op("Add", mean, self.constant(1e-6)))
        return self.op("Mul", self.op("Div", x, root), self.constant(np.ones(size)))

    def heads(self, x: str, rows: int, heads: int, size: int) -> str:
        """(batch, rows, heads * size) → (batch, heads, rows, size)"""
        parted = self.op("Reshape", x, self.shape(1, rows, heads, size))
        return self.op("Transpose", parted, perm=[0, 2, 1, 3])

    def attention(self, x: str, rows: int, width: int, heads: int) -> str:
        """Self-attention of all rows, with its four products."""
        size = width // heads
        query, key, value = (self.heads(self.linear(x, width, width), rows, heads, size) for _ in range(3))
        scores = self.op("MatMul", query, self.op("Transpose", key, perm=[0, 1, 3, 2]))
        weights = self.op("Softmax", self.op("Mul", scores, self.constant(size**-0.5)), axis=-1)
        mixed = self.op("Transpose", self.op("MatMul", weights, value), perm=[0, 2, 1, 3])
        return self.linear(self.op("Reshape", mixed, self.shape(1, rows, width)), width, width)

    def saved(self, path: Path, *results: str) -> Path:
        """Writes the model, checked, with the shapes of its results."""
        outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in results]
        graph = helper.make_graph(self._nodes, path.stem, self._inputs, outputs, self._weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        model = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
        del model.graph.value_info[:]
        onnx.checker.check_model(model)
        onnx.save(model, path)
        return path
