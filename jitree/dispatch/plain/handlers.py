"""Runs instructions by the plain handlers, each looked up when it is first executed.

A program that runs as machine code executes few instructions in Python, most often ``call.import``, a branch
at which it has used up its fuel, or ``buffer.alloc``. Making the handlers of the others takes 5 to 10 ms, as
long as a whole call of many a kernel.
"""

from __future__ import annotations

import time
from typing import Final

from jitree.dispatch.engine import YIELD
from jitree.dispatch.plain import calls
from jitree.dispatch.plain.calls import Handler
from jitree.errors import InternalError
from jitree.regs.layout import PROMPT, STATE_WORDS
from jitree.regs.machine import Machine
from jitree.vmfb.words import BASE_OPCODE, OPCODE_NAMES

_DECODED_AWAY: Final = ("call", "call.variadic", "call.yieldable", "call.variadic.yieldable")
"""The decoder turns these into ``call.internal`` and ``call.import``."""

SLICE: Final = 10_000_000
"""Nanoseconds after which the engine looks whether there is something better to do."""
_LONG: Final = 1_000_000
"""Nanoseconds between looks whether the call is to end."""
_MOST: Final = 1 << 10
"""The most instructions between two such looks."""


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
    from jitree.dispatch.plain.table import BY_MNEMONIC

    return BY_MNEMONIC[name]


def _undecoded(machine: Machine, pc: int) -> int:
    raise InternalError(f"word {pc} of the decoded code holds no instruction")


def _first_use(machine: Machine, pc: int) -> int:
    """Stands for every handler that has not been looked up."""
    opcode = machine.code[pc]
    handler = HANDLERS[opcode] = find(opcode)
    return handler(machine, pc)


def _first_use_by_code(machine: Machine, pc: int) -> int:
    opcode = machine.code[pc]
    handler = find(opcode)
    handler = BY_CODE[opcode] = calls.call_import_by_code if handler is calls.call_import else handler
    return handler(machine, pc)


HANDLERS: Final[list[Handler]] = [_first_use] * len(BASE_OPCODE)
"""``HANDLERS[opcode word]`` executes one instruction; of a superinstruction the first one."""
BY_CODE: Final[list[Handler]] = [_first_use_by_code] * len(BASE_OPCODE)
"""As HANDLERS, where machine code has not been asked to call a host function yet."""


class PlainEngine:
    """Runs instructions in Python, and imports by machine code."""

    name = "plain"
    entry: Final = None

    def run(self, machine: Machine) -> None:
        """See :meth:`jitree.dispatch.engine.Engine.run`."""
        while not run_slice(machine):
            if machine.state[STATE_WORDS.prompt] == PROMPT:  # an awaited call leaves the event loop its turn
                machine.resume_pc = machine.pc
                machine.pending = YIELD
                return


def run_slice(machine: Machine) -> bool:
    """Runs some instructions in Python; whether the engine must stop."""
    handlers = BY_CODE
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
