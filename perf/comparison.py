"""Times callables of two runtimes side by side; used by the other files of this folder."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence

_BATCH_SECONDS = 0.005
"""Calls are timed in batches of about this much, so that the clock costs nothing."""


def alternate(calls: Sequence[Callable[[], object]], seconds: float) -> list[float]:
    """Median seconds of a call of each callable, measured in turn until each has had its time.

    Threads of some runtimes look for work for milliseconds after a call, on the processors that the next one
    needs: what runs on several threads is measured by ``apart.py``.
    """
    for call in calls:
        call()
    batches = [_batch(call) for call in calls]
    times: list[list[float]] = [[] for _ in calls]
    end = time.perf_counter() + seconds * len(calls)
    while time.perf_counter() < end or len(times[0]) < 3:
        for call, count, spent in zip(calls, batches, times, strict=True):
            start = time.perf_counter()
            for _ in range(count):
                call()
            spent.append((time.perf_counter() - start) / count)
    return [statistics.median(spent) for spent in times]


def _batch(call: Callable[[], object]) -> int:
    start = time.perf_counter()
    call()
    return max(1, int(_BATCH_SECONDS / max(time.perf_counter() - start, 1e-7)))


def row(name: str, peer: float, own: float) -> str:
    """A line of a report: seconds of iree.runtime and of jitree and their ratio."""
    return (
        f"{name:18s} iree.runtime {peer * 1e6:10.1f} us  jitree {own * 1e6:10.1f} us  ratio {peer / own:8.3f}"
    )


def summary(ratios: Sequence[float]) -> str:
    mean = math.exp(statistics.fmean(map(math.log, ratios)))
    return f"geometric mean {mean:.3f} of {len(ratios)}, worst {min(ratios):.3f}"
