"""A Python stub of a module's exports, from their source-level declarations where the file has them."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator

from jitree.api.calls.declaration import Parameter, signature_of
from jitree.errors import StatusError
from jitree.types import ElementType
from jitree.vmfb.cconv import parse
from jitree.vmfb.schema import FunctionRow, ModuleTables

_NUMPY_SCALARS = re.compile(r"u?int(8|16|32|64)|float(16|32|64)|complex(64|128)")


def stub_lines(module: ModuleTables) -> Iterator[str]:
    """One function for each export that a host calls, under its declaration."""
    shown = [export for export in module.exports if not export.name.startswith("__")]
    lines = [line for export in shown for line in _function(export.name, module.functions[export.ordinal])]
    for package in ("numpy", "numpy.typing", "ml_dtypes"):
        if any(f"{package}." in line for line in lines):
            yield f"import {package}"
    yield from lines


def _function(name: str, function: FunctionRow) -> Iterator[str]:
    try:
        signature = signature_of(name, parse(function.cconv), function.attrs)
    except StatusError as error:
        yield f"# {name}: {error}"
        return
    arguments = ", ".join(
        f"{_identifier(parameter.name)}: {_python_type(parameter)}" for parameter in signature.arguments
    )
    results = [_python_type(parameter) for parameter in signature.results]
    result = "None" if not results else results[0] if len(results) == 1 else f"tuple[{', '.join(results)}]"
    yield f"# {signature.declaration}"
    yield f"def {_identifier(name)}({arguments}) -> {result}: ..."


def _identifier(name: str) -> str:
    text = re.sub(r"\W", "_", name)
    return f"_{text}" if not text or text[0].isdigit() or keyword.iskeyword(text) else text


def _python_type(parameter: Parameter) -> str:
    if parameter.tensor is not None:
        element_type = parameter.tensor.element_type
        return f"numpy.typing.NDArray[{_scalar_type(element_type)}]" if element_type else "object"
    if re.fullmatch(r"index|[su]?i\d+", parameter.type):
        return "int"
    return "float" if re.fullmatch(r"b?f\d+", parameter.type) else "object"


def _scalar_type(element_type: ElementType) -> str:
    name = element_type.numpy_name
    if name == "bool":
        return "numpy.bool_"
    if name.startswith("V"):
        return "numpy.void"
    return f"numpy.{name}" if _NUMPY_SCALARS.fullmatch(name) else f"ml_dtypes.{name}"
