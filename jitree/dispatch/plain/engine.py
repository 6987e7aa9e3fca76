"""The plain tier's loop."""

from __future__ import annotations

from jitree.dispatch.plain.handlers import HANDLERS
from jitree.regs.machine import Machine


class PlainEngine:
    """Runs everything in Python."""

    name = "plain"

    def run(self, machine: Machine) -> None:
        """See :meth:`jitree.dispatch.engine.Engine.run`."""
        handlers = HANDLERS
        pc = following = machine.pc
        try:
            while following >= 0:
                pc = following
                following = handlers[machine.code[pc]](machine, pc)
        except BaseException:
            machine.pc = pc
            raise
