"""Compiles a model of another tool to a module: ``jitree.compile``."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from operator import index
from pathlib import Path
from typing import Any, Final

from jitree.base.private_files import unique
from jitree.compiling.building import PREFIX, CompileOptions, compile_model, departure, module_name
from jitree.compiling.checking import TOLERANCE
from jitree.compiling.onnx_inputs import ChosenInputs
from jitree.compiling.sources import name_of
from jitree.compiling.targets import PORTABLE, target_of
from jitree.errors import InvalidArgumentError, folded, memory_errors

SECONDS: Final = 600.0
"""How long importer and compiler may take."""


@folded
@memory_errors("compiling a model")
def compile(
    model: Any,
    output: str | os.PathLike[str] | None = None,
    *,
    target: str | Sequence[str] = PORTABLE,
    input_shapes: Mapping[str, Sequence[int | None]] | None = None,
    input_dtypes: Mapping[str, str] | None = None,
    input_values: Mapping[str, Any] | None = None,
    opset: int = 0,
    name: str = "",
    timeout: float = SECONDS,
    check: bool = True,
    flags: Sequence[str] = (),
) -> bytes | str:
    """Compiles a model; returns the bytes of the module, or the path ``output`` that it is written to.

    ``model``: the path or the bytes of an ONNX file, of MLIR text or bytecode, or of StableHLO (a portable
    artefact, or ``jax.export.Exported.serialize()``); an object that JAX or PyTorch has exported; a function
    of JAX or a module of PyTorch; ``"module:function"`` or ``"file.py:function"`` of either.
    ``target``: one or more of "vmvx" (all processors), "llvm-cpu" (this kind of processor), "cuda"; several
    make one file that has all of them.
    ``input_shapes``: sizes of inputs by name, None for one that stays open. ``input_dtypes``: element types
    of inputs by name (``"ui8"``); an ONNX model casts them to its own, functions take f32 by default.
    ``input_values``: arrays or numbers for inputs of an ONNX model, by name, which become constants.
    ``opset``: the version of ONNX's operators that the model is converted to; 0: 17 if it has an older one.
    ``name``: of the module; a session takes each name once. Without it the module is called like ``output``,
    or like the model's file, unless it is MLIR that has a name.
    ``timeout``: seconds that importer and compiler may take. ``check``: compares results with those of
    onnxruntime where it is installed; an error above 1e-4 of the largest value is a warning.
    ``flags``: more flags of ``iree-compile``, or others than this function chooses.

    NOT_FOUND for a missing file, INVALID_ARGUMENT for what is no model or damaged, and for shapes, types and
    targets that do not fit; UNIMPLEMENTED where the compiler refuses the model, with the operator, its place
    and what to change; DEADLINE_EXCEEDED; UNAVAILABLE without the packages (``pip install
    'jitree[compile]'``) or where the file cannot be written; DATA_LOSS where the result is wrong by 1e-2.
    """
    shapes = {name: _sizes(name, shape) for name, shape in (input_shapes or {}).items()}
    inputs = ChosenInputs(shapes, input_dtypes or {}, input_values or {})
    options = CompileOptions(target_of(target), inputs, opset, timeout, check, flags, name)
    title = name_of(model)
    note = _noted(title)
    if output is not None:
        result = compile_model(model, os.fsdecode(output), options, note).check
        data: bytes | str = os.fsdecode(output)
    else:
        with tempfile.TemporaryDirectory(prefix=PREFIX) as folder:
            like = title.rpartition(":")[2] if isinstance(model, (str, os.PathLike)) else "module"
            path = os.path.join(folder, f"{module_name(like)}.vmfb")
            log = os.path.join(tempfile.gettempdir(), unique())
            result = compile_model(model, path, options, note, log).check
            data = Path(path).read_bytes()
    if result.error is not None and result.error > TOLERANCE:
        note(departure(result))
    return data


def _sizes(name: str, shape: Any) -> tuple[int | None, ...]:
    try:
        sizes = tuple(None if size is None else index(size) for size in shape)
    except TypeError:
        sizes = (0,)
    if any(size is not None and size <= 0 for size in sizes):
        raise InvalidArgumentError(
            f"input_shapes: the shape of '{name}' is {shape!r}; it is to have whole numbers above 0, None "
            "for a size that stays open"
        )
    return sizes


def _noted(name: str) -> Callable[[str], None]:
    return lambda text: warnings.warn(f"'{name}': {text}", stacklevel=4)
