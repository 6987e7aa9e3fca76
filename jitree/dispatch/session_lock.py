"""Lets one call at a time into a context: waiting, cancelling, forks, failures noted."""

from __future__ import annotations

import abc
import os
import time
from _thread import allocate_lock, get_ident
from array import array
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from operator import attrgetter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Protocol

from jitree.base import cancel_scopes, stop_word
from jitree.base.cancel_scopes import Scope
from jitree.base.finalizers import ReentrantLock, SharedWeakSet, require_no_brief_guard, with_lock
from jitree.codegen.record import size_of, words_of
from jitree.dispatch.engine import YIELD
from jitree.errors import CancelledError, DeadlineExceededError, FailedPreconditionError, StatusError
from jitree.regs.layout import CONTENDED, STATE_WORDS, GateRecord

if TYPE_CHECKING:
    import threading
    from _thread import LockType

    from jitree.dispatch.function import BytecodeFunction
    from jitree.regs.machine import Machine

    class Submitted(Protocol):
        """A fence."""

        def interrupt(self, failure: StatusError) -> None: ...

    class Submissions(Protocol):
        """What the thread's call in progress has submitted to devices. Calls that are awaited take turns on
        a thread."""

        this_thread: Any
        """Has ``submitted``: the thread is in the call that has submitted that. No call sets it: Ctrl-C comes
        where one begins or ends."""

        def give_up(self, submitted: dict[Any, None], error: BaseException | None, /) -> None:
            """The call that has submitted that has ended so."""


_MOST: Final = 1 << 20
"""Characters that are kept: a program can fail any number of expectations."""


class Shortcomings:
    """Texts, of which the first are kept and all are counted."""

    __slots__ = ("_size", "_texts", "count")

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._texts: list[str] = []
        self._size = self.count = 0

    def add(self, text: str) -> None:
        self.count += 1
        self._size += len(text) + 1
        if self._size <= _MOST:
            self._texts.append(text)

    def take(self) -> FailedPreconditionError:
        """The error that says all of them, of which there are none then."""
        texts, count = self._texts, self.count
        self._clear()
        head = f"{count} expectations" if count > 1 else "an expectation"
        left_out = count - len(texts)
        rest = [f"and {left_out} others"] if left_out else []
        return FailedPreconditionError("\n".join([f"{head} of the program failed:", *texts, *rest]))


STATE_PROMPT: Final = STATE_WORDS.prompt
_GATE: Final = words_of(GateRecord)
READY, NESTING, FAULTS, BEGUN, CANCELS = _GATE.ready, _GATE.nesting, _GATE.faults, _GATE.begun, _GATE.cancels
REFUSED, CALLS, FAILURES, WAITS = _GATE.refused, _GATE.calls, _GATE.failures, _GATE.waits
_CONTENDED_SECONDS: Final = 1.0
"""How long calls leave the context to others while devices work, after one thread has found another in it."""


class Held:
    """Takes a lock in C for a block, which loses none to an interrupt.

    It is taken as :class:`~jitree.base.finalizers.ReentrantLock` is, and left in C."""

    __exit__: Any = property(attrgetter("_lock.__exit__"))

    def __init__(self, lock: threading.RLock | LockType, wait: Callable[[], object] | None = None) -> None:
        """``wait`` takes it where another thread has it; without that the thread sleeps until it is free."""
        self._lock = lock
        self._wait = wait

    def __enter__(self) -> None:
        [is_taken] = map(self._lock.acquire, (self._wait is None,))
        if not is_taken and self._wait is not None:
            self._wait()


class NoSubmissions:
    """Of a context without devices."""

    this_thread: Any = SimpleNamespace(submitted={})

    def give_up(self, submitted: dict[Any, None], error: BaseException | None, /) -> None:
        return


