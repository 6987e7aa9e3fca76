"""Converts what ``jitree compile`` is given to a file for the compiler's importers.

Files are told apart by what they contain. ``module:function`` and objects of Python are what JAX and PyTorch
have exported, or functions that they export.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from jitree.base.records import NamedTuple
from jitree.compiling.onnx_files import first_line
from jitree.compiling.onnx_inputs import ChosenInputs
from jitree.errors import (
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
    attribute_of,
    pass_interruption,
)
from jitree.types import BY_NAME
from jitree.vmfb.archive import content
from jitree.vmfb.recognise import MLIR_BYTECODE, describe_foreign, is_mlir, is_onnx

_REFERENCE: Final = re.compile(r"(?P<module>[^:\0]+):(?P<name>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)")
_LENGTH: Final = 4
"""Bytes of the length of an array in a FlatBuffer."""


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
    """Makes StableHLO of a function that JAX traces, an ONNX file of PyTorch. INVALID_ARGUMENT for arguments
    without a shape, and what they cannot export; UNAVAILABLE where they are not installed."""
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


class ModelSource(NamedTuple):
    name: str
    """What errors call it."""
    path: str
    """The file that is imported."""
    is_onnx: bool
    """Else it is MLIR."""
    is_shaped: bool
    """Whether its inputs have the shapes and types that were asked for."""


def opened(model: Any, inputs: ChosenInputs, folder: str) -> ModelSource:
    """The file of a model; what has none is written to the folder. NOT_FOUND for what there is not,
    INVALID_ARGUMENT for what is no model."""
    name = name_of(model)
    if isinstance(model, (str, os.PathLike)):
        reference = _REFERENCE.fullmatch(name)
        if os.path.exists(name) or reference is None:
            found = content(name)
            if not os.path.isfile(name):  # a pipe, which nobody can read again
                return _kept(name, found, folder)
            return _recognised(name, found, name, folder)
        model = _imported(reference["module"], reference["name"])
    is_shaped = is_function(model)
    data = program_of(model, name, inputs, folder) if is_shaped else bytes_of(model, name)
    return _kept(name, memoryview(data), folder, is_shaped)


def name_of(model: Any) -> str:
    """A path, ``module:function``, or what kind of object it is."""
    if isinstance(model, (str, os.PathLike)):
        return os.fsdecode(model)
    named = attribute_of(model, "__name__") or attribute_of(model, "fun_name")
    return str(named or type(model).__name__)


def _kept(name: str, data: memoryview, folder: str, is_shaped: bool = False) -> ModelSource:
    path = os.path.join(folder, "given")
    Path(path).write_bytes(data)
    return _recognised(name, data, path, folder, is_shaped)


def _recognised(name: str, data: memoryview, path: str, folder: str, is_shaped: bool = False) -> ModelSource:
    if is_onnx(data) or is_mlir(data):
        return ModelSource(name, path, is_onnx(data), is_shaped)
    inner = _inside(data)
    if inner is not None:
        path = os.path.join(folder, "inside.mlirbc")
        Path(path).write_bytes(inner)
        return ModelSource(name, path, False, is_shaped)
    reason = describe_foreign(data) or "it is no ONNX, StableHLO or MLIR file, or damaged"
    raise InvalidArgumentError(f"'{name}' cannot be compiled: {reason}")


def _inside(data: memoryview) -> memoryview | None:
    """The portable artefact in what ``jax.export.Exported.serialize`` gives, which is a FlatBuffer."""
    found = re.search(re.escape(MLIR_BYTECODE), data)
    if found is None or found.start() < _LENGTH:
        return None
    length = int.from_bytes(data[found.start() - _LENGTH : found.start()], "little")
    return data[found.start() : found.start() + length] if length <= len(data) - found.start() else None


def _imported(module: str, name: str) -> Any:
    """The object of a module or of a Python file. NOT_FOUND without it."""
    try:
        found: Any = _loaded(module)
    except Exception as error:
        pass_interruption(error)
        kind = NotFoundError if isinstance(error, (ImportError, FileNotFoundError)) else InvalidArgumentError
        said = f"{type(error).__name__}: {first_line(error)}"
        raise kind(f"'{module}' cannot be imported: {said}") from error
    for part in name.split("."):
        found = attribute_of(found, part)
        if found is None:
            raise NotFoundError(f"'{module}' has no '{part}'")
    return found


def _loaded(module: str) -> Any:
    """A file by its path, and modules as ``python -m`` finds them: beside where the command is given."""
    if module.endswith(".py"):
        spec = importlib.util.spec_from_file_location(Path(module).stem, module)
        assert spec is not None and spec.loader is not None
        loaded = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded)
        return loaded
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        return importlib.import_module(module)
    finally:
        with contextlib.suppress(ValueError):  # the module has taken it away
            sys.path.remove(here)
