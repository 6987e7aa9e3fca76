"""The threads of a case of :mod:`tests.fuzz.turns`: what they share, and how they take their steps."""

from __future__ import annotations

import asyncio
import random
import selectors
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable
from math import inf
from traceback import format_tb
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
import numpy.typing as npt

import jitree
from jitree.api.calls.native.handle_owners import HandleReturns
from jitree.errors import (
    CancelledError,
    DeadlineExceededError,
    FailedPreconditionError,
    ResourceExhaustedError,
)
from jitree.hal.fence import settling
from tests.fuzz import primitives, scheduler
from tests.fuzz.scheduler import Alarm, Schedule, Scheduler, Stopped
from tests.fuzz.turn_driver import Pace

CANCELLING: Final = {"cancel", "close"}
CLOSING: Final = {"close", "reload"}

Step = tuple[str, int]


class Case(NamedTuple):
    device: str
    tier: str
    scripts: tuple[tuple[Step, ...], ...]
    """For each thread names of steps, each with a number that its choices come from."""
    schedule: Schedule
    pace: Pace | None = None
    """How a GPU works; None: a device of the processor."""


class Shared:
    """What the threads of a case have in common."""

    session: jitree.Session
    donating: str
    """A function that takes a donated array and another one."""

    def __init__(self, case: Case, turns: Scheduler) -> None:
        self.case, self.turns = case, turns
        self.wrong: list[str] = []
        self.counts: Counter[str] = Counter()
        self.names = {step for script in case.scripts for step, _ in script}
        self.ends: tuple[type[BaseException], ...] = (
            *((CancelledError,) if self.names & CANCELLING else ()),
            *((Alarm,) if case.schedule.signals else ()),
            *((FailedPreconditionError,) if self.names & CLOSING else ()),
        )
        """What any call may end with."""
        self.is_exact = not (self.names & (CANCELLING | CLOSING | {"reload"}) or case.schedule.signals)
        self.may_overtake = "accumulate" in self.names or len(case.scripts) > 1
        """Whether awaited calls may find that another call has the variables: they begin when it has ended,
        and they have no order then. It waits with them for a device, or, awaited, gives way to a thread."""
        self.counters: list[list[int]] = []
        self.totals: list[float] = []
        self.tried = self.added = self.donated = 0
        """Calls that may have added to the counter and to the sum; donations that were taken."""
        self.unsure = 0
        """Calls of the latter that have ended in another way than by a sum."""
        self.told: set[int] = set()
        """Threads that have heard of what the system refused."""
        self.is_again = False
        """Whether all has its end, and is done again."""
        self.open()

    @abstractmethod
    def open(self) -> None:
        """Makes the sessions and what the steps use."""

    @abstractmethod
    def close(self) -> None:
        """Ends all of it."""

    def close_session(self) -> None:
        """Closes it, and waits for threads that take back what was dropped while another one had its lock."""
        self.session.close()
        name = HandleReturns.collect_later.__name__
        if later := [actor for actor in self.turns.actors if actor.name == name and not actor.is_done]:
            self.turns.wait(lambda: all(actor.is_done for actor in later), inf, name)

    @abstractmethod
    def left(self) -> list[str]:
        """What is there then and must not be."""

    @property
    def has_failed(self) -> bool:
        """Whether something was refused, and all goes on."""
        return self.turns.has_refused

    def may_end(self, error: BaseException, thread: int) -> bool:
        """Whether a step of a thread may end so."""
        if isinstance(error, self.ends):
            return True
        if isinstance(error, ResourceExhaustedError) and self.turns.has_refused and not self.is_again:
            self.told.add(thread)
            self.unsure += 1
            return True
        return False

    def check(self) -> None:
        """Looks at what all threads have seen of the program's variables."""
        self._check_counter()
        expected, found = set(range(1, self.added + 1)), set(self.totals)
        is_lost = len(found) < len(self.totals) or not found <= expected
        if self.is_exact and (is_lost or len(expected) - len(found) > self.unsure):
            self.wrong.append(f"sums are {sorted(self.totals)}, of {self.added} calls: one is lost")
        if self.donated > 1:
            self.wrong.append(f"an array was donated {self.donated} times")
        if len(self.told) > 1 and self.case.pace is None and self.is_exact:
            self.wrong.append(f"one refusal was told to threads {sorted(self.told)}")

    def _check_counter(self) -> None:
        numbers = sorted(number for numbers in self.counters for number in numbers)
        if self.is_exact:
            if len(set(numbers)) < len(numbers) or numbers[-1:] > [_FIRST + self.tried]:
                self.wrong.append(f"the counter gave {self.counters}, of {self.tried} calls")
            if any(given != sorted(given) for given in self.counters):
                self.wrong.append(f"the counter goes back: {self.counters}")


_FIRST: Final = 10
"""What the program's counter begins at."""


