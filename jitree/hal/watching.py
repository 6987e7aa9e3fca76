"""Looks at threads in turn while the watchdog is on (:mod:`jitree.hal.watchdog`)."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType
from typing import Final, Protocol

from jitree.base.events import CALL, CallEvent, EventReader, ObservedEvent
from jitree.base.platform.threads import thread_refusals
from jitree.dispatch.backtrace import describe_call
from jitree.regs.machine import FIRST_TIME

_LOOKS: Final = 4
"""How often it looks in the time after which it speaks."""
_MOST_FRAMES: Final = 3
_PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class Reporter(Protocol):
    """Reports threads or queues."""

    def report(self) -> list[str]:
        """What they do, a line each."""


class Activity:
    """Notes a wait or an operation in progress on a thread."""

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
        """Whether it has lasted long enough to report, next after twice as long."""
        if now < self._due:
            return False
        self._due = now + (now - self.since)
        return True

    def line(self, now: float) -> str:
        return f"{self.thread.name}: {self.verb} for {now - self.since:.1f} s: {self.describe()}"


class Watchdog:
    """Watches all activities of the process."""

    def __init__(
        self, seconds: float, write: Callable[[str], object], reporters: Callable[[], Sequence[Reporter]]
    ) -> None:
        """``reporters`` gives those to be asked for a report."""
        self.seconds = seconds
        self.write = write
        self._reporters = reporters
        self._activities: dict[Activity, None] = {}
        """Without a lock: the end of what is forgotten may come anywhere, and wait, which is an activity."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="jitree-watchdog", daemon=True)
        with thread_refusals("watching waits"):
            self._thread.start()

    def enter(self, verb: str, describe: Callable[[], str]) -> Activity:
        """What the calling thread does from now on, until the activity ends."""
        activity = Activity(self, verb, describe)
        self._activities[activity] = None
        return activity

    def leave(self, activity: Activity) -> None:
        self._activities.pop(activity, None)

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stopping.wait(self.seconds / _LOOKS):
            now = time.monotonic()
            late = [activity for activity in self._snapshot() if activity.take_due(now)]
            if late:
                self.write(self.report(late[0]))

    def _snapshot(self) -> list[Activity]:
        return list(self._activities)  # in one step

    def report(self, cause: Activity) -> str:
        """What all threads do, introduced by the activity that takes long."""
        now = time.monotonic()
        frames = sys._current_frames()
        lines = [f"jitree watchdog: {cause.thread.name} has been {cause.verb} for {now - cause.since:.1f} s"]
        for activity in self._snapshot():
            lines.append(f"  {activity.line(now)}")
            lines += [f"      {place}" for place in _places(frames.get(activity.thread.ident or 0))]
        for reporter in self._reporters():
            lines += [f"  {line}" for line in reporter.report()]
        return "\n".join(lines) + "\n"


class CallWatch(EventReader):
    """Enters the calls of one context while they run bytecode."""

    def __init__(self, current: Callable[[], Watchdog | None]) -> None:
        self._current = current
        self._running: dict[ObservedEvent, Activity] = {}

    def begins(self, event: CallEvent) -> None:
        dog = self._current()
        if event.kind == CALL and event.machine is not None and dog is not None:
            event.machine.seen = ()
            event.machine.limit_time(FIRST_TIME)
            self._running[event] = dog.enter("running", partial(describe_call, event.name, event.machine))

    def ends(self, event: CallEvent) -> None:
        activity = self._running.pop(event, None)
        if activity is not None:
            activity.end()


def _places(frame: FrameType | None) -> list[str]:
    """Where a thread is in the program that uses the package, innermost first."""
    places: list[str] = []
    while frame is not None and len(places) < _MOST_FRAMES:
        code = frame.f_code
        if not code.co_filename.startswith(_PACKAGE) and not code.co_filename.startswith("<"):
            places.append(f"at {code.co_filename}:{frame.f_lineno} in {code.co_name}")
        frame = frame.f_back
    return places


def gate_text(lock: threading.RLock) -> str:
    """Names the thread that has a session, and where it is. Only the lock's text tells."""
    owner = repr(lock).partition("owner=")[2].split(" ")[0]
    ident = int(owner) if owner.isdecimal() else 0
    names = [thread.name for thread in threading.enumerate() if thread.ident == ident]
    if not names:
        return "the call gate of a session"
    places = _places(sys._current_frames().get(ident))
    return " ".join([f"the call gate of a session, which {names[0]} has", *places[:1]])
