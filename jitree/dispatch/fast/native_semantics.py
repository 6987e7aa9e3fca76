"""The semantics functions compiled by Numba to LLVM IR that the loop's handlers inline.

Only the builder and tests import this module.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import FunctionType
from typing import Any, Final

from llvmlite.binding import llvm_version_info
from numba import njit, types

from jitree.dispatch import primitives, vector_math_ir
from jitree.dispatch.fast.arithmetic import symbol
from jitree.dispatch.fast.handler import LLVM_TYPES
from jitree.dispatch.fast.native_primitives import JIT_OPTIONS, NATIVE
from jitree.dispatch.fast.skeleton import LOOP_FILE, generate, generate_forms
from jitree.dispatch.semantics import SEMANTICS, Semantic
from jitree.errors import InternalError

PRESERVE_NONE_SINCE: Final = (20, 0, 0)
"""LLVM that has this calling convention for tail calls on both machines. Handlers then have all registers to
themselves and save none: calls are 10 % faster. ``tailcc`` exists everywhere."""

NUMBA_TYPES: Final = {"i32": types.int32, "i64": types.int64, "f32": types.float32, "f64": types.float64}


def loop_texts(convention: str | None = None) -> list[str]:
    """The IR texts of the loop's image: the skeleton and one for each semantics function.

    ``convention`` is the calling convention of the handlers, by default the best one for this machine.

    INTERNAL if ``loop.ll`` is not of this instruction table and memory layout: its code would read and write
    in the wrong places.
    """
    skeleton = LOOP_FILE.read_text(encoding="ascii")
    if skeleton != generate():
        raise InternalError(
            f"{LOOP_FILE} is out of date; python -m jitree.dispatch.fast.skeleton writes it anew"
        )
    compiled = [
        semantics_text(mnemonic, semantic)
        for mnemonic, semantic in SEMANTICS.items()
        if semantic.math_function is None
    ]
    handlers = skeleton + generate_forms()
    return [handlers.replace(" tailcc ", f" {convention or _convention()} "), *compiled]


def _convention() -> str:
    if llvm_version_info >= PRESERVE_NONE_SINCE and os.uname().machine in ("x86_64", "aarch64"):
        return "preserve_nonecc"
    return "tailcc"


def compile_semantic(semantic: Semantic) -> Any:
    """A Numba dispatcher compiled for the semantic's types, without wrappers for Python."""
    signature = NUMBA_TYPES[semantic.result_type](*(NUMBA_TYPES[kind] for kind in semantic.argument_types))
    return njit(signature, **JIT_OPTIONS)(native_function(semantic.function))


def native_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function over native primitives: the globals that it uses are replaced."""
    assert isinstance(function, FunctionType)
    names = function.__globals__.keys() & set(function.__code__.co_names)
    replaced = {name: _native(function.__globals__[name]) for name in names}
    return FunctionType(function.__code__, replaced, function.__name__)


def _native(value: Any) -> Any:
    if not isinstance(value, FunctionType):
        return value
    if value.__module__ == primitives.__name__:
        return NATIVE[value.__name__]
    return njit(**JIT_OPTIONS)(native_function(value))


def semantics_text(mnemonic: str, semantic: Semantic) -> str:
    """A definition of the symbol that the skeleton declares: Numba's IR of a semantics function, or ours of
    vector math."""
    if mnemonic in vector_math_ir.MNEMONICS:
        return vector_math_ir.function_text(mnemonic, symbol(mnemonic), 1)
    dispatcher = compile_semantic(semantic)
    compiled = dispatcher.overloads[dispatcher.signatures[0]]
    name = compiled.fndesc.llvm_func_name
    result = LLVM_TYPES[semantic.result_type]
    kinds = [LLVM_TYPES[kind] for kind in semantic.argument_types]
    parameters = ", ".join(f"{kind} %a{number}" for number, kind in enumerate(kinds))
    return f"""{compiled.library.get_llvm_str()}
define {result} {symbol(mnemonic)}({parameters}) alwaysinline {{
  %result.at = alloca {result}
  %error.at = alloca ptr
  %status = call i32 @{name}(ptr %result.at, ptr %error.at, {parameters})
  %result = load {result}, ptr %result.at
  ret {result} %result
}}
"""
