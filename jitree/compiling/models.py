"""Compiles a model of another tool to a module: ``jitree.compile``."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from operator import index
from pathlib import Path
from typing import Any, Final

from jitree import errors
from jitree.base.folding import warn
from jitree.base.logs import report
from jitree.base.private_files import put_in_place, refuse_special, unique, written
from jitree.base.records import NamedTuple
from jitree.compiling.checking import TOLERANCE, ModelCheck, check_model
from jitree.compiling.onnx_files import NodePlace, can_expand, prepare, read_model
from jitree.compiling.onnx_inputs import ChosenInputs, type_name
from jitree.compiling.onnx_nodes import graphs_in
from jitree.compiling.programs import (
    PORTABLE,
    CompilerWork,
    CompileTarget,
    MessageLog,
    compiler,
    importer,
    target_of,
)
from jitree.compiling.sources import ModelSource, name_of, opened

_ERROR: Final = re.compile(r"^(?P<place>[^\n]*?)\b(?:error|LLVM ERROR): (?P<text>[^\n]+)", re.MULTILINE)
_OF_FLAGS: Final = re.compile(r"^iree-compile: (?P<place>)(?P<text>[^\n]+)", re.MULTILINE)
"""What it says of its command line, before it begins."""
_LOCATION: Final = re.compile(r'loc\([a-z(\[]*"((?:[^"\\]|\\.)*)".*?\)(?=: |$)')
"""Of one node, or of the first of several."""
_ESCAPED: Final = re.compile(rb"\\([0-9A-F]{2}|\\)")
"""A byte of a name that MLIR does not print as it is."""
_OPERATOR: Final = re.compile(r'"onnx\.(\w+)"')
_OPERATION: Final = re.compile(r"'([a-z_]+\.[\w.]+)'")
_LAST_WORDS: Final = 300
"""Characters of a message that no row knows: what follows is the operation with all its types."""

PREFIX: Final = "jitree-compile-"
"""Of names of folders for a while."""
_DEMOTE: Final = "--iree-input-demote-f64-to-f32"
_DEMOTED: Final = "(--iree-input-demote-*-to-*) changed public function signatures"
_COMPILER, _IMPORTER = "the compiler", "the importer"
_CONVERT_ONLY: Final = ("--compile-to=input", "--emit-mlir-bytecode")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LONGEST_NAME: Final = 100
"""Characters that are taken from the name of a file."""
_OF_THE_RUNTIME: Final = ("hal", "hal_inline", "hal_loader", "io_parameters", "vm", "vmvx")
"""Modules that sessions have themselves, or that the compiler names."""
_CUTTING: Final = ("Cast", "CastLike", "GridSample", "MelWeightMatrix", "OneHot", "Range", "Resize")
"""Operators that make integers of numbers with fractions."""
_CUTTING_OF_INTEGERS: Final = ("ReduceL2", "ReduceLogSum", "ReduceLogSumExp")
"""Operators that do it where their results are integers: they compute with fractions all the same."""
_UNSIGNED: Final = re.compile(r"[x<]ui[0-9]+>")


class _Row(NamedTuple):
    pattern: re.Pattern[str]
    reason: str
    remedy: str


class RefusedModel(NamedTuple):
    operator: str
    """Of ONNX, or an operation of MLIR; empty where the message tells of none."""
    place: str
    """Where it is in the model; empty where the message does not tell."""
    reason: str
    remedy: str
    """What to change; empty where nothing is known."""

    def __str__(self) -> str:
        head = " ".join(part for part in (self.operator, self.place) if part)
        text = f"{head}: {self.reason}" if head else self.reason
        return f"{text}; {self.remedy}" if self.remedy else text


def explain(log: str, nodes: Mapping[str, NodePlace]) -> RefusedModel | None:
    """The first error of a log; None where there is none. ``nodes``: what is known of a location's name."""
    found = _ERROR.search(log) or _OF_FLAGS.search(log)
    if found is None:
        return None
    text, named = found["text"], ""
    place = found["place"].strip().removesuffix(":")
    place = f"at {place}" if place not in ("", "<unknown>:0") else ""
    location = _LOCATION.match(text)
    if location is not None:
        name = _unescaped(location[1])
        text = text[location.end() :].lstrip(": ")
        place = f"'{name}'"
        if name in nodes:
            place, named = f"{place} ({nodes[name].text})", nodes[name].operator
    if not named:
        operator = _OPERATOR.search(text) or _OPERATION.search(text)
        named = operator[1] if operator else ""
    for row in _rows():
        known = row.pattern.search(text)
        if known is not None:
            values = {"operator": named, **known.groupdict()}
            return RefusedModel(named, place, row.reason.format(**values), row.remedy.format(**values))
    return RefusedModel(named, place, _cut(text), "")


