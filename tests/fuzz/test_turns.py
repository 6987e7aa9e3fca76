"""A seed gives the same turns each time, and a schedule finds what is wrong with code that threads share."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from ctypes import CDLL
from dis import get_instructions
from functools import partial
from types import CodeType
from typing import Any, Final

import pytest

from tests.fuzz import primitives, scheduler, turns
from tests.fuzz.campaign import CASES, Result
from tests.fuzz.drivers import RESULTS
from tests.fuzz.numbered import run_numbers
from tests.fuzz.scheduler import KNOWS_INSTRUCTIONS, Schedule, Scheduler, Stopped, lets_run, scheduled
from tests.fuzz.turn_driver import Pace
from tests.fuzz.turn_threads import Case, Shared
from tests.fuzz.turns import DEVICES

pytestmark = pytest.mark.skipif(
    not KNOWS_INSTRUCTIONS, reason="the scheduler knows the instructions of CPython 3.11"
)


def _digest(number: int) -> Result:
    found, _, digest = turns.run_in_turn(turns.generate(number))
    return found, Counter({CASES: 1, f"{number}: {digest}": 1})


KINDS: Final[tuple[Callable[[Case], object], ...]] = (
    lambda case: case.pace is None and not case.schedule.refused,
    lambda case: case.pace is None and case.schedule.refused,
    lambda case: case.pace is not None and not case.pace.nth,
    lambda case: case.pace is not None and case.pace.nth,
)
"""On the processor, with refusals, on GPUs, with a driver that fails."""


def _numbers() -> list[int]:
    """Four of each kind."""
    cases = [(number, turns.generate(number)) for number in range(200)]
    return [number for kind in KINDS for number in [one for one, case in cases if kind(case)][:4]]


SMALL: Final = (("double", 1), ("add", 2))
GPU_STEPS: Final = (("relay", 1), ("copies", 2), ("deferred", 3), ("called_back", 4), ("scale", 5))
FEW: Final = (("add", 1), ("relay", 2))
SIGNALLED: Final = Case(
    "local-sync",
    "plain",
    ((("increment", 1), ("double", 2), ("storage", 3)) * 3,),
    Schedule(3, 30, 1000, signals=0.3),
)
PLANNED: Final[dict[str, list[Case]]] = {
    "the system refuses": [
        Case(DEVICES[1], "plain", (SMALL, SMALL), Schedule(refused, 100, 100, refused=refused))
        for refused in range(1, 12)
    ],
    "work of GPUs": [Case("cuda", "fast", (GPU_STEPS, GPU_STEPS), Schedule(1, 10, 1000), Pace(1e-3))],
    "the driver fails": [
        Case("cuda", "plain", (FEW, FEW), Schedule(1, 10, 1000), Pace(0.0, nth, result))
        for nth in (20, 40, 60)
        for result in RESULTS
    ]
    + [turns.generate(number) for number in (83_827, 85_142, 133_529)],
    "variables": [
        Case(
            DEVICES[2],
            "fast",
            ((("accumulate", 0),) * 3, (("awaited", 494515138),) * 3),
            Schedule(seed, gap, 100),
        )
        for seed, gap in ((9, 300), (11, 100))
    ],
    "signals": [SIGNALLED, SIGNALLED],
    "loops that a signal ends": [
        Case("cuda", "plain", ((("awaited", 322151149),) * 3, (("awaited", 153088428),)), schedule, Pace(0.0))
        for schedule in [Schedule(seed, 30, 100, 0.1, signals=0.3) for seed in range(20)]
    ],
}
"""Cases by what they show."""
DIGESTS: Final = "digests"


def _run(named: Sequence[tuple[str, Callable[[], Result]]]) -> dict[str, Counter[str]]:
    """What one process counts in the cases of each name, one after the other; it finds nothing."""

    def check(number: int) -> Result:
        name, run = named[number]
        found, counts = run()
        return [f"{name}: {text}" for text in found], Counter(
            {f"{name}/{key}": counts[key] for key in counts}
        )

    batches = iter([range(number, number + 1) for number in range(len(named))])
    found, counts = run_numbers(check, batches, 1, prepare=turns.prepare)
    assert not found, "\n".join(map(str, found))
    expected = Counter(name for name, _ in named)
    parts = {name: Counter[str]() for name in expected}
    for key, number in counts.items():
        name, _, what = key.partition("/")
        parts[name][what] = number
    assert all(parts[name][CASES] == count for name, count in expected.items())
    return parts


@pytest.fixture(scope="module")
def planned() -> dict[str, Counter[str]]:
    """Of all cases in one process, with digests at the end: to prepare it takes longer than they do."""
    named = [(name, partial(turns.run, case)) for name, cases in PLANNED.items() for case in cases]
    return _run([*named, *[(DIGESTS, partial(_digest, number)) for number in _numbers()]])


def test_a_number_gives_the_same_turns_in_any_process_and_after_any_others(
    planned: dict[str, Counter[str]],
) -> None:
    again = _run([(DIGESTS, partial(_digest, number)) for number in reversed(_numbers())])
    assert planned[DIGESTS] == again[DIGESTS] and len(again[DIGESTS]) == len(_numbers()) + 1


def test_what_the_system_refuses_ends_one_step(planned: dict[str, Counter[str]]) -> None:
    """By its status; each step has its result afterwards."""
    counts = planned["the system refuses"]
    assert counts["ResourceExhaustedError"] > 2 and counts["add"] > 20


def test_work_of_gpus_is_done_in_turns(planned: dict[str, Counter[str]]) -> None:
    """Of two devices that wait for each other, and of threads that wait for them."""
    counts = planned["work of GPUs"]
    assert all(counts[name] == 2 for name, _ in GPU_STEPS) and counts["turns"] > 100


def test_a_call_of_the_driver_that_fails_by_seed_leaves_nothing(planned: dict[str, Counter[str]]) -> None:
    assert planned["the driver fails"]["turns"]


def test_awaited_calls_that_wait_for_variables_have_no_order(planned: dict[str, Counter[str]]) -> None:
    """The campaign took it for a counter that goes back (turns:10035)."""
    assert planned["variables"]["awaited"] == 2 * 3


def test_a_signal_comes_to_the_first_thread_where_its_handler_would_run(
    planned: dict[str, Counter[str]],
) -> None:
    """Not where a function in Python returns; a seed gives the same signals each time."""
    count = planned["signals"]["Alarm"]
    assert count > 2 and count % 2 == 0


@pytest.mark.parametrize(
    ("scripts", "may_overtake"),
    [((("awaited",), ("awaited",)), True), ((("awaited",), ("submit",)), True),
     ((("awaited", "accumulate"),), True), ((("awaited", "awaited", "increment"),), False)],
)  # fmt: skip
def test_awaited_calls_have_an_order_where_no_other_call_keeps_the_variables(
    scripts: tuple[tuple[str, ...], ...], may_overtake: bool
) -> None:
    """With another thread they have none: one that gives way to it keeps them (turns:40649, 64818)."""
    taken = tuple(tuple((step, 1) for step in script) for script in scripts)

    class Nothing(Shared):
        def open(self) -> None: ...

        def close(self) -> None: ...

        def left(self) -> list[str]:
            return []

    schedule = Schedule(1, 1, 1)
    assert Nothing(Case("", "", taken, schedule), Scheduler(schedule)).may_overtake is may_overtake


def test_a_loop_that_a_signal_ends_leaves_no_call(planned: dict[str, Counter[str]]) -> None:
    """A suspended call that its loop dropped kept the variables, or a handle (turns:39604 and 41954)."""
    assert planned["loops that a signal ends"]["Alarm"]


def _generate() -> Iterator[None]:
    yield
    yield


async def _await() -> None:
    await Twice()


def _yield_from() -> Iterator[None]:
    yield from [None, None]


class Twice:
    """Waits for two steps."""

    def __await__(self) -> Generator[None, None, None]:
        yield from (None, None)


@pytest.mark.parametrize(("function", "runs"), [(_generate, True), (_await, False), (_yield_from, False)])
def test_a_signal_comes_where_python_runs_handlers(function: Callable[[], Any], runs: bool) -> None:
    """Not where ``await`` goes on: a signal there dropped the call that was awaited (turns:40591)."""
    seen, begun = list[CodeType](), function()
    nothing, tell = {0: None}.get, CDLL(None)["raise"]
    before = signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(frame.f_code))  # type: ignore[union-attr]
    try:
        begun.send(None)
        next(map(begun.send, map(nothing, map(tell, (signal.SIGUSR1,)))))  # all in C, up to the function
    finally:
        signal.signal(signal.SIGUSR1, before)
        begun.close()
    assert (function.__code__ in seen) is runs
    goes_on = [one for one in get_instructions(function) if one.opname == "RESUME"][-1]
    assert lets_run(goes_on) is runs


class Count:
    """Two threads add to it; whether with a lock."""

    def __init__(self, lock: primitives.TurnLock | None) -> None:
        self._lock = lock
        self.number = 0

    def add(self) -> None:
        if self._lock is None:
            self._add()
        else:
            with self._lock:
                self._add()

    def _add(self) -> None:
        running = scheduler.active
        assert running is not None
        number = self.number
        running.point("between")
        self.number = number + 1


@pytest.mark.parametrize(("is_locked", "expected"), [(True, {2}), (False, {1, 2})])
def test_a_lock_that_is_left_out_is_found(is_locked: bool, expected: set[int]) -> None:
    numbers = set[int]()
    for seed in range(40):
        count = Count(primitives.TurnLock() if is_locked else None)
        with scheduled(Schedule(seed, 2, 10)) as turn:
            turn.begin()
            threads = [primitives.TurnThread(target=count.add) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        numbers.add(count.number)
    assert numbers == expected


def test_threads_that_wait_for_each_other_are_told() -> None:
    first, second = primitives.TurnLock(), primitives.TurnLock()

    def wait() -> None:
        with second:
            first.acquire()

    with scheduled(Schedule(0, 1, 0)) as turn:
        thread = primitives.TurnThread(target=wait, name="the other one", daemon=True)
        thread.start()
        with first:
            turn.sleep(1.0)
            with pytest.raises(Stopped):
                second.acquire()
    assert "the other one waits for a lock" in turn.findings[0] and "in wait" in turn.findings[0]


def test_the_clock_goes_on_to_the_first_deadline() -> None:
    lock = primitives.TurnLock()
    with scheduled(Schedule(0, 1, 0)) as turn:
        began = turn.now
        lock.acquire()
        assert not lock.acquire(timeout=3600.0) and turn.now == began + 3600.0
