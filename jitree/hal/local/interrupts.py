"""Stops running work after Ctrl-C, or when its caller has gone.

Code that takes long looks here now and then. The threads that share a command list look at the failure of
their job. The thread that submits the list also looks at its operation, and has Python look for signals
(Ctrl-C) while it waits for the others.
"""

from __future__ import annotations

import ctypes
import sys
import time
from _thread import _local
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

from jitree.base import cancel_scopes, stop_word
from jitree.base.cancel_scopes import CURRENT
from jitree.base.finalizers import raised_later
from jitree.base.memory import once
from jitree.codegen.record import layout_of
from jitree.errors import AFTER_OVERFLOW, CancelledError, DeadlineExceededError, StatusError, is_interruption
from jitree.hal.command_layout import FAILED_INTERRUPTED, Job
from jitree.hal.local import executor
from jitree.hal.local.executor.calling import (
    FIRST_LOOK,
    FIRST_LOOK_TICKS,
    FUNCTION_TABLE,
    LOOK_IN,
    LOOK_TICKS,
)

if TYPE_CHECKING:
    from jitree.base.callbacks import Callback

    class Interruptible(Protocol):
        interrupted: StatusError | None

        def interrupt(self, failure: StatusError) -> None: ...
        def finish(self) -> None: ...


_LOOK_MICROSECONDS: Final = 30_000


class _ThisThread(_local):
    operation: Interruptible | None = None
    """What the thread executes."""

    def __init__(self) -> None:
        self.submitted: dict[Interruptible, None] = {}
        """What its call in progress has submitted and other threads may execute."""
        self.next_look = 0
        """How much that has to be before it is asked again whether the call may wait for it; 0 = anything."""


this_thread: Final = _ThisThread()


_calls_ended = 0


def calls_ended() -> int:
    """Counts this process's ended calls, roughly: counting threads do not wait."""
    return _calls_ended


def end_call(error: BaseException | None) -> None:
    """The call of this thread has ended. If a signal handler ended it, a deadline or a cancellation, its
    submissions are not wanted. The caller of the latter may use what the call wrote to: they end first."""
    global _calls_ended
    _calls_ended += 1
    if (
        error is not None and not sys.is_finalizing()
    ):  # an interrupt may have kept a job's error from its taker
        from jitree.base.callbacks import take_kept

        take_kept()
    submitted = this_thread.submitted
    if submitted:
        operations = tuple(submitted)
        give_up(submitted, error)
        if isinstance(error, (CancelledError, DeadlineExceededError)):
            scope = CURRENT.get()
            try:
                CURRENT.set(None)
                for operation in operations:
                    operation.finish()
            finally:
                CURRENT.set(scope)


def give_up(submitted: dict[Interruptible, None], error: BaseException | None) -> None:
    """A call has ended, which has submitted that. Nobody wants it if a signal's handler ended the call, or
    the end of its task, a deadline or a cancellation."""
    operations = tuple(submitted)
    submitted.clear()
    if isinstance(error, (CancelledError, DeadlineExceededError)):
        _interrupt(operations, error)
    elif error is not None and is_interruption(error):
        _interrupt(operations, CancelledError("the call was interrupted"))


def _interrupt(operations: Iterable[Interruptible], failure: StatusError) -> None:
    for operation in operations:
        operation.interrupt(failure)


_ended = ctypes.c_int64()


def end() -> None:
    """Interrupts everything, from now on: the interpreter exits."""
    _ended.value = 1


def is_to_end(*failures: ctypes.c_int64) -> bool:
    """Whether this thread is to end what it executes; ``failures`` of jobs say so, too."""
    operation = this_thread.operation
    is_unwanted = operation is not None and operation.interrupted is not None
    return is_unwanted or any(word.value for word in (_ended, *failures))


def require_going_on(*failures: ctypes.c_int64) -> None:
    """Raises why this thread is to end what it executes."""
    cancel_scopes.require_going_on()
    if is_to_end(*failures):
        raise CancelledError("the work was interrupted")