def _unescaped(name: str) -> str:
    """As the file has it."""
    data = _ESCAPED.sub(lambda found: _byte(found[1]), name.encode("utf-8", "surrogatepass"))
    return data.decode("utf-8", "backslashreplace")


def _byte(escaped: bytes) -> bytes:
    return escaped if escaped == b"\\" else bytes.fromhex(escaped.decode())


def _cut(text: str) -> str:
    return text if len(text) <= _LAST_WORDS else text[:_LAST_WORDS] + " …"


@cache
def _rows() -> tuple[_Row, ...]:
    lines = Path(__file__).with_name("explanations.tsv").read_text(encoding="utf-8").splitlines()
    fields = (line.split("\t") for line in lines if not line.startswith("#"))
    return tuple(_Row(re.compile(pattern), reason, remedy) for pattern, reason, remedy in fields)


class CompileOptions(NamedTuple):
    """How a model is compiled; :func:`jitree.compiling.models.compile` says what each means."""

    target: CompileTarget
    inputs: ChosenInputs
    opset: int
    seconds: float
    compare: bool
    flags: Sequence[str]
    name: str = ""
    """Of the module; empty: as the program says, or its file."""


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
    mended: str = ""
    """The declaration, if it has results that the conversion takes the sign from, or cuts fractions off."""


class _Refused(Exception):
    """A step has failed; its messages are in the log."""

    def __init__(self, who: str, nodes: Mapping[str, NodePlace], status: int) -> None:
        super().__init__(who, nodes)
        self.who, self.nodes = who, nodes
        self.ending = "fails" if status >= 0 else f"crashes ({signal.Signals(-status).name})"


def departure(check: ModelCheck) -> str:
    return f"'{check.about}' departs from onnxruntime's result by {check.error:.1e} of its largest value"


def module_name(path: str) -> str:
    """What the module in a file is called: two in one session need two names."""
    name = re.sub(r"\W+", "_", os.path.basename(path).partition(".")[0], flags=re.ASCII)[:_LONGEST_NAME]
    return name if _NAME.fullmatch(name) and name not in _OF_THE_RUNTIME else f"_{name}"


_STAGES: Final = 2
"""Of what a report says: it is compiled, and compared."""


def compile_model(
    model: Any, output: str, options: CompileOptions, note: Callable[[str], None], log_stem: str = ""
) -> CompiledModel:
    """Writes the module of a model, whole or not at all. The messages of importer and compiler are in a file
    beside it, or of the name ``log_stem``, which stays where they refuse the model."""
    ends = time.monotonic() + options.seconds
    _refuse_own_place(model, output)
    said: set[str] = set()

    def note_once(text: str) -> None:
        if text not in said:
            said.add(text)
            note(text)

    if options.name and not _NAME.fullmatch(options.name):
        raise errors.InvalidArgumentError(
            f"'{options.name}' cannot be the name of a module: it is to have letters, digits and _, and "
            "to begin with no digit"
        )
    with (
        written(output) as temporary,
        logged(f"{log_stem or output}.log") as log,
        tempfile.TemporaryDirectory(prefix=PREFIX) as folder,
    ):
        work = CompilerWork(folder, log, ends, note_once)
        source = opened(model, options.inputs, folder)
        title = f"compiling {source.name}"
        report(title, 0, _STAGES)
        reference = _built(source, options, module_name(output), temporary, work)
        report(title, 1, _STAGES)
        check = ModelCheck(None, "it was not asked for")
        if options.compare:
            check = ModelCheck(None, "the model is no ONNX file")
            if reference is not None:
                check = check_model(temporary, reference, options.target.device, work)
        if check.error is not None and not check.error <= check.limit:
            raise errors.DataLossError(
                f"'{source.name}': {departure(check)}; --check=false (check=False) keeps the module"
            )
        report(title, _STAGES, _STAGES)
        return CompiledModel(_declarations(temporary), check)


