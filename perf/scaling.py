"""Times programs on local-task with 1, 2, 4, … threads: jitree against iree.runtime.

    python perf/scaling.py [--threads 1 2 4 8 16] [--suite LIST.json] [--seconds 0.5] [--only REGEX]
                           [--processes 3] [--json FILE] [--plot] [--results FILE]

Every number of threads has two processes, in which both runtimes are measured alternately with that
many; where a process gets its memory decides about some percent of its speed, so the middle one of several
counts. What this process may not use is left out. Per program and number of threads: the median times, their
ratio (above 1: jitree is faster) and by how much each runtime is faster than with one thread. `--json` writes
the times in seconds, `--plot` draws plots/scaling.svg, `--results` takes the times from such a file instead
of measuring. Needs the extra `perf`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import median

from cases import both_times, read_cases
from comparison import summary

import jitree
from jitree.hal.local.topology import available_processors

FOLDER = Path(__file__).parent
SUITE = FOLDER / "programs" / "scaling.json"
PLOT = FOLDER / "plots" / "scaling.svg"

Times = dict[str, tuple[float, float]]
"""Seconds of iree.runtime and of jitree by program."""


def measure(threads: int, options: argparse.Namespace) -> Times:
    """In this process, which nothing else has used the runtimes in."""
    import iree.runtime

    iree.runtime.flags.parse_flags(f"--task_topology_group_count={threads}")
    found: Times = {}
    for case in read_cases(options.suite, options.only):
        with jitree.Session(device=f"local-task://?threads={threads}", tier=options.tier) as session:
            peer_time, own_time = both_times(case, "local-task", session, options.seconds)
        found[case.name] = peer_time, own_time
    return found


def measure_apart(threads: int, options: argparse.Namespace) -> Times:
    """In new processes: the medians of what they measure."""
    runs = [_measure_once(threads, options) for _ in range(options.processes)]
    return {
        name: (median(run[name][0] for run in runs), median(run[name][1] for run in runs)) for name in runs[0]
    }


def _measure_once(threads: int, options: argparse.Namespace) -> Times:
    command = [
        sys.executable, __file__, "--measure", str(threads), "--suite", str(options.suite), "--only",
        options.only, "--seconds", str(options.seconds), "--tier", options.tier,
    ]  # fmt: skip
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return {name: tuple(pair) for name, pair in json.loads(result.stdout.splitlines()[-1]).items()}


def measure_all(options: argparse.Namespace) -> dict[int, Times]:
    numbers = [threads for threads in options.threads if threads <= available_processors()]
    return {threads: measure_apart(threads, options) for threads in numbers}


def read(path: Path) -> dict[int, Times]:
    """What ``--json`` has written."""
    by_threads = json.loads(path.read_text())
    return {
        int(threads): {name: (peer, own) for name, (peer, own) in times.items()}
        for threads, times in by_threads.items()
    }


def report(results: dict[int, Times]) -> None:
    least = min(results)
    for name in results[least]:
        peer_one, own_one = results[least][name]
        for threads, times in results.items():
            peer, own = times[name]
            faster = f"{peer_one / peer:5.2f}x", f"{own_one / own:5.2f}x"
            print(
                f"{name:12s} {threads:2d} threads  iree.runtime {peer * 1e6:10.1f} us ({faster[0]})"
                f"  jitree {own * 1e6:10.1f} us ({faster[1]})  ratio {peer / own:7.3f}"
            )
    for threads, times in results.items():
        print(f"{threads} threads: {summary([peer / own for peer, own in times.values()])}")


def main() -> int:
    parser = argparse.ArgumentParser(description="times programs with several numbers of threads")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--suite", type=Path, default=SUITE)
    parser.add_argument("--tier", default="fast")
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--only", default="")
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", action="store_true")
    parser.add_argument("--results", type=Path)
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure, options)))
        return 0
    results = measure_all(options) if options.results is None else read(options.results)
    report(results)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    if options.plot:
        from charts import draw_scaling

        draw_scaling(results, PLOT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
