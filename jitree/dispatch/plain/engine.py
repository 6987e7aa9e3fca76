"""The plain tier's loop."""

from __future__ import annotations

import time
from typing import Final

from jitree.dispatch.engine import YIELD
from jitree.dispatch.plain.handlers import HANDLERS
from jitree.regs.layout import PROMPT, STATE
from jitree.regs.machine import Machine

_PROMPT: Final = STATE.word("prompt")
SLICE: Final = 10_000_000
"""Nanoseconds after which the engine looks whether there is something better to do."""
_LONG: Final = 1_000_000
"""Nanoseconds between looks whether the call is to end."""
_MOST: Final = 1 << 10
"""The most instructions between two such looks."""


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
    end = looked = time.perf_counter_ns()
    end += SLICE
    count = 1
    try:
        while looked < end:
            machine.require_running()
            for _ in range(count):
                pc = following
                following = handlers[machine.code[pc]](machine, pc)
                if following < 0:
                    return True
            now = time.perf_counter_ns()
            count = min(2 * count, _MOST) if now - looked < _LONG else count >> 3 | 1
            looked = now
    except BaseException:
        machine.pc = pc
        raise
    machine.pc = following
    machine.note(following)
    return False
