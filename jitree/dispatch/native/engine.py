"""Runs compiled functions: the engines, and the way into Python for one instruction.

The loop enters compiled functions by itself, and is told here to enter them in the middle. A compiled
function asks Python by STATE.slow for one instruction, or to look after signals: it has put the instruction's
registers into its frame and says nothing else; its callers' frames are not written. The plain handler does
the instruction. Whether it did is in STATE.outcome: until that is written the instruction counts as failed,
so that whatever happens here stops the program.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Final

from jitree.base.finalizers import Borrowed
from jitree.codegen import image
from jitree.dispatch.engine import EngineEntry
from jitree.dispatch.fast import LOOP
from jitree.dispatch.fast.engine import (
    Run,
    attach_library,
    drive,
    make_entry,
    run_function,
)
from jitree.dispatch.plain.handlers import HANDLERS
from jitree.regs.layout import (
    PROMPT,
    SLOW_DONE,
    SLOW_LOOK,
    SLOW_REFUSED,
    SLOW_STOP,
    STATE_WORDS,
)
from jitree.regs.machine import FIRST_TIME, Machine
from jitree.vmfb.words import OPCODE

if TYPE_CHECKING:
    from jitree.dispatch.fast.engine import Promote
    from jitree.dispatch.native import tiering

_SLOW_CALL: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

_BARE: Final = OPCODE["br.bare"]
_MOST_SOUGHT: Final = 256
"""Branches that are looked at one by one, a millisecond, to find the beginning of a loop."""
_MOST_CALLS: Final = 8
"""Calls made meanwhile of compiled functions: what calls them may be such a loop, and is not compiled yet."""


def attach_slow_calls(machine: Machine) -> None:
    """Lets compiled functions on a machine have instructions executed in Python."""
    steps = _steps(Borrowed(machine), machine.failure)
    next(steps)
    machine.slow_call, machine.slow_steps = _SLOW_CALL(steps.send), steps
    machine.attach_slow_call = attach_slow_calls
    machine.state[STATE_WORDS.slow] = ctypes.cast(machine.slow_call, ctypes.c_void_p).value or 0


def may_go_on(machine: Machine) -> bool:
    """Gives way or reports the place of a call, where asked to."""
    return machine.state[STATE_WORDS.prompt] != PROMPT and machine.seen is None


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
    if machine.state[STATE_WORDS.time] <= 0:
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
                try:
                    while True:
                        yield
                        machine: Machine = borrowed()
                        if machine.state[STATE_WORDS.outcome] == SLOW_LOOK:
                            machine.require_running()
                            if may_go_on(machine):
                                machine.fill_fuel()
                                machine.state[STATE_WORDS.outcome] = SLOW_DONE
                            else:  # its time stays over, so that the loop, too, is left at once
                                machine.state[STATE_WORDS.outcome] = SLOW_REFUSED
                        elif machine.state[STATE_WORDS.prompt] == PROMPT:
                            machine.state[STATE_WORDS.outcome] = _execute_in_time(machine)
                        elif _execute(machine, machine.adopt()):
                            machine.state[STATE_WORDS.outcome] = SLOW_DONE
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
        except BaseException as error:  # a second one, where the loop begins again
            kept[0] = error


def attach(machine: Machine) -> None:
    """Puts constant addresses that machine code needs into STATE."""
    attach_library(machine)
    attach_slow_calls(machine)


def promote(machine: Machine, following: int) -> None:
    """Notes that the current function runs for long: has its module compiled, and goes on in its native code
    when that is there and has a way in at ``following``."""
    from jitree.dispatch.native import tiering  # most programs never run for so long

    module = tiering.look(machine.module)
    if module is None:
        if tiering.native_module(machine.module).provider.failure is None:
            machine.limit_time(FIRST_TIME)
    else:
        go_up(machine, module, following)


def go_up(machine: Machine, module: tiering.NativeModule, following: int) -> None:
    """Goes on in native code if that has a way in at ``following``. Looks again at the next branch if it has
    none, or if a function begins there, after which its caller goes on: ways in are where loops begin, and no
    loop has many branches after which none begins."""
    from jitree.dispatch.native import tiering

    address = tiering.resume_address(machine, module, following)
    machine.state[STATE_WORDS.resume] = address
    if address:
        machine.refuel()
        most = _MOST_CALLS if following == machine.function.start else 0
    else:
        most = _MOST_SOUGHT if module.places(machine.function.ordinal) else 0
    if machine.sought >= most:
        machine.sought = 0
    else:
        machine.sought += 1
        machine.state[STATE_WORDS.fuel] = 1
        machine.limit_time(0)


def resume(machine: Machine) -> None:
    """As :func:`promote`, for a call of the program that has waited."""
    if machine.module.native is None:
        return
    from jitree.dispatch.native import tiering

    assert isinstance(machine.module.native, tiering.NativeModule)
    pc = machine.pc
    if machine.code[pc] == _BARE:
        pc += machine.code[pc + 1]
    address = tiering.resume_address(machine, machine.module.native, pc)
    if address:
        machine.pc = pc
        machine.state[STATE_WORDS.resume] = address


class NativeEngine:
    """Runs compiled functions; the modules of its contexts are compiled when they are loaded."""

    name = "native"

    def __init__(self) -> None:
        """UNAVAILABLE if the loop cannot be built."""
        self._image = image.wait(LOOP)
        self._run = run_function(self._image)
        self.entry: EngineEntry | None = make_entry(self._run, attach, promote)

    def run(self, machine: Machine) -> None:
        """See :meth:`jitree.dispatch.engine.Engine.run`."""
        _run(self._run, machine, promote)


def _run(run: Run, machine: Machine, promote: Promote) -> None:
    if not machine.state[STATE_WORDS.slow]:
        attach(machine)
    if machine.frame:
        resume(machine)
    machine.publish(machine.pc)
    drive(run, run, machine, promote)


class AutoEngine:
    """Runs by Python, then the loop, then native code for long functions. Each is taken when it is there; a
    call in progress moves over."""

    name = "auto"

    def __init__(self, promote: Promote = promote) -> None:
        """``promote`` is told which function runs for long."""
        self._promote = promote
        self._image: image.Image | None = None
        self._run: Run | None = None
        self.entry: EngineEntry | None = None
        self._look()

    def _look(self) -> Run | None:
        if self._run is None:
            self._image = image.get(LOOP)
            if self._image is not None:
                self._run = run_function(self._image)
                self.entry = make_entry(self._run, attach, self._promote)
        return self._run

    def run(self, machine: Machine) -> None:
        """See :meth:`jitree.dispatch.engine.Engine.run`."""
        while True:
            run = self._run or self._look()
            if run is not None:
                return _run(run, machine, self._promote)
            from jitree.dispatch.plain.handlers import run_slice  # until the loop is there

            if run_slice(machine):
                return None
