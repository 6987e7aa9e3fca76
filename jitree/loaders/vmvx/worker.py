"""Runs kernels on one thread's VM context, workgroup by workgroup.

A kernel that has run for long goes on in machine code (:class:`Promotion`): the rest of its dispatch between
two workgroups, and a workgroup that itself takes long in the middle of its loops.
"""

from __future__ import annotations

import ctypes
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from jitree.base.memory import may_be_copied, note_stores
from jitree.dispatch.context import Context
from jitree.dispatch.engine import Engine, EngineEntry
from jitree.dispatch.function import BytecodeFunction
from jitree.dispatch.grid_call import Cell, GridCall
from jitree.dispatch.host_module import HostModule
from jitree.dispatch.native.engine import AutoEngine, go_up
from jitree.errors import StatusError, error_context
from jitree.hal.command_layout import KernelDispatch
from jitree.hal.local import interrupts
from jitree.hal.watchdog import watch_calls
from jitree.loaders.vmvx.arguments import (
    Grid,
    GridState,
    KernelArguments,
    private_bindings,
    read_grid,
    read_span,
)
from jitree.loaders.vmvx.policy import Running
from jitree.regs.buffer import VmBuffer
from jitree.regs.machine import FIRST_TIME, Machine
from jitree.regs.memory import UNBOUNDED, Bounds
from jitree.regs.ref_types import RefTypes
from jitree.vmfb.decode import BytecodeModule
from jitree.vmfb.words import signed

if TYPE_CHECKING:
    from jitree.dispatch.native.tiering import NativeModule

    class KernelSource(Protocol):
        """The compiled kernels of an executable."""

        def has_left(self, ordinal: int) -> bool: ...
        def look(self, ordinal: int, running: Running) -> bool: ...
        def goes_in(self, ordinal: int, running: Running) -> bool: ...
        def hot(self, ordinal: int) -> NativeModule: ...


_LONG: Final = 4
"""Times that one workgroup uses up its time, some 15 ms, before its kernel is compiled for being entered in
the middle. Kernels of shorter ones are compiled without that, in a third of the time."""

SET_CONSTANTS: Final = "__set_constants"
_WORKGROUP_ID: Final = (3, 4, 5)
_COUNTS: Final = (9, 10)
"""Arguments of an entry: local memory, constants, bindings; then x, y, z of workgroup id, size and count."""


def _nothing() -> None:
    """Stands for compiled kernels that are not there."""


class Promotion:
    """Measures what one worker runs, and moves it to machine code."""

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
        """The worker begins to run a span.

        If there are compiled kernels by now, they have left it to the worker for good. ``running`` describes
        the span, which has taken so many nanoseconds and is at a workgroup.
        """
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
        """Goes on in machine code in the middle of a workgroup.

        False if there is none and will be none; else whatever else is to be compiled comes later.
        """
        module = self._linked.get(self._ordinal)
        if module is None:
            module = compiled.hot(self._ordinal)
            if module.provider.get() is None:
                return module.provider.failure is None
            self._linked[self._ordinal] = module
            module.link(machine.module)
        go_up(machine, module, following)
        return bool(machine.sought)


class MeasuredEngine:
    """Measures the time of a processor that an engine has used.

    Waiting for other threads, which calls into Python are full of, does not count.
    """

    def __init__(self, engine: Engine) -> None:
        self.name = engine.name
        self._engine = engine
        self.nanoseconds = 0

    @property
    def entry(self) -> EngineEntry | None:
        return self._engine.entry

    def run(self, machine: Machine) -> None:
        begun = time.thread_time_ns()
        try:
            self._engine.run(machine)
        finally:
            self.nanoseconds += time.thread_time_ns() - begun


