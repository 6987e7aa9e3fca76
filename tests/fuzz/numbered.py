"""Runs numbered cases in child processes: one that dies of its case, or does not end, is a finding."""

from __future__ import annotations

import faulthandler
import gc
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from typing import IO, Any, Final, NamedTuple

from tests.checked.begin import report_to
from tests.fuzz.campaign import CASES, SECONDS, Campaign, Result

Check = Callable[[int], Result]


class Finding(NamedTuple):
    """What is wrong with the case of a number."""

    number: int
    text: str

    def __str__(self) -> str:
        return f"case {self.number}: {self.text}"


Found = tuple[list[Finding], Counter[str]]

LIFE: Final = 30.0
"""Seconds of the processor after which another process takes the place of one: it keeps the code that it has
compiled. On a busy machine one would be old when it has just prepared itself."""
REPORT_SECONDS: Final = 30.0
_TELL: Final = signal.SIGUSR2
"""On which a process says where its threads are."""
_TELL_SECONDS: Final = 5.0
"""At most: what is in machine code does not come to tell all."""
_TOLD: Final = "that is all"
_MOST_TOLD: Final = 1 << 20
_CONTEXT: Final = multiprocessing.get_context("fork")


class Worker:
    """A child process, which runs some numbers one after the other."""

    def __init__(self, check: Check, prepare: Callable[[], None] = lambda: None) -> None:
        self.connection, theirs = _CONTEXT.Pipe()
        self._at: Any = _CONTEXT.RawValue("q", 0)
        self._stacks = tempfile.TemporaryFile()
        arguments = (check, prepare, theirs, self._at, self._stacks)
        self._process = _CONTEXT.Process(target=_work, args=arguments, daemon=True)
        self._process.start()
        theirs.close()
        self._seen = 0
        self.numbers = range(0)
        self.ends_at = 0.0
        self.is_old = False

    def start(self, numbers: range, seconds: float) -> None:
        self.numbers, self._seen = numbers, numbers.start
        self._at.value = numbers.start
        self.ends_at = time.monotonic() + seconds
        self.connection.send(numbers)

    def has_moved(self, seconds: float) -> bool:
        """Whether the process has come to another number, which may take as long again."""
        if self._seen == self._at.value:
            return False
        self._seen, self.ends_at = self._at.value, time.monotonic() + seconds
        return True

    def result(self) -> tuple[Found, range]:
        """Of numbers that have ended, or of one that has taken too long; and what numbers are left."""
        try:
            if not self.connection.poll():
                return self._failure(self._stuck())
            found, counts, reached, spent = self.connection.recv()
        except (EOFError, ConnectionResetError):
            return self._failure(self._end())
        self.is_old = spent > LIFE
        return (found, counts), range(reached, self.numbers.stop)

    def _end(self) -> str:
        self._process.join()
        code = self._process.exitcode or 0
        how = signal.Signals(-code).name if code < 0 else f"status {code}"
        return f"{self._stack()}ends the process ({how})"

    def _stuck(self) -> str:
        os.kill(self._process.pid or 0, _TELL)
        until = time.monotonic() + _TELL_SECONDS
        while _TOLD not in self._stack() and time.monotonic() < until:
            time.sleep(_TELL_SECONDS / 100)
        return f"{self._stack()}does not end"

    def _stack(self) -> str:
        """Where the threads of the process are, or were when it ended."""
        return os.pread(self._stacks.fileno(), _MOST_TOLD, 0).decode(errors="replace")

    def _failure(self, what: str) -> tuple[Found, range]:
        self.is_old = True
        number = self._at.value
        done = Counter({CASES: number - self.numbers.start + 1})
        return ([Finding(number, what)], done), range(number + 1, self.numbers.stop)

    def close(self) -> None:
        self._process.kill()
        self._process.join()
        self.connection.close()
        self._stacks.close()


