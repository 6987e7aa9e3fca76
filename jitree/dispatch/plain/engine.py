"""The plain tier's loop."""

from __future__ import annotations

from typing import Final

from jitree.dispatch.plain.handlers import HANDLERS
from jitree.regs.machine import Machine


class PlainEngine:
    """Runs everything in Python."""

    name = "plain"
    entry: Final = None

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
