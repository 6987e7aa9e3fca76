"""Threads that use sessions together, one at a time as a seed says (:mod:`tests.fuzz.scheduler`).

A case is a script for each of two to four threads, and the schedule. Each result is what a model says, or
an error of those that the script can cause. No update of a program's variables is lost, no thread waits for
ever, and nothing is left. A number gives the same turns each time.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import random
import selectors
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import Context
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

import jitree
from jitree.errors import (
    CancelledError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    StatusError,
)
from jitree.hal.fence import settling
from jitree.hal.local.task import INLINE_COST, TaskDevice
from jitree.hal.local.thread_team import Team
from tests.api.programs import ASYNCHRONOUS, OUTPUTS, STATE
from tests.fuzz import primitives, scheduler
from tests.fuzz.campaign import CASES, Campaign, Result
from tests.fuzz.scheduler import Alarm, Schedule, Scheduler, Stopped, scheduled

DEVICES: Final = ("local-sync", "local-task://?threads=1", "local-task://?threads=2")
TIERS: Final = ("plain", "fast")
GAPS: Final = (3, 10, 30, 100, 300, 1000, 3000)
MOST: Final = (1, 2, 3, 5, 10, 100, 1000)
_N: Final = np.arange(64, dtype=np.float32)
_X: Final = np.arange(4, dtype=np.float32)
_FIRST: Final = 10
"""What the program's counter begins at."""
_PROGRAMS: Final = (ASYNCHRONOUS, OUTPUTS, STATE)
_FAR: Final = INLINE_COST * 1000

Step = tuple[str, int]


class Case(NamedTuple):
    device: str
    tier: str
    scripts: tuple[tuple[Step, ...], ...]
    """For each thread names of steps, each with a number that its choices come from."""
    schedule: Schedule


def generate(number: int) -> Case:
    chance = random.Random(f"turns {number}")
    few = chance.sample(_USUAL, 4)
    usual = chance.choice((_USUAL, _USUAL, few, few, _CROWDED))
    is_crowded = usual is _CROWDED
    least = 3 if is_crowded else 1
    scripts = tuple(
        tuple((chance.choice(usual), chance.randrange(1 << 30)) for _ in range(chance.randint(least, 5)))
        for _ in range(chance.randint(max(2, least), 4))
    )
    gaps, most, devices = (GAPS[:5], MOST[-2:], DEVICES[1:]) if is_crowded else (GAPS, MOST, DEVICES)
    schedule = Schedule(
        chance.randrange(1 << 30), chance.choice(gaps), chance.choice(most), chance.choice((0, 0, 0.1))
    )
    device, tier = chance.choice(devices), chance.choice(TIERS)
    return Case(device, tier, scripts, schedule._replace(signals=chance.choice((0, 0, 0.3))))


