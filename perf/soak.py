"""Runs a mixed load for an hour, and says whether anything grows, and whether every result is exact.

    python perf/soak.py [--minutes 60] [--rounds 30] [--threads 8] [--seed 0]

Threads share four sessions: both local devices, two tiers, a model in a sandbox. Each draws at random: calls,
chains of submissions, donations, a model, calls with a deadline, wrong arguments, a program that fails,
``cancel``, ``reload``, a session closed and opened again. The main thread is one of them; a handler of a
signal raises in its calls. A call ends with its exact result, or with why it was to end.

The load stops at the end of each round, but for a first one that does not count. Then the handles of each
session are counted, all sessions are closed and opened, and threads, descriptors and memory are counted: a
device starts threads when it needs them, and keeps them. The exit status is 1 if a result was wrong, if
handles, threads or descriptors are others than before, or if memory has grown by more than 2 % in the second
half.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

import jitree
from jitree.errors import CancelledError, DeadlineExceededError, FailedPreconditionError, StatusError

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.api.programs import ARITHMETIC, ASYNCHRONOUS, OUTPUTS, STATE  # noqa: E402
from tests.fuzz.interruptions import RAISED, Alarms, resources  # noqa: E402

DIGITS = ROOT / "examples" / "digits" / "digits.vmvx.vmfb"
PROGRAMS = (ARITHMETIC, ASYNCHRONOUS, OUTPUTS, STATE, DIGITS)
X = np.arange(4, dtype=np.float32)
N = np.arange(64, dtype=np.float32)
IMAGE = np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8)
MOST_GROWTH = 0.02
SETTLED = 60.0
"""Seconds after which nothing ends by itself any more."""


class Kind(NamedTuple):
    """What a session is made with."""

    device: str
    tier: str
    programs: tuple[Path, ...] = PROGRAMS
    sandbox: bool = False


class Slot:
    """A session that others take the place of."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self._turn = threading.Lock()
        self.session = self._opened()

    def _opened(self) -> jitree.Session:
        session = jitree.Session(self.kind.device, tier=self.kind.tier, sandbox=self.kind.sandbox)
        session.load(*self.kind.programs)
        return session

    def reopen(self) -> None:
        """One thread at a time closes it, with all calls that run."""
        if not self._turn.acquire(blocking=False):
            return
        try:
            old, self.session = self.session, self._opened()
            old.close()
        finally:
            self._turn.release()

    def handles(self) -> int:
        self.session.trim()
        return self.session.context.table.live_count


class Load:
    """What one thread does with one slot."""

    def __init__(self, slot: Slot, seed: str, expected: np.ndarray) -> None:
        self._slot = slot
        self._actions = ACTIONS if slot.kind.programs == PROGRAMS else OF_MODELS
        self.chance = random.Random(seed)
        self._expected = expected
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []

    def step(self) -> None:
        """One action. It may find its session closed, or be cancelled, by another thread."""
        action = self.chance.choice(self._actions if self.chance.random() < 0.97 else RARE)
        name, session = action.__name__, self._slot.session
        try:
            action(self, session)
            self.counts[name] += 1
        except (CancelledError, DeadlineExceededError) as error:
            self.counts[type(error).__name__] += 1
        except FailedPreconditionError as error:
            if session is self._slot.session:
                self.wrong.append(f"{name}: {error!r}")
            self.counts["closed meanwhile"] += 1
        except StatusError as error:
            self.wrong.append(f"{name}: {error!r}")

    def _same(self, outcome: object, expected: object) -> None:
        if not np.array_equal(np.asarray(outcome), np.asarray(expected)):
            self.wrong.append(f"{np.asarray(outcome)!r}, not {expected!r}")

    def _refused(self, text: str, call: Callable[[], object]) -> None:
        try:
            given = call()
        except StatusError as error:
            if text not in str(error):
                raise
        else:
            self.wrong.append(f"{given!r} instead of {text}")

    def call(self, session: jitree.Session) -> None:
        self._same(session["arithmetic.add"](X, X), X + X)

    def chain(self, session: jitree.Session) -> None:
        add = session["asynchronous.add"]
        self._same(add(add.submit(add.submit(N, N), N), N), 4 * N)

    def donated(self, session: jitree.Session) -> None:
        values = np.array([self.chance.randrange(-(2**31), 2**31) for _ in range(4)], np.int32)
        array = session.to_device(values)
        self._same(session["outputs.double_first"](jitree.donate(array), values), values + values)

    def model(self, session: jitree.Session) -> None:
        self._same(session["module.classify"](IMAGE), self._expected)

    def hasty_model(self, session: jitree.Session) -> None:
        limit = self.chance.choice((0.0, 1e-5, 1e-3, 10.0))
        self._same(session["module.classify"](IMAGE, timeout=limit), self._expected)

    def refused_model(self, session: jitree.Session) -> None:
        wrong = self.chance.choice((np.zeros(5, np.float32), "text", None, 1 << 70))
        self._refused("INVALID_ARGUMENT", lambda: session["module.classify"](wrong))

    def limited(self, session: jitree.Session) -> None:
        limit = self.chance.choice((0.0, 1e-5, 1e-3, 10.0))
        doubled, count = session["state.double_until"](np.float32(1), 1000.0, timeout=limit)
        self._same(doubled, 1024)
        self._same(count, 10)

    def refused(self, session: jitree.Session) -> None:
        wrong = self.chance.choice((np.zeros(5, np.float32), "text", None, 1 << 70))
        self._refused("INVALID_ARGUMENT", lambda: session["arithmetic.add"](X, wrong))

    def failing(self, session: jitree.Session) -> None:
        self._refused("must be positive", lambda: session["state.positive"](np.int32(-3)))
        self._same(session["state.positive"](np.int32(3)), 3)

    def cancel(self, session: jitree.Session) -> None:
        session.cancel()

    def reload(self, session: jitree.Session) -> None:
        if self._slot.kind.sandbox:
            self._refused("UNIMPLEMENTED", lambda: session.reload(DIGITS))
        else:
            session.reload(self.chance.choice(PROGRAMS))

    def reopen(self, _: jitree.Session) -> None:
        self._slot.reopen()


