"""The generator of the loop's IR, from the instruction table: a handler for each instruction and each fused
superinstruction, and the table of handlers. It runs when an image is built; the text is kept nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from jitree.dispatch.fast import arithmetic, branches, calls, references, site
from jitree.dispatch.fast.handler import Handler
from jitree.dispatch.fast.prelude import ATTRIBUTES, prelude
from jitree.dispatch.native.counting import METADATA
from jitree.dispatch.semantics import SEMANTICS
from jitree.vmfb.superinstructions import LOOP_BY_NAME, LOOPS, SUPERINSTRUCTIONS, Part, Superinstruction
from jitree.vmfb.words import OPCODE_NAMES

SIDE_EXITS: Final = frozenset((
    "block", "call", "call.variadic", "call.yieldable", "call.variadic.yieldable",  # never in decoded code
    "buffer.alloc", "buffer.clone", "buffer.hash", "fail", "yield", "trace", "print",
))  # fmt: skip
"""Instructions without a handler: they allocate, fail or are rare, and leave the loop to the plain tier."""

_INSTRUCTIONS: Final = tuple((Part(name),) for name in OPCODE_NAMES)
_FAMILIES: Final = (arithmetic, branches, calls, references, site)
_EMITTERS: Final = {mnemonic: family.emit for family in _FAMILIES for mnemonic in family.MNEMONICS}


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
        return branches.emit_shape
    if part.startswith("cond_br:"):
        return branches.emit_conditional_next
    return _emit_loop if part.startswith("loop:") else _EMITTERS[part]


def _emit_loop(handler: Handler, name: str) -> None:
    """The moves of the branch, then the comparison and the branch on it that stand after its words."""
    loop = LOOP_BY_NAME[name]
    handler.spend()
    branches.emit_moves(handler, loop.shape)
    condition = arithmetic.emit_copied_compare(handler, loop.compare, loop.branch_size)
    operands = len(SEMANTICS[loop.compare].argument_types) + 1
    branches.emit_two_ways(handler, condition, loop.branch_size + operands)


def generate() -> str:
    """The whole text but for the semantics functions, which it declares."""
    superinstructions = (*_INSTRUCTIONS, *((Part(loop.name),) for loop in LOOPS), *SUPERINSTRUCTIONS)
    handlers = [handler_text(parts) for parts in superinstructions if parts[0].name not in SIDE_EXITS]
    declarations = ["declare i64 @llvm.umin.i64(i64, i64)", *arithmetic.declarations()]
    return "\n".join([prelude(), *declarations, *handlers, _table(superinstructions), ATTRIBUTES + METADATA])


def _table(superinstructions: Sequence[Superinstruction]) -> str:
    """The handlers by opcode word."""
    entries = [
        "  ptr @side_exit" if parts[0].name in SIDE_EXITS else f'  ptr @"{_symbol(parts)}"'
        for parts in superinstructions
    ]
    rows = ",\n".join(entries)
    return f"@handlers = internal constant [{len(entries)} x ptr] [\n{rows}\n]"
