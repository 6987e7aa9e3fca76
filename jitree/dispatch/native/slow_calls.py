"""The way from a compiled function into Python for one instruction, or to look after signals: STATE.slow.

For an instruction, the function has put the instruction's registers into its frame and says nothing else; its
callers' frames are not written. The plain handler does the instruction. Whether it did is in STATE.outcome:
until that is written the instruction counts as failed, so that whatever happens here stops the program.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Generator
from typing import Final

from jitree.base.endings import Borrowed
from jitree.dispatch.plain.handlers import HANDLERS
from jitree.regs.layout import PROMPT, SLOW_DONE, SLOW_LOOK, SLOW_REFUSED, SLOW_STOP, STATE
from jitree.regs.machine import Machine

_SLOW_CALL: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_SLOW: Final = STATE.word("slow")
_PROMPT: Final = STATE.word("prompt")
_OUTCOME: Final = STATE.word("outcome")
_TIME: Final = STATE.word("time")


def attach(machine: Machine) -> None:
    """Lets compiled functions on a machine have instructions executed in Python."""
    steps = _steps(Borrowed(machine), machine.failure)
    next(steps)
    machine.slow_call, machine.slow_steps = _SLOW_CALL(steps.send), steps
    machine.attach_slow_call = attach
    machine.state[_SLOW] = ctypes.cast(machine.slow_call, ctypes.c_void_p).value or 0


def may_go_on(machine: Machine) -> bool:
    """A call that must not hold up others gives way, and one that is watched says where it is."""
    return machine.state[_PROMPT] != PROMPT and machine.seen is None


def _execute(machine: Machine, pc: int) -> bool:
    """A call that machine code is to try again (AGAIN) is Python's after all: the compiled function goes on
    after it."""
    handler = HANDLERS[machine.code[pc]]
    following = pc
    while following == pc:
        following = handler(machine, pc)
    return following >= 0


def _execute_in_time(machine: Machine) -> int:
    """Of a call that gives way to others: when its time is over, the loop is left in front of the
    instruction."""
    if machine.state[_TIME] <= 0:
        return SLOW_REFUSED
    begun = time.monotonic_ns()
    is_done = _execute(machine, machine.adopt())
    machine.spend_time(begun)
    return SLOW_DONE if is_done else SLOW_STOP


def _steps(borrowed: Borrowed, kept: list[BaseException | None]) -> Generator[None, int, None]:
    """Executes an instruction each time it is sent to; ``kept`` gets what that raises.

    A generator, because Ctrl-C may come at the very first moment in Python: here that is inside ``try``,
    while a function would pass it on to ctypes, which drops it. A failure is kept without a call: there may
    be no stack for one.
    """
    while True:
        try:
            while True:
                yield
                machine: Machine = borrowed()
                if machine.state[_OUTCOME] == SLOW_LOOK:
                    machine.require_running()
                    if may_go_on(machine):
                        machine.fill_fuel()
                        machine.state[_OUTCOME] = SLOW_DONE
                    else:  # its time stays over, so that the loop, too, is left at once
                        machine.state[_OUTCOME] = SLOW_REFUSED
                elif machine.state[_PROMPT] == PROMPT:
                    machine.state[_OUTCOME] = _execute_in_time(machine)
                elif _execute(machine, machine.adopt()):
                    machine.state[_OUTCOME] = SLOW_DONE
                del machine
        except GeneratorExit as error:
            if error.__traceback__.tb_next is None and not error.__dict__:  # type: ignore[union-attr]
                # Closed as it waits; another raises it in a function, or marks it to raise it later.
                # A call here would have Python look for signals.
                return
            kept[0] = error
            machine = None  # type: ignore[assignment]
        except BaseException as error:
            kept[0] = error
            machine = None  # type: ignore[assignment]
