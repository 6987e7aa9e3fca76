"""The way from nothing to full speed, by tier: what `first_second.py --ways` prints."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from math import inf
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
from cases import Case

_CHILD = """
import sys, time
import numpy as np
begun = time.perf_counter()
import jitree
module, function, device, tier, seconds, arguments = sys.argv[1:]
session = jitree.Session(device=device, tier=tier)
loaded = session.load(module)
function = loaded[function or next(name for name in loaded.names if "$async" not in name)]
arguments = [value for _, value in sorted(np.load(arguments).items())]
ends = []
while not ends or ends[-1] < float(seconds):
    results = function(*arguments)
    for result in results if isinstance(results, tuple) else (results,):
        np.asarray(result)
    ends.append(time.perf_counter() - begun)
print(*ends)
"""
"""Prints when each call had ended, in seconds from the import of numpy on."""
_FULL = 1.5
"""Calls have full speed from the first one that takes no more than so many times the shortest."""

_WARM_SECONDS = 2.0
"""For which the next process makes calls."""


class Way(NamedTuple):
    """Seconds."""

    first: float
    """Until the first result."""
    last: float
    """Of the last call."""
    full: float
    """Until calls have full speed."""


def way_of(ends: list[float], best: float) -> Way:
    """``best``: what a call takes at full speed, by whatever tier; the way is infinite to what never came."""
    times = [ends[0], *(end - begun for begun, end in pairwise(ends))]
    calls = zip(ends[1:], times[1:], strict=True)
    full = next((end for end, taken in calls if taken <= _FULL * best), inf)
    return Way(ends[0], times[-1], full)


def trained(folder: Path, only: str) -> Iterator[Case]:
    """Those of perf/trained.py, compiled for VMVX."""
    from trained import TARGETS, argument, available, compiled

    folder.mkdir(exist_ok=True)
    for name, source, shape in available(only, folder):
        files = compiled(folder, name, source, shape, {"vmvx": TARGETS["vmvx"]})
        if "vmvx" in files:
            yield Case(name, files["vmvx"], "", (argument(shape, name),))


def _ends(case: Case, device: str, tier: str, seconds: float, cache: str) -> list[float]:
    """When calls end in a new process."""
    with tempfile.TemporaryDirectory() as folder:
        values = Path(folder) / "arguments.npz"
        np.savez(values, **{f"{place:03}": value for place, value in enumerate(case.arguments)})
        program = [sys.executable, "-c", _CHILD, str(case.module), case.function]
        command = [*program, device, tier, str(seconds), str(values)]
        environment = os.environ | {"JITREE_CACHE_DIR": cache}
        output = subprocess.check_output(command, text=True, env=environment)
    return [float(word) for word in output.split()]


def print_ways(case: Case, device: str, tiers: list[str], seconds: float, repeat: int) -> None:
    """Runs the tiers alternately, each time with an empty cache, and once more with what that has left."""
    empty: dict[str, list[list[float]]] = {tier: [] for tier in tiers}
    warm: dict[str, list[list[float]]] = {tier: [] for tier in tiers}
    for _ in range(repeat):
        for tier in tiers:
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache:
                empty[tier].append(_ends(case, device, tier, seconds, cache))
                warm[tier].append(_ends(case, device, tier, _WARM_SECONDS, cache))
    runs = [ends for tier in tiers for ends in (*empty[tier], *warm[tier])]
    best = min(end - begun for ends in runs for begun, end in pairwise(ends))
    for tier in tiers:
        ways = [way_of(ends, best) for ends in empty[tier]]
        first, last, full = (median(column) for column in zip(*ways, strict=True))
        again = median(ends[0] for ends in warm[tier])
        print(
            f"{case.name:14s} {device:24s} {tier:7s} first {first:6.2f}  full speed after {full:6.2f}"
            f"  call after {seconds:.0f} s {last * 1e3:8.1f} ms  warm cache: first {again:5.2f}",
            flush=True,
        )
