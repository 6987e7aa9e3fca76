"""Programs that are objects of Python: what JAX and PyTorch have exported, and functions that they export."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jitree.compiling.onnx_files import first_line
from jitree.compiling.onnx_inputs import ChosenInputs
from jitree.errors import InvalidArgumentError, UnavailableError, attribute_of, pass_interruption
from jitree.types import BY_NAME


def is_function(model: Any) -> bool:
    """Whether it has to be exported, for the shapes of its arguments."""
    if isinstance(model, type) or isinstance(attribute_of(model, "mlir_module_serialized"), bytes):
        return False
    return callable(model) or _is_of_torch(model)


def bytes_of(model: Any, name: str) -> bytes:
    """StableHLO or ONNX, of bytes, ``jax.export.Exported`` or ``onnx.ModelProto``. INVALID_ARGUMENT for
    other objects."""
    if isinstance(model, (bytes, bytearray, memoryview)):
        return bytes(model)
    exported = attribute_of(model, "mlir_module_serialized")
    if isinstance(exported, bytes):
        return exported
    if attribute_of(model, "graph") is not None and callable(attribute_of(model, "SerializeToString")):
        serialized: bytes = model.SerializeToString()
        return serialized
    raise InvalidArgumentError(
        f"'{name}' cannot be compiled: {type(model).__name__} is no path, bytes, function or exported program"
    )


def program_of(model: Any, name: str, inputs: ChosenInputs, folder: str) -> bytes:
    """StableHLO of a function that JAX traces, an ONNX file of a module of PyTorch. INVALID_ARGUMENT for
    arguments without a shape, and what they cannot export; UNAVAILABLE where they are not installed."""
    if not _is_of_torch(model):
        return _of_jax(model, name, inputs)
    path = os.path.join(folder, "exported.onnx")
    _export_by_torch(model, name, inputs, path)
    return Path(path).read_bytes()


def _is_of_torch(model: Any) -> bool:
    return any(kind.__module__.partition(".")[0] == "torch" for kind in type(model).__mro__)


def _of_jax(function: Callable[..., Any], name: str, inputs: ChosenInputs) -> bytes:
    try:
        import jax
        import jax.export
    except ImportError as error:
        raise UnavailableError(f"'{name}': JAX cannot be imported ({error}): pip install jax") from None
    given = [jax.ShapeDtypeStruct(*each) for each in _arguments(function, name, inputs)]
    try:
        data: bytes = jax.export.export(jax.jit(function))(*given).mlir_module_serialized
    except Exception as error:
        pass_interruption(error)
        raise _not_exported(name, "JAX", error) from error
    return data


def _export_by_torch(model: Any, name: str, inputs: ChosenInputs, path: str) -> None:
    import torch

    given = []
    if isinstance(model, torch.nn.Module):
        arguments = _arguments(model.forward, name, inputs)
        given = [torch.zeros(shape, dtype=getattr(torch, str(dtype))) for shape, dtype in arguments]
        model = model.eval()
    try:
        torch.onnx.export(model, tuple(given), path, dynamo=True, external_data=False, verbose=False)
    except Exception as error:
        pass_interruption(error)
        raise _not_exported(name, "PyTorch", error) from error


def _not_exported(name: str, library: str, error: Exception) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"'{name}': {library} cannot export it: {type(error).__name__}: {first_line(error)}"
    )


def _arguments(
    function: Callable[..., Any], name: str, inputs: ChosenInputs
) -> list[tuple[tuple[int, ...], Any]]:
    """Shape and numpy type of each argument; f32 where nothing else is said."""
    parameters = inspect.signature(function).parameters
    only = "" if len(parameters) == 1 else None
    for given in (*inputs.shapes, *inputs.types, *inputs.values):
        if given not in parameters and given != only:
            raise InvalidArgumentError(f"'{name}' has no argument '{given}'; it has {', '.join(parameters)}")
    if inputs.values:
        raise InvalidArgumentError(f"'{name}': values can be fixed of ONNX files only")
    found = []
    for argument, parameter in parameters.items():
        shape = inputs.shapes.get(argument, inputs.shapes.get(""))
        if shape is None and parameter.default is not parameter.empty:
            break
        if shape is None or None in shape:
            raise InvalidArgumentError(
                f"'{name}': argument '{argument}' needs a shape: --input-shape={argument}=2x3, input_shapes="
            )
        text = inputs.types.get(argument, inputs.types.get("", "f32"))
        if text not in BY_NAME:
            raise InvalidArgumentError(f"'{name}': argument '{argument}': there is no element type '{text}'")
        found.append((tuple(size for size in shape if size is not None), BY_NAME[text].dtype))
    return found
