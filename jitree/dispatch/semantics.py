"""The meaning of every arithmetic, comparison, conversion and bit instruction: one typed function each.

The plain tier calls them, and Numba compiles them: the fast tier's handlers inline the code, compiled
functions and loop nests are written with the few instructions that LLVM leaves of it
(:mod:`jitree.dispatch.semantics_rows`). Tests compare all with numpy. Operand types come from the instruction
table, so a row here cannot disagree with it.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Final

from jitree.base.records import NamedTuple
from jitree.dispatch import (
    semantics_conversion,
    semantics_float,
    semantics_integer,
    vector_math,
    vector_math_f64,
)
from jitree.dispatch.primitives import MATH
from jitree.dispatch.semantics_float import BIT_PATTERNS
from jitree.vmfb.isa import INSTRUCTIONS, Instruction

FAMILIES: Final[tuple[ModuleType, ...]] = (
    semantics_integer, semantics_float, semantics_conversion, vector_math, vector_math_f64,
)  # fmt: skip


class Semantic(NamedTuple):
    """``function(*arguments) -> result`` over values of the types ``i32 i64 f32 f64``.

    The types say how registers are read and written. Instructions that only look at bits (``neg.f32``,
    ``bitcast.*``, ``select.f64``) have integer types here. Division and remainder raise InvalidArgumentError.
    """

    function: Callable[..., int | float]
    argument_types: tuple[str, ...]
    result_type: str
    math_function: str | None = None
    """Name of the C library function, when the instruction is a call of it."""


def _math_name(row: Instruction) -> str | None:
    operation, width = row.mnemonic.rsplit(".", 1) if row.mnemonic.count(".") == 1 else ("", "")
    name = {"rem": "remainder"}.get(operation, operation) + ("f" if width == "f32" else "")
    return name if width in ("f32", "f64") and name in MATH else None


def _find(row: Instruction) -> Semantic | None:
    types = [operand.kind.removeprefix("r.") for operand in row.operands]
    if row.mnemonic in BIT_PATTERNS:
        types = [kind.replace("f", "i") for kind in types]
    arguments, result = tuple(types[:-1]), types[-1] if types else ""
    for family in FAMILIES:
        function = getattr(family, row.mnemonic.replace(".", "_"), None)
        if function is not None:
            return Semantic(function, arguments, result)
    math_name = _math_name(row)
    return Semantic(MATH[math_name], arguments, result, math_name) if math_name is not None else None


SEMANTICS: Final[dict[str, Semantic]] = {
    row.mnemonic: semantic for row in INSTRUCTIONS if (semantic := _find(row)) is not None
}
