"""Runs numbered cases in child processes: one that dies of its case, or does not end, is a finding."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Final

Result = tuple[list[str], Counter[str]]
"""What was found, a line each, and numbers of what was done."""
Check = Callable[[int], Result]

CASES: Final = 100
"""That a process runs before another takes its place: it keeps the code that it has compiled."""
SECONDS: Final = 60.0
"""That a case may take. Those of this folder take one."""
REPORT_SECONDS: Final = 30.0


class Worker:
    """A child process, which runs one case at a time."""

    def __init__(self, check: Check) -> None:
        context = multiprocessing.get_context("fork")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(check, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self.number = 0
        self.ends_at = 0.0
        self.cases = 0

    def start(self, number: int, seconds: float) -> None:
        self.number, self.ends_at = number, time.monotonic() + seconds
        self.cases += 1
        self.connection.send(number)

    def result(self) -> Result:
        """Of a case that has ended, or has taken too long."""
        if not self.connection.poll():
            return self._failure("does not end")
        try:
            result: Result = self.connection.recv()
        except (EOFError, ConnectionResetError):
            return self._failure("ends the process")
        return result

    def _failure(self, what: str) -> Result:
        self.cases = CASES
        return [f"case {self.number} {what}"], Counter(cases=1)

    def close(self) -> None:
        self._process.kill()
        self._process.join()
        self.connection.close()


def _work(check: Check, connection: Connection) -> None:
    while True:
        connection.send(check(connection.recv()))


def campaign(
    check: Check,
    numbers: Iterator[int],
    processes: int,
    seconds: float = SECONDS,
    until: float = float("inf"),
) -> Result:
    """Runs all cases, or those that begin before ``until`` (``time.monotonic()``)."""
    found: list[str] = []
    counts: Counter[str] = Counter()
    workers: list[Worker] = []
    reported = time.monotonic()
    try:
        for _ in range(processes):
            _start_next(Worker(check), workers, numbers, seconds)
        while workers:
            for worker in _finished(workers):
                more, counted = worker.result()
                found += more
                counts += counted
                workers.remove(worker)
                if worker.cases == CASES:
                    worker.close()
                    worker = Worker(check)
                _start_next(worker, workers, numbers if time.monotonic() < until else iter(()), seconds)
            if time.monotonic() - reported > REPORT_SECONDS:
                reported = time.monotonic()
                print(dict(counts), *found, sep="\n", file=sys.stderr, flush=True)
    finally:
        for worker in workers:
            worker.close()
    return found, counts


def _start_next(worker: Worker, workers: list[Worker], numbers: Iterator[int], seconds: float) -> None:
    number = next(numbers, None)
    if number is None:
        worker.close()
    else:
        worker.start(number, seconds)
        workers.append(worker)


def _finished(workers: list[Worker]) -> list[Worker]:
    """Those whose cases have ended or have taken too long; waits for the first."""
    first = min(worker.ends_at for worker in workers)
    ready = set(wait([worker.connection for worker in workers], max(0.0, first - time.monotonic())))
    now = time.monotonic()
    return [worker for worker in workers if worker.connection in ready or worker.ends_at <= now]


def main(what: str, check: Callable[[int, int], Result]) -> int:
    """The command line of a campaign: ``check`` takes the number of a case and of inputs to it."""
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--inputs", type=int, default=34)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="after which no case begins")
    arguments = parser.parse_args()
    numbers = iter(range(arguments.first, arguments.first + arguments.cases))
    until = time.monotonic() + 60 * arguments.minutes
    found, counts = campaign(
        lambda number: check(number, arguments.inputs), numbers, arguments.processes, until=until
    )
    for name, number in counts.items():
        print(f"{number:9}  {name}")
    print(*found[:50], f"{len(found)} differences", sep="\n")
    return 1 if found else 0
