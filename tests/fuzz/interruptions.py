"""Calls that end early, at random: by their tasks, deadlines, ``cancel`` and handlers of signals that raise.

Whenever that comes, a call ends with its result, or with why it was to end. Afterwards the session computes
as before, and nothing is left: no thread, no descriptor, no handle. A
case is a session, with some rounds of calls. A handler raises only where the package runs: in their own
midst asyncio and the import system do not survive that.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import re
import signal
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from traceback import walk_stack
from types import FrameType
from typing import Any, Final

import numpy as np

import jitree
from jitree import Session
from jitree.errors import CancelledError, DeadlineExceededError
from tests.api.programs import ARITHMETIC, ASYNCHRONOUS, STATE
from tests.fuzz.campaign import CASES, Campaign, Result

PACKAGE: Final = os.path.dirname(jitree.__file__) + os.sep
IMPORTS: Final = re.compile(r"<frozen importlib\b")
"""Files of the import system: interrupted, it keeps a lock that all threads need."""
X: Final = np.arange(4, dtype=np.float32)
N: Final = np.arange(64, dtype=np.float32)
LONGEST: Final = 0.004
"""Seconds until a signal comes, at most: a round takes a few milliseconds."""
AGAIN: Final = 5e-5
"""Seconds until the next one where a handler must not raise."""
MOST_CALLS: Final = 8
ROUNDS: Final = 34
"""Of a session."""


class Alarm(Exception):
    """What users raise in a handler for a time-out."""


RAISED: Final = (Alarm, TimeoutError, KeyboardInterrupt)
ENDS: Final = (CancelledError, DeadlineExceededError, asyncio.CancelledError, *RAISED)


class Alarms:
    """Has a signal come once during an action."""

    def __init__(self) -> None:
        self._raised: type[BaseException] | None = None
        self.came = 0
        signal.signal(signal.SIGALRM, self._expire)

    def _expire(self, number: int, frame: FrameType | None) -> None:
        raised = self._raised
        if raised is None:
            return
        files = {caller.f_code.co_filename for caller, _ in walk_stack(frame)}
        if not any(file.startswith(PACKAGE) for file in files) or any(map(IMPORTS.match, files)):
            signal.setitimer(signal.ITIMER_REAL, AGAIN)
            return
        self._raised = None
        self.came += 1
        raise raised

    def during(self, action: Callable[[], object], seconds: float, raised: type[BaseException]) -> object:
        """What the action gives, or what it raises."""
        try:
            try:
                self._raised = raised
                signal.setitimer(signal.ITIMER_REAL, seconds)
                return action()
            finally:
                self._raised = None  # before all else: what is done here may be interrupted, too
        except BaseException as error:
            return error
        finally:
            self._stop()

    @staticmethod
    def _stop() -> None:
        with suppress(*RAISED):  # what came during the end of an object is raised a little later
            signal.setitimer(signal.ITIMER_REAL, 0)


class Round:
    """Some calls of a session, and what ends some of them."""

    def __init__(self, session: Session, chance: random.Random) -> None:
        self._session = session
        self._chance = chance
        self.wrong: list[str] = []
        self.ends: Counter[str] = Counter()

    def judge(self, what: str, outcome: object, expected: object) -> None:
        if isinstance(outcome, BaseException):
            self.ends[type(outcome).__name__] += 1
            if not isinstance(outcome, ENDS):
                self.wrong.append(f"{what}: {outcome!r}")
        else:
            self.ends["result"] += 1
            if not np.array_equal(np.asarray(outcome), np.asarray(expected)):
                self.wrong.append(f"{what}: {outcome!r}, not {expected!r}")

    def _limit(self) -> dict[str, float]:
        return {"timeout": self._chance.choice((0.0, 1e-4, 1e-3))} if self._chance.random() < 0.3 else {}

    def plain(self) -> None:
        """A chain of submissions, read at its end, and a call that reads on the host."""
        session, limit = self._session, self._limit()
        add = session["asynchronous.add"]
        outcome: Any = None
        try:
            outcome = add(add.submit(add.submit(N, N), N), N, **limit)
        except ENDS as error:
            outcome = error
            if isinstance(error, RAISED):
                raise
        finally:
            if outcome is not None:
                self.judge("chain", outcome, 4 * N)
        try:
            doubled = session["state.double_until"](np.float32(1), 1000.0, **limit)
        except (CancelledError, DeadlineExceededError) as error:
            self.judge("loop", error, None)
        else:
            self.judge("loop", doubled[0], 1024)

    async def awaited(self) -> None:
        """Several at once. Some of their tasks are cancelled a few turns later, or all calls."""
        session, chance = self._session, self._chance
        calls: dict[str, Callable[[], tuple[Any, Any]]] = {
            "add": lambda: (session["arithmetic.add"].async_(X, X, **self._limit()), 2 * X),
            "asynchronous": lambda: (session["asynchronous.add"].async_(N, N, **self._limit()), 2 * N),
            "pending": lambda: (
                session["asynchronous.add"].async_(session["asynchronous.add"].submit(N, N), N),
                3 * N,
            ),
            "loop": lambda: (session["state.double_until"].async_(np.float32(1), 1000.0), None),
        }
        names = chance.choices(list(calls), k=chance.randint(1, MOST_CALLS))
        begun: list[tuple[str, asyncio.Task[Any], object]] = []
        try:
            for name in names:
                call, expected = calls[name]()
                begun.append((name, asyncio.ensure_future(call), expected))
            for _ in range(chance.randint(0, 3)):
                await asyncio.sleep(0)
            for _, task, _ in begun:
                if chance.random() < 0.2:
                    task.cancel()
            if chance.random() < 0.2:
                session.cancel()
            await asyncio.gather(*[task for _, task, _ in begun], return_exceptions=True)
        finally:
            for name, task, expected in begun:
                if task.done():
                    self._judge_task(name, task, expected)

    def _judge_task(self, name: str, task: asyncio.Task[Any], expected: object) -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        outcome: Any = task.result() if error is None else error
        if name == "loop" and error is None:
            outcome, expected = outcome[0], 1024
        self.judge(name, outcome, expected)


def right(session: Session) -> bool:
    """Whether calls of all kinds give what they are to."""

    async def awaited() -> Any:
        return await session["asynchronous.add"].async_(N, N)

    return (
        np.array_equal(session["arithmetic.add"](X, X), 2 * X)
        and np.array_equal(session["asynchronous.add"](N, N), 2 * N)
        and session["state.double_until"](np.float32(1), 1000.0)[1] == 10
        and np.array_equal(asyncio.run(awaited()), 2 * N)
    )


def is_asyncio(outcome: object) -> bool:
    """Tells what ``asyncio.run`` raises where its task ends in the turn of the loop that is interrupted: the
    loop, which is to stop, does so when the other tasks are cancelled."""
    return isinstance(outcome, RuntimeError) and str(outcome).startswith("Event loop stopped before")


def _run(calls: Round) -> None:
    asyncio.run(calls.awaited())


def left(session: Session) -> int:
    gc.collect()
    session.trim()
    return session.context.table.live_count


def resources() -> tuple[int, Counter[str]]:
    """Count the threads, and what each descriptor is open on."""
    gc.collect()
    open_on = Counter[str]()
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the list itself
            open_on[re.sub(r"\d+", "N", os.readlink(f"/proc/self/fd/{number}"))] += 1
    return threading.active_count(), open_on


def check(number: int, rounds: int) -> Result:
    """What is wrong with a session, after so many rounds of calls."""
    chance, alarms = random.Random(number), Alarms()
    device = ("local-sync", "local-task://?threads=2")[number % 2]
    found, counts = list[str](), Counter({CASES: 1})
    with Session(device, tier="native") as session:  # what a process makes once, machine code too
        session.load(ARITHMETIC, ASYNCHRONOUS, STATE)
    before = resources()
    with Session(device) as session, ThreadPoolExecutor(1) as other:
        session.load(ARITHMETIC, ASYNCHRONOUS, STATE)
        for _ in range(4):
            right(session)
        handles = left(session)
        for step in range(rounds):
            calls = Round(session, chance)
            action = chance.choice((calls.plain, partial(_run, calls)))
            if chance.random() < 0.1:
                other.submit(session.cancel)
            outcome = alarms.during(action, chance.uniform(1e-6, LONGEST), chance.choice(RAISED))
            if is_asyncio(outcome):
                calls.ends["asyncio stops"] += 1
            elif isinstance(outcome, BaseException) and not isinstance(outcome, ENDS):
                calls.wrong.append(repr(outcome))
            del outcome  # with all that the call had
            other.submit(bool).result()  # no cancel comes later
            if not calls.wrong and not (right(session) and other.submit(right, session).result()):
                calls.wrong.append("later calls are wrong")
            found += [f"case {number} round {step}: {text}" for text in calls.wrong]
            counts += calls.ends
            counts["rounds"] += 1
            del calls, action
        counts["handles kept"] = left(session) - handles
        if counts["handles kept"]:
            found.append(f"case {number}: {left(session)} handles, {handles} before")
    counts["alarms"] = alarms.came
    del session
    after = resources()
    if after[0] > before[0] or after[1] - before[1]:  # what others left may end meanwhile
        found.append(f"case {number}: threads and descriptors {after}, {before} before")
    return found, counts


CAMPAIGN: Final = Campaign(
    "sessions, interrupted", int, lambda number: check(number, ROUNDS), prepare=lambda: None
)
