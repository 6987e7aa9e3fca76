"""Running calls: a machine from the pool, the engine, waiting, and the way out when something fails."""

from __future__ import annotations

import time
from _thread import RLock, get_ident
from array import array
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from jitree.base.arguments import object_of
from jitree.base.endings import require_interpreter
from jitree.base.records import NamedTuple
from jitree.dispatch import conversion, forks
from jitree.dispatch.engine import Engine, EngineEntry
from jitree.dispatch.function import BytecodeFunction, HostFunction, VmFunction
from jitree.dispatch.pending import Pending, happened
from jitree.errors import (
    CancelledError,
    FailedPreconditionError,
    ResourceExhaustedError,
    StatusError,
    error_context,
)
from jitree.regs.handles import HandleTable
from jitree.regs.layout import CONTENDED, GATE, PATIENT, PROMPT, STATE
from jitree.regs.machine import FIRST_TIME, NESTED_STACK, PROMPT_TIME, STACK, Machine
from jitree.regs.records import FunctionRecords

if TYPE_CHECKING:
    import threading

    from jitree.dispatch.grid_call import Cell, GridCall
    from jitree.regs.machine import Awaited

MAXIMUM_NESTING: Final = 64
"""Calls that host functions make back into their context. Each takes about eight Python frames, of which
CPython allows 1000 by default."""
_POOLED_MACHINES: Final = 4
_STATE_FRAME: Final = STATE.word("frame")
_STATE_PROMPT: Final = STATE.word("prompt")
_READY: Final = GATE.word("ready")
_NESTING: Final = GATE.word("nesting")
_FAULTS: Final = GATE.word("faults")
_UNWATCHED: Final = nullcontext()
_CONTENDED_SECONDS: Final = 1.0
"""After a thread has found another in its context, how long calls leave the context alone while devices
work."""

T = TypeVar("T")
Call = Generator["Awaited", None, list[Any]]
"""A call in progress: gives what it waits for, one after the other, in the end the results."""


class Policy(NamedTuple):
    """How a call is made."""

    prompt: int
    """What STATE.prompt says: whether it may hold up others."""
    time: int | None
    """Nanoseconds after which it gives way; None: as many as the machine has."""


WAITED_FOR: Final = Policy(PATIENT, None)
"""The caller does nothing else until it has the results."""
SUBMITTED: Final = Policy(PROMPT, PROMPT_TIME)
"""The caller goes on as soon as it can: devices are not to use its thread for long work."""


