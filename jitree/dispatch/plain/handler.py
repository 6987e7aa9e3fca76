"""What a handler is."""

from __future__ import annotations

from collections.abc import Callable

from jitree.regs.machine import Machine

Handler = Callable[[Machine, int], int]
"""``handler(machine, pc) -> next pc``: executes the instruction at word ``pc`` of ``machine.code``.

Returns LEAVE when the engine must stop. When it raises, nothing of the instruction has happened.
"""
