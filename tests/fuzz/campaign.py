"""Runs cases in a worker process and judges what becomes of them."""

from __future__ import annotations

import collections
import json
import os
import random
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.mutations import Layout, mutate
from tests.fuzz.seeds import Seed, seeds

_ROOT = Path(__file__).resolve().parents[2]
_START_LIMIT = 120.0
_LOAD_LIMIT = 20.0
_CALL_LIMIT = 1.5
"""Seconds without an answer. Damaged programs may loop, so calls get little."""


@dataclass(frozen=True)
class Case:
    """A damaged module, given by the seed it came from and a number."""

    seed: str
    tier: str
    number: int

    def __str__(self) -> str:
        return f"{self.seed}:{self.tier}:{self.number}"

    @staticmethod
    def parse(text: str) -> Case:
        seed, tier, number = text.split(":")
        return Case(seed, tier, int(number))

    def data(self, seed: Seed, layout: Layout) -> bytes:
        return mutate(seed.data, layout, random.Random(f"{self.seed}:{self.number}"))


@dataclass(frozen=True)
class Bug:
    case: Case
    what: str


class WorkerEnded(Exception):
    """The worker died or was killed; the message says how."""


class Worker:
    """One worker process."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-m", "tests.fuzz.worker"],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.phase = "starting"
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._output, selectors.EVENT_READ)
        self._pending = b""
        self._next(_START_LIMIT)

    @property
    def _output(self) -> int:
        assert self.process.stdout is not None
        return self.process.stdout.fileno()

    def run(self, case: Case, device: str, data: bytes) -> dict[str, object]:
        """The outcome of a case. WorkerEnded if there is none."""
        header = {"size": len(data), "device": device, "tier": case.tier, "number": case.number}
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(header).encode() + b"\n" + data)
        self.process.stdin.flush()
        self.phase = "loading"
        while True:
            answer = self._next(_CALL_LIMIT if self.phase.startswith("calling") else _LOAD_LIMIT)
            if "outcome" in answer:
                return dict(answer["outcome"])  # type: ignore[call-overload, no-any-return]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._selector.close()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()

    def _next(self, limit: float) -> dict[str, object]:
        deadline = time.monotonic() + limit
        while b"\n" not in self._pending:
            if not self._selector.select(max(0.0, deadline - time.monotonic())):
                raise WorkerEnded("time limit")
            chunk = os.read(self._output, 65536)
            if not chunk:
                raise WorkerEnded(_describe_end(self.process.wait()))
            self._pending += chunk
        line, _, self._pending = self._pending.partition(b"\n")
        answer: dict[str, object] = json.loads(line)
        self.phase = str(answer.get("phase", self.phase))
        return answer


def _describe_end(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"


class Campaign:
    """Runs cases one after the other and keeps count."""

    def __init__(self) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        self.bugs: list[Bug] = []
        self._layouts = {name: Layout(seed.data) for name, seed in seeds().items()}
        self._worker: Worker | None = None

    def run(self, case: Case) -> None:
        seed = seeds()[case.seed]
        data = case.data(seed, self._layouts[case.seed])
        worker = self._worker = self._worker or Worker()
        try:
            outcome = worker.run(case, seed.device, data)
        except (WorkerEnded, BrokenPipeError) as end:
            self._worker = None
            worker.close()
            if str(end) == "time limit" and worker.phase.startswith("calling"):
                self.counts["looped in a call"] += 1
            else:
                self._found(case, f"{end} while {worker.phase}")
            return
        if "bug" in outcome:
            self._found(case, str(outcome["bug"]))
        elif "status" in outcome:
            self.counts[f"refused with {outcome['status']}"] += 1
        else:
            self.counts["loaded and called"] += 1

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def _found(self, case: Case, what: str) -> None:
        self.counts["BUGS"] += 1
        self.bugs.append(Bug(case, what))


def cases(tiers: tuple[str, ...], first: int = 0) -> Iterator[Case]:
    """Every seed and tier in turn, with ever new numbers."""
    number = first
    while True:
        for name in seeds():
            for tier in tiers:
                yield Case(name, tier, number)
        number += 1
