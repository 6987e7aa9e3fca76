"""Handlers of constants and of every instruction that has a semantics function."""

from __future__ import annotations

from typing import Final

from jitree.codegen.ir_text import LLVM_TYPES
from jitree.dispatch.fast.handler import Handler
from jitree.dispatch.semantics import SEMANTICS, Semantic
from jitree.regs.layout import MATH_FUNCTIONS, STATE

_CONSTANTS: Final = ("const.i32", "const.i64", "const.f32", "const.f64")
MNEMONICS: Final = (*SEMANTICS, *_CONSTANTS, *(f"{name}.zero" for name in _CONSTANTS))


def emit(handler: Handler, mnemonic: str) -> None:
    """Reads the operands, computes, writes the result."""
    if mnemonic in SEMANTICS:
        _emit_semantic(handler, mnemonic, SEMANTICS[mnemonic])
    else:
        _emit_constant(handler, mnemonic)


def _emit_constant(handler: Handler, mnemonic: str) -> None:
    kind = "i64" if "64" in mnemonic else "i32"
    size = {"i32": 1, "i64": 2}[kind]
    if mnemonic.endswith(".zero"):
        value, out = "0", 1
    else:
        value, out = handler.load(kind, handler.place(1), alignment=4), 1 + size
    handler.set_value(kind, out, value)
    handler.advance(out + 1)


def _emit_semantic(handler: Handler, mnemonic: str, semantic: Semantic) -> None:
    count = len(semantic.argument_types)
    handler.fetch(1, count + 2)  # and the next opcode
    result = _compute(handler, mnemonic, semantic, 1)
    handler.set_value(semantic.result_type, 1 + count, result)
    handler.advance(2 + count)


def emit_copied_compare(handler: Handler, mnemonic: str, position: int) -> str:
    """A comparison whose operands stand at a word position; the condition as i1."""
    semantic = SEMANTICS[mnemonic]
    count = len(semantic.argument_types)
    handler.fetch(position, count + 1)
    result = _compute(handler, mnemonic, semantic, position)
    handler.set_value("i32", position + count, result)
    return handler.let(f"icmp ne i32 {result}, 0")


def _compute(handler: Handler, mnemonic: str, semantic: Semantic, position: int) -> str:
    kinds = semantic.argument_types
    arguments = [handler.value(kind, position + number) for number, kind in enumerate(kinds)]
    handler.require_valid(mnemonic, semantic, arguments)
    typed = ", ".join(f"{LLVM_TYPES[k]} {a}" for k, a in zip(kinds, arguments, strict=True))
    function = _function(handler, mnemonic, semantic)
    return handler.let(f"call {LLVM_TYPES[semantic.result_type]} {function}({typed})")


def _function(handler: Handler, mnemonic: str, semantic: Semantic) -> str:
    if semantic.math_function is None:
        return symbol(mnemonic)
    table = handler.pointer_field("%state", STATE["math"])
    return handler.pointer_field(table, 8 * MATH_FUNCTIONS.index(semantic.math_function))


def symbol(mnemonic: str) -> str:
    """The name that the builder gives the compiled semantics function."""
    return f'@"semantics.{mnemonic}"'


def declarations() -> list[str]:
    """One line for each semantics function that the builder has to supply."""
    return [
        f"declare {LLVM_TYPES[semantic.result_type]} {symbol(mnemonic)}"
        f"({', '.join(LLVM_TYPES[kind] for kind in semantic.argument_types)})"
        for mnemonic, semantic in SEMANTICS.items()
        if semantic.math_function is None
    ]
