"""The fast tier's engine: the compiled loop, and the plain tier's handlers for what leaves it.

It imports neither numba nor llvmlite; the loop is an image of machine code (see the README beside this file).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Final

import numpy as np

from jitree.dispatch import image, primitives
from jitree.dispatch.engine import Entry
from jitree.dispatch.plain.handlers import HANDLERS
from jitree.regs.layout import LEFT_ESCAPE, STATE
from jitree.regs.machine import Machine
from jitree.regs.memory import address_of

_FAST: Final = Path(__file__).parent
_DISPATCH: Final = _FAST.parent
_VMFB: Final = _DISPATCH.parent / "vmfb"
LOOP: Final = image.Recipe(
    name="loop",
    title="the fast tier's loop",
    generator="jitree.dispatch.fast.native_semantics:loop_texts",
    sources=(
        _FAST / "loop.ll",
        *sorted(_FAST.glob("*.py")),
        *sorted(_DISPATCH.glob("semantics*.py")),
        _DISPATCH / "primitives.py",
        *(_VMFB / name for name in ("isa.tsv", "isa.py", "words.py", "forms.py")),
        _DISPATCH.parent / "regs" / "layout.py",
    ),
    entries=("run",),
    seconds=4.0,
)
"""The image of the loop: its entry ``run(state) -> LEFT_*``."""

_PC: Final = STATE.word("pc")
_MATH: Final = STATE.word("math")
SLICE: Final = 10_000
"""Instructions (some 10 ms) that the plain tier runs before it is asked again whether the loop is there."""

_RUNNING: Final = -1
"""In place of a pc while the loop has the machine: exceptions (Ctrl-C) come as soon as it has returned."""

Run = Callable[[int], int]


@cache
def _library() -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The table that STATE.math points to."""
    return np.array(primitives.library_addresses(), np.int64)


def _run_function(loop: image.Image) -> Run:
    return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(loop.addresses["run"])


def attach(machine: Machine) -> None:
    """Puts into a machine's STATE what the loop needs and what never changes."""
    machine.state[_MATH] = address_of(_library())


def run_loop(run: Run, machine: Machine) -> None:
    """Runs a machine from its ``pc`` by the loop. Each instruction that the loop leaves to Python is executed
    by its plain handler, on the same memory."""
    if not machine.state[_MATH]:
        attach(machine)
    machine.publish(machine.pc)
    _drive(run, run, machine)


def _drive(first: Run, run: Run, machine: Machine) -> None:
    """Enters machine code by ``first`` and, each time it has left, by ``run`` again."""
    state, address, handlers = machine.state, machine.state_address, HANDLERS
    pc = _RUNNING
    try:
        left = first(address)
        while left:
            pc = machine.adopt()
            frame = machine.frame
            following = handlers[machine.code[pc]](machine, pc)
            if following < 0:
                return
            if machine.frame == frame:
                state[_PC] = machine.code_address + 4 * following
            else:
                machine.publish(following)
            pc = _RUNNING
            left = run(address)
        machine.pc = machine.adopt()
    except BaseException:
        machine.pc = machine.adopt() if pc == _RUNNING else pc
        raise


def _has_left(address: int) -> int:
    """In place of entering machine code that a caller entered by itself."""
    return LEFT_ESCAPE


def make_entry(run: Run) -> Entry:
    """The entry of a loop for callers that enter it by themselves."""
    return Entry(run, attach, partial(_drive, _has_left, run))


class FastEngine:
    """Runs everything by the compiled loop; making one may have to wait until the loop is built."""

    name = "fast"

    def __init__(self) -> None:
        """UNAVAILABLE if the loop cannot be built."""
        self._image = image.wait(LOOP)
        self._run = _run_function(self._image)
        self.entry: Entry | None = make_entry(self._run)

    def run(self, machine: Machine) -> None:
        """See :meth:`jitree.dispatch.engine.Engine.run`."""
        run_loop(self._run, machine)


class AutoEngine:
    """Runs by the compiled loop when that is there, until then in Python; a call in progress moves over."""

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
                self._run = _run_function(self._image)
                self.entry = make_entry(self._run)
        return self._run

    def run(self, machine: Machine) -> None:
        """See :meth:`jitree.dispatch.engine.Engine.run`."""
        while True:
            run = self._look()
            if run is not None:
                return run_loop(run, machine)
            if _run_slice(machine):
                return None


def _run_slice(machine: Machine) -> bool:
    """Runs some instructions in Python; whether the engine must stop."""
    handlers = HANDLERS
    pc = following = machine.pc
    try:
        for _ in range(SLICE):
            pc = following
            following = handlers[machine.code[pc]](machine, pc)
            if following < 0:
                return True
    except BaseException:
        machine.pc = pc
        raise
    machine.pc = following
    return False