def smaller(case: Case) -> Iterator[Case]:
    """Without a thread, a step, or some of the last turns that are lost."""
    scripts = case.scripts
    for place in range(len(scripts)):
        if len(scripts) > 1:
            yield case._replace(scripts=scripts[:place] + scripts[place + 1 :])
    for place, script in enumerate(scripts):
        for step in range(len(script)):
            less = script[:step] + script[step + 1 :]
            yield case._replace(scripts=(*scripts[:place], less, *scripts[place + 1 :]))
    for most in (0, case.schedule.most // 2, case.schedule.most - 1):
        if 0 <= most < case.schedule.most:
            yield case._replace(schedule=case.schedule._replace(most=most))


class Shared:
    """What the threads of a case have in common."""

    def __init__(self, case: Case, turns: Scheduler) -> None:
        self.case, self.turns = case, turns
        self.wrong: list[str] = []
        self.counts: Counter[str] = Counter()
        names = {step for script in case.scripts for step, _ in script}
        self.ends: tuple[type[BaseException], ...] = (
            *((CancelledError,) if names & _CANCELLING else ()),
            *((Alarm,) if case.schedule.signals else ()),
            *((FailedPreconditionError,) if names & _CLOSING else ()),
        )
        """What any call may end with."""
        self.is_exact = not (names & (_CANCELLING | _CLOSING | {"reload"}) or case.schedule.signals)
        self.may_overtake = "accumulate" in names
        """Whether awaited calls may find that another thread's call has the variables: they begin when it has
        ended, and they have no order then."""
        self.counters: list[list[int]] = []
        self.totals: list[float] = []
        self.tried = self.added = 0
        """Calls that may have added, and those that have."""
        self.session = jitree.Session(case.device, tier=case.tier)
        used = [program for program in _PROGRAMS if names & _USES[program.stem]]
        self.session.load(*used or _PROGRAMS[:1])
        self.array: Any = self.session.to_device(_START)
        self.donated = 0


_START: Final = np.array([1, -2, 3, 4], np.int32)


class Thread:
    """One of the threads."""

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
            if isinstance(error, self.shared.ends):
                self.shared.counts[type(error).__name__] += 1
            else:
                self.tell(f"step {place}, {step}: {error!r}")

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

    # -- steps -------------------------------------------------------------------------------------------

    def increment(self) -> None:
        self.shared.tried += 1
        result = self.limited(self.call("state.increment"))
        if result is not None:
            self.counters.append(int(np.asarray(result)))

    def accumulate(self) -> None:
        """Variables that are tensors: a call waits between reading and storing them."""
        self.shared.added += 1
        total = np.asarray(self.call("state.accumulate")(_X))
        if self.shared.is_exact:
            self.same(total, _X * total[1])
        self.shared.totals.append(float(total[1]))

    def double(self) -> None:
        session = self.shared.session
        array = session.to_device(_START)
        given = jitree.donate(array) if self.chance.random() < 0.5 else array
        result = self.limited(self.call("outputs.double_first"), given, _START)
        if result is not None:
            self.same(result, 2 * _START)

    def donate_shared(self) -> None:
        """One of all threads has it; others are refused."""
        array = self.shared.array
        try:
            result = self.call("outputs.double_first")(jitree.donate(array), _START)
        except FailedPreconditionError:
            return
        self.same(result, 2 * _START)
        self.shared.donated += 1

    def use_shared(self) -> None:
        array = self.shared.array
        try:
            result = self.call("outputs.double_first")(array, _START)
        except FailedPreconditionError:
            return
        self.same(result, 2 * _START)

    def storage(self) -> None:
        place = self.shared.session.to_device(np.zeros(4, np.int32))
        sums, squares = self.call("outputs.one_of_two")(_START, out=place)
        self.same(sums, _START + _START)
        self.same(squares, _START * _START)
        self.same(place, _START * _START)

    def in_place(self) -> None:
        array = self.shared.session.to_device(_START)
        self.call("outputs.in_place")(array)
        self.same(array, _START + _START)

    def loop(self) -> None:
        result = self.limited(self.call("state.double_until"), np.float32(1), 1000.0)
        if result is not None:
            self.same(result[0], 1024)
            self.same(result[1], 10)

    def submit(self) -> None:
        add = self.call("asynchronous.add")
        first = self.submitted[-1] if self.submitted and self.chance.random() < 0.7 else (_N, _N)
        self.submitted.append((add.submit(first[0], _N), first[1] + _N))

    def read(self) -> None:
        if self.submitted:
            array, values = self.submitted.pop(self.chance.randrange(len(self.submitted)))
            self.same(array, values)

    def add(self) -> None:
        result = self.limited(self.call("asynchronous.add"), _N, _N)
        if result is not None:
            self.same(result, 2 * _N)

    def wrong(self) -> None:
        try:
            self.call("state.positive")(np.int32(-3))
        except StatusError as error:
            if "positive" not in str(error):
                raise
        else:
            self.tell("a program's error is lost")

    def refused(self) -> None:
        try:
            self.call("asynchronous.add")(_N, "text")
        except InvalidArgumentError:
            return
        self.tell("a wrong argument is taken")

    def awaited(self) -> None:
        """Calls at once in an event loop of its own."""
        loop = _Loop()
        try:
            loop.run_until_complete(self._await())
        finally:
            loop.close()

    async def _await(self) -> None:
        add, increment = self.call("asynchronous.add"), self.call("state.increment")
        tasks: list[tuple[asyncio.Future[Any], bool]] = []
        for _ in range(self.chance.randint(1, 3)):
            counts = self.chance.random() < 0.5
            self.shared.tried += counts
            tasks.append(
                (asyncio.ensure_future(increment.async_() if counts else add.async_(_N, _N)), counts)
            )
        if self.chance.random() < 0.2:
            await asyncio.sleep(0)
            tasks[-1][0].cancel()
        await asyncio.gather(*(task for task, _ in tasks), return_exceptions=True)
        numbers: list[int] = []
        for task, counts in tasks:
            if task.cancelled():
                self.shared.counts["cancelled tasks"] += 1
            elif (error := task.exception()) is not None:
                if not isinstance(error, self.shared.ends):
                    self.tell(f"awaited: {error!r}")
            elif counts:
                numbers.append(int(np.asarray(task.result())))
            else:
                self.same(task.result(), 2 * _N)
        self.counters += sorted(numbers) if self.shared.may_overtake else numbers

    def forget(self) -> None:
        """Arrays and submitted work that only the garbage collector ends."""
        add = self.call("asynchronous.add")
        circle: list[Any] = [add.submit(add.submit(_N, _N), _N)]
        circle.append(circle)
        del circle
        if self.chance.random() < 0.5:
            gc.collect()

    def session_of_its_own(self) -> None:
        with jitree.Session(self.shared.case.device, tier=self.shared.case.tier) as session:
            add = session.load(ASYNCHRONOUS).add
            self.same(add(add.submit(_N, _N), _N), 3 * _N)

    def trim(self) -> None:
        self.shared.session.trim()

    def cancel(self) -> None:
        self.shared.session.cancel()

    def close(self) -> None:
        self.shared.session.close()

    def reload(self) -> None:
        self.shared.session.reload(STATE)


_CANCELLING: Final = {"cancel", "close"}
_CLOSING: Final = {"close", "reload"}
_USUAL: Final = [
    *("increment", "accumulate", "double", "donate_shared", "use_shared", "storage", "in_place", "loop",
      "submit", "read", "add", "wrong", "refused", "awaited", "forget", "accumulate", "submit") * 3,
    "trim", "cancel", "cancel", "close", "reload", "session_of_its_own",
]  # fmt: skip
_CROWDED: Final = ["accumulate"]
"""Of threads that meet at one turn: one that ends, one that waits for it, and one that comes then. They lose
many turns, and wait for a device."""
_USES: Final = {
    "state": {"increment", "accumulate", "loop", "wrong", "awaited", "reload"},
    "outputs": {"double", "donate_shared", "use_shared", "storage", "in_place"},
    "asynchronous": {"submit", "read", "add", "refused", "awaited", "forget"},
}
"""Steps that a program is for."""


class _Selector(selectors.DefaultSelector):
    """Waits for the loop's own pipe, in turn with other threads."""

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(0)
        turns = scheduler.active
        if found or turns is None or (timeout is not None and timeout <= 0):
            return found
        turns.wait(lambda: super(_Selector, self).select(0), primitives._until(timeout), "an event loop")
        return super().select(0)


class _Loop(asyncio.SelectorEventLoop):
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


# -- what a process does ------------------------------------------------------------------------------------


def prepare() -> None:
    """Has all there that a process makes once, and hands the turns over to the scheduler."""
    for name in ("jitree.hal.waiting", "jitree.dispatch.variables", "jitree.hal.local.queue",
                 "jitree.api.serving", "jitree.base.folding", "jitree.dispatch.suspended_calls",
                 "jitree.api.event_loop_fairness", "jitree.base.callbacks"):  # fmt: skip
        importlib.import_module(name)
    for device in DEVICES:
        for tier in TIERS:
            with jitree.Session(device, tier=tier) as session:
                session.load(*_PROGRAMS)
    primitives.install()
    Team._start = lambda team, native: None  # type: ignore[method-assign,assignment]
    TaskDevice._let_machine_code_execute = lambda device: None  # type: ignore[method-assign,assignment]
    TaskDevice._cost = _cost  # type: ignore[method-assign,assignment]
    gc.freeze()
    for number in range(_WARM):
        with suppress(StatusError):  # what is wrong, cases of the campaign find
            run(generate(-1 - number))
    gc.collect()
    gc.freeze()


_WARM: Final = 24


def _cost(device: TaskDevice, affinity: int, command_buffer: Any, lengths: Any) -> int:
    """Work is done at once or by a worker as the seed says, and not as long as it takes."""
    turns = scheduler.active
    return _FAR if turns is not None and turns.chance.random() < 0.7 else 0


def run(case: Case) -> Result:
    found, counts, _ = run_in_turn(case)
    return found, counts


def run_in_turn(case: Case, trace: list[str] | None = None) -> tuple[list[str], Counter[str], int]:
    """The findings, numbers and the digest of the turns."""
    primitives.renew()
    files, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    shared: Shared | None = None
    with warnings.catch_warnings(), scheduled(case.schedule) as turns:
        warnings.simplefilter("ignore")
        turns.trace = trace
        try:
            shared = Context().run(Shared, case, turns)
            Context().run(_work, shared)
        except Stopped:
            pass
    found = [*turns.findings]
    counts = Counter({CASES: 1, "turns": turns.turns})
    if shared is not None:
        found += shared.wrong
        counts += shared.counts
        if not found:
            found += _left(shared)
    del shared
    gc.collect()
    if not found and len(os.listdir("/proc/self/fd")) > files:
        found.append(f"{len(os.listdir('/proc/self/fd')) - files} descriptors are left")
    if not found and threading.active_count() > threads:
        found.append(f"threads are left: {threading.enumerate()}")
    return found, counts, turns.digest


def _work(shared: Shared) -> None:
    parts = [Thread(shared, place, script) for place, script in enumerate(shared.case.scripts)]
    threads = [
        primitives.TurnThread(target=part.run, name=f"thread {part.number}", daemon=True)
        for part in parts[1:]
    ]
    shared.turns.begin()
    for thread in threads:
        thread.start()
    shared.turns.traced(parts[0].run)
    for thread in threads:
        thread.join()
    _check_variables(shared)
    shared.array = None
    gc.collect()
    shared.session.close()


def _check_variables(shared: Shared) -> None:
    numbers = sorted(number for numbers in shared.counters for number in numbers)
    if shared.is_exact:
        if len(set(numbers)) < len(numbers) or numbers[-1:] > [_FIRST + shared.tried]:
            shared.wrong.append(f"the counter gave {shared.counters}, of {shared.tried} calls")
        if any(given != sorted(given) for given in shared.counters):
            shared.wrong.append(f"the counter goes back: {shared.counters}")
        if sorted(shared.totals) != list(range(1, shared.added + 1)):
            shared.wrong.append(f"sums are {sorted(shared.totals)}, of {shared.added} calls: one is lost")
    if shared.donated > 1:
        shared.wrong.append(f"an array was donated {shared.donated} times")


def _left(shared: Shared) -> list[str]:
    count = shared.session.context.table.live_count
    return [f"{count} handles are left"] if count else []


CAMPAIGN: Final = Campaign("schedules of threads", generate, run, smaller, batch=20, prepare=prepare)
