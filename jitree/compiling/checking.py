"""Checks a module against onnxruntime's results for its model."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from jitree.base.records import NamedTuple
from jitree.compiling.onnx_files import FUNCTION
from jitree.compiling.onnx_inputs import inputs_of
from jitree.compiling.onnx_nodes import shape_of
from jitree.compiling.programs import CompilerWork
from jitree.errors import StatusError, UnavailableError

TOLERANCE: Final = 1e-4
"""A larger error is a warning."""
WRONG: Final = 1e-2
"""A larger error is none of rounding."""
WRONG_QUANTISED: Final = 1e-1
"""… nor of steps of quantised numbers: where sums end near a half, one of 127 more or less goes on to what
follows. onnxruntime with and without its optimisations differs so from itself."""
_QUANTISING: Final = ("QuantizeLinear", "DynamicQuantizeLinear")
SMALLEST: Final = 1e-3
"""Errors are relative to no less: onnxruntime takes small probabilities from the difference of large ones."""
_RANDOM: Final = (
    "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
)  # fmt: skip
_SEED: Final = 36
_LARGEST: Final = 1 << 30
"""Bytes of an argument that is made up."""
_LOTS: Final = ((2, 64, 256), (2, 64, 2), (2, 64, 1), (1, 1, 256), (1, 1, 1))
"""What stands for an open size of the first dimension and of others, and the bound of integers: these may be
bytes, places in small tables, or sizes."""

Array = npt.NDArray[Any]


class ModelCheck(NamedTuple):
    error: float | None
    """The largest difference over the largest value of the reference; None where there is no comparison."""
    about: str
    """The name of the result that has it; without a comparison the reason for that."""
    limit: float = WRONG
    """A larger error is a wrong result."""


def check_model(module: str, reference: Any, device: str, work: CompilerWork) -> ModelCheck:
    """Runs the module and onnxruntime with the same random arguments; raises what the module fails with."""
    drawing = _random_operator(reference)
    if drawing:
        return ModelCheck(None, f"{drawing} draws random numbers")
    for value in inputs_of(reference):
        dtype = _dtype_of(value)
        if dtype.isbuiltin != 1:
            return ModelCheck(None, f"it takes elements of type {dtype}, which numpy itself does not have")
        if prod(_shape(value, *_LOTS[0][:2])) * dtype.itemsize > _LARGEST:
            return ModelCheck(None, f"its argument '{value.name}' is larger than {_LARGEST >> 20} MiB")
    lots = [_arguments(reference, *lot) for lot in _LOTS]
    paths = [work.path(name) for name in ("reference.onnx", "arguments.npz", "results.npz")]
    Path(paths[0]).write_bytes(reference.SerializeToString())
    arrays = {f"{number}/{name}": array for number, lot in enumerate(lots) for name, array in lot.items()}
    np.savez(paths[1], **arrays)  # type: ignore[arg-type]
    refusal = work.ask_peer("run", *paths)
    if refusal:
        return ModelCheck(None, refusal)
    with np.load(paths[2]) as file:
        results = [(value.name, file[str(index)]) for index, value in enumerate(reference.graph.output)]
        found = _compared(module, device, [*lots[int(file["lot"])].values()], results)
        return found._replace(limit=limit_of(reference))


def limit_of(model: Any) -> float:
    """The largest error that rounding makes."""
    return WRONG_QUANTISED if any(node.op_type in _QUANTISING for node in model.graph.node) else WRONG


def _compared(
    module: str, device: str, arguments: Sequence[Array], expected: Sequence[tuple[str, Array]]
) -> ModelCheck:
    from jitree.api.session import Session

    try:
        session = Session(device)
    except UnavailableError as error:
        return ModelCheck(None, error.message)
    try:
        with session:
            given = session.load(module)[FUNCTION](*arguments)
            results = [np.asarray(one) for one in (given if isinstance(given, tuple) else (given,))]
    except StatusError as error:
        error.with_context("the module was made, and does not run; --check=false keeps it")
        raise
    pairs = zip(expected, results, strict=True)
    errors = [(error_of(result, wanted), name) for (name, wanted), result in pairs]
    return ModelCheck(*max(errors))


def error_of(result: Array, expected: Array) -> float:
    """The largest difference over the largest value, or over SMALLEST; over the range of quantized values
    where they are those next to each other, since what lies between two is rounded to either.
    What is not finite has to be the same, or the error is infinite, as it is for another shape."""
    if result.shape != expected.shape:
        return float("inf")
    wide = np.complex128 if np.iscomplexobj(expected) else np.float64
    given, wanted = result.astype(wide), expected.astype(wide)
    differs = ~((given == wanted) | (np.isnan(given) & np.isnan(wanted)))
    if not differs.any():
        return 0.0
    if not (np.isfinite(given[differs]).all() and np.isfinite(wanted[differs]).all()):
        return float("inf")
    largest = np.abs(wanted[np.isfinite(wanted)]).max()
    error = np.abs(given[differs] - wanted[differs]).max()
    is_rounding = expected.dtype.kind in "iu" and expected.dtype.itemsize == 1 and error == 1
    return float(error / max(largest, np.iinfo(expected.dtype).max if is_rounding else SMALLEST))


def _random_operator(model: Any) -> str:
    """An operator whose results nobody can compare; empty without one."""
    constants = {weight.name: weight for weight in model.graph.initializer}
    for node in model.graph.node:
        trains = node.op_type == "Dropout" and len(node.input) == 3 and node.input[2]
        if node.op_type in _RANDOM or (trains and _may_be_true(constants.get(node.input[2]))):
            return f"{node.op_type} '{node.name}'"
    return ""


def _may_be_true(weight: Any) -> bool:
    import onnx

    return weight is None or bool(onnx.numpy_helper.to_array(weight).any())


def _arguments(model: Any, first: int, others: int, bound: int) -> dict[str, Array]:
    random = np.random.default_rng(_SEED)
    return {value.name: _argument(value, first, others, bound, random) for value in inputs_of(model)}


def _argument(value: Any, first: int, others: int, bound: int, random: np.random.Generator) -> Array:
    shape, dtype = _shape(value, first, others), _dtype_of(value)
    if dtype.kind == "b":
        return random.integers(0, 2, shape).astype(dtype)
    if dtype.kind in "iu":
        return random.integers(0, min(bound, np.iinfo(dtype).max), shape).astype(dtype)
    return random.standard_normal(shape).astype(dtype)


def _shape(value: Any, first: int, others: int) -> list[int]:
    sizes = enumerate(shape_of(value) or ())
    return [(others if axis else first) if size is None else size for axis, size in sizes]


def _dtype_of(value: Any) -> np.dtype[Any]:
    import onnx

    return onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)  # type: ignore[no-any-return]
