"""Whether a module computes what onnxruntime computes of the model that it was made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from jitree.base.records import NamedTuple
from jitree.compiling.onnx_inputs import inputs_of, shape_of
from jitree.errors import StatusError, pass_interruption

TOLERANCE: Final = 1e-4
"""A larger error is a warning."""
WRONG: Final = 1e-2
"""A larger error is no error of rounding."""
_SEED: Final = 36
_BYTES: Final = 256
_OPEN: Final = (2, 1)
"""What stands for a size that may be any, in turn."""

Array = npt.NDArray[Any]


class ModelCheck(NamedTuple):
    error: float | None
    """The largest difference over the largest value of the reference; None where there is no comparison."""
    result: str
    """The name of the result that has it; without a comparison the reason for that."""


def check(module: str | bytes, reference: Any, device: str) -> ModelCheck:
    """Runs the module and onnxruntime with the same random arguments."""
    try:
        import onnxruntime
    except ImportError:
        return ModelCheck(None, "onnxruntime is not installed (pip install onnxruntime)")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(
            reference.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:
        pass_interruption(error)
        return ModelCheck(None, f"onnxruntime refuses the model: {_first_line(error)}")
    reason = ""
    for arguments in _attempts(reference):
        try:
            expected = session.run(None, arguments)
        except Exception as error:
            pass_interruption(error)
            reason = reason or f"onnxruntime cannot run the model: {_first_line(error)}"
            continue
        return _compared(module, device, list(arguments.values()), expected, reference)
    return ModelCheck(None, reason)


def _compared(
    module: str | bytes, device: str, arguments: Sequence[Array], expected: Sequence[Any], reference: Any
) -> ModelCheck:
    from jitree.api.session import Session

    try:
        with Session(device) as session:
            function = session.load(module)["main"]
            results = function(*arguments)
            results = list(results) if isinstance(results, tuple) else [results]
            errors = [
                error_of(np.asarray(result), np.asarray(wanted))
                for result, wanted in zip(results, expected, strict=True)
            ]
    except StatusError as error:
        return ModelCheck(np.inf, f"none: the module does not run: {error}")
    worst = int(np.argmax(errors))
    return ModelCheck(errors[worst], reference.graph.output[worst].name)


def error_of(result: Array, expected: Array) -> float:
    """The largest difference over the largest value. What is not finite has to be the same, or the error is
    infinite, as it is for another shape."""
    if result.shape != expected.shape:
        return float("inf")
    wide = np.complex128 if np.iscomplexobj(expected) else np.float64
    given, wanted = result.astype(wide), expected.astype(wide)
    same = (given == wanted) | (np.isnan(given) & np.isnan(wanted))
    if same.all():
        return 0.0
    if not (np.isfinite(given[~same]).all() and np.isfinite(wanted[~same]).all()):
        return float("inf")
    largest = np.abs(wanted[np.isfinite(wanted)]).max()
    return float(np.abs(given[~same] - wanted[~same]).max() / largest) if largest else float("inf")


def _attempts(model: Any) -> Iterator[Mapping[str, Array]]:
    """Arguments, the likely ones first: integers may be bytes, places in small tables, or sizes."""
    inputs = inputs_of(model)
    for size in _OPEN:
        for most in (_BYTES, 2, 1):
            random = np.random.default_rng(_SEED)
            yield {value.name: _argument(value, size, most, random) for value in inputs}


def _argument(value: Any, size: int, most: int, random: np.random.Generator) -> Array:
    import onnx

    shape = [size if known is None else known for known in shape_of(value) or ()]
    dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    if dtype.kind == "b":
        return random.integers(0, 2, shape).astype(dtype)
    if dtype.kind in "iu":
        return random.integers(0, min(most, np.iinfo(dtype).max), shape).astype(dtype)
    return random.standard_normal(shape).astype(dtype)


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
