"""References that a kernel need not count, since others keep them as long as it runs.

Its caller keeps the arguments, the lists among them keep what is read from them, and the module keeps its
constants. A kernel changes no list, and nothing else changes the lists that it is given while it runs. A side
exit counts the references that it writes to the frame: from there on registers own them.
"""

from __future__ import annotations

from typing import Final

from jitree.dispatch.native.ssa import REF, SsaFunction, Value

BINDINGS: Final = 2
"""The argument of a kernel that is the list of its bindings. All of its elements are buffers, which it has
from its worker context (:mod:`jitree.loaders.vmvx.context`)."""
_FROM_OTHERS: Final = ("list.get.ref", "const.ref.rodata")
_OWN: Final = ("buffer.alloc", "const.ref.zero")
_LOOKING: Final = (
    "buffer.load.",
    "buffer.store.",
    "buffer.fill.",
    "buffer.copy",
    "buffer.length",
    "list.size",
)
_DROPPING: Final = ("br", "br.bare", "return", "discard.refs")


def borrowed(function: SsaFunction) -> frozenset[Value] | None:
    """The references of a function that its caller or something else keeps; None if the function does more
    with references than to read them from lists, to look at them and to forget them."""
    found = {value for value in function.arguments if value.type == REF}
    for block in function.blocks:
        if any(parameter.type == REF for parameter in block.parameters):
            return None
        for instruction in block.instructions:
            mnemonic = instruction.mnemonic
            references = [
                value for value in (*instruction.operands, *instruction.results) if value.type == REF
            ]
            if mnemonic in _FROM_OTHERS:
                found.update(instruction.results)
            elif references and not mnemonic.startswith(_LOOKING) and mnemonic not in (*_OWN, *_DROPPING):
                return None
            if instruction.retained:
                return None
    if not all(value.operands[0] in found for value in found if value.operation == "list.get.ref"):
        return None
    return frozenset(found)
