"""Compiles a model of another tool to a module: ``jitree compile``."""

from __future__ import annotations

import contextlib
import re
import signal
import sys
from collections.abc import Iterable, Iterator
from typing import Final, NoReturn

from jitree.errors import InvalidArgumentError, error_context
from jitree.tools.element_parsing import parse_float
from jitree.tools.flags import ParsedFlags, command, flag_set

_SIGNALLED: Final = 128
"""What shells add to the number of the signal that has ended a command."""
_INTEGER: Final = re.compile("-?[0-9]{1,18}")
_SHAPE: Final = re.compile(r"((?:[1-9][0-9]{0,9}|\?)(?:x(?:[1-9][0-9]{0,9}|\?))*)?")
FLAGS: Final = flag_set("compile", "makes a module of an ONNX, StableHLO or MLIR file", "compile", "model")


@command(FLAGS)
def main(flags: ParsedFlags) -> int:
    """Runs the command: compiles, compares with onnxruntime, and says what the file has."""
    from jitree.compiling.checking import TOLERANCE
    from jitree.compiling.models import CompileOptions, compile_model, departure
    from jitree.compiling.onnx_inputs import ChosenInputs
    from jitree.compiling.programs import target_of

    model, output = flags.text("model"), flags.text("output") or flags.text("o")
    if not model or not output:
        raise InvalidArgumentError("name a model and a file: jitree compile model.onnx -o model.vmfb")
    target = target_of(flags.text("target"), flags.text("processor"), flags.text("cuda_target"))
    inputs = ChosenInputs(
        shapes_of(flags.texts("input_shape")),
        _pairs(flags.texts("input_dtype"), "input_dtype"),
        values_of(flags.texts("input_value")),
    )

    def note(text: str) -> None:
        print(f"{model}: {text}", file=sys.stderr)

    options = CompileOptions(
        target,
        inputs,
        flags.integer("opset"),
        flags.number("timeout"),
        flags.boolean("check"),
        flags.texts("compiler_flag"),
        flags.text("name"),
    )
    with _ended_in_order():
        made = compile_model(model, output, options, note)
    for declaration in made.declarations:
        print(f"{output}: {target}: {declaration}")
    if made.check.error is None:
        print(f"{output}: not compared with onnxruntime: {made.check.about}")
    elif made.check.error > TOLERANCE:
        note(f"warning: {departure(made.check)}")
    else:
        print(f"{output}: largest error against onnxruntime {made.check.error:.1e} of the largest value")
    return 0


@contextlib.contextmanager
def _ended_in_order() -> Iterator[None]:
    """SIGTERM and SIGHUP end the command as Ctrl-C does: the compiler, which would go on for minutes, ends as
    well, and files that are half written go. A signal that is ignored (nohup) still is."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    taken = [number for number, handler in before.items() if handler == signal.SIG_DFL]
    for number in taken:
        signal.signal(number, _end)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def _end(number: int, frame: object) -> NoReturn:
    sys.exit(_SIGNALLED + number)


def shapes_of(texts: Iterable[str]) -> dict[str, list[int | None]]:
    """``x=1x3x?x?`` → sizes by name; without a name of the only input.

    INVALID_ARGUMENT for others.
    """
    return {name: _sizes(text, f"{name}={text}") for name, text in _pairs(texts, "input_shape").items()}


def values_of(texts: Iterable[str]) -> dict[str, list[int | float]]:
    """``sr=16000`` and ``scales=1,1,2.5`` → numbers by name. INVALID_ARGUMENT for others."""
    found: dict[str, list[int | float]] = {}
    for name, text in _pairs(texts, "input_value").items():
        with error_context(f"flag '--input_value': '{name}={text}'"):
            numbers = text.split(",")
            found[name] = [int(one) if _INTEGER.fullmatch(one) else parse_float(one) for one in numbers]
    return found


def _sizes(text: str, given: str) -> list[int | None]:
    if not _SHAPE.fullmatch(text):
        raise InvalidArgumentError(
            f"flag '--input_shape': '{given}' is no shape; one is x=1x3x48x192, with ? for a size that stays "
            "open"
        )
    return [None if size == "?" else int(size) for size in text.split("x") if text]


def _pairs(texts: Iterable[str], flag: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        name, _, value = text.rpartition("=")
        if name in found:
            raise InvalidArgumentError(f"flag '--{flag}': input '{name}' is given twice")
        found[name] = value
    return found
