"""Times trained models on local-task with several numbers of threads, in turn in one process.

    python perf/team_sizes.py [--threads 1 2 4 8 16] [--seconds 2] [--only REGEX] [--folder DIRECTORY]

The models are those of trained.py, which compiles them into the folder. For each number of threads: the least
and the median time of a call, processor time, and how often a call put a thread to sleep or had it wait for
something. More threads than processors (`taskset -c 0,1 python perf/team_sizes.py`) and processors that other
programs use are what this is for: no number of threads is to take longer than a smaller one.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from trained import MODELS, argument, of_jitree

import jitree
from jitree.tools.cache import warm

BATCH_SECONDS = 0.005


def sleeps() -> int:
    """How often threads of this process have given their processor up."""
    text = "".join((task / "status").read_text() for task in Path("/proc/self/task").iterdir())
    return sum(map(int, re.findall(r"^voluntary_ctxt_switches:\s+(\d+)", text, re.MULTILINE)))


class Figures:
    """Of one number of threads."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._times: list[float] = []
        self._processor = 0.0
        self._sleeps = 0

    def measure(self, call: Callable[[], Any]) -> None:
        """Adds a batch. The first call, in which threads wake up, does not count."""
        call()
        slept, processor, begun = sleeps(), time.process_time(), time.perf_counter()
        last = begun
        while last - begun < BATCH_SECONDS:
            call()
            now = time.perf_counter()
            self._times.append(now - last)
            last = now
        self._processor += time.process_time() - processor
        self._sleeps += sleeps() - slept

    def __str__(self) -> str:
        count = len(self._times)
        return (
            f"{self.threads}: least {min(self._times) * 1e3:.2f} median {median(self._times) * 1e3:.2f}"
            f" processor {self._processor / count * 1e3:.2f} ms, {self._sleeps / count:.1f} sleeps"
        )


def measure(name: str, module: Path, options: argparse.Namespace) -> list[Figures]:
    value = argument(MODELS[name].shape, name)
    sessions = [jitree.Session(f"local-task://?threads={threads}") for threads in options.threads]
    calls = [of_jitree(session, module, value) for session in sessions]
    found = [Figures(threads) for threads in options.threads]
    expected = calls[0]().tobytes()
    assert all(call().tobytes() == expected for call in calls), "results depend on the number of threads"
    end = time.perf_counter() + options.seconds * len(calls)
    while time.perf_counter() < end:
        for figures, call in zip(found, calls, strict=True):
            figures.measure(call)
    for session in sessions:
        session.close()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="times models with several numbers of threads")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--only", default="")
    parser.add_argument("--folder", type=Path, default=Path("trained-models"))
    options = parser.parse_args()
    for name in MODELS:
        module = (options.folder / re.sub(r"\W+", "_", name)).with_suffix(".vmvx.vmfb")
        if module.exists() and re.search(options.only, name):
            warm([str(module)])
            print(f"{name:12s}", "  ".join(map(str, measure(name, module, options))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