class ContextGate(abc.ABC):
    """The lock and the GATE record of one context."""

    def __init__(self, lock: threading.RLock | None) -> None:
        self.lock: threading.RLock = ReentrantLock() if lock is None else lock
        """Held while anything of the context runs or changes."""
        self.shortcomings = Shortcomings()
        """What host functions found wrong in the call in progress, which goes on; raised at its end."""
        self.gate = array("q", bytes(size_of(GateRecord)))
        self.gate_address: int = self.gate.buffer_info()[0]
        """The address of the GATE record."""
        self.watch_gate: Callable[[threading.RLock], AbstractContextManager[object]] = nullcontext
        """Entered by threads while they wait for the lock."""
        self.waiting: dict[Scope, None] = {}
        """What ends calls that wait, or whose callers have gone on."""
        self.submitted: SharedWeakSet[Submitted] = SharedWeakSet()
        """What is signalled when the work of calls is done whose callers have gone on."""
        self.submissions: Submissions = NoSubmissions()
        self.refusal: Callable[[], StatusError] | None = None
        """Makes what a call that begins is refused with, while those in progress go on."""
        self.turn = allocate_lock()
        """Locked while a call that uses variables waits (:mod:`jitree.dispatch.variables`)."""
        self.turn_loop = 0
        """The ``id`` of the event loop that takes the steps of that call."""
        self._cancels = count(1)
        self._direct: Machine | None = None
        self._contended_until = 0.0
        """By ``time.monotonic``."""
        _gates.add(self)

    @abc.abstractmethod
    def lose(self) -> None:
        """Closes it in a forked child: another thread of the parent was in a call."""

    @abc.abstractmethod
    def settle(self) -> None:
        """Allows direct calls if nothing speaks against them."""

    def require_idle(self) -> None:
        """FAILED_PRECONDITION while this thread is in a call."""
        if self.gate[NESTING]:
            raise FailedPreconditionError("the context is in use by the call that this happens in")

    def refuse_calls(self, refusal: Callable[[], StatusError]) -> None:
        """Lets no more calls begin; the lock must be held. FAILED_PRECONDITION while this thread is in a
        call, which would wait for itself."""
        self.require_idle()
        self.refusal = refusal
        self.gate[REFUSED], self.gate[READY] = 1, 0

    # -- at the gate -----------------------------------------------------------------------------------

    def wait_at_gate(self) -> bool:
        """Takes the lock, which another thread has. True. DEADLINE_EXCEEDED if it has it for too long,
        CANCELLED if that is said meanwhile."""
        self._notice_contention()
        begun, until = self.gate[CANCELS], cancel_scopes.until()
        try:
            with self.watch_gate(self.lock):
                while not self.lock.acquire(timeout=cancel_scopes.next_look(until)):
                    if until is not None and time.monotonic() >= until:
                        raise DeadlineExceededError("another call has the session, and has not ended in time")
                    require_no_brief_guard()
            if begun != self.gate[CANCELS]:
                raise cancellation()
            return True
        except BaseException:
            if self.lock._is_owned():  # type: ignore[attr-defined]  # Ctrl-C came when it was taken
                self.lock.release()
            raise

    def entrance(self) -> AbstractContextManager[object]:
        """What takes the lock; notices whether another thread has it."""
        if self.lock._is_owned():  # type: ignore[attr-defined]
            return self.lock
        if cancel_scopes.CURRENT.get() and cancel_scopes.until() is not None:
            return Held(self.lock, self.wait_at_gate)
        if self.gate[NESTING]:
            self._notice_contention()
            with self.watch_gate(self.lock):
                while with_lock(self.lock, bool, cancel_scopes.LOOK_SECONDS) is None:
                    require_no_brief_guard()
        return self.lock

    def _notice_contention(self) -> None:
        """For a while, work of devices that takes long is done without the lock: a thread waits for it."""
        self._contended_until = time.monotonic() + _CONTENDED_SECONDS
        machine = self._direct
        if machine is not None:
            machine.state[STATE_PROMPT] = CONTENDED

    def is_contended(self) -> bool:
        """Whether a thread has lately found another in the context."""
        return self._contended_until > 0.0 and self._contended_until > time.monotonic()

    # -- cancelling ------------------------------------------------------------------------------------
    # A call that machine code makes notes what CANCELS was as it began, and nothing else: so a later call is
    # none of those that are cancelled, and nothing has to be taken back.

    def cancel(self) -> None:
        """Ends the calls that have begun, on whatever threads; returns at once."""
        self.gate[CANCELS] = next(self._cancels)
        cancel_scopes.cancelled.add(self)
        failure = cancellation()
        for scope in tuple(self.waiting):
            scope.end(failure)
        for fence in self.submitted:
            fence.interrupt(failure)
        stop_word.ring()

    def go_on_counting(self, other: ContextGate) -> None:
        """Takes over the number of cancellations: calls of the other one go on as this one's."""
        self._cancels = other._cancels
        self.gate[CANCELS] = other.gate[CANCELS]

    def cancelled_here(self) -> StatusError | None:
        """See :class:`jitree.base.cancel_scopes.Caller`."""
        gate = self.gate
        is_cancelled = gate[NESTING] and gate[BEGUN] != gate[CANCELS]
        return cancellation() if is_cancelled and self.lock._is_owned() else None  # type: ignore[attr-defined]

    def is_ended_by(self, scope: Scope, begun: int) -> Scope:
        """Lets :meth:`cancel` end an open scope with its call. The call began with those cancellations. The
        scope."""
        self.waiting[scope] = None
        if begun != self.gate[CANCELS]:
            scope.end(cancellation())
        return scope

    # -- waiting ---------------------------------------------------------------------------------------

    def turn_of(self, function: BytecodeFunction) -> AbstractContextManager[object]:
        """Keeps others from the variables of an outermost call that is going to wait."""
        if self.gate[NESTING] > 1:
            return nullcontext()
        from jitree.dispatch.variables import turn_of  # few calls wait

        turn = turn_of(self, function.record)
        return nullcontext() if turn is None else Held(turn)

    def wait_unlocked(self, wait: Callable[[float | None], object]) -> None:
        """Waits without holding the lock, unless a host function further out needs it held."""
        gate = self.gate
        begun = gate[BEGUN]
        if gate[NESTING] > 1:
            self._wait(wait, begun)
            return
        gate[NESTING] -= 1
        gate[WAITS] += 1
        self.settle()
        shortcomings, self.shortcomings = self.shortcomings, Shortcomings()
        take: Callable[[Any], object] = self.lock.acquire
        how: object = True
        try:
            self.lock.release()
            if not self.lock._is_owned():  # type: ignore[attr-defined]  # no call further out has it too
                # As threading.Condition does: Ctrl-C must not come before it is taken.
                take, how = self.lock._acquire_restore, (1, get_ident())  # type: ignore[attr-defined]
            self._wait(wait, begun)
        finally:
            take(how)
            gate[READY] = 0
            gate[NESTING] += 1
            gate[BEGUN] = begun
            self.shortcomings = shortcomings
            gate[FAULTS] = 1 if shortcomings.count else 0

    def _wait(self, wait: Callable[[float | None], object], begun: int) -> None:
        if wait is YIELD.wait:
            return
        with Scope() as scope:
            try:
                self.is_ended_by(scope, begun)
                wait(None)
            finally:
                self.waiting.pop(scope, None)


def cancellation() -> CancelledError:
    return CancelledError("the calls of the session were cancelled")


# -- forks ----------------------------------------------------------------------------------------------
# A forked child has no thread but the one that forked. A call that another thread was making will never end
# there, and it may have been anywhere: nothing that it has touched can be used. All other contexts go on.

_gates: Final[SharedWeakSet[ContextGate]] = SharedWeakSet()


def _after_fork() -> None:
    lost = [gate for gate in _gates if not _is_free(gate)]
    for gate in lost:
        gate.lock._at_fork_reinit()  # type: ignore[attr-defined]
        gate.lose()
    for gate in _gates:
        gate.turn = allocate_lock()  # no call is left that waits


def _is_free(gate: ContextGate) -> bool:
    """Whether no other thread had the context."""
    return with_lock(gate.lock, bool) is not None


os.register_at_fork(after_in_child=_after_fork)
