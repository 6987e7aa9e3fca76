"""Runs calls by the compiled loop. The plain tier's handlers do what leaves it.

It imports neither numba nor llvmlite; the loop is an image of machine code (see the README beside this file).
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Final

import numpy as np

from jitree.base import stop_word
from jitree.base.memory import once
from jitree.base.platform import address_of_function
from jitree.codegen import image
from jitree.dispatch.engine import YIELD, EngineEntry
from jitree.dispatch.fast import LOOP
from jitree.dispatch.plain.handlers import HANDLERS
from jitree.regs.layout import (
    EXIT_OUT_OF_FUEL,
    EXIT_STOPPED,
    LIBRARY_FUNCTIONS,
    PROMPT,
    STATE_WORDS,
    TICK_SHIFT,
)
from jitree.regs.machine import Machine
from jitree.regs.memory import address_of

_MEASURED: Final = 20_000
"""Nanoseconds for which the ticks of the clock are counted."""
_CLOCK: Final = ctypes.CFUNCTYPE(ctypes.c_int64)
RUNNING: Final = -1
"""Stands for a pc while the loop has the machine: exceptions (Ctrl-C) come as soon as it has returned."""

Run = Callable[[int], int]
Promote = Callable[[Machine, int], None]


@once
def _library() -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The table that STATE.math points to."""
    functions = [address_of_function(name) for name in LIBRARY_FUNCTIONS]
    clock = image.wait(LOOP).addresses["clock"]
    stop_word.count_by(_CLOCK(clock))
    return np.array([*functions, clock, stop_word.STOP], np.int64)


@once
def _tick() -> int:
    """The value of STATE.tick: how long the processor's ticks are, also if the thread is interrupted
    meanwhile."""
    clock = _CLOCK(int(_library()[len(LIBRARY_FUNCTIONS)]))
    return sorted(_measured_tick(clock) for _ in range(3))[1]


def _measured_tick(clock: Callable[[], int]) -> int:
    begun, ticks = time.perf_counter_ns(), clock()
    while (passed := time.perf_counter_ns() - begun) < _MEASURED:
        pass
    return (passed << TICK_SHIFT) // max(clock() - ticks, 1)


def run_function(loop: image.Image) -> Run:
    return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(loop.addresses["run"])


def attach_library(machine: Machine) -> None:
    """Puts into a machine's STATE what the loop needs and what never changes."""
    machine.state[STATE_WORDS.math] = address_of(_library())
    machine.state[STATE_WORDS.tick] = _tick()
    machine.state[STATE_WORDS.attended] = stop_word.WORD.value


def drive(first: Run, run: Run, machine: Machine, promote: Promote) -> None:
    """Enters machine code by ``first``; each time it has left with something to do, does that and enters it
    by ``run``. Each instruction that the loop leaves to Python is executed by its plain handler, on the same
    memory. ``promote`` is told when the machine's time was over, and where it goes on. A call that must not
    hold up others gives way each time that its time is over, of which Python takes some, but not at each
    branch at which a way into compiled code is sought."""
    state, address, handlers = machine.state, machine.state_address, HANDLERS
    gives_way = state[STATE_WORDS.prompt] == PROMPT
    begun = 0
    pc = RUNNING
    try:
        reason = first(address)
        while reason:
            pc = machine.adopt()
            if reason == EXIT_STOPPED:
                machine.fill_fuel()
                raise_failure(machine)
                return
            frame = machine.frame
            if gives_way:
                begun = time.monotonic_ns()
            following = handlers[machine.code[pc]](machine, pc)
            if following < 0:
                return
            if machine.frame == frame:
                state[STATE_WORDS.pc] = machine.code_address + 4 * following
            else:
                machine.publish(following)
            if reason == EXIT_OUT_OF_FUEL:
                machine.refuel()
                machine.note(following)
                is_over = not machine.sought
                promote(machine, following)
                if is_over and gives_way:
                    machine.pc = machine.resume_pc = following
                    machine.pending = YIELD
                    return
            elif gives_way and machine.spend_time(begun):
                state[STATE_WORDS.fuel] = 1
            pc = RUNNING
            state[STATE_WORDS.looked] = 0  # the time of Python is none of machine code's
            reason = run(address)
        machine.pc = machine.adopt()
    except BaseException:
        machine.pc = machine.adopt() if pc == RUNNING else pc
        raise


def raise_failure(machine: Machine) -> None:
    """Raises why an instruction that a compiled function had executed failed; returns if the call waits."""
    failure, machine.failure[0] = machine.failure[0], None
    if failure is not None:
        try:
            raise failure
        finally:
            del failure  # else its traceback would hold it, and all that the call used
    if machine.pending is None:
        if machine.revive():
            raise RecursionError("maximum recursion depth exceeded where machine code calls Python")
        raise KeyboardInterrupt  # it came while another one was being kept


def make_entry(run: Run, attach: Callable[[Machine], None], promote: Promote) -> EngineEntry:
    """The entry of a loop for callers that enter it by themselves."""

    def go_on(machine: Machine) -> None:
        drive(lambda address: machine.state[STATE_WORDS.status], run, machine, promote)

    return EngineEntry(run, attach, go_on)


def stay(machine: Machine, following: int) -> None:
    """Promotes nothing."""


class FastEngine:
    """Runs everything by the compiled loop. Making one may have to wait until the loop is built."""

    name = "fast"

    def __init__(self) -> None:
        """UNAVAILABLE if the loop cannot be built."""
        self._image = image.wait(LOOP)
        self._run = run_function(self._image)
        self.entry: EngineEntry | None = make_entry(self._run, attach_library, stay)

    def run(self, machine: Machine) -> None:
        """See :meth:`jitree.dispatch.engine.Engine.run`."""
        if not machine.state[STATE_WORDS.math]:
            attach_library(machine)
        machine.publish(machine.pc)
        drive(self._run, self._run, machine, stay)
