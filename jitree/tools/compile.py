"""``jitree compile``: makes a module of a model of another tool."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Final

from jitree.errors import InvalidArgumentError
from jitree.tools.flag_table import flag_set
from jitree.tools.flags import ParsedFlags, command

FLAGS: Final = flag_set("compile", "makes a module of an ONNX, StableHLO or MLIR file", "compile", "model")


@command(FLAGS)
def main(flags: ParsedFlags) -> int:
    """Runs the command: compiles, compares with onnxruntime, and says what the file has."""
    from jitree.compiling.checking import TOLERANCE
    from jitree.compiling.models import CompileOptions, compile_file, departure
    from jitree.compiling.targets import target_of

    model, output = flags.text("model"), flags.text("output") or flags.text("o")
    if not model or not output:
        raise InvalidArgumentError("name a model and a file: jitree compile model.onnx -o model.vmfb")
    target = target_of(flags.text("target"), flags.text("processor"), flags.text("cuda_target"))
    options = CompileOptions(
        target,
        shapes_of(flags.texts("input_shape")),
        dict(_pairs(flags.texts("input_dtype"), "input_dtype")),
        flags.integer("opset"),
        flags.number("timeout"),
        flags.boolean("check"),
        tuple(flags.texts("compiler_flag")),
    )
    made = compile_file(model, output, options)
    for note in made.notes:
        print(f"{model}: {note}", file=sys.stderr)
    for declaration in made.declarations:
        print(f"{output}: {target}: {declaration}")
    if made.check.error is None:
        print(f"{output}: not compared with onnxruntime: {made.check.result}")
    elif made.check.error > TOLERANCE:
        print(f"warning: {departure(model, made.check)}", file=sys.stderr)
    else:
        print(f"{output}: largest error against onnxruntime {made.check.error:.1e} of the largest value")
    return 0


def shapes_of(texts: Iterable[str]) -> dict[str, list[int | None]]:
    """``x=1x3x?x?`` → sizes by name; without a name of the only input. INVALID_ARGUMENT for others."""
    return {name: _sizes(text, f"{name}={text}") for name, text in _pairs(texts, "input_shape")}


def _sizes(text: str, given: str) -> list[int | None]:
    sizes: list[int | None] = []
    for size in text.split("x") if text else ():
        if size != "?" and not (size.isascii() and size.isdecimal() and 0 < int(size) < 1 << 31):
            raise InvalidArgumentError(
                f"flag '--input_shape': '{given}' is no shape; one is x=1x3x48x192, with ? for a size that "
                "stays open"
            )
        sizes.append(None if size == "?" else int(size))
    return sizes


def _pairs(texts: Iterable[str], flag: str) -> list[tuple[str, str]]:
    found: dict[str, str] = {}
    for text in texts:
        name, _, value = text.rpartition("=")
        if name in found:
            raise InvalidArgumentError(f"flag '--{flag}': input '{name}' is given twice")
        found[name] = value
    return list(found.items())
