"""Python functions on integers to LLVM IR: functions, and all that they call.

Parameters and results are ``int`` (64 bits, wrapping), ``bool``, ``None`` or a record class, as annotated.
Functions may use each other, what Numba can do with integers, and :mod:`~jitree.codegen.primitives` for
memory and calls of C.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any

from jitree.codegen import typed  # noqa: F401  (it makes the primitives known)
from jitree.codegen.forks import spread
from jitree.codegen.frontend import RecordType, compiled, is_primitive, signature_of, types
from jitree.codegen.primitives import APART, ElementMemory
from jitree.errors import InternalError

IntegerFunction = Callable[..., Any]


def texts(functions: Iterable[IntegerFunction]) -> list[str]:
    """The IR of functions and of all that they call, a text each; the symbols are the functions' names."""
    return spread(_text, list(_reached(functions).values()))


def _text(function: IntegerFunction) -> str:
    """INTERNAL if a variable is a float or without sign: what Numba then does differs from Python. Functions
    of elements may have floats, which they move, and leave arithmetic to the semantics."""
    made = compiled(function, function.__name__, signature_of(function))
    has_elements = any(_is_elements(kind) for kind in made.variables.values())
    for name, kind in made.variables.items() if not has_elements else ():
        if isinstance(kind, types.Float) or (isinstance(kind, types.Integer) and not kind.signed):
            raise InternalError(f"{function.__name__}: '{name}' has type {kind}, which is no signed integer")
    return made.text.replace('"no-builtins"', 'noinline "no-builtins"') if function in APART else made.text


def _is_elements(kind: Any) -> bool:
    return isinstance(kind, RecordType) and issubclass(kind.cls, ElementMemory)


def _reached(functions: Iterable[IntegerFunction]) -> dict[str, IntegerFunction]:
    """Functions by name. INTERNAL if two have the same."""
    found: dict[str, IntegerFunction] = {}
    waiting = list(functions)
    while waiting:
        function = waiting.pop()
        name = function.__name__
        if name not in found:
            waiting += _callees(function)
        if found.setdefault(name, function) is not function:
            raise InternalError(f"two functions of the name {name}")
    return found


def _callees(function: IntegerFunction) -> list[IntegerFunction]:
    used = [function.__globals__.get(name) for name in function.__code__.co_names]
    used += [cell.cell_contents for cell in function.__closure__ or ()]
    return [item for item in used if isinstance(item, FunctionType) and not is_primitive(item)]
