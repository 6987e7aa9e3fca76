"""Reports what every thread waits for or works on when that takes long.

It is off unless asked for (:func:`start`, the environment variable JITREE_WATCHDOG, ``Session(watchdog=…)``).
Then every wait and every operation enters itself here while it lasts, and another thread looks at them
now and then. Devices made while it is on let Python start every operation, so that it sees them all.
"""

from __future__ import annotations

import os
from _thread import TIMEOUT_MAX
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Final

from jitree.base.arguments import shown
from jitree.base.finalizers import SharedWeakSet, guard
from jitree.errors import InvalidArgumentError, tell

if TYPE_CHECKING:
    import threading

    from jitree.hal.watching import Reporter, Watchdog
    from jitree.regs.handles import HandleTable

VARIABLE: Final = "JITREE_WATCHDOG"
"""Environment variable: seconds."""


_reporters: Final[SharedWeakSet[Reporter]] = SharedWeakSet()
_reporters_lock = guard()


def ask(reporter: Reporter) -> None:
    """Asks a pool or team in every report from now on."""
    with _reporters_lock:
        _reporters.add(reporter)


def _asked() -> Sequence[Reporter]:
    with _reporters_lock:
        return list(_reporters)


current: Watchdog | None = None
"""The one that is on. Read it once: another thread may turn it off."""


def watch_gate(lock: threading.RLock) -> AbstractContextManager[object]:
    """An activity: the calling thread waits for the lock of a session."""
    dog = current
    if dog is None:
        return nullcontext()
    from jitree.hal.watching import gate_text

    return dog.enter("waiting", partial(gate_text, lock))


def watch_calls(table: HandleTable) -> None:
    """Has the watchdog, if on, read the calls of a new session or executable."""
    if current is None:
        return
    from jitree.base.events import listen
    from jitree.hal.watching import CallWatch

    listen(table, CallWatch(lambda: current))


def start(seconds: float, write: Callable[[str], object] | None = None) -> None:
    """Turns the watchdog on for devices created from now on, or changes its time.

    When a wait or an operation has lasted ``seconds``, and again after twice as long, a report goes to
    ``write`` (default: standard error). INVALID_ARGUMENT unless ``seconds`` is above 0.
    """
    global current
    if not isinstance(seconds, (int, float)) or not 0 < seconds < TIMEOUT_MAX:
        raise InvalidArgumentError(f"the watchdog needs a time above 0 seconds but got {shown(seconds)}")
    from jitree.hal.watching import Watchdog

    stop()
    current = Watchdog(seconds, write or _write_to_stderr, _asked)


def stop() -> None:
    """Turns the watchdog off."""
    global current
    watchdog, current = current, None
    if watchdog is not None:
        watchdog.stop()


def start_from_environment() -> None:
    """As JITREE_WATCHDOG says, if it is set. INVALID_ARGUMENT when it is not a number above 0."""
    text = os.environ.get(VARIABLE)
    if not text or current is not None:
        return
    try:
        seconds = float(text)
    except ValueError:
        raise InvalidArgumentError(f"{VARIABLE}='{text}' is not a number of seconds") from None
    start(seconds)


def _write_to_stderr(text: str) -> None:
    tell(text)


def _after_fork() -> None:
    """In a forked child the thread does not exist."""
    global current, _reporters_lock
    _reporters_lock = guard()
    if current is not None:
        current = type(current)(current.seconds, current.write, _asked)


os.register_at_fork(after_in_child=_after_fork)