class Worker:
    """Runs kernels for one thread at a time."""

    def __init__(
        self,
        executable: BytecodeModule,
        modules: Sequence[HostModule],
        entries: Sequence[str],
        constants: Sequence[int],
        tier: str | Engine | None,
        bounds: Bounds = UNBOUNDED,
        starter: Engine | None = None,
    ) -> None:
        """Links the executable's module to ``modules`` and runs its initialiser. ``starter`` runs it if there
        is one; statuses as of :meth:`Context.register`."""
        self.promotion = Promotion()
        engine = self.promotion.engine() if tier == "auto" else tier
        self.context = Context(RefTypes(), tier=engine, bounds=bounds)
        self.engine = MeasuredEngine(self.context.invoker.engine)
        self.context.invoker.engine = starter or self.engine
        watch_calls(self.context.table)
        self._executable = executable
        self._stored: dict[int, int] = {}
        """What kernels may store to (:mod:`jitree.loaders.vmvx.analysis`)."""
        self._functions = [f"{executable.name}.{name}" for name in entries]
        self._calls: dict[int, GridCall] = {}
        self._state: GridState | None = None
        """What the kernel is called with."""
        self._grid: Grid
        self._arguments: tuple[object, ...] = ()
        self._shown: dict[int, KernelArguments] = {}
        """By number of bindings."""
        self._last: KernelArguments | None = None
        """What shows the memory of the last grid."""
        try:
            self.context.register([*modules, executable])
            if constants:
                words = VmBuffer.alias(struct.pack(f"<{len(constants)}I", *constants))
                self.context.invoke(self.context.lookup(f"{executable.name}.{SET_CONSTANTS}"), (words,))
            self.context.invoker.engine = self.engine
        except BaseException:
            self.context.close()
            raise

    def prepare(self, binding_counts: Iterable[int]) -> None:
        """Makes what first dispatches of a kernel and binding count need: they find it there."""
        for count in binding_counts:
            self._shown[count] = KernelArguments(self.context.table, count)
        if self._functions:
            self.call(0)
        self.context.invoker.prepare()

    def close(self) -> None:
        self.context.close()

    def heed(self, dispatch: int) -> None:
        """Ends what runs next if its dispatch's job fails or stops."""
        self.context.table.is_halted = partial(interrupts.is_to_end, job_failure(dispatch))

    def call(self, ordinal: int) -> GridCall:
        """The call of a kernel, given by its position in ``entries``."""
        call = self._calls.get(ordinal)
        if call is None:
            function = self.context.lookup(self._functions[ordinal])
            assert isinstance(function, BytecodeFunction)
            call = self._calls[ordinal] = GridCall(function, _WORKGROUP_ID, _COUNTS)
        return call

    def run(self, ordinal: int, dispatch: int, workgroup: int) -> int:
        """Runs a span's workgroups until one fails or kernels take over; raises what the VM does. How many
        have run. Of a span of parts, it runs the workgroups whose first part that has: other workers that
        leave parts to the VM do nothing else."""
        state, first, last = read_span(dispatch, workgroup)
        parts = KernelDispatch(dispatch).parts
        if parts > 1:
            self._run_span(ordinal, dispatch, state, -(-first // parts), -(-last // parts))
            return last - first
        return self._run_span(ordinal, dispatch, state, first, last)

    def _run_span(self, ordinal: int, dispatch: int, state: GridState, first: int, last: int) -> int:
        if first >= last:
            return 0
        if state != self._state:
            self._show(state)
        self._note_stores(ordinal, dispatch)
        with error_context(f"running workgroups {first} to {last} of a dispatch"):
            call, grid = self.call(ordinal), self._grid
            cell = grid.cell(first)

            def running(nanoseconds: int, at: Cell) -> Running:
                return Running(dispatch, nanoseconds, first, grid.number(at), last)

            self.promotion.begin(ordinal, call, cell, running)
            self.context.invoker.repeat(call, self._arguments, cell, last - first)
            return self._grid.number(call.reached) + 1 - first

    def _note_stores(self, ordinal: int, dispatch: int) -> None:
        """Gives up copies of constants that the kernel may store to."""
        for number, address, length in private_bindings(dispatch) if self._grid.has_private else ():
            if may_be_copied(address) and self._stored_bindings(ordinal) >> number & 1:
                note_stores(address, length)

    def _stored_bindings(self, ordinal: int) -> int:
        stored = self._stored.get(ordinal)
        if stored is None:
            from jitree.dispatch.native.source import from_program  # not for a first result of a small file
            from jitree.loaders.vmvx.analysis import stored_bindings

            function = self.call(ordinal).function.ordinal
            stored = stored_bindings(from_program(self._executable.program), function)
            self._stored[ordinal] = stored
        return stored

    def _show(self, state: GridState) -> None:
        """From now on kernels are called with what a state says."""
        self._state = None
        self._leave_grid()
        self._grid = read_grid(state)
        count = len(self._grid.bindings)
        shown = self._shown.get(count) or KernelArguments(self.context.table, count)
        self._last = self._shown[count] = shown
        shown.show(self._grid)
        shown.publish()
        size, counts = ([signed(word, 32) for word in part] for part in (self._grid.size, self._grid.count))
        self._arguments = (shown.local_memory, shown.constants, shown.bindings, 0, 0, 0, *size, *counts)
        self._state = state

    def _leave_grid(self) -> None:
        """Takes its memory from a program that has kept any of it."""
        last = self._last
        if last is not None and not last.untouched:
            self._shown.pop(len(last.elements), None)
            last.expire()
        self._last = None


def job_failure(dispatch: int) -> ctypes.c_int64:
    """The failure of the job that a dispatch belongs to."""
    return ctypes.c_int64.from_address(KernelDispatch(dispatch).failure)
