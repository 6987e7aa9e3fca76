"""Times runtimes in turn, each in its own process, which is stopped while others are measured.

Threads of a runtime look for work for milliseconds after a call, on the processors that the next one needs.
In one process they doubled what small models took on two threads, also after pauses of 30 ms (PP-OCR cls
1.6 ms in place of 0.6). So processes are stopped by a signal, and only the measured one goes on.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

TURN = 0.5
"""Seconds that a process runs before the next one does. The median of its calls leaves out those that wait
until the system has given threads that stood still their processors."""
_LEAST_TURNS = 3

Make = Callable[[], Callable[[], Any]]
"""Makes a call, in the process that is to run it: a function that can be pickled."""


class Timed(NamedTuple):
    """What a call gives, and its median seconds."""

    result: Any
    seconds: float


class _Runner:
    """A process that stands still but for its turns."""

    def __init__(self, make: Make) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, end = context.Pipe()
        self._process = context.Process(target=_serve, args=(make, end), daemon=True)
        self._process.start()
        end.close()
        self.times: list[float] = []

    def __enter__(self) -> _Runner:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()  # ends one that stands still, too
        self._process.join()

    def first(self) -> Any:
        """The result of the first call; an exception says why there is none."""
        try:
            result, refusal = self._pipe.recv()
        except EOFError:
            raise RuntimeError("the process has ended") from None
        if refusal:
            raise RuntimeError(refusal)
        self._stop()
        return result

    def turn(self) -> None:
        os.kill(self._number, signal.SIGCONT)
        self._pipe.send(TURN)
        self.times.append(self._pipe.recv())
        self._stop()

    def _stop(self) -> None:
        os.kill(self._number, signal.SIGSTOP)
        os.waitid(os.P_PID, self._number, os.WSTOPPED)  # all its threads stand still

    @property
    def _number(self) -> int:
        assert self._process.pid is not None
        return self._process.pid


def _serve(make: Make, pipe: Connection) -> None:
    """What such a process does: a call, and then a turn for each number of seconds that comes."""
    try:
        call = make()
        pipe.send((call(), ""))
    except Exception as error:
        pipe.send((None, f"{type(error).__name__}: {error}"))
        return
    while True:
        end = time.perf_counter() + pipe.recv()
        times = []
        while not times or time.perf_counter() < end:
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        pipe.send(statistics.median(times))


def measured(makes: Mapping[str, Make], seconds: float) -> dict[str, Timed | str]:
    """By name what each call gives and takes in turns of so many seconds together, or why there is none."""
    with ExitStack() as stack:
        found: dict[str, Timed | str] = {}
        results, runners = {}, {}
        for name, make in makes.items():  # one after the other, so that none is made beside another
            runner = stack.enter_context(_Runner(make))
            try:
                results[name], runners[name] = runner.first(), runner
            except RuntimeError as error:
                found[name] = str(error)
        for _ in range(max(_LEAST_TURNS, round(seconds / TURN))):
            for runner in runners.values():
                runner.turn()
        for name, runner in runners.items():
            found[name] = Timed(results[name], statistics.median(runner.times))
        return found
