"""The engines that run compiled functions: the loop enters them by itself, and is told here to enter them in
the middle."""

from __future__ import annotations

from typing import Final

from jitree.dispatch import image
from jitree.dispatch.engine import Entry
from jitree.dispatch.fast.engine import (
    LOOP,
    Run,
    attach_library,
    make_entry,
    run_function,
    run_loop,
    run_slice,
)
from jitree.dispatch.native import slow_calls
from jitree.regs.layout import STATE
from jitree.regs.machine import Machine
from jitree.vmfb.words import OPCODE

_RESUME: Final = STATE.word("resume")
_SLOW: Final = STATE.word("slow")
_FUEL: Final = STATE.word("fuel")
_BARE: Final = OPCODE["br.bare"]


def attach(machine: Machine) -> None:
    """Puts into a machine's STATE what the loop and compiled functions need and what never changes."""
    attach_library(machine)
    slow_calls.attach(machine)


def promote(machine: Machine, following: int) -> None:
    """Notes that the current function runs for long: has its module compiled, and goes on in its native code
    when that is there and has a way in at ``following``."""
    from jitree.dispatch.native import tiering  # most programs never run for so long

    module = tiering.look(machine.module)
    if module is None:
        return
    address = tiering.resume_address(machine, module, following)
    machine.state[_RESUME] = address
    if not address and module.places(machine.function.ordinal):
        machine.state[_FUEL] = 1  # to look again at the next branch: loops are entered at their beginnings


def resume(machine: Machine) -> None:
    """As :func:`promote`, for a call that goes on behind what it has waited for."""
    if not machine.frame or machine.module.native is None:
        return
    from jitree.dispatch.native import tiering

    assert isinstance(machine.module.native, tiering.NativeModule)
    pc = machine.pc
    if machine.code[pc] == _BARE:
        pc += machine.code[pc + 1]
    address = tiering.resume_address(machine, machine.module.native, pc)
    if address:
        machine.pc = pc
        machine.state[_RESUME] = address


class NativeEngine:
    """Runs compiled functions; the modules of its contexts are compiled when they are loaded."""

    name = "native"

    def __init__(self) -> None:
        """UNAVAILABLE if the loop cannot be built."""
        self._image = image.wait(LOOP)
        self._run = run_function(self._image)
        self.entry: Entry | None = make_entry(self._run, attach, promote)

    def run(self, machine: Machine) -> None:
        """See :meth:`jitree.dispatch.engine.Engine.run`."""
        _run(self._run, machine)


def _run(run: Run, machine: Machine) -> None:
    if not machine.state[_SLOW]:
        attach(machine)
    resume(machine)
    run_loop(run, machine, promote)


class AutoEngine:
    """Runs by the compiled loop when that is there, until then in Python, and functions that run for long by
    native code when that is there; a call in progress moves over."""

    name = "auto"

    def __init__(self) -> None:
        self._image: image.Image | None = None
        self._run: Run | None = None
        self.entry: Entry | None = None
        self._look()

    def _look(self) -> Run | None:
        if self._run is None:
            self._image = image.get(LOOP)
            if self._image is not None:
                self._run = run_function(self._image)
                self.entry = make_entry(self._run, attach, promote)
        return self._run

    def run(self, machine: Machine) -> None:
        """See :meth:`jitree.dispatch.engine.Engine.run`."""
        while True:
            run = self._look()
            if run is not None:
                return _run(run, machine)
            if run_slice(machine):
                return None
