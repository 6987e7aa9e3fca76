"""Ending early what a thread executes: another part of it was interrupted, or no call waits for it any more.

Code that takes long looks here now and then. The threads that share a command list look at the failure of
their job. The thread that submits the list also looks at its operation, and has Python look for signals
(Ctrl-C) while it waits for the others.
"""

from __future__ import annotations

import ctypes
from _thread import _local
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from jitree.base import event_loop
from jitree.base.once import once
from jitree.errors import CancelledError
from jitree.hal.local.executor.layout import FAILED_INTERRUPTED, JOB

if TYPE_CHECKING:
    from jitree.base.callbacks import Callback


class Interruptible(Protocol):
    interrupted: bool


class _ThisThread(_local):
    operation: Interruptible | None = None
    """What the thread executes."""

    def __init__(self) -> None:
        self.submitted: dict[Interruptible, None] = {}
        """What its call in progress has submitted and other threads may execute."""


this_thread: Final = _ThisThread()


def end_call(error: BaseException | None) -> None:
    """The call of this thread has ended. If a signal handler ended it, its submissions are not wanted."""
    submitted = this_thread.submitted
    if submitted:
        if error is not None and not isinstance(error, Exception):
            for operation in tuple(submitted):
                operation.interrupted = True
        submitted.clear()


_ended = ctypes.c_int64()


def end() -> None:
    """Interrupts everything, from now on: the interpreter exits."""
    _ended.value = 1


def watch(*failures: ctypes.c_int64) -> Callable[[], bool]:
    """What tells whether this thread is to end what it executes; ``failures`` of jobs end it, too."""
    operation = this_thread.operation
    words = (_ended, *failures)
    return lambda: any(word.value for word in words) or (operation is not None and operation.interrupted)


def _look(job: int) -> int:
    event_loop.require_uncancelled()
    if watch()():
        raise CancelledError("the work was interrupted")
    return 0


def _fail(error: BaseException, job: int) -> int:
    from jitree.base.callbacks import keep

    keep(error)
    ctypes.c_int64.from_address(job + JOB["failure"]).value = FAILED_INTERRUPTED
    return 0


@once
def look_in() -> Callback:
    """``(job)`` for machine code that waits for other threads. An interrupt becomes the job's failure."""
    from jitree.base.callbacks import Callback

    return Callback(_look, 1, _fail, 0)
