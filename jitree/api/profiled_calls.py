"""The calls of a session that is profiled: which function, from which line of Python, from when to when; and
the imports that Python makes for them.

Machine code makes calls and executes command buffers as ever. Of a call that Python does not wait for each
part is a call by itself, from one wait to the next.
"""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Callable, Iterable, Iterator, Sequence
from sys import _getframe
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

from jitree.api.function import Function, Watcher
from jitree.base.finalizers import guard
from jitree.base.folding import is_of_user
from jitree.dispatch.backtrace import places_of
from jitree.dispatch.engine import Engine, EngineEntry
from jitree.dispatch.plain.calls import call_import
from jitree.dispatch.plain.handlers import HANDLERS
from jitree.errors import FailedPreconditionError
from jitree.observe.origins import RUN
from jitree.observe.profile import Profile
from jitree.observe.profiled import CallNotes, ProfiledCall, ProfiledImport
from jitree.vmfb.words import BASE_OPCODE, OPCODE_NAMES

if TYPE_CHECKING:
    from types import CodeType, FrameType

    from jitree.dispatch.invocation import Invoker
    from jitree.hal.device import Device
    from jitree.regs.machine import Machine

_MOST_NOTED: Final = 3 + 2 * 8 - 1
"""A call has eight functions of Python at most."""
_NOTHING: Final[dict[str, Any]] = {}
_IMPORTS: Final = [opcode for opcode, base in enumerate(BASE_OPCODE) if OPCODE_NAMES[base] == "call.import"]


_calling: Final = set[int]()
"""Threads that are in a call that is noted."""
_recorders: Final[dict[int, list[ProfiledImport]]] = {}
"""By address of the handle table of a context that is profiled."""
_lock: Final = guard()
"""A forgotten session ends its profile wherever the garbage collector runs."""


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
    """Records the calls of one session."""

    def __init__(self, invoker: Invoker) -> None:
        super().__init__()
        self._invoker = invoker
        self._table = id(invoker.table)
        self._functions: list[Function] = []
        self._notes: list[Any] = []
        """What each call notes: how many these are, the function, the thread, code and places, begin, end. In
        a row, since objects for each would have the garbage collector look at them, again and again."""
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

    @property
    def noted(self) -> Iterator[ProfiledCall]:
        """See :meth:`CallNotes.noted`."""
        notes, place = self._notes, 0
        while place < len(notes):
            end = place + notes[place]
            stack = list(zip(notes[place + 3 : end - 2 : 2], notes[place + 4 : end - 2 : 2], strict=True))
            yield ProfiledCall(notes[place + 1], stack, notes[place + 2], notes[end - 2], notes[end - 1])
            place = end

    def stop(self) -> None:
        if self.is_over:
            return
        self.is_over = True
        self._invoker.engine = self._engine
        called = {noted.function for noted in self.noted}
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

    def record(
        self,
        function: str,
        frame: FrameType | None,
        work: Callable[..., Any],
        arguments: tuple[Any, ...] = (),
        named: dict[str, Any] = _NOTHING,
    ) -> Any:
        """Does the work of a call. What this does itself is a part of the time of each call."""
        thread = get_ident()
        if thread in _calling:
            return work(*arguments, **named)
        _calling.add(thread)
        try:
            note, known = [0, function, thread], self._codes
            while frame is not None:
                code = frame.f_code
                found = known.get(id(code))
                if found is None:
                    found = known[id(code)] = code, is_of_user(code.co_filename)
                if found[1]:
                    note += code, frame.f_lasti
                    if len(note) > _MOST_NOTED:
                        break
                frame = frame.f_back
            begun = perf_counter_ns()
            if self.before is not None and self.before(function, thread, begun):
                begun = perf_counter_ns()
            try:
                return work(*arguments, **named)
            finally:
                ended = perf_counter_ns()
                if self.after is not None:
                    self.after(thread)
                note += begun, ended
                note[0] = len(note)
                self._notes += note
        finally:  # also when Ctrl-C comes while it waits for a device
            _calling.discard(thread)


class _ProfiledFunction(Watcher):
    """Makes the calls that wait for their results, by machine code where that makes them."""

    def __init__(self, function: Function, recorder: CallRecorder) -> None:
        self._name = function.full_name
        self._twin = function.twin()
        self._record = recorder.record

    @property
    def explanation(self) -> Any:
        raise FailedPreconditionError(f"{self._name} is profiled; explain it when that has ended")

    def call(
        self,
        make: Callable[[tuple[Any, ...], dict[str, Any]], Any],
        arguments: tuple[Any, ...],
        named: dict[str, Any],
    ) -> Any:
        return self._record(self._name, _getframe(2), self._twin, arguments, named)

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
        if get_ident() in _calling:
            self._engine.run(machine)
            return
        frame: FrameType | None = _getframe(1)
        called = frame
        while called is not None and called.f_code is not RUN:
            called = called.f_back
        function = "" if called is None else called.f_locals["function"].full_name
        self._recorder.record(function, frame, self._engine.run, (machine,))


def _timed_import(machine: Machine, pc: int) -> int:
    """As :func:`call_import`, which it stands for while a session is profiled."""
    imports = _recorders.get(id(machine.table))
    if imports is None:
        return call_import(machine, pc)
    module, number = machine.module.module, machine.code[pc + 3]
    begun = perf_counter_ns()
    try:
        return call_import(machine, pc)
    finally:
        ended = perf_counter_ns()
        imports.append(ProfiledImport(module, number, get_ident(), begun, ended))
