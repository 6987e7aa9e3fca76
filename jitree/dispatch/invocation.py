"""Running calls: a machine from the pool, the engine, waiting, and the way out when something fails."""

from __future__ import annotations

import time
from _thread import RLock, get_ident
from array import array
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from jitree.dispatch import backtrace, conversion, forks
from jitree.dispatch.engine import Engine, Entry
from jitree.dispatch.function import BytecodeFunction, Function, NativeFunction
from jitree.dispatch.grid_call import Cell, GridCall
from jitree.dispatch.pending import Pending, happened
from jitree.errors import (
    CancelledError,
    FailedPreconditionError,
    ResourceExhaustedError,
    StatusError,
    error_context,
)
from jitree.regs.handles import HandleTable
from jitree.regs.layout import CROWDED, PATIENT, PROMPT, STATE, TURN
from jitree.regs.machine import FIRST_FUEL, NESTED_STACK, PROMPT_FUEL, STACK, Machine
from jitree.regs.records import FunctionRecord

if TYPE_CHECKING:
    import threading

    from jitree.regs.machine import Awaited

MAXIMUM_NESTING: Final = 64
"""Calls that native functions make back into their context. Each takes about eight Python frames, of which
CPython allows 1000 by default."""
_POOLED_MACHINES: Final = 4
_STATE_FRAME: Final = STATE.word("frame")
_STATE_PROMPT: Final = STATE.word("prompt")
_READY: Final = TURN.word("ready")
_NESTING: Final = TURN.word("nesting")
_FAULTS: Final = TURN.word("faults")
_UNWATCHED: Final = nullcontext()
_CROWDED_SECONDS: Final = 1.0
"""After a thread has found another in its context, how long calls leave the context alone while devices
work."""

T = TypeVar("T")


