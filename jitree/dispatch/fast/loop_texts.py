"""Generates the loop's IR and its image, from the instruction table.

A handler for each instruction and each fused superinstruction, and the table of handlers; the text is kept
nowhere. Numba cannot say that handlers call each other in place of returning. So they are LLVM IR, which an
intrinsic links into the function ``run`` where that is compiled: by Numba (:mod:`jitree.dispatch.fast.loop`),
or by the builder of the image. Only those and tests import this module.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from llvmlite import ir

from jitree.codegen.frontend import compiled, intrinsic, link_texts, signature, signature_of, types
from jitree.codegen.image.generated import Generated, one_unit
from jitree.dispatch import semantics_code
from jitree.dispatch.fast.calls import (
    BRANCHES,
    CALLS,
    emit_branch,
    emit_call,
    emit_conditional_next,
    emit_moves,
    emit_shape,
    emit_two_ways,
)
from jitree.dispatch.fast.handler import (
    ARITHMETIC,
    Handler,
    declarations,
    emit_arithmetic,
    emit_copied_compare,
)
from jitree.dispatch.fast.prelude import ATTRIBUTES, prelude
from jitree.dispatch.fast.site import MEMORY, REFERENCES, emit_on_memory, emit_reference
from jitree.dispatch.native.counting import METADATA
from jitree.dispatch.semantics import SEMANTICS
from jitree.regs import fuel
from jitree.vmfb.superinstructions import LOOP_BY_NAME, LOOPS, SUPERINSTRUCTIONS, Part, Superinstruction
from jitree.vmfb.words import OPCODE_NAMES

SIDE_EXITS: Final = frozenset((
    "block", "call", "call.variadic", "call.yieldable", "call.variadic.yieldable",  # never in decoded code
    "buffer.alloc", "buffer.clone", "buffer.hash", "fail", "yield", "trace", "print",
))  # fmt: skip
"""Instructions without a handler: they allocate, fail or are rare, and leave the loop to the plain tier."""

_INSTRUCTIONS: Final = tuple((Part(name),) for name in OPCODE_NAMES)
_EMITTERS: Final = {
    **dict.fromkeys(ARITHMETIC, emit_arithmetic),
    **dict.fromkeys(BRANCHES, emit_branch),
    **dict.fromkeys(CALLS, emit_call),
    **dict.fromkeys(REFERENCES, emit_reference),
    **dict.fromkeys(MEMORY, emit_on_memory),
}

SIGNATURE: Final = signature(types.int64, types.int64)


def handler_text(parts: Superinstruction) -> str:
    """The IR of the handler of an instruction or a superinstruction."""
    handler = Handler(_symbol(parts))
    for part in parts:
        handler.begin_part(part.links)
        _emitter(part.name)(handler, part.name)
        handler.end_part()
    if not handler.ended:
        handler.dispatch()
    return handler.text()


def _symbol(parts: Superinstruction) -> str:
    return f"op.{' + '.join(map(str, parts))}"


def _emitter(part: str) -> Callable[[Handler, str], None]:
    if part.startswith("br:"):
        return emit_shape
    if part.startswith("cond_br:"):
        return emit_conditional_next
    return _emit_loop if part.startswith("loop:") else _EMITTERS[part]


def _emit_loop(handler: Handler, name: str) -> None:
    """The moves of the branch, then the comparison and the branch on it that stand after its words."""
    loop = LOOP_BY_NAME[name]
    handler.spend()
    emit_moves(handler, loop.shape)
    condition = emit_copied_compare(handler, loop.compare, loop.branch_size)
    operands = len(SEMANTICS[loop.compare].argument_types) + 1
    emit_two_ways(handler, condition, loop.branch_size + operands)


def loop_text() -> str:
    """The whole text but for the semantics functions, which it declares."""
    superinstructions = (*_INSTRUCTIONS, *((Part(loop.name),) for loop in LOOPS), *SUPERINSTRUCTIONS)
    handlers = [handler_text(parts) for parts in superinstructions if parts[0].name not in SIDE_EXITS]
    declared = ["declare i64 @llvm.umin.i64(i64, i64)", *declarations()]
    return "\n".join([prelude(), *declared, *handlers, _table(superinstructions), ATTRIBUTES + METADATA])


def _table(superinstructions: Sequence[Superinstruction]) -> str:
    """The handlers by opcode word."""
    entries = [
        "  ptr @side_exit" if parts[0].name in SIDE_EXITS else f'  ptr @"{_symbol(parts)}"'
        for parts in superinstructions
    ]
    rows = ",\n".join(entries)
    return f"@handlers = internal constant [{len(entries)} x ptr] [\n{rows}\n]"


@intrinsic(SIGNATURE)
def handlers(context: Any, builder: Any, stated: Any, given: Any) -> Any:
    """``handlers(state)`` goes through the handlers, from where the state block says."""
    link_texts(context, [loop_text(), *semantics_code.texts()], "loop")
    pointer = ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.IntType(64), [pointer])
    return builder.call(ir.Function(builder.module, kind, "loop"), [builder.inttoptr(given[0], pointer)])


def run(state: int) -> int:
    """Runs bytecode on the state block at an address until Python is needed; why, is the result (EXIT_*)."""
    return handlers(state)  # type: ignore[call-arg,no-any-return]


def generate() -> Generated:
    """The loop's image: the functions ``run`` and ``clock``, what they link, and the rows as notes."""
    made, clock = compiled(run, "run", SIGNATURE), compiled(fuel.clock, "clock", signature_of(fuel.clock))
    return one_unit([made.text, *made.linked, clock.text], ("run", "clock"), semantics_code.rows())