def _work(
    check: Check, prepare: Callable[[], None], connection: Connection, at: Any, stacks: IO[bytes]
) -> None:
    faulthandler.enable(stacks)
    signal.signal(_TELL, lambda *_: _tell(stacks))
    faulthandler.register(_TELL, stacks, chain=True)
    report_to(stacks.fileno())
    null = os.open(os.devnull, os.O_WRONLY)  # programs may print, as may the system about those that crash
    os.dup2(null, 1)
    os.dup2(null, 2)
    prepare()
    while True:
        counts: Counter[str] = Counter()
        for number in connection.recv():
            at.value = number
            try:
                found, counted = check(number)
            except Exception:
                found, counted = [traceback.format_exc(limit=-8)], Counter({CASES: 1})
            counts.update(counted)
            if found:  # the next case may end the process
                break
        told = [Finding(number, text) for text in found]
        connection.send((told, counts, number + 1, time.process_time()))
        gc.collect()


def _tell(stacks: IO[bytes]) -> None:
    """Python comes here where the main thread waits; the stacks have been written, wherever that is."""
    from tests.fuzz.standing import standing  # few processes are asked

    os.write(stacks.fileno(), f"{standing()}\n{_TOLD}\n".encode(errors="replace"))


def run_numbers(
    check: Check,
    batches: Iterator[range],
    processes: int,
    seconds: float = SECONDS,
    until: float = float("inf"),
    prepare: Callable[[], None] = lambda: None,
) -> Found:
    """Runs all batches, or those that begin before ``until`` (``time.monotonic()``) and the first of each
    process."""
    found: list[Finding] = []
    counts: Counter[str] = Counter()
    workers: list[Worker] = []
    reported = time.monotonic()
    try:
        for _ in range(processes):
            _start_next(Worker(check, prepare), workers, next(batches, range(0)), seconds)
        while workers:
            for worker in _finished(workers, seconds):
                (more, counted), rest = worker.result()
                found += more
                counts.update(counted)
                workers.remove(worker)
                if worker.is_old:
                    worker.close()
                    worker = Worker(check, prepare)
                if not rest and time.monotonic() < until:
                    rest = next(batches, rest)
                _start_next(worker, workers, rest, seconds)
            if time.monotonic() - reported > REPORT_SECONDS:
                reported = time.monotonic()
                print(dict(counts), *found[-5:], sep="\n", file=sys.stderr, flush=True)
    finally:
        for worker in workers:
            worker.close()
    return found, counts


def _start_next(worker: Worker, workers: list[Worker], numbers: range, seconds: float) -> None:
    if numbers:
        worker.start(numbers, seconds)
        workers.append(worker)
    else:
        worker.close()


def _finished(workers: list[Worker], seconds: float) -> list[Worker]:
    """Those whose numbers have ended, or one of which has taken too long; waits for the first."""
    first = min(worker.ends_at for worker in workers)
    ready = set(wait([worker.connection for worker in workers], max(0.0, first - time.monotonic())))
    now = time.monotonic()
    return [
        worker
        for worker in workers
        if worker.connection in ready or (worker.ends_at <= now and not worker.has_moved(seconds))
    ]


def numbers_from(first: int, batch: int) -> Iterator[range]:
    """Ever further batches of numbers."""
    while True:
        yield range(first, first + batch)
        first += batch


def findings(of: Campaign, case: Any) -> list[str]:
    """What is wrong with a case that runs in a process of its own."""
    found, _ = run_numbers(lambda number: of.run(case), iter([range(1)]), 1, of.seconds, prepare=of.prepare)
    return [finding.text for finding in found]


def minimised(of: Campaign, case: Any, until: float) -> Any:
    """The least case found before ``until`` that still has findings; the case itself if it has none alone."""
    went_on = True
    while went_on:
        went_on = False
        for smaller in of.smaller(case):
            if time.monotonic() > until:
                return case
            if findings(of, smaller):
                case, went_on = smaller, True
                break
    return case
