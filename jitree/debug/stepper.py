"""Runs bytecode by single instructions where someone may stop, else by machine code.

A function runs by machine code until it returns if neither it nor what it calls has a place to stop at. Its
caller's frame says meanwhile that it goes on at the word of a trampoline, ``host.exit``, which leaves machine
code; so the caller itself goes on step by step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import numpy as np

from jitree.base.finalizers import guard
from jitree.base.records import NamedTuple
from jitree.codegen.record import words_of
from jitree.dispatch.engine import YIELD, Engine
from jitree.dispatch.plain.handlers import BY_CODE
from jitree.errors import CancelledError, DeadlineExceededError, StatusError
from jitree.regs.layout import PROMPT, STATE_WORDS, FrameRecord
from jitree.regs.machine import FRAME_WORDS, PROMPT_TIME, STOP, Machine
from jitree.regs.memory import address_of
from jitree.vmfb.words import OPCODE

if TYPE_CHECKING:
    from jitree.debug.breakpoints import Breakpoints, Watch

_FRAME: Final = words_of(FrameRecord)
_TRAMPOLINE: Final = np.array([OPCODE["host.exit"]], np.int32)
_CALL_IMPORT: Final = OPCODE["call.import"]

STEP: Final = "step"
"""Ways to go on: to the next instruction, wherever it is;"""
NEXT: Final = "next"
"""to the next one of this frame, or of a caller;"""
FINISH: Final = "finish"
"""to the next one of a caller;"""
CONTINUE: Final = "continue"
"""to the next breakpoint;"""
QUIT: Final = "quit"
"""not at all."""


class Way(NamedTuple):
    """How a stopped program goes on."""

    kind: str
    machine: Machine | None = None
    frame: int = 0
    """The frame that NEXT and FINISH are about."""

    def stops_in(self, machine: Machine) -> bool:
        """Whether it stops in the current frame of a machine, without a breakpoint."""
        if self.kind == CONTINUE:
            return False
        if self.kind == STEP:
            return True
        if machine is not self.machine:
            return False
        return machine.frame <= self.frame if self.kind == NEXT else machine.frame < self.frame


class Stop(NamedTuple):
    """Where a program has stopped, and why."""

    machine: Machine | None
    """None after the call has ended."""
    pc: int
    reason: str
    error: BaseException | None = None


Ask = Callable[[Stop], Way]


class Stepper:
    """An engine that asks how to go on wherever the program is to stop."""

    name = "plain"
    entry: Final = None

    def __init__(self, engine: Engine, breakpoints: Breakpoints, ask: Ask) -> None:
        """``engine`` has the machine code, if there is any."""
        self._engine, self._breakpoints, self._ask = engine, breakpoints, ask
        self.way = Way(STEP)
        self.is_interrupted = False
        """Whether to stop at the next instruction: a signal or another thread asks for it."""
        self.machine_code_runs = 0
        """How often machine code was entered."""
        self.machine: Machine | None = None
        """That of the call that runs, the innermost of those inside one another."""
        self.turn = guard()
        """Whoever asks how to go on has it: dispatches may run on other threads."""
        self._watched: tuple[Machine, list[tuple[Watch, str]]] | None = None
        """Globals that an instruction may have changed, and what they were."""

    def run(self, machine: Machine) -> None:
        """See :meth:`jitree.dispatch.engine.Engine.run`."""
        following, outer = machine.pc, self.machine
        self.machine = machine
        try:
            while following >= 0:
                following = self._step(machine, following)
        except StatusError as error:
            if not isinstance(error, (CancelledError, DeadlineExceededError)) and machine.frame:
                self.stop(Stop(machine, machine.pc, f"failed: {error}", error))
            raise
        finally:
            if machine.pending is None or not machine.frame:  # else it waits, for a fence
                self.machine = outer

    def stop(self, stop: Stop, ask: Ask | None = None) -> None:
        """Asks how to go on, of what it asks usually or another. CANCELLED if not at all."""
        with self.turn:
            self.is_interrupted = False
            self.way = (ask or self._ask)(stop)
        if self.way.kind == QUIT and stop.error is None:
            raise CancelledError("the debugger has ended the call")

    def _step(self, machine: Machine, pc: int) -> int:
        machine.pc = pc
        if not machine.frame:
            return BY_CODE[machine.code[pc]](machine, pc)
        machine.require_running()
        self._look(machine, pc)
        if self._may_leave(machine):
            return self._run_machine_code(machine, pc)
        opcode, frame = machine.code[pc], machine.frame
        following = BY_CODE[opcode](machine, pc)
        # An import that waits is called again; another module's function may begin at the same word.
        while following == pc and opcode == _CALL_IMPORT and machine.frame == frame:
            following = BY_CODE[opcode](machine, pc)
        if not machine.frame and self.way.machine is machine:
            self.way = Way(STEP)  # a call that a host function has made is over
        return following

    def _look(self, machine: Machine, pc: int) -> None:
        """Stops in front of an instruction if there is a reason."""
        with self.turn:  # else another thread asks
            reason = self._reason(machine, pc)
        if reason:
            self.stop(Stop(machine, pc, reason))
        if self._breakpoints.watches:
            at = self._breakpoints.words.get(machine.code_address, {}).get(pc, ())
            watches = [(item, item.value()) for item in self._breakpoints.watches if item in at]
            self._watched = (machine, watches) if watches else self._watched

    def _reason(self, machine: Machine, pc: int) -> str:
        breakpoints = self._breakpoints
        reason = ""
        if self._watched is not None and self._watched[0] is machine:
            changed = [watch.change(before) for watch, before in self._watched[1]]
            reason, self._watched = ", ".join(filter(None, changed)), None
        at = breakpoints.words.get(machine.code_address)
        if at and pc in at:
            hits = [item.hit(machine, pc) for item in at[pc]]
            reason = ", ".join(filter(None, (reason, *hits)))
        if reason:
            return reason
        if self.is_interrupted:
            return "interrupted"
        if self.way.stops_in(machine) and breakpoints.is_instruction(machine, pc):
            return self.way.kind
        return ""

    # -- machine code ----------------------------------------------------------------------------------

    def _may_leave(self, machine: Machine) -> bool:
        """Whether the program stops nowhere before the current function returns."""
        if self.way.stops_in(machine) or self.is_interrupted or self._watched is not None:
            return False
        if self._engine.entry is None or self._breakpoints.reaches(machine.function):
            return False
        is_outermost = machine.frame == FRAME_WORDS
        return is_outermost or (machine.seen is None and not machine.table.readers)

    def _run_machine_code(self, machine: Machine, pc: int) -> int:
        """Runs the current function until it returns; gives where its caller goes on, or STOP. The
        caller's frame has the trampoline's address meanwhile, when no reader of frames runs."""
        target = machine.frame - FRAME_WORDS
        place, frames, state = target + _FRAME.pc, machine.frames, machine.state
        returns_to, prompt = frames[place], state[STATE_WORDS.prompt]
        self.machine_code_runs += 1
        try:
            if target:
                frames[place] = address_of(_TRAMPOLINE)
            state[STATE_WORDS.prompt] = PROMPT  # so that it comes back soon
            machine.limit_time(PROMPT_TIME)
            self._enter(machine, pc)
            while machine.pending is YIELD and prompt != PROMPT and not self.is_interrupted:
                machine.pending = None
                self._enter(machine, machine.resume_pc)
        finally:
            state[STATE_WORDS.prompt], state[STATE_WORDS.resume] = prompt, 0
            frames[place] = returns_to
        if machine.pending is YIELD and prompt != PROMPT:
            machine.pending = None
            return machine.resume_pc
        if machine.pending is not None or not target:
            return STOP
        return (returns_to - machine.code_address) >> 2

    def _enter(self, machine: Machine, pc: int) -> None:
        entry = self._engine.entry
        assert entry is not None
        if not machine.state[STATE_WORDS.math]:
            entry.attach(machine)
        machine.publish(pc)
        entry.run(machine.state_address)
        entry.go_on(machine)