def _refuse_own_place(model: Any, output: str) -> None:
    """INVALID_ARGUMENT where the module would take the model's place."""
    is_same = False
    with errors.ignored(OSError, ValueError, TypeError):  # there is none, or it is no path
        is_same = os.path.samefile(model, output)
    if is_same:
        raise errors.InvalidArgumentError(f"'{output}' is the model itself; name another file for the module")


def _built(source: ModelSource, options: CompileOptions, name: str, target: str, work: CompilerWork) -> Any:
    """Writes the module, and returns the model to compare it with. Operators that are refused are expanded
    into others, where ONNX says how. Where arguments or results are f64 it is compiled once more."""
    expanded: list[str] = []
    flags = [*options.flags]
    while True:
        try:
            if not source.is_onnx:
                program = _of_mlir(source, options, name, work)
            else:
                program = _of_onnx(source, options, name, expanded, work)
            _compile(program, target, options.target.flags(flags), work)
            if not _is_demoted(target, work.log) or any(flag.startswith(_DEMOTE) for flag in flags):
                return program.reference
            flags.append(f"{_DEMOTE}=false")
        except _Refused as error:
            reason = explain(work.log.text(), error.nodes)
            if reason is None:
                raise errors.InternalError(
                    f"{error.who} {error.ending} with '{source.name}' and gives no reason"
                ) from None
            if not source.is_onnx or reason.operator in expanded or not can_expand(reason.operator):
                raise errors.UnimplementedError(f"{error.who} refuses '{source.name}': {reason}") from None
            work.note(f"{reason.operator} is expanded into other operators, since {error.who} refuses it")
            expanded.append(reason.operator)
            work.log.clear()


def _compile(program: _Program, target: str, flags: Sequence[str], work: CompilerWork) -> None:
    """Compiles a program, mended after its conversion where that is due."""
    path = program.path
    if program.mended:
        lowered, path = work.path("lowered.mlirbc"), work.path("mended.mlirbc")
        convert = [*compiler(), program.path, "-o", lowered, *flags, *_CONVERT_ONLY]
        _run(_COMPILER, convert, program.nodes, work)
        _run(_IMPORTER, [*importer("mend"), lowered, path, program.mended], program.nodes, work)
    _run(_COMPILER, [*compiler(), path, "-o", target, *flags], program.nodes, work)


def _run(who: str, command: Sequence[str], nodes: Mapping[str, NodePlace], work: CompilerWork) -> None:
    status = work.run(who, command)
    if status:
        raise _Refused(who, nodes, status)


def _is_demoted(path: str, log: MessageLog) -> bool:
    """Whether f64 was computed as f32: the compiler does so by default, and warns where it has changed what
    is declared."""
    return _DEMOTED in log.text() or any("f64" in one for one in _declarations(path))


