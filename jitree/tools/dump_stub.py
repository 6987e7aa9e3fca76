"""A Python stub of a module's exports, from their source-level declarations where the file has them."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator
from typing import Final

from jitree.errors import StatusError
from jitree.vmfb.cconv import Span, parse
from jitree.vmfb.schema import Function, Module

DECLARATION: Final = "iree.abi.declaration"
_TENSOR = re.compile(r"tensor<(?:(?:\d+|\?)x)*([\w<>]+?)(?:,.*)?>")
_SCALARS: Final = {"i": "int", "I": "int", "f": "float", "F": "float", "r": "object"}
_NUMPY_TYPES: Final = {
    "i1": "numpy.bool_", "i8": "numpy.int8", "i16": "numpy.int16", "i32": "numpy.int32", "i64": "numpy.int64",
    "ui8": "numpy.uint8", "ui16": "numpy.uint16", "ui32": "numpy.uint32", "ui64": "numpy.uint64",
    "f16": "numpy.float16", "f32": "numpy.float32", "f64": "numpy.float64", "bf16": "ml_dtypes.bfloat16",
    "f8E4M3FN": "ml_dtypes.float8_e4m3fn", "f8E4M3FNUZ": "ml_dtypes.float8_e4m3fnuz",
    "f8E5M2": "ml_dtypes.float8_e5m2", "f8E5M2FNUZ": "ml_dtypes.float8_e5m2fnuz",
    "complex<f32>": "numpy.complex64", "complex<f64>": "numpy.complex128",
}  # fmt: skip
"""Array element type of each tensor element type."""


def stub_lines(module: Module) -> Iterator[str]:
    """One function for each export that a host calls."""
    shown = [export for export in module.exports if not export.name.startswith("__")]
    lines = [line for export in shown for line in _function(export.name, module.functions[export.ordinal])]
    if any("numpy" in line or "ml_dtypes" in line for line in lines):
        yield "import numpy"
    if any("ml_dtypes" in line for line in lines):
        yield "import ml_dtypes"
    if any("numpy.typing" in line for line in lines):
        yield "import numpy.typing"
    yield from lines


def _function(name: str, function: Function) -> Iterator[str]:
    declaration = function.attrs.get(DECLARATION)
    if declaration is None:
        yield _definition(name, _undeclared(function))
        return
    yield f"# {declaration}"
    match = re.search(r"\((?P<arguments>.*)\) -> \((?P<results>.*)\)\s*$", declaration)
    if match is None:
        yield _definition(name, _undeclared(function))
        return
    arguments = [_declared(text) for text in _split(match["arguments"])]
    results = [_python_type(_declared(text)[1]) for text in _split(match["results"])]
    texts = [f"{argument}: {_python_type(declared)}" for argument, declared in arguments]
    yield _definition(name, (texts, results))


def _definition(name: str, signature: tuple[list[str], list[str]]) -> str:
    arguments, results = signature
    result = "None" if not results else results[0] if len(results) == 1 else f"tuple[{', '.join(results)}]"
    return f"def {_identifier(name)}({', '.join(arguments)}) -> {result}: ..."


def _identifier(name: str) -> str:
    text = re.sub(r"\W", "_", name)
    return f"_{text}" if not text or text[0].isdigit() or keyword.iskeyword(text) else text


def _undeclared(function: Function) -> tuple[list[str], list[str]]:
    try:
        cconv = parse(function.cconv)
    except StatusError:
        return ["*arguments: object"], ["object"]
    arguments = [
        f"argument{index}: {'list' if isinstance(item, Span) else _SCALARS[item]}"
        for index, item in enumerate(cconv.arguments)
    ]
    return arguments, [_SCALARS[character] for character in cconv.results]


def _split(text: str) -> list[str]:
    """The parts between commas that no bracket or quote encloses."""
    parts: list[str] = []
    depth, start, in_string = 0, 0, False
    for position, character in enumerate(text):
        if character == '"':
            in_string = not in_string
        elif not in_string and character in "<([{":
            depth += 1
        elif (not in_string and character in ")]}") or (character == ">" and text[position - 1] != "-"):
            depth -= 1
        elif character == "," and depth == 0 and not in_string:
            parts.append(text[start:position])
            start = position + 1
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip()]


def _declared(text: str) -> tuple[str, str]:
    """(Python name, type) of ``%input0: tensor<4xf32> {attributes}``."""
    name, _, declared = text.partition(":")
    return _identifier(name.strip().lstrip("%")), re.sub(r"\s*\{.*\}\s*$", "", declared.strip())


def _python_type(declared: str) -> str:
    match = _TENSOR.fullmatch(declared)
    if match:
        element = _NUMPY_TYPES.get(match[1])
        return f"numpy.typing.NDArray[{element}]" if element else "object"
    if re.fullmatch(r"(index|[su]?i\d+)", declared):
        return "int"
    return "float" if re.fullmatch(r"b?f\d+", declared) else "object"
