"""Whether a module computes what onnxruntime computes of the model that it was made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from jitree.base.records import NamedTuple
from jitree.compiling.onnx_files import FUNCTION
from jitree.compiling.onnx_inputs import inputs_of, shape_of
from jitree.compiling.processes import CompilerWork
from jitree.errors import StatusError, UnavailableError

TOLERANCE: Final = 1e-4
"""A larger error is a warning."""
WRONG: Final = 1e-2
"""A larger error is none of rounding."""
SMALLEST: Final = 1e-3
"""Errors are relative to no less: onnxruntime takes small probabilities from the difference of large ones."""
_SEED: Final = 36
_LOTS: Final = ((2, 64, 256), (2, 64, 2), (2, 64, 1), (1, 1, 256), (1, 1, 1))
"""What stands for an open size of the first dimension and of others, and the bound of integers: these may be
bytes, places in small tables, or sizes."""

Array = npt.NDArray[Any]


class ModelCheck(NamedTuple):
    error: float | None
    """The largest difference over the largest value of the reference; None where there is no comparison."""
    about: str
    """The name of the result that has it; without a comparison the reason for that."""


def check_model(module: str, reference: Any, device: str, work: CompilerWork) -> ModelCheck:
    """Runs the module and onnxruntime with the same random arguments; raises what the module fails with."""
    paths = [work.path(name) for name in ("reference.onnx", "arguments.npz", "results.npz")]
    lots = [_arguments(reference, *lot) for lot in _LOTS]
    Path(paths[0]).write_bytes(reference.SerializeToString())
    arrays = {f"{number}/{name}": array for number, lot in enumerate(lots) for name, array in lot.items()}
    np.savez(paths[1], **arrays)  # type: ignore[arg-type]
    refusal = work.ask_peer("run", *paths)
    if refusal:
        return ModelCheck(None, refusal)
    with np.load(paths[2]) as file:
        results = {value.name: file[str(index)] for index, value in enumerate(reference.graph.output)}
        return _compared(module, device, [*lots[int(file["lot"])].values()], results)


def _compared(
    module: str, device: str, arguments: Sequence[Array], expected: Mapping[str, Array]
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
    errors = {
        name: error_of(result, wanted)
        for (name, wanted), result in zip(expected.items(), results, strict=True)
    }
    worst = max(errors, key=lambda name: errors[name])
    return ModelCheck(errors[worst], worst)


def error_of(result: Array, expected: Array) -> float:
    """The largest difference over the largest value, or over SMALLEST. What is not finite has to be the same,
    or the error is infinite, as it is for another shape."""
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
    return float(np.abs(given[differs] - wanted[differs]).max() / max(largest, SMALLEST))


def _arguments(model: Any, first: int, others: int, bound: int) -> dict[str, Array]:
    random = np.random.default_rng(_SEED)
    return {value.name: _argument(value, first, others, bound, random) for value in inputs_of(model)}


def _argument(value: Any, first: int, others: int, bound: int, random: np.random.Generator) -> Array:
    import onnx

    sizes = enumerate(shape_of(value) or ())
    shape = [(others if axis else first) if size is None else size for axis, size in sizes]
    dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    if dtype.kind == "b":
        return random.integers(0, 2, shape).astype(dtype)
    if dtype.kind in "iu":
        return random.integers(0, min(bound, np.iinfo(dtype).max), shape).astype(dtype)
    return random.standard_normal(shape).astype(dtype)