def _of_onnx(
    source: ModelSource, options: CompileOptions, name: str, expanded: Sequence[str], work: CompilerWork
) -> _Program:
    command = importer("onnx")
    inputs = ChosenInputs({}, {}, {}) if source.is_shaped else options.inputs
    try:
        prepared = prepare(read_model(source.path, source.name), inputs, options.opset, expanded, work)
    except errors.UnimplementedError as error:
        raise errors.UnimplementedError(f"'{source.name}': {error.message}") from None
    path, program = work.path("prepared.onnx"), work.path("program.mlirbc")
    Path(path).write_bytes(prepared.program.SerializeToString())
    declaration = prepared.declaration
    _run(_IMPORTER, [*command, path, program, options.name or name, declaration], prepared.nodes, work)
    is_due = _UNSIGNED.search(declaration.partition("->")[2]) is not None
    if PORTABLE in options.target.names:
        is_due |= any(map(_cuts, graphs_in(prepared.program.graph)))
    return _Program(program, prepared.nodes, prepared.reference, declaration if is_due else "")


def _cuts(graph: Any) -> bool:
    """Whether nodes make integers of numbers with fractions. They do where it is not known what they make."""
    fractions = {
        one.name
        for one in (*graph.value_info, *graph.output)
        if type_name(one.type.tensor_type.elem_type).startswith(("f", "bf"))
    }
    return any(
        node.op_type in _CUTTING or (node.op_type in _CUTTING_OF_INTEGERS and node.output[0] not in fractions)
        for node in graph.node
    )


def _of_mlir(source: ModelSource, options: CompileOptions, name: str, work: CompilerWork) -> _Program:
    """Takes MLIR with names, also of JAX, if this Python has the compiler's package."""
    asked = {**options.inputs._asdict(), "an opset": options.opset}
    for what, value in asked.items():
        if value and not source.is_shaped:
            raise errors.InvalidArgumentError(f"'{source.name}': {what} can be chosen of ONNX files only")
    program, log = work.path("program.mlirbc"), MessageLog(work.path("names.log"))
    if options.name:
        _run(_IMPORTER, [*importer("mlir"), source.path, program, options.name, name], {}, work)
    else:
        with contextlib.suppress(errors.UnavailableError):
            work.run(_IMPORTER, [*importer("mlir"), source.path, program, "", name], log)
    return _Program(program if os.path.exists(program) else source.path, {}, None)


def _declarations(path: str) -> tuple[str, ...]:
    from jitree.api.program_files import inspect

    try:
        functions = inspect(path).functions.values()
    except errors.StatusError as error:
        raise errors.InvalidArgumentError(
            "the compiler has written no module: look at the flags that it is given (--compiler-flag=); "
            f"{error.message}"
        ) from None
    return tuple(dict.fromkeys(signature.declaration for signature in functions))


@contextlib.contextmanager
def logged(path: str) -> Iterator[MessageLog]:
    """Keeps the messages of what runs where that is refused or takes too long; no file without any."""
    with errors.system_refusals(f"cannot write '{path}'"):
        place = os.path.abspath(path)
        log = MessageLog(f"{place}.{unique()}")
    try:
        yield log
    except (errors.UnimplementedError, errors.InternalError, errors.DeadlineExceededError) as error:
        if log.text():
            try:
                refuse_special(place)
                put_in_place(log.path, place)
            except errors.StatusError as other:
                error.with_context(f"its messages are lost: {other.message}")
            else:
                error.with_context(f"its messages are in '{path}'")
        raise
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(log.path)


SECONDS: Final = 600.0
"""How long importer and compiler may take."""


@errors.folded
@errors.memory_errors("compiling a model")
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

    >>> data = jitree.compile("perf/programs/call.mlir", target="vmvx")
    >>> jitree.Session("local-sync").load(data).integers(40, 2)
    42
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
            log = os.path.join(tempfile.gettempdir(), f"{PREFIX}{module_name(like)}-{unique()}")
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
        raise errors.InvalidArgumentError(
            f"input_shapes: the shape of '{name}' is {shape!r}; it is to have whole numbers above 0, None "
            "for a size that stays open"
        )
    return sizes


def _noted(name: str) -> Callable[[str], None]:
    return lambda text: warn(f"'{name}': {text}", UserWarning)
