"""Writes what an editor knows of a module: ``jitree stub``."""

from __future__ import annotations

import keyword
import os
import re
import sys
from collections.abc import Iterator
from typing import Final

from jitree.api.calls.declaration import OUT, TIMEOUT, Parameter, Signature, signature_of, storage_names
from jitree.api.module import Module
from jitree.errors import StatusError, printable, system_refusals
from jitree.tools.flags import ParsedFlags, command, flag_set
from jitree.types import ElementType
from jitree.vmfb.archive import Archive
from jitree.vmfb.cconv import parse
from jitree.vmfb.module import read_module
from jitree.vmfb.schema import FunctionRow, ModuleTables

FLAGS: Final = flag_set(
    "stub",
    "writes a typed Python module that loads a compiled one, for editors and type checkers",
    "stub",
    "module",
)
_NUMPY_SCALARS = re.compile(r"u?int(8|16|32|64)|float(16|32|64)|complex(64|128)")
_HEAD: Final = '''"""Loads module {name}, whose functions type checkers and editors know by this file.

`jitree stub` has written it; write it again when the module changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

import jitree

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    Tensor = ArrayLike | jitree.Array


class {title}(Protocol):
    """Has the functions of the module, and nothing that it has not."""
'''
_TAIL: Final = '''

def load(path: str = {path!r}, **options: Any) -> {title}:
    """The module in a session of its own; options as of `jitree.load`."""
    return cast({title}, jitree.load(path, **options))
'''


@command(FLAGS)
def main(flags: ParsedFlags) -> int:
    """Writes the wrapper to standard output, or to the file that is named."""
    path = flags.text("module")
    module = read_module(Archive.open(path))
    text = "\n".join(wrapper_lines(module, path)) + "\n"
    target = flags.text("output")
    if not target or target == "-":
        sys.stdout.write(text)
        return 0
    with system_refusals(f"writing '{target}'"), open(target, "w", encoding="utf-8") as file:
        file.write(text)
    return 0


def wrapper_lines(module: ModuleTables, path: str) -> Iterator[str]:
    """Writes a class whose methods are the exported functions, and ``load``."""
    title = "".join(part.title() for part in re.split(r"[\W_]+", module.name)) or "Loaded"
    title = _identifier(title)
    yield _HEAD.format(name=_quoted(module.name), title=title).rstrip()
    shown = [export for export in module.exports if not export.name.startswith("__")]
    for export in shown:
        yield from _method(export.name, module.functions[export.ordinal])
    if shown:
        names = ", ".join(repr(export.name) for export in shown)
        yield ""
        yield f"    def __getitem__(self, name: Literal[{names}]) -> jitree.Function: ..."
    yield _TAIL.format(path=os.path.abspath(path), title=title).rstrip()


def _method(name: str, function: FunctionRow) -> Iterator[str]:
    """Writes a method. Names that are no identifiers, or those of attributes of modules, are items."""
    if not is_name(name) or hasattr(Module, name):
        return
    signature = signature_of(name, parse(function.cconv), function.attrs)
    results = [_result_type(item) for item in signature.results]
    result = "None" if not results else results[0] if len(results) == 1 else f"tuple[{', '.join(results)}]"
    yield ""
    yield f"    def {name}({', '.join(_parameters(signature))}) -> {result}:"
    yield f"        {_docstring(signature)}"
    yield "        ..."


def _docstring(signature: Signature) -> str:
    text = f"{', '.join(map(str, signature.arguments))} -> {', '.join(map(str, signature.results))}"
    return f'"""{_quoted(text)}."""'


def _quoted(text: str) -> str:
    """Names of programs may be any text, also what would end a docstring."""
    return printable(text).replace("\\", "\\\\").replace('"', "'")


def _parameters(signature: Signature) -> Iterator[str]:
    names = [item.name for item in signature.arguments]
    are_names = all(map(is_name, names)) and len({*names, "self", TIMEOUT, OUT}) == len(names) + 3
    yield "self"
    for index, item in enumerate(signature.arguments):
        yield f"{item.name if are_names else f'argument{index}'}: {_argument_type(item)}"
    if names and not are_names:
        yield "/"
    yield "*"
    yield f"{TIMEOUT}: float = ..."
    if storage_names(signature):
        yield f"{OUT}: Any = ..."


def _argument_type(item: Parameter) -> str:
    if item.tensor is not None:
        return "Tensor"
    plain = _python_type(item)
    return "Any" if plain == "object" else plain


def _result_type(item: Parameter) -> str:
    return "jitree.Array" if item.tensor is not None else _argument_type(item)


def is_name(text: str) -> bool:
    return text.isidentifier() and not keyword.iskeyword(text)


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
