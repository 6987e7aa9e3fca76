"""What ``jitree compile`` is given, as a file for the compiler's importers: files by what they contain,
``module:function`` and objects of JAX and PyTorch."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import re
import sys
from pathlib import Path
from typing import Any, Final

from jitree.base.records import NamedTuple
from jitree.compiling.onnx_files import first_line
from jitree.compiling.onnx_inputs import ChosenInputs
from jitree.compiling.python_programs import bytes_of, is_function, program_of
from jitree.errors import InvalidArgumentError, NotFoundError, attribute_of, pass_interruption
from jitree.vmfb.archive import content
from jitree.vmfb.recognise import MLIR_BYTECODE, describe_foreign, is_mlir, is_onnx

_REFERENCE: Final = re.compile(r"(?P<module>[^:\0]+):(?P<name>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)")
_LENGTH: Final = 4
"""Bytes of the length of an array in a FlatBuffer."""


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
