"""Sessions as users have them, step by step at random, beside a model that says what each step gives.

Steps make arrays, call, donate, give storage, submit, cancel, limit the time, load anew, close and open,
fork, and call from several threads. After each the model and the session agree; afterwards no handle, thread
or descriptor is left.
"""

from __future__ import annotations

import gc
import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
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
from tests.api.programs import ARITHMETIC, ASYNCHRONOUS, OUTPUTS, STATE
from tests.fuzz.campaign import CASES, Campaign, Result
from tests.fuzz.interruptions import resources

STEPS: Final = 40
DEVICES: Final = ("local-sync", "local-task://?threads=2")
TIERS: Final = ("plain", "fast", "auto")
_PROGRAMS: Final = (ARITHMETIC, ASYNCHRONOUS, OUTPUTS, STATE)
_MOST: Final = 6
"""Arrays that are there at a time."""
_FIRST: Final = 10
"""What the program's counter begins at."""
_N: Final = np.arange(64, dtype=np.float32)
_X: Final = np.arange(4, dtype=np.float32)

Numbers = npt.NDArray[np.int32]


class Case(NamedTuple):
    device: str
    tier: str
    steps: tuple[tuple[str, int], ...]
    """Names of steps, each with a number that its choices come from."""


def generate(number: int) -> Case:
    chance = random.Random(f"machine {number}")
    steps = tuple((chance.choice(_USUAL), chance.randrange(1 << 30)) for _ in range(STEPS))
    return Case(chance.choice(DEVICES), chance.choice(TIERS), steps)


def smaller(case: Case) -> Iterator[Case]:
    size = len(case.steps) // 2
    while size:
        for start in range(0, len(case.steps), size):
            yield case._replace(steps=case.steps[:start] + case.steps[start + size :])
        size //= 2


class WrongError(Exception):
    """The session and the model disagree."""