class Thread:
    """One of the threads. Its steps are methods."""

    kind: ClassVar[type[Shared]]

    def __init__(self, shared: Shared, number: int, script: tuple[Step, ...]) -> None:
        self.shared, self.number, self.script = shared, number, script
        self.chance = random.Random()
        self.counters: list[int] = []
        shared.counters.append(self.counters)
        self.submitted: list[tuple[Any, npt.NDArray[np.float32]]] = []

    def run(self) -> None:
        for place, (step, seed) in enumerate(self.script):
            try:
                self.take(place, step, seed)
                self.shared.turns.step()
            except Alarm:  # it came while an object ended, and is raised a little later
                self.shared.counts["Alarm"] += 1
        self.submitted.clear()

    def take(self, place: int, step: str, seed: int) -> None:
        self.chance.seed(seed)
        try:
            self.shared.turns.traced(getattr(self, step))
            self.shared.counts[step] += 1
        except Stopped:
            raise
        except BaseException as error:
            if self.shared.may_end(error, self.number):
                self.shared.counts[type(error).__name__] += 1
            else:
                where = "".join(format_tb(error.__traceback__, -8))
                self.tell(f"step {place}, {step}: {error!r}\n{where}")

    def tell(self, what: str) -> None:
        self.shared.wrong.append(f"thread {self.number}: {what}")

    def same(self, outcome: object, expected: object) -> None:
        found = np.asarray(outcome)
        if not np.array_equal(found, np.asarray(expected)):
            self.tell(f"{found.tolist()}, not {np.asarray(expected).tolist()}")

    def call(self, name: str) -> Any:
        return self.shared.session[name]

    def limited(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """The result; None where the time that it may take is over."""
        if self.chance.random() < 0.7:
            return call(*arguments)
        try:
            return call(*arguments, timeout=self.chance.choice((0.0, 1e-6, 1e-4, 0.5, 5.0)))
        except DeadlineExceededError:
            self.shared.counts["deadlines"] += 1
            return None

    # -- steps that all devices have -----------------------------------------------------------------------

    def read(self) -> None:
        if self.submitted:
            array, values = self.submitted.pop(self.chance.randrange(len(self.submitted)))
            self.same(array, values)

    def awaited(self) -> None:
        """Makes several calls at once in an event loop of this thread."""
        loop = Loop()
        try:
            loop.run_until_complete(self._await())
        finally:
            self._end(loop)

    def _end(self, loop: Loop) -> None:
        """Ends a loop as ``asyncio.run`` does: cancels the tasks that a signal has left, and runs them to
        their end. A suspended call would keep the variables. Further signals do not stop this."""
        try:
            while tasks := asyncio.all_tasks(loop):
                try:
                    for task in tasks:
                        task.cancel()
                    loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
                except Alarm:
                    self.shared.counts["Alarm"] += 1
        finally:
            loop.close()

    async def _await(self) -> None:
        tasks: list[tuple[asyncio.Future[Any], bool]] = []
        for _ in range(self.chance.randint(1, 3)):
            counts = self.chance.random() < 0.5
            tasks.append((asyncio.ensure_future(self.begun(counts)), counts))
        if self.chance.random() < 0.2:
            await asyncio.sleep(0)
            tasks[-1][0].cancel()
        await asyncio.gather(*(task for task, _ in tasks), return_exceptions=True)
        counted: list[Any] = []
        for task, counts in tasks:
            if task.cancelled():
                self.shared.counts["cancelled tasks"] += 1
                self.shared.unsure += counts
            elif (error := task.exception()) is not None:
                if not self.shared.may_end(error, self.number):
                    self.tell(f"awaited: {error!r}")
            elif counts:
                counted.append(task.result())
            else:
                self.look(task.result())
        self.count(counted)

    def begun(self, counts: bool) -> Any:
        """A call that can be awaited, of a function that changes a variable, or of another one."""
        raise NotImplementedError

    def look(self, result: Any) -> None:
        """Looks at a result of the other one."""
        raise NotImplementedError

    def count(self, results: list[Any]) -> None:
        """Counts results of the first one, in the order of their calls."""
        raise NotImplementedError

    def trim(self) -> None:
        self.shared.session.trim()

    def cancel(self) -> None:
        self.shared.session.cancel()

    def close(self) -> None:
        self.shared.session.close()


class _Selector(selectors.DefaultSelector):
    """Waits for the loop's own pipe, in turn with other threads."""

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(0)
        turns = scheduler.active
        if found or turns is None or (timeout is not None and timeout <= 0):
            return found
        turns.wait(lambda: super(_Selector, self).select(0), primitives._until(timeout), "an event loop")
        return super().select(0)


class Loop(asyncio.SelectorEventLoop):
    """An event loop that has its turns; what it leaves to other threads has a thread each."""

    def __init__(self) -> None:
        super().__init__(_Selector())
        self._threads: list[primitives.TurnThread] = []

    def time(self) -> float:
        return primitives.monotonic()

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, function: Callable[..., Any], *arguments: Any
    ) -> Any:
        future = self.create_future()

        def work() -> None:
            try:
                settled = settling(future, function(*arguments), None)
            except Stopped:
                raise
            except BaseException as error:
                settled = settling(future, None, error)
            self.call_soon_threadsafe(*settled)

        self._threads.append(primitives.TurnThread(target=work, name="beside the loop", daemon=True))
        self._threads[-1].start()
        return future

    def close(self) -> None:
        for thread in self._threads:
            thread.join()
        super().close()