class Invoker:
    """Makes the calls of one context, one at a time. A call that waits lets others run."""

    def __init__(self, table: HandleTable, engine: Engine, lock: threading.RLock | None = None) -> None:
        self.table = table
        self.engine = engine
        self.lock: threading.RLock = RLock() if lock is None else lock
        """Held while anything of the context runs or changes."""
        self.functions = FunctionRecords()
        self.closed = False
        self.shortcomings: list[str] = []
        """What host functions found wrong in the call in progress, which goes on; raised at its end."""
        self.gate = array("q", bytes(GATE.size))
        self.gate_address: int = self.gate.buffer_info()[0]
        """Of the GATE record."""
        self.watch_gate: Callable[[threading.RLock], AbstractContextManager[object]] = nullcontext
        """Entered by threads while they wait for the lock."""
        self.watch_call: Callable[[Callable[[], str]], AbstractContextManager[object]] | None = None
        """Entered while a call is in progress, with what tells where it is. If there is one, no call is made
        without this class."""
        self.end_call: Callable[[BaseException | None], object] = bool
        """Called when an outermost call that a thread waited for has ended, with its error; not if it never
        left machine code."""
        self._direct: Machine | None = None
        self.is_direct_going_on = False
        """Whether Python is completing a direct call, which waits if the machine has something pending."""
        self._idle: list[Machine] = []
        self._contended_until = 0.0
        """By ``time.monotonic``."""
        self._closing = "the context is closed"
        """Why, once it is closed."""
        forks.attend(self)

    @property
    def ready(self) -> Machine | None:
        """The machine of direct calls, if one may be made now: nothing of the context runs, and the machine
        waits for nothing."""
        return self._direct if self.gate[_READY] else None

    def wait_at_gate(self) -> bool:
        """Takes the lock, which another thread has. True."""
        self._notice_contention()
        try:
            with self.watch_gate(self.lock):
                return self.lock.acquire()
        except BaseException:
            if self.lock._is_owned():  # type: ignore[attr-defined]  # Ctrl-C came when it was taken
                self.lock.release()
            raise

    def _at_gate(self) -> threading.RLock:
        """The lock, to be taken; notices whether another thread has it."""
        if self.gate[_NESTING] and not self.lock._is_owned():  # type: ignore[attr-defined]
            self._notice_contention()
            with self.watch_gate(self.lock), self.lock:
                pass
        return self.lock

    def _notice_contention(self) -> None:
        """For a while, work of devices that takes long is done without the lock: a thread waits for it."""
        self._contended_until = time.monotonic() + _CONTENDED_SECONDS
        machine = self._direct
        if machine is not None:
            machine.state[_STATE_PROMPT] = CONTENDED

    def _is_contended(self) -> bool:
        return self._contended_until > 0.0 and self._contended_until > time.monotonic()

    def require_open(self) -> None:
        """FAILED_PRECONDITION once closed, and at exit of the interpreter."""
        require_interpreter()
        if self.closed:
            raise FailedPreconditionError(self._closing)

    def require_idle(self) -> None:
        """FAILED_PRECONDITION while this thread is in a call."""
        if self.gate[_NESTING]:
            raise FailedPreconditionError("the context is in use by the call that this happens in")

    def close(self) -> None:
        """No more calls."""
        self.closed = True
        self.gate[_READY] = 0
        self._direct = None
        self._idle.clear()

    def lose(self) -> None:
        """In a forked child, instead of :meth:`close`: another thread of the parent was in a call."""
        self._closing = (
            "the context was in use by another thread when this process was forked; make a new one"
        )
        self.gate[_NESTING] = 0
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
        if machine is not None and not self.gate[_NESTING] and not self.is_direct_going_on:
            if not self.gate[_READY]:
                machine.reset()  # the end of a call may have had no room on Python's stack
            self.gate[_READY] = 1

    def carry_on(self, machine: Machine, entry: EngineEntry) -> None:
        """What is left to do of a direct call after machine code has left for the first time."""
        if machine.state[_STATE_PROMPT] == CONTENDED and not self._is_contended():
            machine.state[_STATE_PROMPT] = PATIENT
        try:
            self.is_direct_going_on = True
            entry.go_on(machine)
            for pending in self.rest(machine):
                self.wait_unlocked(pending.wait)
            self.end_call(None)
        finally:
            self.is_direct_going_on = False

    def free_direct(self, machine: Machine) -> None:
        """Ends a direct call that has left frames."""
        machine.release_frames()
        machine.state[_STATE_FRAME] = machine.frames_address

    def abandon(self, error: BaseException, machine: Machine, function: VmFunction) -> None:
        """Ends a direct call that failed, and adds to the error where that was."""
        if machine.pc < 0:  # interrupted before Python looked where machine code had left
            machine.pc = machine.adopt()
        try:
            self.end_call(error)
            self.explain(error, machine, function)
        finally:
            self.free_direct(machine)
            self.gate[_NESTING] = 0
            self.settle()

    # -- calls -----------------------------------------------------------------------------------------
    # A call is a generator, which gives what it has to wait for. So there is one for each thing that can be
    # called, for a thread that makes the call and for an event loop.

    def invoke(
        self, function: VmFunction, arguments: Sequence[object], policy: Policy = WAITED_FOR
    ) -> list[Any]:
        """See :meth:`jitree.dispatch.context.Context.invoke`."""
        return self._make(self._call(function, arguments, policy))

    async def invoke_async(self, function: VmFunction, arguments: Sequence[object]) -> list[Any]:
        """See :meth:`jitree.dispatch.context.Context.invoke_async`."""
        return await self.drive(self._call(function, arguments, SUBMITTED))

    async def drive(self, call: Call) -> list[Any]:
        """Makes a call and awaits whatever it waits for."""
        shortcomings = list[str]()
        step: Callable[[], Awaited] = partial(next, call)
        while True:
            try:
                pending = self._locked(call, step, shortcomings)
            except StopIteration as end:
                if shortcomings:  # of a call inside another, on whose thread the event loop runs
                    raise _failed(shortcomings) from None
                results: list[Any] = end.value
                return results
            step = partial(next, call)
            try:
                await happened(pending)
            except BaseException as error:
                step = partial(call.throw, error)

    def repeat(self, grid: GridCall, arguments: Sequence[object], first: Cell, count: int) -> None:
        """Makes one call after the other until one fails; ``grid.reached`` says how far it came."""
        grid.reached = first
        self.functions[grid.host.address] = grid.host

        def end(machine: Machine) -> None:
            grid.reached = grid.cell(machine)
            self._give_back(machine)

        start = partial(grid.start, arguments=arguments, first=first, count=count)
        take = partial(self._take_machine, WAITED_FOR)
        self._make(self._run(grid.function, take, start, grid.results, end))

    def finish(self, grid: GridCall, machine: Machine) -> None:
        """Goes on with a call that compiled code made on ``machine`` and left in the middle: the state says
        where, and all frames but the host's are written. The machine stays the caller's."""
        self.functions[grid.host.address] = grid.host
        self._make(self._run(grid.function, lambda: machine, grid.resume, grid.results, self._clear))

    def _make(self, call: Call) -> list[Any]:
        """Makes a call and waits for whatever it waits for."""
        with self._at_gate():
            nesting = self.gate[_NESTING]
            try:
                self._nest()
                pending = next(call)
                while True:
                    try:
                        self.wait_unlocked(pending.wait)
                    except BaseException as error:
                        pending = call.throw(error)
                    else:
                        pending = next(call)
            except StopIteration as end:
                if not nesting:
                    self.end_call(None)
                results: list[Any] = end.value
                return results
            except BaseException as error:
                call.close()  # if Ctrl-C came between its steps
                if not nesting:
                    self.end_call(error)
                raise
            finally:
                self.gate[_NESTING] = nesting  # no call: Ctrl-C comes where one begins
                self.settle()

    def _locked(self, call: Call, step: Callable[[], T], shortcomings: list[str]) -> T:
        """Takes a step of a call that others are made between, which ``shortcomings`` belong to."""
        with self.lock:
            nesting, others = self.gate[_NESTING], self.shortcomings
            try:
                self._nest()
                self.shortcomings = shortcomings
                return step()
            except BaseException:
                call.close()
                raise
            finally:
                self.shortcomings = others
                self.gate[_NESTING] = nesting  # no call: Ctrl-C comes where one begins
                self.settle()

    def _call(self, function: VmFunction, arguments: Sequence[object], policy: Policy) -> Call:
        if isinstance(function, BytecodeFunction):
            take, start = partial(self._take_machine, policy), partial(function.begin, arguments=arguments)
            return self._run(function, take, start, function.unpack, self._give_back)
        return self._run_host(object_of("function", function, VmFunction), arguments)

    def _run(
        self,
        function: BytecodeFunction,
        take: Callable[[], Machine],
        start: Callable[[Machine], object],
        results: Callable[[Machine], list[Any]],
        end: Callable[[Machine], None],
    ) -> Call:
        """A call on the machine that ``take`` gives, after which ``end`` leaves it as it should be."""
        self.require_open()
        machine = take()
        try:
            start(machine)
            with self._watched(function, machine):
                self.engine.run(machine)
                yield from self.rest(machine)
            found = results(machine)
            self.require_faultless()
            return found
        except RecursionError as error:
            raise self._overflow(machine, function) from error
        except BaseException as error:
            self.explain(error, machine, function)
            raise
        finally:
            end(machine)

    def _run_host(self, function: HostFunction, arguments: Sequence[object]) -> Call:
        self.require_open()
        with error_context(f"invoking function '{function.name}'"):
            try:
                target, convention = function.target, function.convention
                result = target.export.function(target.state, *conversion.arguments(convention, arguments))
                while isinstance(result, Pending):
                    yield result
                    result = self._result_of(result)
                results = conversion.host_results(convention, result)
                self.require_faultless()
                return results
            except BaseException as error:
                self._add_shortcomings(error)
                raise

    def _watched(self, function: VmFunction, machine: Machine) -> AbstractContextManager[object]:
        """Entered while a machine runs a call."""
        if self.watch_call is None:
            return _UNWATCHED
        from jitree.dispatch import backtrace

        machine.seen = ()
        machine.limit_time(FIRST_TIME)
        return self.watch_call(partial(backtrace.describe_call, function.full_name, machine))

    def _nest(self) -> None:
        nesting = self.gate[_NESTING]
        if nesting >= MAXIMUM_NESTING:
            raise ResourceExhaustedError(
                f"stack overflow: host functions called back into the context {MAXIMUM_NESTING} times"
            )
        self.gate[_READY] = 0
        self.gate[_NESTING] = nesting + 1

    def _take_machine(self, policy: Policy) -> Machine:
        machine = self._idle.pop() if self._idle else Machine(self.table, self.functions)
        prompt, time = policy
        machine.state[_STATE_PROMPT] = CONTENDED if prompt == PATIENT and self._is_contended() else prompt
        machine.limit_stack(STACK if self.gate[_NESTING] <= 1 else NESTED_STACK)
        if time is not None:
            machine.limit_time(time)
        return machine

    def _clear(self, machine: Machine) -> None:
        """Drops what a call has left in the registers of a machine."""
        machine.release_frames()
        if self.table.deferred:
            self.table.drain_deferred()

    def _give_back(self, machine: Machine) -> None:
        self._clear(machine)
        if len(self._idle) < _POOLED_MACHINES and not self.closed:
            self._idle.append(machine)

    def rest(self, machine: Machine) -> Iterator[Awaited]:
        """What a call that has begun waits for, until it is complete."""
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

    def wait_unlocked(self, wait: Callable[[float | None], object]) -> None:
        """Waits without holding the lock, unless a host function further out needs it held."""
        if self.gate[_NESTING] > 1:
            wait(None)
            return
        self.gate[_NESTING] -= 1
        self.settle()
        shortcomings, self.shortcomings = self.shortcomings, []
        take: Callable[[Any], object] = self.lock.acquire
        how: object = True
        try:
            self.lock.release()
            if not self.lock._is_owned():  # type: ignore[attr-defined]  # no call further out has it too
                # As threading.Condition does: Ctrl-C must not come before it is taken.
                take, how = self.lock._acquire_restore, (1, get_ident())  # type: ignore[attr-defined]
            wait(None)
        finally:
            take(how)
            self.gate[_READY] = 0
            self.gate[_NESTING] += 1
            self.shortcomings = shortcomings
            self.gate[_FAULTS] = 1 if shortcomings else 0

    def fail_at_end(self, text: str) -> None:
        """See :meth:`jitree.dispatch.context.Context.fail_at_end`."""
        self.shortcomings.append(text)
        self.gate[_FAULTS] = 1

    def require_faultless(self) -> None:
        """FAILED_PRECONDITION with all that was found wrong in the outermost call, which ends here."""
        if self.gate[_NESTING] == 1:
            self.gate[_FAULTS] = 0
            if self.shortcomings:
                raise _failed(self._take_shortcomings())

    def _take_shortcomings(self) -> list[str]:
        texts, self.shortcomings[:] = list(self.shortcomings), []
        return texts

    def explain(self, error: BaseException, machine: Machine, function: VmFunction) -> None:
        """Adds to an error where in the program it happened. The caller raises it: a frame that does so while
        a local names the error would keep everything the call used alive until the garbage collector runs.

        FAILED_PRECONDITION at exit of the interpreter, where what this needs cannot be imported any more."""
        require_interpreter()
        from jitree.dispatch import backtrace  # only failures ask

        backtrace.annotate(error, machine)
        if isinstance(error, StatusError):
            error.with_context(f"invoking function '{function.name}'")
        self._add_shortcomings(error)

    def _add_shortcomings(self, error: BaseException) -> None:
        """To an error that ends a call of which expectations had failed before."""
        if self.shortcomings and self.gate[_NESTING] == 1:
            text = _failed(self._take_shortcomings()).message
            if isinstance(error, StatusError):
                error.with_context(f"before that {text}")
            else:
                error.add_note(text)

    def _overflow(self, machine: Machine, function: VmFunction) -> ResourceExhaustedError:
        error = ResourceExhaustedError("stack overflow in Python code that the program called")
        self.explain(error, machine, function)
        return error


def _failed(texts: Sequence[str]) -> FailedPreconditionError:
    count = f"{len(texts)} expectations" if len(texts) > 1 else "an expectation"
    return FailedPreconditionError("\n".join([f"{count} of the program failed:", *texts]))
