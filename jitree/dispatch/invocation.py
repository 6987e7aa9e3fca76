"""Runs a call, from a pooled machine to its end. It has the engine, waiting, and the way out when something
fails."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import ref

from jitree.base.arguments import object_of
from jitree.base.cancel_scopes import require_going_on
from jitree.base.finalizers import require_interpreter, with_lock
from jitree.dispatch.engine import Engine, EngineEntry, Pending
from jitree.dispatch.function import BytecodeFunction, HostFunction, VmFunction
from jitree.dispatch.session_lock import (
    BEGUN,
    CALLS,
    CANCELS,
    FAILURES,
    FAULTS,
    NESTING,
    READY,
    REFUSED,
    STATE_PROMPT,
    ContextGate,
    Shortcomings,
)
from jitree.errors import (
    CancelledError,
    FailedPreconditionError,
    ResourceExhaustedError,
    StatusError,
    as_raised,
    error_context,
    is_interruption,
    is_return,
    see_to_overflow,
)
from jitree.regs.handles import HandleTable
from jitree.regs.layout import CONTENDED, PATIENT, PROMPT, STATE_WORDS
from jitree.regs.machine import PROMPT_TIME, Machine
from jitree.regs.records import FunctionRecords

if TYPE_CHECKING:
    import threading

    from jitree.dispatch.grid_call import Cell, GridCall
    from jitree.regs.machine import Awaited

MAXIMUM_NESTING: Final = 48
"""Calls that host functions make back into their context. Each takes up to fifteen Python frames, of which
CPython allows 1000 by default."""
_POOLED_MACHINES: Final = 4
T = TypeVar("T")
Call = Generator["Awaited", None, list[Any]]
"""A call in progress: gives what it waits for, one after the other, in the end the results."""


Policy = tuple[int, int | None]
"""How a call is made: what STATE.prompt says, whether it may hold up others; nanoseconds after which it gives
way, None = as many as the machine has."""
WAITED_FOR: Final[Policy] = PATIENT, None
"""The caller does nothing else until it has the results."""
SUBMITTED: Final[Policy] = PROMPT, PROMPT_TIME
"""The caller goes on as soon as it can: devices are not to use its thread for long work."""


class Invoker(ContextGate):
    """Makes the calls of one context, one at a time. A call that waits lets others run."""

    def __init__(self, table: HandleTable, engine: Engine, lock: threading.RLock | None = None) -> None:
        super().__init__(lock)
        self.table, self.engine = table, engine
        self.functions = FunctionRecords()
        self.closed = self.is_lost = False
        """Whether no call may be made; and whether that is because a thread of another process was in one."""
        self.end_call: Callable[[BaseException | None], object] = bool
        """Called when an outermost call that a thread waited for has ended, with its error; not if it never
        left machine code."""
        self.is_direct_going_on = False
        """Whether Python is completing a direct call, which waits if the machine has something pending."""
        self._in_progress: dict[ref[partial[bool]], None] = {}
        """Refers to what stands for a call that has begun and not ended: it dies with that."""
        self._idle: list[Machine] = []
        self._closing = "the context is closed"
        """Why no call may be made, once it is closed."""

    @property
    def ready(self) -> Machine | None:
        """Returns the machine of direct calls, if nothing runs or waits."""
        return self._direct if self.gate[READY] else None

    def require_open(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        """FAILED_PRECONDITION once closed, and at exit of the interpreter."""
        if self.closed or is_finalizing():
            require_interpreter()
            raise FailedPreconditionError(self._closing) if self.refusal is None else self.refusal()

    @property
    def is_busy(self) -> bool:
        """Whether calls are in progress; the lock must be held."""
        return bool(self._in_progress or self.is_direct_going_on or self.gate[NESTING])

    def close(self) -> None:
        """No more calls."""
        self.closed = True
        self.gate[READY] = 0
        self._direct = None
        self._idle.clear()

    def lose(self) -> None:
        """What a forked child does instead of :meth:`close`: another thread of the parent was in a call."""
        self._closing = (
            "the context was in use by another thread when this process was forked; make a new one"
        )
        self.gate[NESTING] = 0
        self.is_lost = True
        self.close()

    # -- direct calls --------------------------------------------------------------------------------

    def direct_machine(self, entry: EngineEntry) -> Machine:
        """The one machine of all direct calls, made when first asked for; the lock must be held."""
        if self._direct is None:
            machine = Machine(self.table, self.functions)
            entry.attach(machine)
            self._direct = machine
        return self._direct

    def may_prepare(self) -> bool:
        """Whether the machine of direct calls may be touched; the lock must be held."""
        return not self.closed and (self._direct is None or self.ready is not None)

    def settle(self) -> None:
        """Allows direct calls if nothing speaks against them."""
        machine = self._direct
        if machine is None or self.gate[REFUSED]:
            return
        if not self.gate[NESTING] and not self.is_direct_going_on and not self.turn.locked():
            if not self.gate[READY]:
                machine.reset()  # the end of a call may have had no room on Python's stack
                machine.revive()
            self.gate[READY] = 1

    def carry_on(self, machine: Machine, entry: EngineEntry, function: BytecodeFunction) -> None:
        """Does the rest of a direct call that machine code has left."""
        if machine.state[STATE_PROMPT] == CONTENDED and not self.is_contended():
            machine.state[STATE_PROMPT] = PATIENT
        try:
            self.is_direct_going_on = True
            entry.go_on(machine)
            for pending in self.rest(machine, function):
                self.wait_unlocked(pending.wait)
            self.end_call(None)
        finally:
            self.is_direct_going_on = False

    def free_direct(self, machine: Machine) -> None:
        """Ends a direct call that has left frames."""
        machine.release_frames()
        machine.state[STATE_WORDS.frame] = machine.frames_address

    def abandon(self, error: BaseException, machine: Machine, function: VmFunction) -> None:
        """Ends a direct call that failed, and adds to the error where that was. Raises what it becomes."""
        if machine.pc < 0:  # interrupted before Python looked where machine code had left
            machine.pc = machine.adopt()
        try:
            self.end_call(error)
            if _is_overflow(error):
                raise self._overflow(machine, function) from error
            self.explain(error, machine, function)
        finally:
            self.free_direct(machine)
            self.gate[NESTING] = 0
            self.settle()

    # -- calls -----------------------------------------------------------------------------------------
    # A call is a generator, which gives what it has to wait for. So there is one for each thing that can be
    # called, for a thread that makes the call and for an event loop.

    def repeat(self, grid: GridCall, arguments: Sequence[object], first: Cell, count: int) -> None:
        """Makes one call after the other until one fails; ``grid.reached`` says how far it came."""
        grid.reached = first
        self.functions[grid.host.address] = grid.host

        def end(machine: Machine) -> None:
            grid.reached = grid.cell(machine)
            self._give_back(machine)

        start = partial(grid.start, arguments=arguments, first=first, count=count)
        take = partial(self._take_machine, WAITED_FOR)
        self.make(self._run(grid.function, take, start, grid.results, end))

    def finish(self, grid: GridCall, machine: Machine) -> None:
        """Goes on with a call that machine code left in the middle: the state says where, and all frames but
        the host's are written. The machine stays the caller's."""
        self.functions[grid.host.address] = grid.host
        self.make(self._run(grid.function, lambda: machine, grid.resume, grid.results, self._clear))

    def make(self, call: Call) -> list[Any]:
        """Makes a call and waits for whatever it waits for."""
        begun = self.gate[CANCELS]
        with self.entrance():
            nesting = self.gate[NESTING]
            try:
                self._nest(begun)
                pending = next(call)
                while True:
                    try:
                        self.wait_unlocked(pending.wait)
                    except BaseException as error:
                        pending = call.throw(error)
                    else:
                        pending = next(call)
            except BaseException as error:
                if is_return(error):
                    if not nesting:
                        self.end_call(None)
                    results: list[Any] = error.value
                    return results
                call.close()  # if Ctrl-C came between its steps
                if not nesting:
                    self.end_call(error)
                raise
            finally:
                self.gate[NESTING] = nesting  # no call: Ctrl-C comes where one begins
                self.settle()

    def take_step(
        self,
        call: Call,
        step: Callable[[], T],
        shortcomings: Shortcomings,
        begun: int,
        submitted: dict[Any, None],
    ) -> T:
        """Takes a step of a call that others are made between. ``shortcomings`` and what has been submitted
        belong to the call."""
        with self.entrance():
            nesting, others = self.gate[NESTING], self.shortcomings
            here = self.submissions.this_thread
            outer = here.submitted
            try:
                here.submitted = submitted
                self._nest(begun)
                self.shortcomings = shortcomings
                return step()
            except BaseException:
                call.close()
                raise
            finally:
                here.submitted = outer
                self.shortcomings = others
                self.gate[NESTING] = nesting  # no call: Ctrl-C comes where one begins
                self.settle()

    def call(self, function: VmFunction, arguments: Sequence[object], policy: Policy = WAITED_FOR) -> Call:
        """A call that has not begun: for :meth:`make`, or
        :func:`jitree.dispatch.suspended_calls.drive`."""
        if isinstance(function, BytecodeFunction):
            take, start = partial(self._take_machine, policy), partial(function.begin, arguments=arguments)
            return self._run(function, take, start, function.unpack, self._give_back)
        call = self._run_host(object_of("function", function, VmFunction), arguments)
        return self._host_told(call, function.full_name, arguments) if self.table.readers else call

    def _host_told(self, call: Call, name: str, arguments: Sequence[object]) -> Call:
        from jitree.base.events import CALL, CallEvent, telling

        with telling(self.table.readers, CallEvent(CALL, name, arguments)):
            return (yield from call)

    def _run(
        self,
        function: BytecodeFunction,
        take: Callable[[], Machine],
        start: Callable[[Machine], object],
        results: Callable[[Machine], list[Any]],
        end: Callable[[Machine], None],
    ) -> Call:
        """Makes a call on a machine that ``take`` gives and ``end`` leaves."""
        if self.turn.locked() and self.gate[NESTING] <= 1:
            from jitree.dispatch.variables import turns  # few find another call that waits

            yield from turns(self, function.record)
        self.require_open()
        if self.gate[NESTING] <= 1:
            if self.refusal is not None:
                raise self.refusal()
            self.gate[CALLS] += 1
        mark = partial(bool)
        self._in_progress[ref(mark, self._in_progress.pop)] = None
        machine = take()
        try:
            require_going_on()
            start(machine)
            if self.table.readers:
                yield from self._told(function, machine, start)
            else:
                self.engine.run(machine)
                if machine.pending is not None:
                    yield from self.rest(machine, function)
            found = results(machine)
            self.require_faultless()
            return found
        except BaseException as error:
            if self.gate[NESTING] <= 1:
                self.gate[FAILURES] += 1
            if _is_overflow(error):
                raise self._overflow(machine, function) from error
            self.explain(error, machine, function)
            raise
        finally:
            del mark
            try:
                end(machine)
            except BaseException:  # Ctrl-C
                machine.release_frames()
                raise

    def _run_host(self, function: HostFunction, arguments: Sequence[object]) -> Call:
        from jitree.dispatch import conversion  # programs are not called so

        self.require_open()
        if self.gate[NESTING] <= 1:
            if self.refusal is not None:
                raise self.refusal()
            self.gate[CALLS] += 1
        mark = partial(bool)
        self._in_progress[ref(mark, self._in_progress.pop)] = None
        with error_context(f"invoking function '{function.name}'"):
            try:
                require_going_on()
                target, convention = function.target, function.convention
                result = target.export.function(target.state, *conversion.arguments(convention, arguments))
                while isinstance(result, Pending):
                    yield result
                    result = self._result_of(result)
                results = conversion.host_results(convention, result)
                self.require_faultless()
                return results
            except BaseException as error:
                if self.gate[NESTING] <= 1:
                    self.gate[FAILURES] += 1
                self._add_shortcomings(error)
                raise
            finally:
                del mark

    def _told(self, function: BytecodeFunction, machine: Machine, start: object) -> Iterator[Awaited]:
        """Runs a call and tells readers of it, and of its parts."""
        from jitree.base.events import CALL, PART, CallEvent, telling

        readers, given = self.table.readers, getattr(start, "keywords", {}).get("arguments", ())
        whole, part = (CallEvent(kind, function.full_name, given) for kind in (CALL, PART))
        whole.machine = part.machine = machine
        with telling(readers, whole):
            with telling(readers, part):
                self.engine.run(machine)
            if machine.pending is not None:
                with self.turn_of(function):
                    while machine.pending is not None:
                        yield machine.pending
                        with telling(readers, part):
                            self._resume(machine)

    def _nest(self, begun: int) -> None:
        nesting = self.gate[NESTING]
        if nesting >= MAXIMUM_NESTING:
            raise ResourceExhaustedError(
                f"stack overflow: host functions called back into the context {MAXIMUM_NESTING} times"
            )
        if not nesting:  # calls inside of others end with them
            self.gate[BEGUN] = begun
        self.gate[READY] = 0
        self.gate[NESTING] = nesting + 1

    def prepare(self) -> None:
        """Makes a machine for the first call."""
        self._idle.append(Machine(self.table, self.functions))

    def _take_machine(self, policy: Policy) -> Machine:
        self._settle()
        machine = self._idle.pop() if self._idle else Machine(self.table, self.functions)
        machine.revive()
        prompt, time = policy
        machine.state[STATE_PROMPT] = CONTENDED if prompt == PATIENT and self.is_contended() else prompt
        if time is not None:
            machine.limit_time(time)
        return machine

    def _clear(self, machine: Machine) -> None:
        """Drops what a call has left in the registers of a machine."""
        machine.release_frames()
        self._settle()

    def collect(self) -> None:
        """Frees what has been dropped, if nothing of the context runs right now."""
        with_lock(self.lock, lambda: None if self.gate[NESTING] else self._settle())

    def _settle(self) -> None:
        """Frees what has been dropped: before a call, too, which else would have less memory for it."""
        if self.table.deferred or self.table.owed:
            self.table.drain_deferred()
        if self.table.handle_pool is not None:
            self.table.handle_pool.settle()

    def _give_back(self, machine: Machine) -> None:
        self._clear(machine)
        if len(self._idle) < _POOLED_MACHINES and not self.closed:
            self._idle.append(machine)

    def rest(self, machine: Machine, function: BytecodeFunction) -> Iterator[Awaited]:
        """What a call that has begun waits for, until it is complete."""
        if machine.pending is None:
            return
        with self.turn_of(function):
            while machine.pending is not None:
                yield machine.pending
                self._resume(machine)

    def _resume(self, machine: Machine) -> None:
        """What the machine waited for has happened: takes its results and goes on."""
        pending, completion = machine.pending, machine.completion
        assert pending is not None
        result = self._result_of(pending)
        if isinstance(result, Pending):
            machine.pending = result
            return
        if completion is not None:
            completion(machine, result)
        machine.pending = machine.completion = None
        machine.pc = machine.resume_pc
        self.engine.run(machine)

    def _result_of(self, pending: Awaited) -> object:
        """What a call that has been waited for gives. CANCELLED if its module's state is gone by now."""
        if self.closed:
            raise CancelledError("the context was closed while the call was waiting")
        return pending.resume()

    def fail_at_end(self, text: str) -> None:
        """See :meth:`jitree.dispatch.context.Context.fail_at_end`."""
        self.shortcomings.add(text)
        self.gate[FAULTS] = 1

    def require_faultless(self) -> None:
        """FAILED_PRECONDITION with all that was found wrong in the outermost call, which ends here."""
        if self.gate[NESTING] == 1:
            self.gate[FAULTS] = 0
            if self.shortcomings.count:
                raise self.shortcomings.take()

    def explain(self, error: BaseException, machine: Machine, function: VmFunction) -> None:
        """Adds to an error where in the program it happened. The caller raises it: a frame that does so while
        a local names the error would keep everything the call used alive until the garbage collector runs.

        FAILED_PRECONDITION at exit of the interpreter, where what this needs cannot be imported any more."""
        require_interpreter()
        from jitree.dispatch import backtrace  # only failures ask

        see_to_overflow(error)
        error = as_raised(error)
        backtrace.annotate(error, machine)
        if isinstance(error, StatusError):
            error.with_context(f"invoking function '{function.name}'")
        self._add_shortcomings(error)

    def _add_shortcomings(self, error: BaseException) -> None:
        """Adds failed expectations to the error that ends their call."""
        if self.shortcomings.count and self.gate[NESTING] == 1:
            text = self.shortcomings.take().message
            if isinstance(error, StatusError):
                error.with_context(f"before that {text}")
            else:
                from jitree.dispatch.backtrace import add_note

                add_note(error, text)

    def _overflow(self, machine: Machine, function: VmFunction) -> ResourceExhaustedError:
        error = ResourceExhaustedError("stack overflow in Python code that the program called")
        self.explain(error, machine, function)
        return error


def _is_overflow(error: BaseException) -> bool:
    """Whether Python's stack was full, and what needs it is seen to; a signal's handler may raise one of its
    class."""
    if not isinstance(error, RecursionError) or is_interruption(error):
        return False
    see_to_overflow(error)
    return True