class Invoker:
    """Makes the calls of one context, one at a time. A call that waits lets others run."""

    def __init__(self, table: HandleTable, engine: Engine, lock: threading.RLock | None = None) -> None:
        self.table = table
        self.engine = engine
        self.lock: threading.RLock = RLock() if lock is None else lock
        """Held while anything of the context runs or changes."""
        self.functions: dict[int, FunctionRecord] = {}
        """Function records by address: what frames refer to."""
        self.closed = False
        self.shortcomings: list[str] = []
        """What native functions found wrong in the call in progress, which goes on; raised at its end."""
        self.turn = array("q", bytes(TURN.size))
        self.turn_address: int = self.turn.buffer_info()[0]
        """Of the TURN record."""
        self.watch_turn: Callable[[threading.RLock], AbstractContextManager[object]] = nullcontext
        """Entered by threads while they wait for the lock."""
        self.watch_call: Callable[[Callable[[], str]], AbstractContextManager[object]] | None = None
        """Entered while a call is in progress, with what tells where it is. If there is one, no call is made
        without this class."""
        self.end_call: Callable[[BaseException | None], object] = bool
        """Called when an outermost call has ended, with its error; not if it never left machine code."""
        self._direct: Machine | None = None
        self._is_direct_going_on = False
        """Whether Python is completing a direct call, which waits if the machine has something pending."""
        self._idle: list[Machine] = []
        self._crowded_until = 0.0
        """By ``time.monotonic``."""
        self._closing = "the context is closed"
        """Why, once it is closed."""
        forks.attend(self)

    @property
    def ready(self) -> Machine | None:
        """The machine of direct calls, if one may be made now: nothing of the context runs, and the machine
        waits for nothing."""
        return self._direct if self.turn[_READY] else None

    @property
    def nesting(self) -> int:
        """Calls in progress, one inside the other."""
        return self.turn[_NESTING]

    @nesting.setter
    def nesting(self, count: int) -> None:
        self.turn[_NESTING] = count

    def wait_for_turn(self) -> bool:
        """Takes the lock, which another thread has. True."""
        self._notice_crowd()
        try:
            with self.watch_turn(self.lock):
                return self.lock.acquire()
        except BaseException:
            if self.lock._is_owned():  # type: ignore[attr-defined]  # Ctrl-C came when it was taken
                self.lock.release()
            raise

    def _in_turn(self) -> threading.RLock:
        """The lock, to be taken; notices whether another thread has it."""
        if self.turn[_NESTING] and not self.lock._is_owned():  # type: ignore[attr-defined]
            self._notice_crowd()
            with self.watch_turn(self.lock), self.lock:
                pass
        return self.lock

    def _notice_crowd(self) -> None:
        """For a while, work of devices that takes long is done without the lock: a thread waits for it."""
        self._crowded_until = time.monotonic() + _CROWDED_SECONDS
        machine = self._direct
        if machine is not None:
            machine.state[_STATE_PROMPT] = CROWDED

    def _is_crowded(self) -> bool:
        return self._crowded_until > 0.0 and self._crowded_until > time.monotonic()

    def require_open(self) -> None:
        """FAILED_PRECONDITION once closed."""
        if self.closed:
            raise FailedPreconditionError(self._closing)

    def require_idle(self) -> None:
        """FAILED_PRECONDITION while this thread is in a call."""
        if self.nesting:
            raise FailedPreconditionError("the context is in use by the call that this happens in")

    def close(self) -> None:
        """No more calls."""
        self.closed = True
        self.turn[_READY] = 0
        self._direct = None
        self._idle.clear()

    def lose(self) -> None:
        """In a forked child, instead of :meth:`close`: another thread of the parent was in a call."""
        self._closing = (
            "the context was in use by another thread when this process was forked; make a new one"
        )
        self.turn[_NESTING] = 0
        self.close()

    # -- direct calls --------------------------------------------------------------------------------

    def direct_machine(self, entry: Entry) -> Machine:
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
        if machine is not None and not self.nesting and not self._is_direct_going_on:
            if not self.turn[_READY]:
                machine.reset()  # the end of a call may have had no room on Python's stack
            self.turn[_READY] = 1

    def carry_on(self, machine: Machine, entry: Entry) -> None:
        """What is left to do of a direct call after machine code has left for the first time."""
        if machine.state[_STATE_PROMPT] == CROWDED and not self._is_crowded():
            machine.state[_STATE_PROMPT] = PATIENT
        try:
            self._is_direct_going_on = True
            entry.go_on(machine)
            self._complete(machine)
            self.end_call(None)
        finally:
            self._is_direct_going_on = False

    def abandon(self, error: BaseException, machine: Machine, function: Function) -> None:
        """Ends a direct call that failed, and adds to the error where that was."""
        if machine.pc < 0:  # interrupted before anybody looked where machine code had left
            machine.pc = machine.adopt()
        try:
            self._explain(error, machine, function)
        finally:
            machine.release_frames()
            machine.state[_STATE_FRAME] = machine.frames_address
            self.turn[_NESTING] = 0
            self.settle()

    # -- synchronous ---------------------------------------------------------------------------------

    def submit(self, function: Function, arguments: Sequence[object]) -> list[Any]:
        """See :meth:`jitree.dispatch.context.Context.submit`."""
        return self.invoke(function, arguments, PROMPT)

    def invoke(self, function: Function, arguments: Sequence[object], prompt: int = PATIENT) -> list[Any]:
        """See :meth:`jitree.dispatch.context.Context.invoke`. ``prompt`` is what STATE.prompt says."""
        if not isinstance(function, BytecodeFunction):
            assert isinstance(function, NativeFunction)
            return self._invoke_native(function, arguments)
        with self._in_turn():
            nesting = self.nesting
            try:
                self._enter()
                machine = self._take_machine(prompt)
                try:
                    function.begin(machine, arguments)
                    with self._watched(function, machine):
                        self.engine.run(machine)
                        self._complete(machine)
                    results = function.unpack(machine)
                    self.require_faultless()
                    return results
                except RecursionError as error:
                    raise self._overflow(machine, function) from error
                except BaseException as error:
                    self._explain(error, machine, function)
                    raise
                finally:
                    self._give_back(machine)
            finally:
                self.turn[_NESTING] = nesting  # no call: Ctrl-C comes where one begins
                self.settle()

    def repeat(self, call: GridCall, arguments: Sequence[object], first: Cell, count: int) -> None:
        """Makes one call after the other until one fails; ``call.reached`` says how far it came."""
        call.reached = first
        with self.lock:
            nesting = self.nesting
            try:
                self._enter()
                machine = self._take_machine()
                try:
                    self._run_each(machine, call, call.starts(machine, arguments, first, count))
                finally:
                    call.reached = call.cell(machine)
                    self._give_back(machine)
            finally:
                self.turn[_NESTING] = nesting  # no call: Ctrl-C comes where one begins
                self.settle()

    def finish(self, call: GridCall, machine: Machine) -> None:
        """Goes on with a call that compiled code made on ``machine`` and left in the middle: the state says
        where, and all frames but the host's are written. The machine stays the caller's."""
        with self.lock:
            nesting = self.nesting
            try:
                self._enter()
                try:
                    self._run_each(machine, call, call.resumes(machine))
                finally:
                    machine.release_frames()
                    if self.table.deferred:
                        self.table.drain_deferred()
            finally:
                self.turn[_NESTING] = nesting  # no call: Ctrl-C comes where one begins
                self.settle()

    def _run_each(self, machine: Machine, call: GridCall, starts: Iterable[None]) -> None:
        """Runs the machine each time that it was made ready."""
        self.functions[call.host.address] = call.host
        try:
            for _ in starts:
                with self._watched(call.function, machine):
                    self.engine.run(machine)
                    self._complete(machine)
                self.require_faultless()
        except RecursionError as error:
            raise self._overflow(machine, call.function) from error
        except BaseException as error:
            self._explain(error, machine, call.function)
            raise

    def _watched(self, function: Function, machine: Machine) -> AbstractContextManager[object]:
        """Entered while a machine runs a call."""
        if self.watch_call is None:
            return _UNWATCHED
        machine.seen = ()
        machine.limit_fuel(FIRST_FUEL)
        return self.watch_call(partial(backtrace.describe_call, function.full_name, machine))

    def _enter(self) -> None:
        self.require_open()
        self._nest()

    def _nest(self) -> None:
        if self.nesting >= MAXIMUM_NESTING:
            raise ResourceExhaustedError(
                f"stack overflow: native functions called back into the context {MAXIMUM_NESTING} times"
            )
        self.turn[_READY] = 0
        self.nesting += 1

    def _take_machine(self, prompt: int = PATIENT) -> Machine:
        machine = self._idle.pop() if self._idle else Machine(self.table, self.functions)
        machine.state[_STATE_PROMPT] = CROWDED if prompt == PATIENT and self._is_crowded() else prompt
        machine.limit_stack(STACK if self.nesting <= 1 else NESTED_STACK)
        if prompt == PROMPT:
            machine.limit_fuel(PROMPT_FUEL)
        return machine

    def _give_back(self, machine: Machine) -> None:
        machine.release_frames()
        if self.table.deferred:
            self.table.drain_deferred()
        if len(self._idle) < _POOLED_MACHINES and not self.closed:
            self._idle.append(machine)

    def _complete(self, machine: Machine) -> None:
        """Waits for whatever a call waits for, until it is complete."""
        while machine.pending is not None:
            self.wait_unlocked(machine.pending.wait)
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
        """Waits without holding the lock, unless a native function further out needs it held."""
        if self.nesting > 1:
            wait(None)
            return
        self.nesting -= 1
        self.settle()
        shortcomings, self.shortcomings = self.shortcomings, []
        take: Callable[[Any], object] = self.lock.acquire
        how: object = True
        try:
            self.lock.release()
            if not self.lock._is_owned():  # type: ignore[attr-defined]  # nobody further out has it too
                # As threading.Condition does: Ctrl-C must not come before it is taken.
                take, how = self.lock._acquire_restore, (1, get_ident())  # type: ignore[attr-defined]
            wait(None)
        finally:
            take(how)
            self.turn[_READY] = 0
            self.turn[_NESTING] += 1
            self.shortcomings = shortcomings
            self.turn[_FAULTS] = 1 if shortcomings else 0

    def fail_at_end(self, text: str) -> None:
        """See :meth:`jitree.dispatch.context.Context.fail_at_end`."""
        self.shortcomings.append(text)
        self.turn[_FAULTS] = 1

    def require_faultless(self) -> None:
        """FAILED_PRECONDITION with all that was found wrong in the outermost call, which ends here."""
        if self.nesting == 1:
            self.end_call(None)
            self.turn[_FAULTS] = 0
            if self.shortcomings:
                raise _failed(self._take_shortcomings())

    def _take_shortcomings(self) -> list[str]:
        texts, self.shortcomings[:] = list(self.shortcomings), []
        return texts

    def _explain(self, error: BaseException, machine: Machine, function: Function) -> None:
        """Adds to an error where in the program it happened. The caller raises it: a frame that does so while
        a local names the error would keep everything the call used alive until the garbage collector runs."""
        if self.nesting == 1:
            self.end_call(error)
        backtrace.annotate(error, machine)
        if isinstance(error, StatusError):
            error.with_context(f"invoking function '{function.name}'")
        if self.shortcomings and self.nesting == 1:
            _add_to(error, self._take_shortcomings())

    def _overflow(self, machine: Machine, function: Function) -> ResourceExhaustedError:
        error = ResourceExhaustedError("stack overflow in Python code that the program called")
        self._explain(error, machine, function)
        return error

    def _invoke_native(self, function: NativeFunction, arguments: Sequence[object]) -> list[Any]:
        with self.lock, error_context(f"invoking function '{function.name}'"):
            nesting = self.nesting
            try:
                self._enter()
                result = self._call_native(function, arguments)
                while isinstance(result, Pending):
                    self.wait_unlocked(result.wait)
                    result = self._result_of(result)
                results = conversion.host_results(function.convention, result)
                self.require_faultless()
                return results
            except BaseException as error:
                if self.shortcomings and self.nesting == 1:
                    _add_to(error, self._take_shortcomings())
                raise
            finally:
                self.turn[_NESTING] = nesting  # no call: Ctrl-C comes where one begins
                self.settle()

    def _call_native(self, function: NativeFunction, arguments: Sequence[object]) -> object:
        self.require_open()
        target = function.target
        return target.export.function(target.state, *conversion.arguments(function.convention, arguments))

    # -- asynchronous --------------------------------------------------------------------------------

    async def invoke_async(self, function: Function, arguments: Sequence[object]) -> list[Any]:
        """See :meth:`jitree.dispatch.context.Context.invoke_async`."""
        if isinstance(function, NativeFunction):
            return await self._invoke_native_async(function, arguments)
        assert isinstance(function, BytecodeFunction)
        with self.lock:
            machine = self._take_machine(PROMPT)
        shortcomings: list[str] = []
        try:
            with self._watched(function, machine):
                self._locked(lambda: self._start(machine, function, arguments), shortcomings)
                while machine.pending is not None:
                    await happened(machine.pending)
                    self._locked(lambda: self._resume(machine), shortcomings)
            results = function.unpack(machine)
            if shortcomings:
                texts, shortcomings = shortcomings, []
                raise _failed(texts)
            return results
        except RecursionError as error:
            raise self._overflow(machine, function) from error
        except BaseException as error:
            self._explain(error, machine, function)
            if shortcomings:
                _add_to(error, shortcomings)
            raise
        finally:
            with self.lock:
                self._give_back(machine)

    def _start(self, machine: Machine, function: BytecodeFunction, arguments: Sequence[object]) -> None:
        self.require_open()
        function.begin(machine, arguments)
        self.engine.run(machine)

    def _locked(self, action: Callable[[], T], shortcomings: list[str]) -> T:
        """Takes a step of an asynchronous call, which ``shortcomings`` belong to."""
        with self.lock:
            nesting, others = self.nesting, self.shortcomings
            try:
                self._nest()
                self.shortcomings = shortcomings
                return action()
            finally:
                self.shortcomings = others
                self.turn[_NESTING] = nesting  # no call: Ctrl-C comes where one begins
                self.settle()

    async def _invoke_native_async(self, function: NativeFunction, arguments: Sequence[object]) -> list[Any]:
        with error_context(f"invoking function '{function.name}'"):
            shortcomings: list[str] = []
            result = self._locked(lambda: self._call_native(function, arguments), shortcomings)
            while isinstance(result, Pending):
                await happened(result)
                result = self._locked(partial(self._result_of, result), shortcomings)
            results = conversion.host_results(function.convention, result)
            if shortcomings:
                raise _failed(shortcomings)
            return results


def _failed(texts: Sequence[str]) -> FailedPreconditionError:
    count = f"{len(texts)} expectations" if len(texts) > 1 else "an expectation"
    return FailedPreconditionError("\n".join([f"{count} of the program failed:", *texts]))


def _add_to(error: BaseException, texts: Sequence[str]) -> None:
    """To an error that ends a call of which expectations had failed before."""
    text = _failed(texts).message
    if isinstance(error, StatusError):
        error.with_context(f"before that {text}")
    else:
        error.add_note(text)
