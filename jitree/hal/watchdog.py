"""The watchdog: says what every thread waits for or works on when that takes too long.

It is off unless asked for (:func:`start`, the environment variable JITREE_WATCHDOG, ``Session(watchdog=…)``).
Then every wait and every operation enters itself here while it lasts, and a thread of its own looks at them
now and then. Devices made while it is on let Python start every operation, so that it sees them all.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import FrameType
from typing import Final, Protocol

from jitree.errors import InvalidArgumentError

VARIABLE: Final = "JITREE_WATCHDOG"
"""Environment variable: seconds."""
_LOOKS: Final = 4
"""How often it looks in the time after which it speaks."""
_MOST_FRAMES: Final = 3
_PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class Reporter(Protocol):
    """Something with threads or queues of its own."""

    def report(self) -> list[str]:
        """What they do, a line each."""


_reporters: weakref.WeakSet[Reporter] = weakref.WeakSet()
_reporters_lock = threading.Lock()


def ask(reporter: Reporter) -> None:
    """From now on every report asks a pool or a team, as long as it lives."""
    with _reporters_lock:
        _reporters.add(reporter)


class Activity:
    """A wait or an operation in progress on a thread."""

    __slots__ = ("_due", "_watchdog", "describe", "since", "thread", "verb")

    def __init__(self, watchdog: Watchdog, verb: str, describe: Callable[[], str]) -> None:
        self._watchdog = watchdog
        self.verb = verb
        self.describe = describe
        self.thread = threading.current_thread()
        self.since = time.monotonic()
        self._due = self.since + watchdog.seconds

    def end(self) -> None:
        """It is over."""
        self._watchdog.leave(self)

    def __enter__(self) -> Activity:
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()

    def take_due(self, now: float) -> bool:
        """Whether it has lasted long enough to be spoken of; the next time is after twice as long."""
        if now < self._due:
            return False
        self._due = now + (now - self.since)
        return True

    def line(self, now: float) -> str:
        return f"{self.thread.name}: {self.verb} for {now - self.since:.1f} s: {self.describe()}"


class Watchdog:
    """Watches all activities of the process."""

    def __init__(self, seconds: float, write: Callable[[str], object]) -> None:
        self.seconds = seconds
        self._write = write
        self._lock = threading.Lock()
        self._activities: dict[Activity, None] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="jitree-watchdog", daemon=True)
        self._thread.start()

    def enter(self, verb: str, describe: Callable[[], str]) -> Activity:
        """What the calling thread does from now on, until the activity ends."""
        activity = Activity(self, verb, describe)
        with self._lock:
            self._activities[activity] = None
        return activity

    def leave(self, activity: Activity) -> None:
        with self._lock:
            self._activities.pop(activity, None)

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stopping.wait(self.seconds / _LOOKS):
            now = time.monotonic()
            late = [activity for activity in self._snapshot() if activity.take_due(now)]
            if late:
                self._write(self.report(late[0]))

    def _snapshot(self) -> list[Activity]:
        with self._lock:
            return list(self._activities)

    def report(self, cause: Activity) -> str:
        """What all threads do, introduced by the activity that takes long."""
        now = time.monotonic()
        frames = sys._current_frames()
        lines = [f"jitree watchdog: {cause.thread.name} has been {cause.verb} for {now - cause.since:.1f} s"]
        for activity in self._snapshot():
            lines.append(f"  {activity.line(now)}")
            lines += [f"      {place}" for place in _places(frames.get(activity.thread.ident or 0))]
        with _reporters_lock:
            reporters = list(_reporters)
        for reporter in reporters:
            lines += [f"  {line}" for line in reporter.report()]
        return "\n".join(lines) + "\n"


def _places(frame: FrameType | None) -> list[str]:
    """Where a thread is in the program that uses the package, innermost first."""
    places: list[str] = []
    while frame is not None and len(places) < _MOST_FRAMES:
        code = frame.f_code
        if not code.co_filename.startswith(_PACKAGE) and not code.co_filename.startswith("<"):
            places.append(f"at {code.co_filename}:{frame.f_lineno} in {code.co_name}")
        frame = frame.f_back
    return places


current: Watchdog | None = None
"""The one that is on. Read it once: another thread may turn it off."""


def watch_turn(lock: threading.RLock) -> AbstractContextManager[object]:
    """An activity: the calling thread waits for the lock of a session."""
    dog = current
    return nullcontext() if dog is None else dog.enter("waiting", partial(_turn_text, lock))


def _turn_text(lock: threading.RLock) -> str:
    """Who has a session, and where: only the lock's text tells."""
    owner = repr(lock).partition("owner=")[2].split(" ")[0]
    ident = int(owner) if owner.isdecimal() else 0
    names = [thread.name for thread in threading.enumerate() if thread.ident == ident]
    if not names:
        return "its turn in a session"
    places = _places(sys._current_frames().get(ident))
    return " ".join([f"its turn in a session, which {names[0]} has", *places[:1]])


def start(seconds: float, write: Callable[[str], object] | None = None) -> None:
    """Turns the watchdog on for devices created from now on, or changes its time.

    When a wait or an operation has lasted ``seconds``, and again after twice as long, a report goes to
    ``write`` (default: standard error). INVALID_ARGUMENT unless ``seconds`` is above 0.
    """
    global current
    if not 0 < seconds < threading.TIMEOUT_MAX:
        raise InvalidArgumentError(f"the watchdog needs a time above 0 seconds but got {seconds}")
    stop()
    current = Watchdog(seconds, write or _write_to_stderr)


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
    sys.stderr.write(text)
    sys.stderr.flush()


def _after_fork() -> None:
    """In a forked child the thread does not exist."""
    global current, _reporters_lock
    _reporters_lock = threading.Lock()
    if current is not None:
        current = Watchdog(current.seconds, current._write)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
