"""The way from nothing to full speed, by tier: what `first_second.py --ways` prints.

Where the native tier is among them, full speed is given in units of its time as well, and where the fast tier
is, which interprets, so is the first result.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
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
module, function, device, tier, seconds, arguments, packed = sys.argv[1:]
session = jitree.Session(device=device, tier=tier)
loaded = session.load(module, compiled=packed or None)
function = loaded[function or next(name for name in loaded.names if "$async" not in name)]
arguments = [value for _, value in sorted(np.load(arguments).items())]
ends = []
while len(ends) < 1 + (tier != "fast") or ends[-1] < float(seconds) * (tier != "fast"):
    results = function(*arguments)
    for result in results if isinstance(results, tuple) else (results,):
        np.asarray(result)
    ends.append(time.perf_counter() - begun)
print(*ends)
"""
"""Prints when each call had ended, in seconds from the import of numpy on; of the fast tier the first one."""
_FULL = 1.5
"""Calls have full speed from the first one that takes no more than so many times the shortest."""

_WARM_SECONDS = 0.5
"""For which the next process makes calls."""

DIGITS = Path(__file__).parent.parent / "examples" / "digits" / "digits.vmvx.vmfb"


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


def shortest(runs: Iterable[list[float]]) -> float:
    """What the shortest call of several processes took, after their first ones."""
    return min(end - begun for ends in runs for begun, end in pairwise(ends))


def digits() -> Case:
    return Case("digits", DIGITS, "", (np.zeros((8, 8), np.float32),))


def trained(folder: Path, only: str) -> Iterator[Case]:
    """The model of the digits example, and those of perf/trained.py, compiled for VMVX. A module that the
    folder has needs neither its package nor its ONNX file."""
    from trained import MODELS, TARGETS, argument, available, compiled, stem

    if re.search(only, "digits"):
        yield digits()
    folder.mkdir(exist_ok=True)
    for name, model in MODELS.items():
        if not re.search(only, name):
            continue
        files = {"vmvx": stem(folder, name).with_suffix(".vmvx.vmfb")}
        if not files["vmvx"].exists():
            files = {}
            for _, source, shape in available(f"^{name}$", folder):
                files = compiled(folder, name, source, shape, {"vmvx": TARGETS["vmvx"]})
        if "vmvx" in files:
            yield Case(name, files["vmvx"], "", (argument(model.shape, name),))


def ends_of(case: Case, device: str, tier: str, seconds: float, cache: str, packed: str = "") -> list[float]:
    """When calls end in a new process; ``packed``: a file with machine code."""
    with tempfile.TemporaryDirectory() as folder:
        values = Path(folder) / "arguments.npz"
        np.savez(values, **{f"{place:03}": value for place, value in enumerate(case.arguments)})
        program = [sys.executable, "-c", _CHILD, str(case.module), case.function]
        command = [*program, device, tier, str(seconds), str(values), packed]
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
                empty[tier].append(ends_of(case, device, tier, seconds, cache))
                warm[tier].append(ends_of(case, device, tier, _WARM_SECONDS, cache))
    runs = [ends for tier in tiers for ends in (*empty[tier], *warm[tier])]
    best = shortest(runs)
    found = {}
    for tier in tiers:
        ways = [way_of(ends, best) for ends in empty[tier]]
        found[tier] = Way(*(median(column) for column in zip(*ways, strict=True)))
    for tier, way in found.items():
        again = [ends for ends in warm[tier] if len(ends) > 1]
        first = median(ends[0] for ends in warm[tier])
        call = median(ends[1] - ends[0] for ends in again) if again else inf
        print(
            f"{case.name:10s} {device:23s} {tier:6s} first {way.first:6.2f}{_over('fast', 0, way, found)}"
            f"  full speed after {way.full:6.2f}{_over('native', 2, way, found)}"
            f"  call after {seconds:.0f} s {way.last * 1e3:7.1f} ms"
            f"  warm cache: first {first:5.2f}, second call {call * 1e3:6.1f} ms",
            flush=True,
        )


def _over(tier: str, column: int, way: Way, found: dict[str, Way]) -> str:
    """A figure in units of another tier's."""
    return f" ({way[column] / found[tier][column]:4.2f} of {tier})" if tier in found else ""
