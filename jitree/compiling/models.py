"""``jitree.compile``: a model of another tool becomes a module."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from jitree.base.private_files import unique
from jitree.base.records import NamedTuple
from jitree.compiling.checking import TOLERANCE, WRONG, ModelCheck, check_model
from jitree.compiling.explanations import explain
from jitree.compiling.onnx_files import NodePlace, prepare, read_model
from jitree.compiling.onnx_inputs import ChosenInputs
from jitree.compiling.processes import CompilerWork, MessageLog, compiler, importer
from jitree.compiling.sources import ModelSource, name_of, opened
from jitree.compiling.targets import PORTABLE, CompileTarget, target_of
from jitree.errors import (
    DataLossError,
    DeadlineExceededError,
    InternalError,
    InvalidArgumentError,
    StatusError,
    UnavailableError,
    UnimplementedError,
    folded,
    memory_errors,
    pass_interruption,
)

SECONDS: Final = 600.0
"""How long importer and compiler may take."""
_COMPILER, _IMPORTER = "the compiler", "the importer"
_PREFIX: Final = "jitree-compile-"


class CompileOptions(NamedTuple):
    """How a model is compiled; :func:`compile` says what each means."""

    target: CompileTarget
    inputs: ChosenInputs
    opset: int
    seconds: float
    compare: bool
    flags: Sequence[str]


class CompiledModel(NamedTuple):
    """A module that has been written, and what is known of it."""

    declarations: tuple[str, ...]
    """Of its functions."""
    check: ModelCheck


class _Program(NamedTuple):
    """What the compiler takes."""

    path: str
    nodes: Mapping[str, NodePlace]
    """Places of nodes in the model, by the names that they have in errors."""
    reference: Any
    """The model that results are compared with; None where there is none."""


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
    ``timeout``: seconds that importer and compiler may take. ``check``: compares results with those of
    onnxruntime where it is installed; an error above 1e-4 of the largest value is a warning.
    ``flags``: more flags of ``iree-compile``, or others than this function chooses.

    NOT_FOUND for a missing file, INVALID_ARGUMENT for what is no model or damaged, and for shapes, types and
    targets that do not fit; UNIMPLEMENTED where the compiler refuses the model, with the operator, its place
    and what to change; DEADLINE_EXCEEDED; UNAVAILABLE without the packages (``pip install
    'jitree[compile]'``) or where the file cannot be written; DATA_LOSS where the result is wrong by 1e-2.
    """
    inputs = ChosenInputs(input_shapes or {}, input_dtypes or {}, input_values or {})
    options = CompileOptions(target_of(target), inputs, opset, timeout, check, flags)
    note = _noted(name_of(model))
    if output is not None:
        result = compile_model(model, os.fsdecode(output), options, note).check
        data: bytes | str = os.fsdecode(output)
    else:
        with tempfile.TemporaryDirectory(prefix=_PREFIX) as folder:
            path, log = os.path.join(folder, "module.vmfb"), os.path.join(tempfile.gettempdir(), unique())
            result = compile_model(model, path, options, note, log).check
            data = Path(path).read_bytes()
    if result.error is not None and result.error > TOLERANCE:
        note(departure(result))
    return data


def _noted(name: str) -> Callable[[str], None]:
    return lambda text: warnings.warn(f"'{name}': {text}", stacklevel=4)


def departure(check: ModelCheck) -> str:
    return f"'{check.about}' departs from onnxruntime's result by {check.error:.1e} of its largest value"


def compile_model(
    model: Any, output: str, options: CompileOptions, note: Callable[[str], None], log_stem: str = ""
) -> CompiledModel:
    """Writes the module of a model, whole or not at all. The messages of importer and compiler are in a file
    beside it, or of the name ``log_stem``, which stays where they refuse the model."""
    ends = time.monotonic() + options.seconds
    with (
        written(output) as temporary,
        logged(f"{log_stem or output}.log") as log,
        tempfile.TemporaryDirectory(prefix=_PREFIX) as folder,
    ):
        work = CompilerWork(folder, log, ends, note)
        source = opened(model, options.inputs, folder)
        program = (_of_onnx if source.is_onnx else _of_mlir)(source, options, work)
        flags = options.target.flags(options.flags)
        if work.run(_COMPILER, [*compiler(), program.path, "-o", temporary, *flags]):
            raise _refusal(source.name, _COMPILER, log, program.nodes)
        check = ModelCheck(None, "it was not asked for")
        if options.compare:
            check = ModelCheck(None, "the model is no ONNX file")
            if program.reference is not None:
                check = check_model(temporary, program.reference, options.target.device, work)
        if check.error is not None and not check.error <= WRONG:
            raise DataLossError(
                f"'{source.name}': {departure(check)}; --check=false (check=False) keeps the module"
            )
        return CompiledModel(_declarations(temporary), check)


def _of_onnx(source: ModelSource, options: CompileOptions, work: CompilerWork) -> _Program:
    command = importer("onnx")
    inputs = ChosenInputs({}, {}, {}) if source.is_shaped else options.inputs
    prepared = prepare(read_model(source.path, source.name), inputs, options.opset, work)
    path, program = work.path("prepared.onnx"), work.path("program.mlirbc")
    Path(path).write_bytes(prepared.program.SerializeToString())
    if work.run(_IMPORTER, [*command, path, program, prepared.declaration]):
        raise _refusal(source.name, _IMPORTER, work.log, prepared.nodes)
    return _Program(program, prepared.nodes, prepared.reference)


def _of_mlir(source: ModelSource, options: CompileOptions, work: CompilerWork) -> _Program:
    """With names of JAX, where it has such, and this Python has the compiler's package."""
    asked = {**options.inputs._asdict(), "an opset": options.opset}
    for what, value in asked.items():
        if value and not source.is_shaped:
            raise InvalidArgumentError(f"'{source.name}': {what} can be chosen of ONNX files only")
    program = work.path("program.mlirbc")
    with contextlib.suppress(UnavailableError):
        work.run(
            _IMPORTER, [*importer("stablehlo"), source.path, program], MessageLog(work.path("names.log"))
        )
    return _Program(program if os.path.exists(program) else source.path, {}, None)


def _refusal(name: str, who: str, log: MessageLog, nodes: Mapping[str, NodePlace]) -> StatusError:
    reason = explain(log.text(), nodes)
    if reason is None:
        return InternalError(f"{who} fails with '{name}' and gives no reason")
    return UnimplementedError(f"{who} refuses '{name}': {reason}")


def _declarations(path: str) -> tuple[str, ...]:
    from jitree.api.inspection import inspect

    functions = inspect(path).functions.values()
    return tuple(dict.fromkeys(signature.declaration for signature in functions))


@contextlib.contextmanager
def written(path: str) -> Iterator[str]:
    """A file beside the path, which takes its place when all has gone well. UNAVAILABLE where it cannot be
    written, before anything else is done."""
    temporary = f"{path}.{unique()}"
    try:
        if os.path.isdir(path):
            raise InvalidArgumentError(f"cannot write '{path}': it is a folder; name a file in it")
        open(temporary, "xb").close()
    except OSError as error:
        pass_interruption(error)
        raise UnavailableError(f"cannot write '{path}': {error.strerror}") from None
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


@contextlib.contextmanager
def logged(path: str) -> Iterator[MessageLog]:
    """The messages of what runs; they stay where that is refused or takes too long."""
    log = MessageLog(path)
    keep = False
    try:
        yield log
    except (UnimplementedError, InternalError, DeadlineExceededError) as error:
        keep = True
        error.with_context(f"its messages are in '{path}'")
        raise
    finally:
        if not keep:
            os.unlink(path)