def _look(job: int) -> int:
    """Ends the job that this thread has submitted if the thread is to end."""
    if FUNCTION_TABLE[LOOK_TICKS] == FIRST_LOOK_TICKS and (native := executor.native_executor()) is not None:
        FUNCTION_TABLE[LOOK_TICKS] = int(_LOOK_MICROSECONDS * native.ticks_per_microsecond)
    require_going_on()
    # Machine code of this thread would look at what others do all the time.
    while job in tuple(_resting.values()):
        time.sleep(_REST_SECONDS)
        require_going_on()
    return 0


_REST_SECONDS: Final = 0.005
_resting: Final[dict[object, int]] = {}
"""The address of the Job record, for each thread that runs a part of a job and rests."""


@contextmanager
def resting(job: int) -> Iterator[None]:
    """Leaves the processors to others for a while. The thread that waits for this one's part does, too."""
    mark = object()
    try:
        _resting[mark] = job  # in one step, after which an interrupt does not leave it there
        yield
    finally:
        _resting.pop(mark, None)


def _fail(error: BaseException, job: int) -> int:
    """Ends a job with an error."""
    from jitree.base.callbacks import keep

    keep(error)
    ctypes.c_int64.from_address(job + layout_of(Job)["failure"]).value = FAILED_INTERRUPTED
    stop_word.ring()
    return 0


@once
def _look_in() -> Callback:
    """``(job)`` for machine code. An interrupt becomes the job's failure."""
    from jitree.base.callbacks import Callback

    return Callback(_look, 1, _fail, 0)


def _first_looks() -> Generator[None, int, None]:
    """What machine code calls first to look. From then on it calls what takes longer to import than most
    programs run. A generator, as in :mod:`jitree.dispatch.native.engine`. An interrupt may come before it
    knows the job: what looks next gets it, and that looks at once."""
    interruption: BaseException | None = None
    again: Iterator[int] | None
    while True:
        try:
            while True:
                try:
                    if interruption is not None:
                        FUNCTION_TABLE[LOOK_IN] = _look_in().address
                        stop_word.ring()
                        again, interruption = raised_later(interruption), None
                        # Python looks for interrupts after calls and jumps, and would raise it here. This
                        # generator lasts: it keeps nothing of the error, with which the frames of its caller
                        # would last.
                        _, again = [*again], None
                    while True:
                        job = yield
                        _first_look(job)
                except GeneratorExit as error:
                    if error.__traceback__.tb_next is None and not error.__dict__:  # type: ignore[union-attr]
                        # Closed as it waits; another raises it in a function, or marks it to raise it later.
                        # A call here would have Python look for signals.
                        return
                    interruption = error
                except RecursionError:  # there is no stack for anything: see `revive`
                    raise
                except BaseException as error:
                    interruption = error
        except RecursionError:
            raise
        except BaseException as error:  # a second one, where the loop begins again
            interruption = error


def _first_look(job: int) -> None:
    FUNCTION_TABLE[LOOK_IN] = _look_in().address
    try:
        _look(job)
    except BaseException as error:
        _fail(error, job)


_FIRST_LOOK: Final = ctypes.CFUNCTYPE(None, ctypes.c_int64)


class _First:
    """The generator that machine code calls to look, until one has looked."""

    def __init__(self) -> None:
        self._functions: list[object] = []
        """Functions of ctypes, also those that were replaced: machine code may have read their address."""
        self.address = 0
        self._begin()

    def _begin(self) -> None:
        self._steps: Any = _first_looks()
        next(self._steps)
        function = _FIRST_LOOK(self._steps.send)
        self._functions.append(function)
        self.address = ctypes.cast(function, ctypes.c_void_p).value or 0
        FUNCTION_TABLE[FIRST_LOOK] = self.address

    def revive(self) -> None:
        """Replaces it if it has ended: Python's stack was full when it was entered."""
        if self._steps.gi_frame is None:
            self._begin()


_first: Final = _First()
AFTER_OVERFLOW.append(_first.revive)
