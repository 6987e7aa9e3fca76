"""Damaged modules with native code in processes of their own: the parent goes on, exact and without growth.

``python -m tests.security.native_mutants COUNT [SEED]`` makes many of them.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import numpy as np

import jitree
from jitree.errors import StatusError
from tests.security.programs import DATA, ONE_PROCESSOR
from tests.security.test_mutants import mutant

IMAGE: Final = np.arange(64, dtype=np.float32).reshape(8, 8) / 64
_VECTOR: Final = IMAGE.reshape(-1)
_ADD: Final = Path(__file__).with_name("addd.vmfb")
_CALLS: Final[list[tuple[Path, str, tuple[Any, ...]]]] = [
    (ONE_PROCESSOR, "classify", (IMAGE,)),
    (_ADD, "addd", (_VECTOR, _VECTOR)),
    (DATA / "chain.vmfb", "layers", (IMAGE[:4],)),
]
_LIMITS: Final = jitree.Limits(memory=1 << 26, time=1.0, load_time=5.0, output=1 << 20)
_LOADS: Final = 30
"""Mutants that one process refuses before another takes its place."""
_REPORT: Final = 500
_OWN_FILES: Final = 3
"""Descriptors that a campaign opens and keeps: to the process that makes the others, and to a builder."""


def damaged(data: bytes, rng: random.Random) -> bytes:
    """A mutant of the module, or of its machine code only: the rest would refuse most of the others."""
    if rng.random() < 0.3:
        return mutant(data, rng)
    begin = data.index(b"\x7fELF")
    changed, span = bytearray(data), rng.choice((64, 512, 4096, 1 << 30))
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        place, kind = begin + rng.randrange(min(span, len(changed) - begin)), rng.random()
        if kind < 0.6:
            changed[place] = rng.choice((rng.randrange(256), changed[place] ^ 1 << rng.randrange(8), 0, 255))
        else:
            length, source = rng.choice((2, 4, 8, 64)), begin + rng.randrange(len(data) - begin)
            part = rng.randbytes(length) if kind < 0.8 else changed[source : source + length]
            changed[place : place + length] = part
    return bytes(changed[: len(data)])


def _open_files() -> int:
    """A process may have any number before: drivers of GPUs open some, and those that start it."""
    return len(os.listdir("/proc/self/fd"))


class Campaign:
    """Mutants one after the other, and an ordinary session beside them that must not notice."""

    def __init__(self, seed: int) -> None:
        self.outcomes: Counter[str] = Counter()
        self.processes = 0
        self._rng = random.Random(seed)
        self._programs = [(path.read_bytes(), name, given) for path, name, given in _CALLS]
        # Its machine code, which is a descriptor, is there before these are counted.
        self._ordinary = jitree.Session("local-sync", tier="native")
        self._classify = self._ordinary.load(ONE_PROCESSOR).classify
        self._expected = np.array(self._classify(IMAGE))
        self._files = _open_files()

    def run(self, count: int) -> None:
        """``count`` mutants more."""
        end = self.outcomes.total() + count
        while self.outcomes.total() < end:
            self._run_process(end)
            self.check()

    def _run_process(self, end: int) -> None:
        """Until one is loaded, or does worse than to be refused."""
        self.processes += 1
        device = self._rng.choice(("local-sync", "local-task"))
        with jitree.Session(device, sandbox="process", limits=_LIMITS) as session:
            for _ in range(min(_LOADS, end - self.outcomes.total())):
                data, name, arguments = self._rng.choice(self._programs)
                outcome = self._attempt(session, damaged(data, self._rng), name, arguments)
                self.outcomes[outcome] += 1
                if self.outcomes.total() % _REPORT == 0:
                    print(self, flush=True)
                if session.modules or outcome == "ABORTED":
                    return

    def _attempt(self, session: Any, data: bytes, name: str, arguments: tuple[Any, ...]) -> str:
        """The name of the status; other exceptions are errors of the parent."""
        try:
            session.call(f"{session.load(data).name}.{name}", *arguments)
        except StatusError as error:
            return error.code.name
        return "OK"

    def check(self) -> None:
        """The parent computes what it did, and has the files that it had."""
        assert (np.asarray(self._classify(IMAGE)) == self._expected).all()
        assert _open_files() <= self._files + _OWN_FILES

    def __str__(self) -> str:
        resident = Path("/proc/self/statm").read_text().split()[1]
        return (
            f"{time.strftime('%H:%M:%S')} {self.outcomes.total()} mutants, {self.processes} processes, "
            f"{dict(self.outcomes)}, {resident} pages of the parent"
        )


def main(count: int, seed: int) -> None:
    campaign = Campaign(seed)
    campaign.run(count)
    print(campaign)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
