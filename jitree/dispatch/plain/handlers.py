"""The handlers by opcode word, each looked up when its instruction is first executed.

A program that runs as machine code executes few instructions in Python, most often ``call.import``, a branch
at which it has used up its fuel, or ``buffer.alloc``. Making the handlers of the others takes 5 to 10 ms, as
long as a whole call of many a kernel.
"""

from __future__ import annotations

from typing import Final

from jitree.dispatch.plain import calls
from jitree.dispatch.plain.calls import Handler
from jitree.errors import InternalError
from jitree.regs.machine import Machine
from jitree.vmfb.words import BASE_OPCODE, OPCODE_NAMES

_DECODED_AWAY: Final = ("call", "call.variadic", "call.yieldable", "call.variadic.yieldable")
"""The decoder turns these into ``call.internal`` and ``call.import``."""


def find(opcode: int) -> Handler:
    """The handler of an opcode word; of a superinstruction that of its first instruction."""
    name = OPCODE_NAMES[BASE_OPCODE[opcode]]
    if name in calls.HANDLERS:
        return calls.HANDLERS[name]
    if name in _DECODED_AWAY:
        return _undecoded
    if name.startswith("buffer."):
        from jitree.dispatch.plain import buffers

        return buffers.HANDLERS[name]
    from jitree.dispatch.plain import control

    if name in control.HANDLERS:
        return control.HANDLERS[name]
    from jitree.dispatch.plain.table import BY_MNEMONIC

    return BY_MNEMONIC[name]


def _undecoded(machine: Machine, pc: int) -> int:
    raise InternalError(f"word {pc} of the decoded code holds no instruction")


def _first_use(machine: Machine, pc: int) -> int:
    """Stands for every handler that has not been looked up."""
    opcode = machine.code[pc]
    handler = HANDLERS[opcode] = find(opcode)
    return handler(machine, pc)


HANDLERS: Final[list[Handler]] = [_first_use] * len(BASE_OPCODE)
"""``HANDLERS[opcode word]`` executes one instruction; of a superinstruction the first one."""
