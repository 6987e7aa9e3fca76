"""Arithmetic, comparisons and conversions as LLVM IR: rows, vector mathematics and calls of C functions.

Conditions under which an instruction fails are checked by the caller before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jitree.codegen.ir_text import LLVM_TYPES, ModuleText
from jitree.codegen.vector_math.ir import FUNCTIONS, function_texts
from jitree.dispatch.native import rows
from jitree.dispatch.native.rows import Let
from jitree.dispatch.semantics import SEMANTICS
from jitree.regs.layout import MATH_FUNCTIONS


def can_emit(mnemonic: str) -> bool:
    """Whether there is IR for an instruction."""
    return mnemonic in SEMANTICS


def emit(
    let: Let, module: ModuleText, mnemonic: str, arguments: Sequence[str], math: Callable[[str], str]
) -> str:
    """The result of an instruction that is no comparison. ``math(name)`` is the address of a C function."""
    semantic = SEMANTICS[mnemonic]
    if semantic.math_function is not None:
        return _call(let, math(semantic.math_function), mnemonic, arguments, " #4")
    if mnemonic in FUNCTIONS:
        symbol = f'@"math.{mnemonic}"'
        for text in function_texts(mnemonic, symbol, 1, "internal"):
            module.define(text)
        return _call(let, symbol, mnemonic, arguments)
    return rows.result(let, module.declare, mnemonic, arguments, 1)


def _call(let: Let, function: str, mnemonic: str, arguments: Sequence[str], attributes: str = "") -> str:
    semantic = SEMANTICS[mnemonic]
    kinds = [LLVM_TYPES[kind] for kind in semantic.argument_types]
    typed = ", ".join(f"{kind} {argument}" for kind, argument in zip(kinds, arguments, strict=True))
    return let(f"call {LLVM_TYPES[semantic.result_type]} {function}({typed}){attributes}")


def math_index(name: str) -> int:
    """Position of a C function in the table of STATE.math."""
    return MATH_FUNCTIONS.index(name)
