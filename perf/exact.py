"""Says how exact runtimes are, and compares jitree with those that compute as exactly; used by others here.

A model is computed once more in 64 bits, by the reference implementation of ONNX, which shares no code with
a runtime. An error is the largest difference from that over its largest value. A peer counts for `best`
where its error is at most `FACTOR` times the larger one of jitree's and onnxruntime's: what is faster since
it computes something else (Winograd's convolutions, functions by short polynomials) is printed beside, with
a mark, and the table has ratios to these peers alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from apart import Timed
from peers import RUNTIMES

Array = np.ndarray[Any, Any]
FACTOR: Final = 4.0
OWN: Final = "jitree"
_FIRST: Final = next(iter(RUNTIMES))
_OPERATORS: Final = 21
"""The version of ONNX that is computed. Of earlier ones the reference lacks steps between i8 and f32, and its
normalisation of batches is that of training."""


def reference(model: Path, values: Sequence[Array]) -> Array:
    """The first result of a model whose numbers of 32 bits have 64."""
    import onnx.version_converter
    from onnx.reference import ReferenceEvaluator

    wide = onnx.load(model)
    if max(used.version for used in wide.opset_import if not used.domain) < _OPERATORS:
        wide = onnx.version_converter.convert_version(wide, _OPERATORS)
    _widen(wide.graph)
    given = [value.astype(np.float64) if value.dtype == np.float32 else value for value in values]
    named = {argument.name: value for argument, value in zip(wide.graph.input, given, strict=True)}
    return np.asarray(ReferenceEvaluator(wide, new_ops=[_largest()]).run(None, named)[0])


def _largest() -> Any:
    """An operator that the reference computes for images only."""
    from onnx.reference.op_run import OpRun

    class GlobalMaxPool(OpRun):  # type: ignore[misc, unused-ignore]  # onnx has no types
        op_domain = ""

        def _run(self, x: Array) -> tuple[Array]:
            return (x.max(axis=tuple(range(2, x.ndim)), keepdims=True),)

    return GlobalMaxPool


def _widen(graph: Any) -> None:
    """Makes f64 of all f32: constants, arguments, results, and what operators convert to."""
    from onnx import TensorProto

    for tensor in graph.initializer:
        _widen_constant(tensor)
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                _widen_constant(attribute.t)
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.DOUBLE


def _widen_constant(tensor: Any) -> None:
    from onnx import TensorProto, numpy_helper

    if tensor.data_type == TensorProto.FLOAT:
        wide = numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(numpy_helper.from_array(wide, tensor.name))


def error_of(result: Array, expected: Array) -> float:
    """The largest difference over the largest value; one place that is no number makes it infinite."""
    difference = np.abs(result - expected).max() / np.abs(expected).max()
    return float(difference) if np.isfinite(difference) else float("inf")


def compared(timed: Mapping[str, Timed], expected: Array) -> tuple[str, dict[str, float]]:
    """A row of times and errors, and by what is compared the other's time over jitree's."""
    errors = {name: error_of(what.result, expected) for name, what in timed.items()}
    bound = FACTOR * max(errors[OWN], errors.get(_FIRST, 0.0))
    texts, ratios, peers = [], {}, {}
    for name, what in timed.items():
        equal = errors[name] <= bound
        texts.append(f"{name} {what.seconds * 1e3:8.3f} ms {errors[name]:.0e}{' ' if equal else '!'}")
        if name == OWN:
            continue
        ratio = what.seconds / timed[OWN].seconds
        ratios[f"against {name}{'' if equal else ' (less exact)'}"] = ratio
        if name in RUNTIMES:
            peers[name] = ratio, equal
    if fair := [ratio for ratio, equal in peers.values() if equal]:
        ratios["against best"] = min(fair)
    if peers:
        ratios["against best of any error"] = min(ratio for ratio, _ in peers.values())
    return " ".join(texts), ratios
