"""The meaning of every arithmetic, comparison, conversion and bit instruction: one typed function each.

The plain tier calls them, and Numba compiles them: the fast tier's handlers inline the code, compiled
functions and loop nests are written with the few instructions that LLVM leaves of it
(:mod:`jitree.dispatch.native.rows`). Tests compare all with numpy. Operand types come from the instruction
table, so a row here cannot disagree with it.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any, Final

from jitree.base.platform import address_of_function
from jitree.base.records import NamedTuple
from jitree.codegen.vector_math import functions
from jitree.dispatch import semantics_float, semantics_integer
from jitree.regs.layout import MATH_FUNCTIONS
from jitree.vmfb.instructions import INSTRUCTIONS, Instruction

FAMILIES: Final[tuple[ModuleType, ...]] = (
    semantics_integer, semantics_float, semantics_float, functions,
)  # fmt: skip

_WIDTH: Final = re.compile("(?<=_[if])(32|64)")
_REFUSALS: Final = ("signed_division", "unsigned_division", "exact", "exact_32", "count")


class Semantic(NamedTuple):
    """``function(*arguments) -> result`` over values of the types ``i32 i64 f32 f64``.

    The types say how registers are read and written: those of the instruction table, and integers for floats
    of which the function takes or gives the bits (``neg.f32``, ``bitcast.*``, ``select.f64``).
    """

    function: Callable[..., int | float]
    argument_types: tuple[str, ...]
    result_type: str
    math_function: str | None = None
    """Name of the C library function, when the instruction is a call of it."""
    refusal: str | None = None
    """``x``, when the function refuses operands by ``require_x`` of :mod:`jitree.codegen.numbers`, in
    divisions the first two. Machine code checks them before."""


def _c_function(name: str) -> Callable[..., float]:
    kind = ctypes.c_float if name == "remainderf" else ctypes.c_double
    operands = (kind,) * (2 if name in ("atan2", "pow", "remainder", "remainderf") else 1)
    return ctypes.CFUNCTYPE(kind, *operands)(address_of_function(name))


@cache
def math_functions() -> dict[str, Callable[..., float]]:
    """The functions by name; every tier calls them, so all agree bit for bit."""
    return {name: _c_function(name) for name in MATH_FUNCTIONS}


def _math_name(row: Instruction) -> str | None:
    operation, width = row.mnemonic.rsplit(".", 1) if row.mnemonic.count(".") == 1 else ("", "")
    name = {"rem": "remainder"}.get(operation, operation) + ("f" if width == "f32" else "")
    return name if width in ("f32", "f64") and name in math_functions() else None


def _function(name: str) -> Any:
    """The function of an instruction, or the one for all widths of its operands."""
    found = (getattr(family, each, None) for each in (name, _WIDTH.sub("", name)) for family in FAMILIES)
    return next(filter(None, found), None)


def _find(row: Instruction) -> Semantic | None:
    kinds = [operand.kind.removeprefix("r.") for operand in row.operands]
    function = _function(row.mnemonic.replace(".", "_"))
    if function is not None:
        stated = zip(kinds, function.__annotations__.values(), strict=True)
        *arguments, result = (kind.replace("f", "i") if name == "int" else kind for kind, name in stated)
        called = set(function.__code__.co_names)
        refusals = [kind for kind in _REFUSALS if f"require_{kind}" in called]
        return Semantic(function, tuple(arguments), result, None, *refusals)
    name = _math_name(row)
    return Semantic(math_functions()[name], tuple(kinds[:-1]), kinds[-1], name) if name is not None else None


SEMANTICS: Final[dict[str, Semantic]] = {
    row.mnemonic: semantic for row in INSTRUCTIONS if (semantic := _find(row)) is not None
}
