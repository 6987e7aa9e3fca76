"""How a kernel that a worker has run for long goes on in machine code: the rest of its dispatch between two
workgroups, and a workgroup that itself takes long in the middle of its loops.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from jitree.dispatch.native.engine import AutoEngine, go_up
from jitree.errors import StatusError
from jitree.regs.machine import FIRST_TIME, Machine

if TYPE_CHECKING:
    from jitree.dispatch.grid_call import Cell, GridCall
    from jitree.dispatch.native.tiering import NativeModule
    from jitree.loaders.vmvx.policy import Running

    class KernelSource(Protocol):
        """The compiled kernels of an executable."""

        def has_left(self, ordinal: int) -> bool: ...
        def look(self, ordinal: int, running: Running) -> bool: ...
        def goes_in(self, ordinal: int, running: Running) -> bool: ...
        def hot(self, ordinal: int) -> NativeModule: ...


_LONG: Final = 4
"""Times that one workgroup uses up its time, some 15 ms, before its kernel is compiled for being entered in
the middle. Kernels of shorter ones are compiled without that, in a third of the time."""


def _nothing() -> None:
    """Stands for compiled kernels that are not there."""


class Promotion:
    """What one worker runs, and for how long."""

    def __init__(self) -> None:
        self.compiled: Callable[[], KernelSource | None] = _nothing
        """Where compiled kernels come from: a weak reference, since those own workers."""
        self._ordinal = 0
        self._call: GridCall | None = None
        self._begun = 0
        self._running: Callable[[int, Cell], Running]
        self._first = self._cell = (0, 0, 0)
        """The workgroup that the span began with, and the one in which the time was last over."""
        self._times = 0
        """How often this workgroup has used up its time."""
        self._linked: dict[int, NativeModule] = {}
        """The kernels, by ordinal, whose machine code the worker's function records refer to."""

    def engine(self) -> AutoEngine:
        """The engine for the worker's context."""
        return AutoEngine(self._promote)

    def begin(
        self, ordinal: int, call: GridCall, first: Cell, running: Callable[[int, Cell], Running]
    ) -> None:
        """The worker begins to run a span. If there are compiled kernels by now, they have left it to the
        worker for good. ``running`` describes the span, which has taken so many nanoseconds and is at a
        workgroup."""
        compiled = self.compiled()
        self._call = None if compiled is None or compiled.has_left(ordinal) else call
        self._ordinal, self._first, self._cell, self._times = ordinal, first, first, 0
        self._running = running
        self._begun = time.thread_time_ns()

    def _promote(self, machine: Machine, following: int) -> None:
        compiled, call = self.compiled(), self._call
        if compiled is None or call is None:
            return
        machine.limit_time(FIRST_TIME)
        cell = call.cell(machine)
        self._times = self._times + 1 if cell == self._cell else 1
        self._cell = cell
        is_long = self._times >= _LONG
        if cell == self._first and not is_long:
            return
        running = self._running(time.thread_time_ns() - self._begun, cell)
        enters = is_long and compiled.goes_in(self._ordinal, running)
        if enters and self._enter_workgroup(machine, following, compiled):
            return
        with suppress(StatusError):  # the VM looks why the thread is to end, too
            if compiled.look(self._ordinal, running):
                call.end_here(machine)

    def _enter_workgroup(self, machine: Machine, following: int, compiled: KernelSource) -> bool:
        """Goes on in machine code in the middle of a workgroup. False if there is none and will be none; else
        whatever else is to be compiled comes later."""
        module = self._linked.get(self._ordinal)
        if module is None:
            module = compiled.hot(self._ordinal)
            if module.provider.get() is None:
                return module.provider.failure is None
            self._linked[self._ordinal] = module
            module.link(machine.module)
        go_up(machine, module, following)
        return bool(machine.sought)
