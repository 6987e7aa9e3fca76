"""``jitree.compile``: a model of another tool becomes a module."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from jitree.base.private_files import unique
from jitree.base.records import NamedTuple
from jitree.compiling import checking
from jitree.compiling.explanations import explain
from jitree.compiling.onnx_files import prepare, read_model
from jitree.compiling.processes import MessageLog, compiler, onnx_importer, run
from jitree.compiling.targets import CPU_TARGETS, CUDA, PORTABLE, CompileTarget, target_of
from jitree.errors import (
    DataLossError,
    InternalError,
    InvalidArgumentError,
    StatusError,
    UnavailableError,
    UnimplementedError,
    folded,
    memory_errors,
)

SECONDS: Final = 600.0
"""How long importer and compiler may take."""


class CompileOptions(NamedTuple):
    """How a model is compiled; :func:`compile` says what each means."""

    target: CompileTarget
    shapes: Mapping[str, Sequence[int | None]] = {}
    types: Mapping[str, str] = {}
    opset: int = 0
    seconds: float = SECONDS
    compare: bool = True
    flags: tuple[str, ...] = ()


class CompiledModel(NamedTuple):
    """A module that has been written, and what is known of it."""

    path: str
    declarations: tuple[str, ...]
    """Of its functions."""
    notes: tuple[str, ...]
    """What could not be done to the model beforehand."""
    check: checking.ModelCheck


@folded
@memory_errors("compiling a model")
def compile(
    model: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    target: str | Sequence[str] = PORTABLE,
    input_shapes: Mapping[str, Sequence[int | None]] | None = None,
    input_dtypes: Mapping[str, str] | None = None,
    opset: int | None = None,
    timeout: float = SECONDS,
    check: bool = True,
    flags: Sequence[str] = (),
) -> bytes | str:
    """Compiles a model; returns the bytes of the module, or the path ``output`` that it is written to.

    ``model``: the path of an ONNX file, of MLIR text or bytecode, or of a portable artefact of StableHLO.
    ``target``: one or more of "vmvx" (one file for all processors), "llvm-cpu" (this processor), "cuda";
    several make one file that has all of them.
    ``input_shapes``: sizes of inputs by name, None for one that stays open. ``input_dtypes``: element types
    of inputs by name (``"ui8"``); the model casts them to its own.
    ``opset``: the version of ONNX's operators that the model is converted to; 17 for older ones by default.
    ``timeout``: seconds that importer and compiler may take. ``check``: compares the result with that of
    onnxruntime where it is installed; an error above 1e-4 of the largest value is a warning.
    ``flags``: more flags of ``iree-compile``.

    NOT_FOUND for a missing file, INVALID_ARGUMENT for what is no model or damaged, and for shapes, types and
    targets that do not fit; UNIMPLEMENTED where the compiler refuses the model, with the operator, its place
    and what to change; DEADLINE_EXCEEDED; UNAVAILABLE without the packages (``pip install
    'jitree[compile]'``) or where the file cannot be written; DATA_LOSS where the result is wrong by 1e-2.
    """
    options = CompileOptions(
        target_of(target), input_shapes or {}, input_dtypes or {}, opset or 0, timeout, check, tuple(flags)
    )
    if output is not None:
        made = compile_file(os.fspath(model), os.fspath(output), options)
        data: bytes | str = made.path
    else:
        with tempfile.TemporaryDirectory(prefix="jitree-compile-") as folder:
            made = compile_file(os.fspath(model), os.path.join(folder, "module.vmfb"), options, log_of(model))
            data = Path(made.path).read_bytes()
    if made.check.error is not None and made.check.error > checking.TOLERANCE:
        warnings.warn(departure(os.fspath(model), made.check), stacklevel=3)
    return data


def log_of(model: str | os.PathLike[str]) -> str:
    """Where messages go of a module that is given as bytes."""
    return os.path.join(tempfile.gettempdir(), f"{Path(model).stem}.{unique()}.log")


def departure(model: str, check: checking.ModelCheck) -> str:
    return (
        f"'{model}': result '{check.result}' departs from that of onnxruntime by {check.error:.1e} of its "
        "largest value"
    )


def compile_file(model: str, output: str, options: CompileOptions, log_path: str = "") -> CompiledModel:
    """Writes the module of a model, whole or not at all. Its log lies beside it meanwhile, and stays where
    the compiler refuses the model."""
    ends = time.monotonic() + options.seconds
    notes: list[str] = []
    with written(output) as temporary, logged(log_path or f"{output}.log") as log:
        with tempfile.TemporaryDirectory(prefix="jitree-compile-") as folder:
            program, reference, nodes = _imported(model, folder, options, notes, log, ends)
            command = [*compiler(), program, "-o", temporary, *options.target.flags(options.flags)]
            if run(command, log, ends):
                raise _refusal(model, log, nodes, "the compiler")
        result = checking.ModelCheck(None, "the model is no ONNX file")
        if reference is not None:
            result = _checked(temporary, reference, options)
        if result.error is not None and not result.error <= checking.WRONG:
            raise DataLossError(departure(model, result), "--nocheck")
    return CompiledModel(output, _declarations(output), tuple(notes), result)


def _imported(
    model: str, folder: str, options: CompileOptions, notes: list[str], log: MessageLog, ends: float
) -> tuple[str, Any, Mapping[str, str]]:
    """The file that the compiler takes, the model to compare with, and places of nodes."""
    if not model.endswith(".onnx"):
        return model, None, {}
    importer = onnx_importer()
    prepared = prepare(read_model(model), options.shapes, options.types, options.opset, notes.append)
    source, program = os.path.join(folder, "prepared.onnx"), os.path.join(folder, "program.mlirbc")
    Path(source).write_bytes(prepared.program.SerializeToString())
    if run([*importer, source, program, prepared.declaration], log, ends):
        raise _refusal(model, log, prepared.nodes, "the importer")
    return program, prepared.reference, prepared.nodes


def _refusal(model: str, log: MessageLog, nodes: Mapping[str, str], who: str) -> StatusError:
    reason = explain(log.text(), nodes)
    if reason is None:
        return InternalError(f"{who} fails and says nothing of '{model}'", f"its log is '{log.path}'")
    return UnimplementedError(f"{who} refuses '{model}': {reason}", f"its log is '{log.path}'")


def _checked(path: str, reference: Any, options: CompileOptions) -> checking.ModelCheck:
    if not options.compare:
        return checking.ModelCheck(None, "it was not asked for")
    if any(name in CPU_TARGETS for name in options.target.names):
        return checking.check(path, reference, "local-task")
    return checking.check(path, reference, CUDA)


def _declarations(path: str) -> tuple[str, ...]:
    from jitree.api.inspection import inspect

    functions = inspect(path).functions.values()
    return tuple(dict.fromkeys(signature.declaration for signature in functions))


@contextlib.contextmanager
def written(path: str) -> Iterator[str]:
    """A file beside the path, which takes its place when all has gone well. UNAVAILABLE where it cannot be
    written, which is found before anything is done."""
    temporary = f"{path}.{unique()}"
    try:
        if os.path.isdir(path):
            raise InvalidArgumentError(f"cannot write '{path}': it is a folder; name the file of the module")
        open(temporary, "xb").close()
        try:
            yield temporary
            os.replace(temporary, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
    except OSError as error:
        if isinstance(error, StatusError):
            raise
        raise UnavailableError(f"cannot write '{path}': {error.strerror}") from None


@contextlib.contextmanager
def logged(path: str) -> Iterator[MessageLog]:
    """The log of what runs; it stays where that is refused or takes too long."""
    log = MessageLog(path)
    try:
        yield log
    except (UnimplementedError, InternalError, TimeoutError):
        raise
    except BaseException:
        os.unlink(path)
        raise
    os.unlink(path)
