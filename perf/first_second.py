"""Times the first second of VMVX kernels with nothing in the cache: jitree against iree.runtime.

    python perf/first_second.py [--device local-task] [--threads 2] [--suite LIST.json] [--only REGEX]
                                [--seconds 1.0] [--repeat 3] [--calls 5]

For each kernel new processes are started, in which one runtime calls it for so long, alternately; each of
jitree's has an empty cache. Given are the medians of several processes: by how much the mean call is faster
than iree.runtime's (above 1: jitree is faster), how long the longest call took in units of iree.runtime's
median call, the same of iree.runtime (what the machine does to any program), when machine code had taken
over (calls four times as fast as the first ones), and the first calls of both in milliseconds. Needs the
extra `perf`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean, median

from cases import Case, own_call, peer_call, read_cases
from comparison import summary

import jitree

FOLDER = Path(__file__).parent
SUITE = FOLDER / "programs" / "first_second.json"
PEER, OWN = "iree.runtime", "jitree"

Calls = list[tuple[float, float]]
"""When each call began after the first one, and how long it took: seconds."""


def measure(case: Case, options: argparse.Namespace) -> Calls:
    """In this process, which nothing else has used the runtime in."""
    if options.measure == PEER:
        import iree.runtime

        iree.runtime.flags.parse_flags(f"--task_topology_group_count={options.threads}")
        call = peer_call(case, options.device)
    else:
        threads = f"://?threads={options.threads}" if options.device == "local-task" else ""
        call = own_call(case, jitree.Session(device=options.device + threads))
    calls: Calls = []
    begin = start = time.perf_counter()
    while start < begin + options.seconds:
        call()
        end = time.perf_counter()
        calls.append((start - begin, end - start))
        start = end
    return calls


def measure_apart(runtime: str, name: str, options: argparse.Namespace) -> Calls:
    """In another process."""
    command = [
        sys.executable, __file__, "--measure", runtime, "--only", f"^{name}$", "--suite", str(options.suite),
        "--device", options.device, "--threads", str(options.threads), "--seconds", str(options.seconds),
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as empty:
        environment = os.environ | {"JITREE_CACHE_DIR": empty}
        result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    return [(start, taken) for start, taken in json.loads(result.stdout)]


def lengths(calls: Calls) -> list[float]:
    return [taken for _, taken in calls]


def taken_over(calls: Calls) -> float:
    """When machine code had taken over; infinite if it had not."""
    limit = min(lengths(calls)[:4]) / 4
    return next((start for start, taken in calls if taken < limit), float("inf"))


def first_calls(runs: list[Calls], count: int) -> str:
    shortest = min(count, *map(len, runs))
    return " ".join(f"{1e3 * median(run[number][1] for run in runs):.1f}" for number in range(shortest))


def compare(case: Case, options: argparse.Namespace) -> tuple[float, float]:
    """By how much the mean call is faster; the longest call in units of iree.runtime's median."""
    pairs = [
        (measure_apart(PEER, case.name, options), measure_apart(OWN, case.name, options))
        for _ in range(options.repeat)
    ]
    mean = median(fmean(lengths(peer)) / fmean(lengths(own)) for peer, own in pairs)
    worst, noise = (
        median(max(lengths(pair[which])) / median(lengths(pair[0])) for pair in pairs) for which in (1, 0)
    )
    over = median(taken_over(own) for _, own in pairs)
    print(
        f"{case.name:14s} mean {mean:7.2f}  longest {worst:6.2f} ({PEER} {noise:5.2f})  machine code at"
        f" {over * 1e3:5.0f} ms  first calls {first_calls([own for _, own in pairs], options.calls)} ms"
        f" ({first_calls([peer for peer, _ in pairs], options.calls)})",
        flush=True,
    )
    return mean, worst


def main() -> int:
    parser = argparse.ArgumentParser(description="times the first second of VMVX kernels, empty cache")
    parser.add_argument("--device", default="local-task", choices=("local-sync", "local-task"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--suite", type=Path, default=SUITE)
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--calls", type=int, default=5)
    parser.add_argument("--measure", choices=(PEER, OWN), help=argparse.SUPPRESS)
    options = parser.parse_args()
    cases = list(read_cases(options.suite, options.only))
    if options.measure:
        print(json.dumps(measure(cases[0], options)))
        return 0
    figures = [compare(case, options) for case in cases]
    print(f"{summary([mean for mean, _ in figures])}, longest call {max(worst for _, worst in figures):.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
