"""Runs threads one at a time: a seed says at which marked points the turn goes to another one.

A thread can lose its turn where CPython lets another one run: where a function begins, after a call, where a
loop begins again (of the files in ``TRACED``), and where it takes a lock or waits. Time is virtual. It goes
on when all threads wait, to the first deadline, and by chance before that.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import threading
import zlib
from _thread import allocate_lock
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dis import Instruction, get_instructions
from math import inf
from traceback import format_stack, walk_stack
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

import jitree

PACKAGE: Final = os.path.dirname(jitree.__file__) + os.sep
TRACED: Final = tuple(
    PACKAGE + part
    for part in (
        "api/array.py", "api/asynchronous.py", "api/calls/native/", "api/calls/preparation.py",
        "api/calls/workspace.py", "api/function.py", "api/load_order.py", "api/module.py",
        "api/observers.py", "api/serving.py", "api/session.py", "base/cancel_scopes.py",
        "base/events.py", "base/finalizers.py", "base/stop_word.py", "cuda/",
        "dispatch/context.py", "dispatch/function.py", "dispatch/invocation.py", "dispatch/session_lock.py",
        "dispatch/suspended_calls.py", "dispatch/variables.py", "hal/", "modules/hal/", "observe/",
        "regs/handles.py",
    )
)  # fmt: skip
"""Files, and folders, of which each step is a point."""
_BY_ADDRESS: Final = ("<module>", "MemoryMap.", "_Grid.", "has_guard", "_has_one")
"""Functions that are left out: their steps are others where memory or earlier cases are. The first ones have
a lock."""
_ASKING: Final = tuple(
    PACKAGE + part
    for part in ("base/platform/", "base/finalizers.py", "cuda/", "hal/", "modules/hal/", "regs/")
)
"""Files that ask the system for memory and threads. Others make small objects of Python's, for which there is
its ``MemoryError``."""
_FIRST: Final = 1000.0
"""What the clock begins at."""
_READING: Final = 1e-7
"""Seconds that a look at the clock takes, so that who waits for a time comes to it."""
_MOST_IDLE: Final = 400
"""Times in a row that the clock moves because all threads wait, and no thread marks a step."""
_SECONDS: Final = 10.0
"""Until a thread ends that is told to."""
_EARLY: Final = 1 / 24
"""How often a thread that is to lose its turn loses it until a deadline of another one has passed."""

KNOWS_INSTRUCTIONS: Final = sys.version_info[:2] == (3, 11)
"""Whether Python's instructions are known. Later versions let other threads run elsewhere: there a number
gives other turns each time, and 3.12 was seen to end by SIGSEGV while instructions were traced."""
_AWAKE: Final = 1 / 2
"""How often a thread that has waited loses its turn soon: what it has now, others do not expect."""
_STEPS: Final = 3
"""Points that it comes, at most, until then."""


class Stopped(BaseException):
    """Ends a thread whose case has ended."""


class Alarm(Exception):
    """What the handler of a signal raises."""


class Schedule(NamedTuple):
    """When threads lose their turn."""

    seed: int
    gap: int
    """Points between two turns that are lost, on the average."""
    most: int
    """Turns that are lost; later ones end where a thread waits."""
    collects: float = 0.0
    """How often the garbage collector runs where one is lost."""
    signals: float = 0.0
    """How often a signal comes to the first thread where that loses one; its handler raises."""
    refused: int = 0
    """Which of the things that the system is asked for it refuses; 0: none."""
    refused_thread: int = 0
    """Which of the threads that the system is asked for it refuses; 0: none."""


class Actor:
    """A thread, and what it waits for."""

    def __init__(self, name: str, number: int, is_daemon: bool) -> None:
        self.name, self.number, self.is_daemon = name, number, is_daemon
        self.wake = allocate_lock()
        self.wake.acquire()
        self.is_ready: Callable[[], object] | None = None
        self.until = inf
        self.waits_for = ""
        self.is_done = False
        self.ident = 0
        self.thread: threading.Thread | None = None


class Scheduler:
    """The turns of one case. The thread that makes it has the first one."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.chance = random.Random(schedule.seed)
        self.now = _FIRST
        self.running = Actor("main", 0, False)
        self.running.ident = threading.get_ident()
        self.main = self.running
        self.actors = [self.running]
        self.digest = 0
        self.turns = self.lost = self._idle = 0
        self.findings: list[str] = []
        self.is_over = False
        self._left = inf
        self._asked = self._asked_threads = -inf
        self.has_refused = False
        """Whether the system has refused something."""
        self.moment = 1e-6
        """Seconds that a thread sleeps which only lets others run."""
        self._ended: list[threading.Thread] = []
        self._traced = 0
        """The ``id`` of the frame of the last instruction; 0 where a function in Python has begun since."""
        self.trace: list[str] | None = None
        """The turns as lines, for who looks at a case."""

    # -- points ------------------------------------------------------------------------------------------

    def _gap(self) -> float:
        if self.lost >= self.schedule.most:
            return inf
        return 1 + int(self.chance.expovariate(1 / self.schedule.gap))

    def begin(self) -> None:
        """Turns are lost from now on: what comes first is as for one thread, and may be there already."""
        self._left, self._asked, self._asked_threads = self._gap(), 0, 0

    def refuses(self) -> bool:
        """The system is asked for something. Whether it refuses that."""
        self._asked += 1
        is_refused = self._asked == self.schedule.refused
        self.has_refused |= is_refused
        return is_refused

    def refuses_thread(self) -> bool:
        """As :meth:`refuses`, of a thread."""
        self._asked_threads += 1
        is_refused = self._asked_threads == self.schedule.refused_thread
        self.has_refused |= is_refused
        return self.refuses() or is_refused

    def step(self) -> None:
        """A thread has come on: something goes on."""
        self._idle = 0

    def point(self, place: str) -> None:
        """The thread may lose its turn here."""
        self._left -= 1
        if self._left <= 0:
            self.lose_turn(place)

    def lose_turn(self, place: str) -> None:
        self._left = self._gap()
        if self.is_over or any(lock._is_owned() for lock in UNMANAGED):
            return
        self.lost += 1
        if self.schedule.collects and self.chance.random() < self.schedule.collects:
            gc.collect()
        if self.chance.random() < _EARLY:
            until = min((actor.until for actor in self.actors if not actor.is_done), default=inf)
            if until != inf:
                self.now = max(self.now, until)
        self._hand_on(place)

    def wait(self, is_ready: Callable[[], object], until: float, what: str) -> bool:
        """Gives others their turns until something is so, or the time comes. Whether it is so."""
        me = self.running
        if self.is_over:
            raise Stopped
        me.is_ready, me.until, me.waits_for = is_ready, until, what
        try:
            self._hand_on(what)
        finally:
            me.is_ready, me.until, me.waits_for = None, inf, ""
        if self.is_over:
            raise Stopped
        if self._left != inf and self.chance.random() < _AWAKE:
            self._left = 1 + self.chance.randrange(_STEPS)
        return bool(is_ready())

    def sleep(self, seconds: float) -> None:
        self.wait(bool, self.now + seconds, "some time")

    def _hand_on(self, place: str) -> None:
        me = self.running
        following = self._choose()
        self.turns += 1
        self._note(me, following, place)
        if following is not me:
            self._switch(me, following)

    def _note(self, me: Actor, following: Actor, place: str) -> None:
        line = f"{me.number} {place} {following.number}"
        self.digest = zlib.crc32(line.encode(), self.digest)
        if self.trace is not None:
            self.trace.append(f"{self.now:.7f} {line}")

    def _switch(self, me: Actor, following: Actor) -> None:
        self.running = following
        following.wake.release()
        if not me.is_done:
            me.wake.acquire()
            self._awake()

    def _awake(self) -> None:
        while self._ended:
            threading.Thread.join(self._ended.pop())
        if self.is_over:
            raise Stopped

    def _choose(self) -> Actor:
        """Who has the next turn."""
        while True:
            ready = [actor for actor in self.actors if not actor.is_done and self._can_run(actor)]
            if ready:
                return ready[self.chance.randrange(len(ready))] if len(ready) > 1 else ready[0]
            until = min((actor.until for actor in self.actors if not actor.is_done), default=inf)
            self._idle += 1
            if until == inf or self._idle > _MOST_IDLE:
                self._stop()
                return self.main
            self.now = max(self.now, until)

    def _can_run(self, actor: Actor) -> bool:
        return actor.is_ready is None or actor.until <= self.now or bool(actor.is_ready())

    def _stop(self) -> None:
        """All wait and nothing comes. Says where they are, and ends the case."""
        frames = sys._current_frames()
        lines = [f"no thread goes on at {self.now - _FIRST:.6f} s:"]
        for actor in self.actors:
            frame = frames.get(actor.ident)
            if not actor.is_done and frame is not None:
                lines += [f"{actor.name} waits for {actor.waits_for}, until {actor.until}:\n"]
                lines += format_stack(frame, 24)
        self.findings.append("\n".join(lines))
        self.is_over = True

    # -- threads -----------------------------------------------------------------------------------------

    def adopt(self, name: str, is_daemon: bool) -> Actor:
        actor = Actor(name, len(self.actors), is_daemon)
        self.actors.append(actor)
        return actor

    def run(self, actor: Actor, action: Callable[[], object]) -> None:
        """What a thread does."""
        actor.ident = threading.get_ident()
        actor.wake.acquire()
        try:
            self._awake()
            self.traced(action)
        except Stopped:
            pass
        finally:
            actor.is_done = True
            if not self.is_over:
                self._ended.append(threading.current_thread())
                self._hand_on("its end")

    def traced(self, action: Callable[[], object]) -> None:
        """Does something each step of which is a point."""
        before = sys.gettrace()
        sys.settrace(self.enter)
        try:
            action()
        finally:
            sys.settrace(before)

    def end(self) -> None:
        """Ends threads that never do so by themselves. Those of a case that stands still stay there."""
        global active
        active, self.is_over = None, True
        for actor in self.actors[1:]:
            if not self.findings and actor.thread is not None:
                if not actor.is_done:
                    actor.wake.release()
                threading.Thread.join(actor.thread, _SECONDS)

    # -- what Python traces ------------------------------------------------------------------------------

    def enter(self, frame: FrameType, event: str, argument: object) -> Any:
        self._traced = 0
        found = _places.get(frame.f_code)
        if found is None:
            found = _places[frame.f_code] = _places_of(frame.f_code)
        if not found or self._left == inf:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._opcode

    def _opcode(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "opcode" and frame.f_lasti in (places := _places[frame.f_code]):
            self._left -= 1
            if self._left <= 0:
                code, is_return = frame.f_code, places[frame.f_lasti] and self._traced != id(frame)
                self.lose_turn(f"{code.co_filename[len(PACKAGE) :]}:{code.co_name}+{frame.f_lasti}")
                frame.f_trace_opcodes = self._left != inf
                if not is_return:
                    self._signal(frame)
        self._traced = id(frame)
        return self._opcode

    def _signal(self, frame: FrameType) -> None:
        """Raises as a handler does, which runs at such points, but not where a function in Python returns.
        Python traces the thread no more then; imports do not survive that."""
        chance = self.schedule.signals
        if not chance or self.running is not self.main or self.chance.random() >= chance:
            return
        if not any("importlib" in caller.f_code.co_filename for caller, _ in walk_stack(frame)):
            raise Alarm


active: Scheduler | None = None
UNMANAGED: Final[list[Any]] = []
"""Locks that are no marked points: who has one keeps its turn."""
_places: Final[dict[CodeType, dict[int, bool]]] = {}


def _places_of(code: CodeType) -> dict[int, bool]:
    """The instructions before which CPython 3.11 lets other threads run; whether they come after a call."""
    if not code.co_filename.startswith(TRACED) or code.co_qualname.startswith(_BY_ADDRESS):
        return {}
    found, follows = dict[int, bool](), False
    for instruction in get_instructions(code):
        if follows or lets_run(instruction):
            found[instruction.offset] = follows
        follows = instruction.opname.startswith("CALL")
    return found


def lets_run(instruction: Instruction) -> bool:
    """Whether CPython 3.11 lets other threads run at an instruction itself: where a function begins, or a
    generator goes on, but not where ``await`` and ``yield from`` do; and where a loop begins again."""
    if instruction.opname.startswith("RESUME"):
        return (instruction.arg or 0) < _RESUMES_YIELD_FROM
    return instruction.opname.startswith("JUMP_BACKWARD") and "NO_INTERRUPT" not in instruction.opname


_RESUMES_YIELD_FROM: Final = 2
"""From this number on RESUME goes on with what a function waits for."""


def is_asking(depth: int) -> bool:
    """Whether the caller that many calls away is of the package, and asks for what may be refused."""
    return sys._getframe(depth + 1).f_code.co_filename.startswith(_ASKING)


@contextmanager
def scheduled(schedule: Schedule) -> Iterator[Scheduler]:
    """Has this thread and those that it starts run in turn."""
    global active
    scheduler = active = Scheduler(schedule)
    collects = gc.isenabled()
    gc.disable()
    try:
        yield scheduler
    finally:
        scheduler.end()
        if collects:
            gc.enable()
