"""Threads that use sessions together, one at a time as a seed says (:mod:`tests.fuzz.scheduler`).

A case is a script for each of two to four threads, and the schedule. Each result is what a model says, or
an error of those that the script can cause. No update of a program's variables is lost, no thread waits for
ever, and nothing is left. A number gives the same turns each time. In some cases the system refuses something
once; in some the device is a GPU, which has turns, too.
"""

from __future__ import annotations

import gc
import importlib
import os
import random
import threading
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from contextvars import Context
from typing import Any, Final

import jitree
from jitree.base import spare_memory
from jitree.base.finalizers import SharedWeakSet
from jitree.errors import StatusError
from jitree.hal.local.task import INLINE_COST, TaskDevice
from jitree.hal.local.thread_team import Team
from tests.fuzz import primitives, scheduler, turn_driver, turn_gpu
from tests.fuzz.campaign import CASES, Campaign, Result
from tests.fuzz.drivers import RESULTS
from tests.fuzz.refusals import refused
from tests.fuzz.scheduler import Schedule, Stopped, scheduled
from tests.fuzz.turn_driver import Pace
from tests.fuzz.turn_gpu import GpuThread
from tests.fuzz.turn_steps import ASKING, CROWDED, PROGRAMS, USUAL, ProcessorThread
from tests.fuzz.turn_threads import Case, Shared, Thread

DEVICES: Final = ("local-sync", "local-task://?threads=1", "local-task://?threads=2")
TIERS: Final = ("plain", "fast")
GAPS: Final = (3, 10, 30, 100, 300, 1000, 3000)
MOST: Final = (1, 2, 3, 5, 10, 100, 1000)
_FAR: Final = INLINE_COST * 1000
_GPUS: Final = 1 / 3
_REFUSED: Final = 1 / 4
"""How many of the cases have a GPU, and in how many the system refuses something."""
_ASKED: Final = 1 / 2
"""In how many of these threads do what waits for what is refused."""
_MOST_REFUSED: Final = 24
"""What a case asks the system for, in most cases."""
_MOST_CALLS: Final = 400
"""Calls of the driver that a case makes, in most cases."""
_PACES: Final = (0.0, 0.0, 1e-5, 1e-3, 0.03)
"""Seconds that work of a GPU takes."""


def generate(number: int) -> Case:
    chance = random.Random(f"turns {number}")
    few = chance.sample(USUAL, 4)
    usual = chance.choice((USUAL, USUAL, few, few, CROWDED))
    is_crowded = usual is CROWDED
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
    case = Case(device, tier, scripts, schedule._replace(signals=chance.choice((0, 0, 0.3))))
    return _varied(case, random.Random(f"turns {number}, devices and refusals"))


def _varied(case: Case, chance: random.Random) -> Case:
    """The case; or on a GPU, or with a refusal. Other cases stay as they are."""
    if chance.random() < _GPUS:
        case = _on_gpus(case, chance)
    if chance.random() < _REFUSED and (case.pace is None or not case.pace.nth):
        most = _MOST_REFUSED if case.pace is None else _MOST_REFUSED // 4
        case = case._replace(schedule=case.schedule._replace(refused=chance.randint(1, most)))
        if chance.random() < _ASKED:
            case = _asking(case, chance)
    return case


def _asking(case: Case, chance: random.Random) -> Case:
    """Threads that wait for what is refused: for callbacks, or for operations of the processor."""
    steps = ASKING if case.pace is None else turn_gpu.CALLED_BACK
    scripts = tuple(tuple((chance.choice(steps), seed) for _, seed in script) for script in case.scripts)
    refused, thread = (chance.randint(1, 8), 0) if case.pace is None else (0, chance.randint(1, 3))
    schedule = case.schedule._replace(refused=refused, refused_thread=thread)
    return case._replace(scripts=scripts, schedule=schedule)


def _on_gpus(case: Case, chance: random.Random) -> Case:
    few = chance.sample(turn_gpu.USUAL, 4)
    usual = chance.choice((turn_gpu.USUAL, few))
    scripts = tuple(tuple((chance.choice(usual), seed) for _, seed in script) for script in case.scripts)
    pace = Pace(chance.choice(_PACES))
    if chance.random() < _REFUSED:
        pace = pace._replace(nth=chance.randint(1, _MOST_CALLS), result=chance.choice(RESULTS))
    return case._replace(device="cuda", scripts=scripts, pace=pace)


def smaller(case: Case) -> Iterator[Case]:
    """Without a thread, a step, what fails, or some of the last turns that are lost."""
    scripts, schedule = case.scripts, case.schedule
    for place in range(len(scripts)):
        if len(scripts) > 1:
            yield case._replace(scripts=scripts[:place] + scripts[place + 1 :])
    for place, script in enumerate(scripts):
        for step in range(len(script)):
            less = script[:step] + script[step + 1 :]
            yield case._replace(scripts=(*scripts[:place], less, *scripts[place + 1 :]))
    if schedule.refused or schedule.refused_thread:
        yield case._replace(schedule=schedule._replace(refused=0, refused_thread=0))
    if case.pace is not None and case.pace != Pace(0.0):
        yield case._replace(pace=Pace(0.0))
    for most in (0, schedule.most // 2, schedule.most - 1):
        if 0 <= most < schedule.most:
            yield case._replace(schedule=schedule._replace(most=most))


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
                session.load(*PROGRAMS)
    turn_driver.prepare()
    primitives.install()
    Team._start = lambda team, native: None  # type: ignore[method-assign,assignment]
    TaskDevice._let_machine_code_execute = lambda device: None  # type: ignore[method-assign,assignment]
    TaskDevice._cost = _cost  # type: ignore[method-assign,assignment]
    spare_memory._spares = SharedWeakSet()  # type: ignore[misc]  # the first that is refused would free others'
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
    kind = ProcessorThread if case.pace is None else GpuThread
    shared: Shared | None = None
    with warnings.catch_warnings(), scheduled(case.schedule) as turns:
        warnings.simplefilter("ignore")
        turns.trace = trace
        try:
            shared = Context().run(kind.kind, case, turns)
            with refused(turns):
                Context().run(_work, shared, kind)
        except Stopped:
            pass
    found = [*turns.findings]
    counts = Counter({CASES: 1, "turns": turns.turns})
    if shared is not None:
        found += shared.wrong
        counts += shared.counts
        if not found:
            found += shared.left()
        if turns.findings:
            _standing.append(shared)
    del shared
    gc.collect()
    if not found and len(os.listdir("/proc/self/fd")) > files:
        found.append(f"{len(os.listdir('/proc/self/fd')) - files} descriptors are left")
    if not found and threading.active_count() > threads:
        found.append(f"threads are left: {threading.enumerate()}")
    return found, counts, turns.digest


_standing: Final[list[Shared]] = []
"""Of cases that stand still: their threads never end, and what ends devices would wait for them."""


def _work(shared: Shared, kind: type[Thread]) -> None:
    parts = [kind(shared, place, script) for place, script in enumerate(shared.case.scripts)]
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
    shared.check()
    if shared.has_failed:
        _take_again(shared, kind)
    shared.close()


def _take_again(shared: Shared, kind: type[Thread]) -> None:
    """Each step once more: what was refused or has failed has no consequence."""
    shared.is_again = True
    names = sorted(shared.names - {"close"})
    kind(shared, len(shared.case.scripts), tuple((name, number) for number, name in enumerate(names))).run()


CAMPAIGN: Final = Campaign("schedules of threads", generate, run, smaller, batch=20, prepare=prepare)