ACTIONS = (Load.call, Load.chain, Load.donated, Load.model, Load.limited, Load.refused, Load.failing)
OF_MODELS = (Load.model, Load.hasty_model, Load.refused_model)
RARE = (Load.cancel, Load.cancel, Load.reload, Load.reopen)

KINDS = (
    Kind("local-sync", "auto"),
    Kind("local-task://?threads=2", "auto"),
    Kind("local-sync", "fast"),
    Kind("local-task://?threads=2", "auto", (DIGITS,), sandbox=True),
)


class Sample(NamedTuple):
    """What there is when nothing runs."""

    handles: tuple[int, ...]
    threads: int
    descriptors: int
    resident: int


def sample(slots: list[Slot], before: Sample | None) -> Sample:
    """Waits for a while for what ends by itself, as a builder of machine code does."""
    handles = tuple(slot.handles() for slot in slots)
    for slot in slots:
        slot.reopen()
    until = time.monotonic() + SETTLED
    while True:
        threads, descriptors = resources()
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[1])
        now = Sample(handles, threads, descriptors.total(), pages * os.sysconf("SC_PAGE_SIZE"))
        if before is None or now[1:3] == before[1:3] or time.monotonic() > until:
            return now
        time.sleep(0.1)


def work(load: Load, until: float) -> None:
    while time.monotonic() < until:
        load.step()


def interrupted(load: Load, alarms: Alarms, until: float) -> None:
    """As :func:`work`, on the main thread: a handler raises in the midst of calls, at random."""
    while time.monotonic() < until:
        try:
            outcome = alarms.during(load.step, load.chance.uniform(1e-6, 0.01), load.chance.choice(RAISED))
        except RAISED as error:  # what came during the end of an object is raised a little later
            outcome = error
        if isinstance(outcome, RAISED):
            load.counts["interrupted"] += 1
        elif isinstance(outcome, BaseException):
            load.wrong.append(repr(outcome))


def grown(samples: list[Sample]) -> float:
    """By what part memory has grown in the second half."""
    half = len(samples) // 2
    return max(one.resident for one in samples[half:]) / max(one.resident for one in samples[: half + 1]) - 1


def faults(samples: list[Sample], loads: list[Load]) -> list[str]:
    found = [text for load in loads for text in load.wrong]
    kinds = {one[:3] for one in samples}
    if len(kinds) > 1:
        found.append(f"handles, threads and descriptors differ: {sorted(kinds)}")
    if grown(samples) > MOST_GROWTH:
        found.append(f"memory has grown by {100 * grown(samples):.1f} %")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="a mixed load, which must leave nothing")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with jitree.Session("local-sync", tier="plain") as session:
        expected = np.array(session.load(DIGITS).classify(IMAGE))
    slots = [Slot(kind) for kind in KINDS]
    loads = [
        Load(slots[number % len(slots)], f"{options.seed}:{number}", expected)
        for number in range(options.threads)
    ]
    alarms, samples = Alarms(), list[Sample]()
    print("minutes  handles              threads  descriptors  resident MiB  done")
    began = time.monotonic()
    with ThreadPoolExecutor(options.threads - 1) as pool:
        for number in range(options.rounds + 1):
            until = began + 60 * options.minutes * (number + 1) / (options.rounds + 1)
            others = [pool.submit(work, load, until) for load in loads[1:]]
            interrupted(loads[0], alarms, until)
            for other in others:
                other.result()
            samples.append(sample(slots, samples[-1] if samples else None))
            show(samples[-1], began, loads)
    for slot in slots:
        slot.session.close()
    found = faults(samples[1:], loads)
    for what, count in sum((load.counts for load in loads), Counter()).most_common():
        print(f"{count:10,}  {what}")
    print(f"memory in the second half: {100 * grown(samples[1:]):+.1f} %; {len(found)} faults")
    for text in found[:10]:
        print(text)
    return 1 if found else 0


def show(now: Sample, began: float, loads: list[Load]) -> None:
    done = sum(sum(load.counts.values()) for load in loads)
    handles = " ".join(f"{count:4}" for count in now.handles)
    print(
        f"{(time.monotonic() - began) / 60:7.1f}  {handles}  {now.threads:7}  {now.descriptors:11}  "
        f"{now.resident / 2**20:12.1f}  {done:,}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
