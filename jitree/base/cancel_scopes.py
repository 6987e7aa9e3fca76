"""Ends work early: at deadlines, for cancelled sessions and cancelled tasks.

Code that takes long looks here now and then (:func:`require_going_on`). A thread that ends something says so
first and rings then, at which machine code has Python look (:mod:`jitree.base.stop_word`). A thread that
sleeps is woken by what it has left with the scope that it is in.
"""

from __future__ import annotations

import ctypes
import sys
import time
from _thread import allocate_lock
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from math import inf
from operator import attrgetter, methodcaller
from typing import TYPE_CHECKING, Any, Final, Protocol

from jitree.base import arguments, stop_word
from jitree.base.finalizers import SharedWeakSet, Unique
from jitree.errors import DeadlineExceededError, FailedPreconditionError, StatusError, again, attribute_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable

    class Caller(Protocol):
        """What makes calls, all of which can be cancelled."""

        def cancelled_here(self) -> StatusError | None:
            """Why the call that this thread makes by it is to end."""


Wake = Callable[[StatusError], object]

LOOK_SECONDS: Final = 1.0
"""The longest sleep of a thread that waits. A signal that comes between Python's last look and the sleep does
not end it, only what comes during it does."""
_some_ended: Final = ctypes.c_int64()
ENDED: Final[int] = ctypes.addressof(_some_ended)
"""The address of 1 while there may be a block whose deadline has passed: calls begin in Python then."""
_ended: Final[dict[Scope, None]] = {}


class Scope(Unique):
    """Covers what a thread or a task does until it is left. It is the block of a ``with`` statement, or a
    call that waits. It can be ended from any thread, and ends by itself ``seconds`` after it was entered.

    It is left by releasing a lock, in C: Ctrl-C cannot come before that, and leave a thread in it for good.
    """

    __slots__ = ("__weakref__", "_name", "_open", "_wakes", "failure", "outer", "seconds", "until")

    __exit__: Any = property(attrgetter("_open.__exit__"))

    def __init__(self, seconds: float | None = None, name: str = "") -> None:
        """``name``: of what has stated the seconds, if they are no deadline of the caller's."""
        self.seconds = seconds
        self._name = name and f" ({name})"
        self._open = allocate_lock()
        self._wakes: dict[Wake, None] = {}
        self.failure: StatusError | None = None
        """Why it has ended, once it has."""
        self.outer: Scope | None = None
        self.until: float | None = None
        """When it ends, by ``time.monotonic``."""

    def __enter__(self) -> Scope:
        """It can be ended from now on. FAILED_PRECONDITION a second time."""
        taken: list[bool] = []  # by functions in C: no interrupt comes before it is known
        try:
            next(map(taken.append, map(self._open.acquire, (False,))))
            if self.until is not None or True not in taken:
                raise FailedPreconditionError("a deadline limits one block; make another one for the next")
            self.outer = current()
            if self.seconds is not None:
                self.until = time.monotonic() + self.seconds
                if self.seconds <= 0:
                    self.expire()
                else:
                    stop_word.arm(self, self.until)
            CURRENT.set(self)
        except BaseException:
            if True in taken:
                self._open.release()
            raise
        return self

    @property
    def is_open(self) -> bool:
        return self._open.locked()

    def expire(self) -> None:
        """Its time is over."""
        self.end(DeadlineExceededError(f"it was not done within {self.seconds:g} s{self._name}"))

    @property
    def is_used(self) -> bool:
        """Whether anything is left to end: it is open, or what began there still goes on."""
        return self.is_open or bool(self._wakes)

    def end(self, failure: StatusError) -> None:
        """What it stands for is to end with the failure. Only the first one counts; a later one wakes what an
        interrupted one has left asleep."""
        if self.is_used:
            if self.failure is None:
                self.failure = failure
            if self.seconds is not None:
                _ended[self] = None
                _some_ended.value = 1
            stop_word.ring()
            for wake in tuple(self._wakes):
                wake(self.failure)

    def watch(self, wake: Wake) -> None:
        """Calls a function with the failure when the scope, or one around it, ends. That is also so when they
        have been left. At once, if that is so. It must not matter how often, nor that it comes late."""
        for scope in self._all():
            scope._wakes[wake] = None
        for scope in self._all():
            if scope.failure is not None:
                wake(scope.failure)

    def unwatch(self, wake: Wake) -> None:
        """Takes :meth:`watch` back."""
        for scope in self._all():
            scope._wakes.pop(wake, None)

    def _all(self) -> Iterator[Scope]:
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.outer

    def why_to_end(self) -> StatusError | None:
        """Why it has ended, or one that it is in."""
        now = 0.0
        for scope in self._all():
            if scope.failure is None and scope.until is not None:
                now = now or time.monotonic()
                if now >= scope.until:
                    scope.expire()
            if scope.failure is not None and scope.is_open:
                return scope.failure
        return None

    def first_until(self) -> float | None:
        """When the first of those ends that it is in."""
        times = [scope.until for scope in self._all() if scope.until is not None and scope.is_open]
        return min(times, default=None)

    async def watched(self, awaited: Awaitable[object]) -> None:
        """Awaits something until the scope ends, whose failure is raised then."""
        import asyncio

        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        failures: list[StatusError] = []
        waiting, cancelled = [task], list[bool]()
        cancelling = map(cancelled.append, map(methodcaller("cancel"), waiting))
        """Cancels it the first time, while it waits; in C: an interrupt could come before Python does."""

        def wake(failure: StatusError) -> None:
            failures.append(failure)
            try:
                loop.call_soon_threadsafe(next, cancelling, None)
            except RuntimeError:
                if not loop.is_closed():  # there is no task left to tell when it is
                    raise

        others = task.cancelling()
        self.watch(wake)
        try:
            await awaited
        except asyncio.CancelledError:
            if cancelled and task.uncancel() <= others:
                raise again(failures[0]) from None
            raise
        else:
            if cancelled:
                task.uncancel()
        finally:
            waiting.clear()
            self.unwatch(wake)