class Machine:
    """A session and its model."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self.chance = random.Random()
        self.arrays: list[tuple[Any, Numbers]] = []
        """Arrays of the session, and what is in them."""
        self.lost: list[Any] = []
        """Arrays that were donated."""
        self.submitted: list[tuple[Any, npt.NDArray[np.float32]]] = []
        self.counter = _FIRST
        self.total = np.zeros(4, np.float32)
        self.open()

    def open(self) -> None:
        self.session = jitree.Session(self._case.device, tier=self._case.tier)
        self.session.load(*_PROGRAMS)
        self.counter, self.total = _FIRST, np.zeros(4, np.float32)

    def close(self) -> None:
        self.session.close()
        expect_error(FailedPreconditionError, lambda: self.session["state.increment"]())
        self.check_arrays()
        self.drop()

    def drop(self) -> None:
        """Leaves all arrays."""
        for array, _ in self.submitted:
            end_of(array)
        self.arrays, self.lost, self.submitted = [], [], []

    # -- steps -------------------------------------------------------------------------------------------

    def make(self) -> None:
        values = np.array(
            [self.chance.choice((0, 1, -1, 7, 2**31 - 1, -(2**31))) for _ in range(4)], np.int32
        )
        self._keep(self.session.to_device(values), values)

    def _keep(self, array: Any, values: Numbers) -> None:
        self.arrays.append((array, values))
        del self.arrays[:-_MOST]

    def _one(self) -> tuple[Any, Numbers]:
        if not self.arrays:
            self.make()
        return self.chance.choice(self.arrays)

    def _other(self, array: Any) -> tuple[Any, Numbers]:
        others = [pair for pair in self.arrays if pair[0] is not array]
        if not others:
            self.make()
            others = self.arrays[-1:]
        return self.chance.choice(others)

    def _set(self, array: Any, values: Numbers) -> None:
        self.arrays = [(each, values if each is array else kept) for each, kept in self.arrays]

    def double(self) -> None:
        array, values = self._one()
        given = jitree.donate(array) if self.chance.random() < 0.5 else array
        second = self._other(array)[0] if self.chance.random() < 0.5 else values
        result = self.session["outputs.double_first"](given, second)
        if given is not array:
            self.arrays = [pair for pair in self.arrays if pair[0] is not array]
            self.lost.append(array)
        self._keep(result, values + values)

    def lost_one(self) -> None:
        """An array that was donated is refused, and nothing else is lost with it."""
        if self.lost:
            array, _ = self._one()
            lost = self.chance.choice(self.lost)
            expect_error(
                FailedPreconditionError,
                lambda: self.session["outputs.double_both"](jitree.donate(array), jitree.donate(lost)),
            )

    def twice(self) -> None:
        array, _ = self._one()
        expect_error(
            InvalidArgumentError,
            lambda: self.session["outputs.double_both"](jitree.donate(array), array),
        )

    def storage(self) -> None:
        array, values = self._one()
        place, _ = self._other(array)
        sums, squares = self.session["outputs.one_of_two"](array, out=place)
        self._set(place, values * values)
        same(sums, values + values)
        same(squares, values * values)

    def swapped(self) -> None:
        array, values = self._one()
        first, second = (self.session.to_device(np.zeros(4, np.int32)) for _ in range(2))
        doubled, squared = self.session["outputs.swapped"](first, array, second)
        same(doubled, values + values)
        same(squared, values * values)
        same(first, values * values)
        same(second, values + values)

    def in_place(self) -> None:
        array, values = self._one()
        self.session["outputs.in_place"](array)
        self._set(array, values + values)

    def increment(self) -> None:
        self.counter += 1
        same(self.session["state.increment"](), self.counter)

    def accumulate(self) -> None:
        self.total = self.total + _X
        same(self.session["state.accumulate"](_X), self.total)

    def positive(self) -> None:
        expect_error(StatusError, lambda: self.session["state.positive"](np.int32(-3)))
        same(self.session["state.positive"](np.int32(3)), 3)

    def wrong(self) -> None:
        wrong = self.chance.choice(
            (np.zeros(5, np.float32), np.zeros((2, 2), np.float32), "text", None, 1 << 70)
        )
        expect_error(InvalidArgumentError, lambda: self.session["arithmetic.add"](_X, wrong))
        expect_error(InvalidArgumentError, lambda: self.session["arithmetic.add"](_X))

    def submit(self) -> None:
        add = self.session["asynchronous.add"]
        first = self.submitted[-1] if self.submitted and self.chance.random() < 0.7 else (_N, _N)
        self.submitted.append((add.submit(first[0], _N), first[1] + _N))

    def wait(self) -> None:
        if self.submitted:
            array, values = self.submitted.pop(self.chance.randrange(len(self.submitted)))
            same(array, values)

    def cancel(self) -> None:
        """What is submitted ends with its result, or cancelled; later calls do not notice."""
        self.submit()
        self.session.cancel()
        for array, values in self.submitted:
            end = end_of(array)
            if not isinstance(end, CancelledError):
                same(end, values)
        self.submitted = []

    def limited(self) -> None:
        limit = self.chance.choice((0.0, 1e-5, 1e-3, 10.0))
        try:
            doubled, count = self.session["state.double_until"](np.float32(1), 1000.0, timeout=limit)
        except DeadlineExceededError:
            return
        same(doubled, 1024)
        same(count, 10)

    def threads(self) -> None:
        """Calls at once: numbers are given once each."""
        count = self.chance.randint(2, 4)
        together = threading.Barrier(count)
        increment, add = self.session["state.increment"], self.session["arithmetic.add"]

        def work(_: int) -> list[int]:
            together.wait()
            given = []
            for _ in range(4):
                given.append(int(np.asarray(increment())))
                same(add(_X, _X), 2 * _X)
            return given

        with ThreadPoolExecutor(count) as pool:
            found = sorted(number for numbers in pool.map(work, range(count)) for number in numbers)
        same(np.array(found), np.arange(self.counter + 1, self.counter + 1 + 4 * count))
        self.counter += 4 * count

    def reload(self) -> None:
        """All modules begin anew; arrays stay."""
        for array, values in self.submitted:
            same(array, values)
        self.submitted = []
        self.session.reload(self.chance.choice(_PROGRAMS))
        self.counter, self.total = _FIRST, np.zeros(4, np.float32)

    def reopen(self) -> None:
        self.close()
        self.open()

    def fork(self) -> None:
        """A child has its own session, and the parent does not notice it."""
        child = os.fork()
        if not child:
            code = 1
            try:
                with jitree.Session("local-sync", tier="plain") as session:
                    same(session.load(ARITHMETIC).add(_X, _X), 2 * _X)
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        if status:
            raise WrongError(f"a forked child ends with {status}")

    def read(self) -> None:
        array, values = self._one()
        same(array.copy(), values)
        same(np.from_dlpack(array), values)
        same(array[1:3], values[1:3])

    def trim(self) -> None:
        self.session.trim()

    # -- what is always so -------------------------------------------------------------------------------

    def check_arrays(self) -> None:
        for array, values in self.arrays:
            same(array, values)
        for array in self.lost:
            if not array.is_donated:
                raise WrongError("an array that was donated is not any more")


def same(outcome: object, expected: object) -> None:
    if not np.array_equal(np.asarray(outcome), np.asarray(expected)):
        raise WrongError(f"{np.asarray(outcome).tolist()}, not {np.asarray(expected).tolist()}")


def end_of(array: Any) -> object:
    """What an array that was submitted has, or why it has nothing."""
    try:
        return np.array(array)
    except StatusError as error:
        return error


def expect_error(kind: type[StatusError], action: Callable[[], object]) -> None:
    try:
        given = action()
    except kind:
        return
    raise WrongError(f"{given!r} instead of a {kind.__name__}")


_RARE: Final = ("reload", "reopen", "fork", "trim", "cancel")
_USUAL: Final = (
    *("make", "double", "lost_one", "twice", "storage", "swapped", "in_place", "increment", "accumulate",
      "positive", "wrong", "submit", "wait", "limited", "threads", "read") * 3,
    *_RARE,
)  # fmt: skip


def run(case: Case) -> Result:
    counts, found = Counter({CASES: 1}), list[str]()
    with jitree.Session(case.device, tier=case.tier) as session:  # what a process makes once
        session.load(*_PROGRAMS)
    del session
    before = resources()
    machine = Machine(case)
    for place, (step, seed) in enumerate(case.steps):
        machine.chance.seed(seed)
        counts[step] += 1
        try:
            getattr(machine, step)()
            machine.check_arrays()
        except (WrongError, StatusError) as error:
            found.append(f"step {place}, {step}: {error!r}")
            break
    machine.drop()
    gc.collect()
    machine.close()
    if not found and machine.session.context.table.live_count:
        found.append(f"{machine.session.context.table.live_count} handles are left")
    del machine
    after = resources()
    if after[0] > before[0] or after[1] != before[1]:
        found.append(f"threads and descriptors {after}, {before} before")
    return found, counts


CAMPAIGN: Final = Campaign("sessions, step by step", generate, run, smaller, batch=8, prepare=lambda: None)
