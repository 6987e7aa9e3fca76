"""Prints what the first seconds of models are judged by: what ``first_second.py`` does with ``--judged``.

A row is a model on so many processors by a local device; each figure is the median of several new processes,
in seconds from the import of numpy on. ``first`` is the first result of the default tier with an empty cache,
``/ fast`` the same over that of the fast tier, which interprets, where that is sooner; ``full`` is when calls
have full speed, ``/ native`` the same over the native tier's; ``warm`` is the first result where all has been
built, ``model.jit`` where it came along, ``peer`` onnxruntime's. At the end of each number of processors
come the largest of its figures.

``--builds`` prints when kernels are there, in milliseconds after they are wanted: the first one and all.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import inf
from pathlib import Path
from statistics import median

import numpy as np
from cases import Case
from starts import PEER, command, measured
from ways import DIGITS, Way, ends_of, shortest, trained, way_of

DEVICES = "local-sync", "local-task"
COLUMNS = "first", "/ fast", "full", "/ native", "warm", "model.jit", "peer"
_WARM_SECONDS = 0.0
"""Seconds for which a process with all machine code makes calls: one."""
_WAITING = "from nothing", "builder waits"
_BUILDS = """
import sys, time
from jitree.loaders.vmvx import kernels
from jitree.vmfb.archive import Archive
from jitree.vmfb.module import read_module
path, waits = sys.argv[1:]
(executable,) = kernels.executables(read_module(Archive.open(path)))
batch = kernels.batch(executable)
if waits:
    batch.prepare()
    time.sleep(1)
begun, ends, left = time.perf_counter(), [], list(batch.providers)
batch.begin(0)
while left:
    left = [item for item in left if item.find() is None]
    while len(left) + len(ends) < len(batch.providers):
        ends.append(time.perf_counter() - begun)
    time.sleep(0.0005)
print(ends[0], ends[-1])
"""
"""Prints seconds from when the kernels of a module are wanted until the first one and all are there."""

Row = dict[str, float]


@contextmanager
def bound(count: int) -> Iterator[None]:
    """Has this process and those that it starts use so many processors."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def judged(options: argparse.Namespace) -> None:
    """Prints the table, or when kernels are there."""
    there = len(os.sched_getaffinity(0))
    asked = sorted(map(int, options.processors.split(",")))
    counts = [count for count in asked if count <= there]
    for count in asked[len(counts) :]:
        print(f"not measured: {count} processors, of which this process has {there}", file=sys.stderr)
    if options.builds:
        for count in counts:
            with bound(count):
                print_builds(count, options.repeat)
        return
    print("|", " | ".join(("model", "processors", "device", *COLUMNS)), "|")
    print("|", " | ".join(["---"] * (3 + len(COLUMNS))), "|", flush=True)
    rows: dict[int, list[Row]] = {}
    for case in trained(options.judged, options.only):
        with tempfile.TemporaryDirectory() as folder:
            packed = Path(folder) / "model.jit"
            command("pack", str(case.module), "-o", str(packed), cache=folder)
            for count in counts:
                for device in options.devices.split(","):
                    with bound(count):
                        found = row(case, device, packed, options)
                    rows.setdefault(count, []).append(found)
                    print_row(case.name, count, device, found)
    for count, several in rows.items():
        worst = {name: max(one[name] for one in several if name in one) for name in set().union(*several)}
        print_row("largest", count, "", worst)


def row(case: Case, device: str, packed: Path, options: argparse.Namespace) -> Row:
    """Runs the ways of starting in turn."""
    runs: dict[str, list[list[float]]] = {}
    firsts: dict[str, list[float]] = {}
    for _ in range(options.repeat):
        for tier in ("auto", "fast", "native"):
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache:
                runs.setdefault(tier, []).append(ends_of(case, device, tier, options.seconds, cache))
                if tier == "native":  # it has waited for all that there is to build
                    warm = ends_of(case, device, "auto", _WARM_SECONDS, cache)
                    firsts.setdefault("warm", []).append(warm[0])
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache:
            known = ends_of(case, device, "auto", _WARM_SECONDS, cache, str(packed))
        firsts.setdefault("model.jit", []).append(known[0])
        firsts.setdefault("peer", []).extend(peer(case))
    best = shortest(ends for several in runs.values() for ends in several)
    ways = {
        tier: Way(*(median(column) for column in zip(*(way_of(ends, best) for ends in several), strict=True)))
        for tier, several in runs.items()
    }
    auto = ways["auto"]
    found = {"first": auto.first, "full": auto.full}
    if ways["fast"].first < auto.first:
        found["/ fast"] = auto.first / ways["fast"].first
    if ways["native"].full < inf:
        found["/ native"] = auto.full / ways["native"].full
    return found | {name: median(several) for name, several in firsts.items() if several}


def peer(case: Case) -> list[float]:
    """Seconds until onnxruntime's first result, where it and the model's ONNX file are there."""
    onnx = Path(re.sub(r"\.vmvx\.vmfb$", ".onnx", str(case.module)))
    if not onnx.exists() or importlib.util.find_spec("onnxruntime") is None:
        return []
    with tempfile.TemporaryDirectory() as folder:
        values = Path(folder) / "values.npz"
        np.savez(values, **{f"{place:03}": value for place, value in enumerate(case.arguments)})
        return [measured(PEER, str(onnx), "", "", str(values), cache=folder)[0]]


def print_row(name: str, count: int, device: str, found: Row) -> None:
    figures = (f"{found[column]:.3f}" if column in found else "" for column in COLUMNS)
    print("|", " | ".join((name, str(count), device, *figures)), "|", flush=True)


def print_builds(count: int, repeat: int) -> None:
    """Prints when the kernels of the digits example are there, for a builder that waits and for none."""
    for waits, title in enumerate(
        _WAITING[: min(count, 2)]
    ):  # of one processor a program has no part to spare
        times = [_build(str(DIGITS), "waits" * waits) for _ in range(repeat)]
        first, every = (1e3 * median(column) for column in zip(*times, strict=True))
        name = f"kernels of {DIGITS.name}, {count} processors, {title}"
        print(f"{name:58s}  first {first:6.1f} ms  all {every:6.1f} ms", flush=True)


def _build(*words: str) -> Sequence[float]:
    """In a new process with an empty cache."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache:
        environment = os.environ | {"JITREE_CACHE_DIR": cache}
        output = subprocess.check_output([sys.executable, "-c", _BUILDS, *words], text=True, env=environment)
    return [float(word) for word in output.split()]
