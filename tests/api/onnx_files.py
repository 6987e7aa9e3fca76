"""ONNX models of a chain of matrix products and softmaxes, written field by field, and what runs them where
onnxruntime is not installed: it has the same functions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from jitree.compare.peers import outputs_of

Array = npt.NDArray[np.float32]
_FLOAT = 1


def field(number: int, value: int | bytes | str) -> bytes:
    """One field of a message."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def varint(value: int) -> bytes:
    head, rest = value & 0x7F, value >> 7
    return bytes([head | 0x80]) + varint(rest) if rest else bytes([head])


def node(operation: str, inputs: Sequence[str], output: str) -> bytes:
    return b"".join(field(1, name) for name in inputs) + field(2, output) + field(4, operation)


def tensor(name: str, array: Array) -> bytes:
    dimensions = b"".join(field(1, size) for size in array.shape)
    return dimensions + field(2, _FLOAT) + field(8, name) + field(9, array.tobytes())


def value(name: str, shape: Sequence[int]) -> bytes:
    dimensions = b"".join(field(1, field(1, size)) for size in shape)
    return field(1, name) + field(2, field(1, field(1, _FLOAT) + field(2, dimensions)))


def chain(weights: Sequence[Array], rows: int) -> bytes:
    """``x`` times each of the weights, with a softmax after each."""
    graph, last = b"", "x"
    for number, weight in enumerate(weights):
        product, soft = f"product_{number}", f"soft_{number}"
        graph += field(1, node("MatMul", [last, f"w_{number}"], product)) + field(
            1, node("Softmax", [product], soft)
        )
        graph += field(5, tensor(f"w_{number}", weight))
        last = soft
    size = weights[0].shape[0]
    graph += field(2, "chain") + field(11, value("x", (rows, size))) + field(12, value(last, (rows, size)))
    return field(1, 8) + field(8, field(1, "") + field(2, 17)) + field(7, graph)


class Session:
    """As ``onnxruntime.InferenceSession``, of a chain."""

    def __init__(self, model: bytes | str, options: Any = None, providers: Any = None) -> None:
        self._model_bytes = model if isinstance(model, bytes) else Path(model).read_bytes()
        if not outputs_of(self._model_bytes):
            raise ValueError("no graph")

    def get_inputs(self) -> list[Any]:
        return [SimpleNamespace(name="x")]

    def get_outputs(self) -> list[Any]:
        return [SimpleNamespace(name=name) for name in outputs_of(self._model_bytes)]

    def get_providers(self) -> list[str]:
        return ["CPUExecutionProvider"]

    def run(self, names: Sequence[str] | None, given: dict[str, Array]) -> list[Array]:
        known = outputs_of(self._model_bytes)
        if names is not None and not set(names) <= set(known):
            raise ValueError("no such output")
        x, values = given["x"], dict[str, Array]()
        if x.dtype != np.float32:
            raise ValueError("unexpected input data type")
        for number in range(self._model_bytes.count(b"Softmax")):
            place = self._model_bytes.index(b"\x42\x03w_%d\x4a" % number)
            start = self._model_bytes.index(b"\x4a", place) + 3
            size = x.shape[1]
            weight = np.frombuffer(self._model_bytes, "<f4", size * size, start).reshape(size, size)
            values[f"product_{number}"] = product = x @ weight
            raised = np.exp(product - product.max(1, keepdims=True))
            values[f"soft_{number}"] = x = raised / raised.sum(1, keepdims=True)
        return [values[name] for name in (known if names is None else names)]


def runtime() -> ModuleType:
    """As ``onnxruntime``."""
    made: Any = ModuleType("onnxruntime")
    made.InferenceSession = Session
    made.SessionOptions = lambda: SimpleNamespace(add_session_config_entry=lambda name, text: None)
    return made  # type: ignore[no-any-return]
