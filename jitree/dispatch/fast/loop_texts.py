"""The texts of the loop's image: the handlers, and LLVM IR of the semantics functions that they inline.

Only the builder and tests import this module.
"""

from __future__ import annotations

import os
from typing import Final

from llvmlite.binding import llvm_version_info

from jitree.dispatch import vector_math_ir
from jitree.dispatch.fast.arithmetic import symbol
from jitree.dispatch.fast.handler import LLVM_TYPES
from jitree.dispatch.fast.skeleton import LOOP_FILE, generate, generate_forms
from jitree.dispatch.native import scalars
from jitree.dispatch.native.module_text import ModuleText
from jitree.dispatch.semantics import SEMANTICS, Semantic
from jitree.errors import InternalError
from jitree.vmfb.isa import BY_MNEMONIC

PRESERVE_NONE_SINCE: Final = (20, 0, 0)
"""LLVM that has this calling convention for tail calls on both machines. Handlers then have all registers to
themselves and save none: calls are 10 % faster. ``tailcc`` exists everywhere."""


def loop_texts(convention: str | None = None) -> list[str]:
    """The IR texts of the loop's image: the skeleton and the semantics functions.

    ``convention`` is the calling convention of the handlers, by default the best one for this machine.

    INTERNAL if ``loop.ll`` is not of this instruction table and memory layout: its code would read and write
    in the wrong places.
    """
    skeleton = LOOP_FILE.read_text(encoding="ascii")
    if skeleton != generate():
        raise InternalError(
            f"{LOOP_FILE} is out of date; python -m jitree.dispatch.fast.skeleton writes it anew"
        )
    handlers = skeleton + generate_forms()
    return [handlers.replace(" tailcc ", f" {convention or _convention()} "), semantics_text()]


def _convention() -> str:
    if llvm_version_info >= PRESERVE_NONE_SINCE and os.uname().machine in ("x86_64", "aarch64"):
        return "preserve_nonecc"
    return "tailcc"


def semantics_text() -> str:
    """Definitions of all symbols that the skeleton declares."""
    module = ModuleText()
    functions = [
        _function(module, mnemonic, semantic)
        for mnemonic, semantic in SEMANTICS.items()
        if semantic.math_function is None
    ]
    return "\n".join([*functions, module.text()])


def _function(module: ModuleText, mnemonic: str, semantic: Semantic) -> str:
    if mnemonic in vector_math_ir.MNEMONICS:
        return vector_math_ir.function_text(mnemonic, symbol(mnemonic), 1)
    lines: list[str] = []

    def let(text: str) -> str:
        name = f"%v{len(lines)}"
        lines.append(f"  {name} = {text}")
        return name

    names = [f"%a{number}" for number in range(len(semantic.argument_types))]
    kinds = [LLVM_TYPES[kind] for kind in semantic.argument_types]
    # Instructions that only look at bits have integer types here; those that ``scalars`` takes are the
    # instruction table's.
    *taken, given = (
        LLVM_TYPES[operand.kind.removeprefix("r.")] for operand in BY_MNEMONIC[mnemonic].operands
    )
    arguments = [
        let(f"bitcast {kind} {name} to {wanted}")
        for name, kind, wanted in zip(names, kinds, taken, strict=True)
    ]
    test = scalars.condition(let, mnemonic, arguments)
    if test is None:
        result = scalars.emit(let, module, mnemonic, arguments, _no_library)
    else:
        result = let(f"zext i1 {test} to i32")
    kind = LLVM_TYPES[semantic.result_type]
    result = let(f"bitcast {given} {result} to {kind}")
    parameters = ", ".join(f"{kind} {name}" for kind, name in zip(kinds, names, strict=True))
    head = f"define {kind} {symbol(mnemonic)}({parameters}) alwaysinline {{"
    return "\n".join([head, *lines, f"  ret {kind} {result}", "}"])


def _no_library(name: str) -> str:
    raise InternalError(f"the handler calls the C function {name} by itself")
