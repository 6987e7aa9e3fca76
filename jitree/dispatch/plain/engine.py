"""The plain tier's loop."""

from __future__ import annotations

from typing import Final

from jitree.dispatch.pending import YIELD
from jitree.dispatch.plain.handlers import HANDLERS
from jitree.regs.layout import PROMPT, STATE
from jitree.regs.machine import Machine

_PROMPT: Final = STATE.word("prompt")
SLICE: Final = 10_000
"""Instructions, some 10 ms, after which the engine looks whether there is something better to do."""


class PlainEngine:
    """Runs everything in Python."""

    name = "plain"
    entry: Final = None

    def run(self, machine: Machine) -> None:
        """See :meth:`jitree.dispatch.engine.Engine.run`."""
        while not run_slice(machine):
            if machine.state[_PROMPT] == PROMPT:  # an awaited call leaves the event loop its turn
                machine.resume_pc = machine.pc
                machine.pending = YIELD
                return


def run_slice(machine: Machine) -> bool:
    """Runs some instructions in Python; whether the engine must stop."""
    handlers = HANDLERS
    pc = following = machine.pc
    try:
        machine.require_running()
        for _ in range(SLICE):
            pc = following
            following = handlers[machine.code[pc]](machine, pc)
            if following < 0:
                return True
    except BaseException:
        machine.pc = pc
        raise
    machine.pc = following
    machine.note(following)
    return False
