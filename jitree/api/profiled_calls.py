"""The calls of a session that is profiled: which function, from which line of Python, from when to when; and
the imports that Python makes for them.

Machine code makes calls and executes command buffers as ever. Of a call that Python does not wait for each
part is a call by itself, from one wait to the next.
"""

from __future__ import annotations

import sys
from _thread import _local, allocate_lock, get_ident
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

from jitree.api.function import Function, Watcher
from jitree.base.folding import is_of_user
from jitree.dispatch.backtrace import places_of
from jitree.dispatch.engine import Engine, EngineEntry
from jitree.dispatch.plain.calls import call_import
from jitree.dispatch.plain.handlers import HANDLERS
from jitree.errors import FailedPreconditionError
from jitree.observe.origins import RUN
from jitree.observe.profile import Profile
from jitree.observe.profiled import CallNotes, ProfiledImport
from jitree.vmfb.words import BASE_OPCODE, OPCODE_NAMES

if TYPE_CHECKING:
    from types import CodeType, FrameType

    from jitree.dispatch.invocation import Invoker
    from jitree.hal.device import Device
    from jitree.regs.machine import Machine

_MOST_FRAMES: Final = 8
_IMPORTS: Final = [opcode for opcode, base in enumerate(BASE_OPCODE) if OPCODE_NAMES[base] == "call.import"]


class _ThisCall(_local):
    is_in_call = False
    is_in_import = False


_here: Final = _ThisCall()
_recorders: Final[dict[int, list[ProfiledImport]]] = {}
"""By address of the handle table of a context that is profiled."""
_lock: Final = allocate_lock()


def profile(invoker: Invoker, devices: Sequence[Device], functions: Iterable[Function]) -> Profile:
    """Begins to profile a session; see :meth:`jitree.Session.profile`."""
    calls = CallRecorder(invoker)
    try:
        for function in functions:
            calls.watch(function)
        return Profile(devices, calls)
    except BaseException:
        calls.stop()
        raise


class CallRecorder(CallNotes):
    """Of one session."""

    def __init__(self, invoker: Invoker) -> None:
        super().__init__()
        self._invoker = invoker
        self._table = id(invoker.table)
        self._functions: list[Function] = []
        self._codes: dict[int, tuple[CodeType, bool]] = {}
        """Code by identity, since its hash reads all of it, and whether it is of the user's."""
        self.is_over = False
        with _lock:
            if self._table in _recorders:
                raise FailedPreconditionError("the session is being profiled already; end that first")
            _recorders[self._table] = self.imports
            for opcode in _IMPORTS:
                HANDLERS[opcode] = _timed_import
        self._engine = invoker.engine
        invoker.engine = _ProfiledEngine(self._engine, self)

    def watch(self, function: Function) -> None:
        """FAILED_PRECONDITION while the function is explained."""
        if self.is_over:
            return
        if function.watcher is not None:
            raise FailedPreconditionError(
                f"{function.full_name} is explained (session.explain); stop that first"
            )
        function.watch(_ProfiledFunction(function, self))
        self._functions.append(function)

    def stop(self) -> None:
        if self.is_over:
            return
        self.is_over = True
        self._invoker.engine = self._engine
        called = {noted[0] for noted in self.noted}
        for function in self._functions:
            function.watch(None)
            if function.full_name in called:
                self.places[function.full_name] = next(iter(places_of(function.vm_function)), "")
        self._functions.clear()
        with _lock:
            _recorders.pop(self._table, None)
            if not _recorders:
                for opcode in _IMPORTS:
                    HANDLERS[opcode] = call_import

    def record(self, function: str, frame: FrameType | None, work: Callable[[], Any]) -> Any:
        """Does the work of a call."""
        if _here.is_in_call:
            return work()
        _here.is_in_call = True
        stack, known, room = [], self._codes, _MOST_FRAMES
        while frame is not None and room:
            code = frame.f_code
            if id(code) not in known:
                known[id(code)] = code, is_of_user(code.co_filename)
            if known[id(code)][1]:
                stack.append((code, frame.f_lasti))
                room -= 1
            frame = frame.f_back
        begun = perf_counter_ns()
        if self.before is not None and self.before(function, begun):
            begun = perf_counter_ns()
        try:
            return work()
        finally:
            ended = perf_counter_ns()
            _here.is_in_call = False
            self.noted.append((function, stack, get_ident(), begun, ended))


class _ProfiledFunction(Watcher):
    """Makes the calls that wait for their results, by machine code where that makes them."""

    def __init__(self, function: Function, recorder: CallRecorder) -> None:
        self._name = function.full_name
        self._twin = function.twin()
        self._recorder = recorder

    @property
    def explanation(self) -> Any:
        raise FailedPreconditionError(f"{self._name} is profiled; explain it when that has ended")

    def call(
        self,
        make: Callable[[tuple[Any, ...], dict[str, Any]], Any],
        arguments: tuple[Any, ...],
        named: dict[str, Any],
    ) -> Any:
        return self._recorder.record(self._name, sys._getframe(2), lambda: self._twin(*arguments, **named))

    def passes(self, packed: Sequence[object]) -> None:
        """As :meth:`Watcher.passes`."""


class _ProfiledEngine:
    """Makes what no function is called for: submitted and awaited calls, initialisers."""

    def __init__(self, engine: Engine, recorder: CallRecorder) -> None:
        self.name = engine.name
        self._engine = engine
        self._recorder = recorder

    @property
    def entry(self) -> EngineEntry | None:
        return self._engine.entry

    def run(self, machine: Machine) -> None:
        """See :meth:`jitree.dispatch.engine.Engine.run`."""
        if _here.is_in_call:
            self._engine.run(machine)
            return
        frame: FrameType | None = sys._getframe(1)
        called = frame
        while called is not None and called.f_code is not RUN:
            called = called.f_back
        function = "" if called is None else called.f_locals["function"].full_name
        self._recorder.record(function, frame, lambda: self._engine.run(machine))


def _timed_import(machine: Machine, pc: int) -> int:
    """As :func:`call_import`, which it stands for while a session is profiled."""
    imports = _recorders.get(id(machine.table))
    if imports is None:
        return call_import(machine, pc)
    module, number, outer = machine.module.module, machine.code[pc + 3], _here.is_in_import
    _here.is_in_import = True
    begun = perf_counter_ns()
    try:
        return call_import(machine, pc)
    finally:
        ended = perf_counter_ns()
        _here.is_in_import = outer
        imports.append(ProfiledImport(module, number, outer, get_ident(), begun, ended))