CURRENT: Final[ContextVar[Scope | None]] = ContextVar("scope", default=None)
"""The scope that was entered last; it may have been left."""


def current() -> Scope | None:
    """The innermost scope that the thread or task is in."""
    scope = CURRENT.get()
    while scope is not None and not scope.is_open:
        scope = scope.outer
    return scope


def limit() -> Scope | None:
    """The innermost scope with a deadline that the thread or task is in."""
    scope = current()
    while scope is not None and (scope.seconds is None or not scope.is_open):
        scope = scope.outer
    return scope


def until() -> float | None:
    """When the first deadline passes that the thread or task has, by ``time.monotonic``."""
    scope = current()
    return None if scope is None else scope.first_until()


def next_look(latest: float | None) -> float:
    """Seconds to sleep before the next look whether to end: at most until then, or until a deadline."""
    return max(0, min([LOOK_SECONDS, *[at - time.monotonic() for at in (latest, until()) if at is not None]]))


def deadline(seconds: float | None) -> AbstractContextManager[object]:
    """Limits the seconds that a block of a ``with`` statement may take.

    What this thread or task asks for there, of whatever session, ends with DEADLINE_EXCEEDED once so many
    ``seconds`` have passed since it was entered, and so does what was submitted there. None and infinity are
    no limit, 0 has passed.

    INVALID_ARGUMENT for what is no number of seconds, and for negative ones, which are a mistake of the
    caller.

    >>> digits = jitree.load("examples/digits/digits.vmvx.vmfb")
    >>> with digits.session.deadline(5.0):
    ...     digits.classify(np.zeros((8, 8), np.float32)).shape
    (10,)
    """
    if seconds is None:
        return nullcontext()
    limit = arguments.seconds("timeout", seconds)
    return nullcontext() if limit == inf else Scope(limit)


cancelled: Final[SharedWeakSet[Caller]] = SharedWeakSet()
"""Those whose calls have been cancelled once."""


def why_to_end() -> StatusError | None:
    """Why what this thread or task does is to end."""
    if stop_word.WORD.value < stop_word.NEVER:
        stop_word.put_off()
    if _some_ended.value:
        _some_ended.value = 0
        for ended in tuple(_ended):
            if not ended.is_open:
                _ended.pop(ended, None)
        if _ended:
            _some_ended.value = 1
    scope = CURRENT.get() and current()
    failure = None if scope is None else scope.why_to_end()
    for caller in cancelled if failure is None and cancelled else ():
        failure = failure or caller.cancelled_here()
    return failure


def require_going_on() -> None:
    """Raises why what this thread or task does is to end; what :func:`require_uncancelled` raises."""
    if "asyncio" in sys.modules:
        require_uncancelled()
    failure = why_to_end()
    if failure is not None:
        raise again(failure)


# -- event loops ----------------------------------------------------------------------------------------
# asyncio takes the first Ctrl-C to cancel a task, which raises nothing before the loop has its next turn.
# What keeps the loop from that has to look for itself.


def runs_here() -> bool:
    """Whether the calling thread is in a turn of an event loop."""
    return running_loop() is not None


def require_uncancelled() -> None:
    """Raises asyncio.CancelledError if the running task, or the main one on Ctrl-C, must end."""
    loop = running_loop()
    if loop is None:
        return
    import asyncio
    import signal

    handler = signal.getsignal(signal.SIGINT)
    main: Any = attribute_of(handler, "keywords", {}).get("main_task")  # of asyncio.Runner
    if main is not None and main.get_loop() is not loop:
        main = None
    if any(map(_is_to_end, (asyncio.current_task(loop), main))):
        raise asyncio.CancelledError


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop in a turn of which the calling thread is."""
    look = getattr(sys.modules.get("asyncio"), "_get_running_loop", None)  # it may be half imported
    return None if look is None else look()


def _is_to_end(task: Any) -> bool:
    """Whether a task has been cancelled since the loop's last turn: it is marked, or what it waits for is."""
    waiter = attribute_of(task, "_fut_waiter")
    return attribute_of(task, "_must_cancel", False) or (waiter is not None and waiter.cancelled())
