"""Times the first second of VMVX kernels with nothing in the cache: jitree against iree.runtime.

    python perf/first_second.py [--device local-task] [--threads 2] [--suite LIST.json] [--only REGEX]
                                [--seconds 1.0] [--repeat 3] [--calls 20] [--warm] [--clock thread_time]

For each kernel new processes are started, in which one runtime calls it for so long, alternately; each of
jitree's has an empty cache. Given are the medians of several processes: by how much the mean call is faster
than iree.runtime's (above 1: jitree is faster), how long the longest call took in units of iree.runtime's
median call, the same of iree.runtime (what the machine does to any program), when machine code had taken
over (calls four times as fast as the first ones), the first calls one by one, in milliseconds and in units of
iree.runtime's: the first one of its first, the others of its median of those. With `--warm` they share a
cache, which processes before them have filled. With `--clock thread_time` time is that of the calling
thread's processor, all there is of a call on local-sync: for busy machines. Needs the extra `perf`.

    python perf/first_second.py --ways auto,native,fast [--trained FOLDER] [--seconds 25]

compares tiers instead, without iree.runtime: seconds from the import of numpy to the first result and to full
speed (1.5 times the shortest call of any tier) of a new process with an empty cache, the last call, and the
first result and the second call of the next process; the first result over `fast`'s, which interprets, and
full speed over `native`'s. With `--trained`, of digits and the models of `trained.py`, kept in the folder.

    python perf/first_second.py --judged FOLDER [--processors 1,2,16] [--devices local-sync,local-task]
    python perf/first_second.py --builds [--processors 2]

print what the first seconds are judged by, for the modules in the folder (`NAME.vmvx.vmfb`, beside which
ONNX files may lie), and when the kernels of the digits example are there: `judged.py` says what the figures
are. Only numpy, numba and llvmlite are needed; onnxruntime is measured where it is.
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
from judged import DEVICES, judged
from ways import print_ways, trained

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
    clock = getattr(time, options.clock)
    begin = start = clock()
    while start < begin + options.seconds or len(calls) < options.calls:
        call()
        end = clock()
        calls.append((start - begin, end - start))
        start = end
    return calls


def measure_apart(runtime: str, name: str, options: argparse.Namespace, cache: str) -> Calls:
    """In another process."""
    command = [
        sys.executable, __file__, "--measure", runtime, "--only", f"^{name}$", "--suite", str(options.suite),
        "--device", options.device, "--threads", str(options.threads), "--seconds", str(options.seconds),
        "--calls", str(options.calls), "--clock", options.clock,
    ]  # fmt: skip
    environment = os.environ | {"JITREE_CACHE_DIR": cache}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # or Python compiles what has changed in each process
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    return [(start, taken) for start, taken in json.loads(result.stdout)]


def lengths(calls: Calls) -> list[float]:
    return [taken for _, taken in calls]


def taken_over(calls: Calls) -> float:
    """When machine code had taken over; infinite if it had not."""
    limit = min(lengths(calls)[:4]) / 4
    return next((start for start, taken in calls if taken < limit), float("inf"))


def first_calls(runs: list[Calls], count: int) -> list[float]:
    return [median(run[number][1] for run in runs) for number in range(count)]


def in_units(owns: list[float], peers: list[float]) -> list[float]:
    """First calls in units of iree.runtime's."""
    first, *others = owns
    return [first / peers[0], *(taken / median(peers[1:]) for taken in others)]


def measured(case: Case, options: argparse.Namespace) -> list[tuple[Calls, Calls]]:
    """Calls of both runtimes, in new processes."""
    pairs = []
    with tempfile.TemporaryDirectory() as filled:
        for _ in range(2 * options.warm):
            measure_apart(OWN, case.name, options, filled)
        for _ in range(options.repeat):
            with tempfile.TemporaryDirectory() as empty:
                peer = measure_apart(PEER, case.name, options, empty)
                own = measure_apart(OWN, case.name, options, filled if options.warm else empty)
            pairs.append((peer, own))
    return pairs


def compare(case: Case, options: argparse.Namespace) -> tuple[float, float, float]:
    """By how much the mean call is faster; the longest call in units of iree.runtime's median; the longest of
    the first calls in units of iree.runtime's."""
    pairs = measured(case, options)
    mean = median(fmean(lengths(peer)) / fmean(lengths(own)) for peer, own in pairs)
    worst, noise = (
        median(max(lengths(pair[which])) / median(lengths(pair[0])) for pair in pairs) for which in (1, 0)
    )
    over = median(taken_over(own) for _, own in pairs)
    peers, owns = (first_calls([pair[which] for pair in pairs], options.calls) for which in (0, 1))
    units = in_units(owns, peers)
    print(
        f"{case.name:14s} mean {mean:7.2f}  longest {worst:6.2f} ({PEER} {noise:5.2f})  machine code at"
        f" {over * 1e3:5.0f} ms"
    )
    for title, figures in ((f"{PEER} ms", peers), (f"{OWN} ms", owns)):
        print(f"  {title:16s}", *(f"{1e3 * taken:6.2f}" for taken in figures))
    print(f"  {'ratio':16s}", *(f"{ratio:6.2f}" for ratio in units), flush=True)
    return mean, worst, max(units)


def main() -> int:
    parser = argparse.ArgumentParser(description="times the first second of VMVX kernels, empty cache")
    parser.add_argument("--device", default="local-task", choices=("local-sync", "local-task"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--suite", type=Path, default=SUITE)
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--warm", action="store_true")
    parser.add_argument("--clock", default="perf_counter", choices=("perf_counter", "thread_time"))
    parser.add_argument("--ways", default="", help="tiers to compare, with commas between them")
    parser.add_argument("--trained", type=Path, help="the folder of trained models, for --ways")
    parser.add_argument("--judged", type=Path, help="the folder of models to print the table of")
    parser.add_argument("--builds", action="store_true", help="when the kernels of digits are there")
    parser.add_argument("--processors", default="1,2,16", help="what is not there of them is said")
    parser.add_argument("--devices", default=",".join(DEVICES))
    parser.add_argument("--measure", choices=(PEER, OWN), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.judged or options.builds:
        judged(options)
        return 0
    if options.ways:
        threads = f"://?threads={options.threads}" if options.device == "local-task" else ""
        models = options.trained
        for case in trained(models, options.only) if models else read_cases(options.suite, options.only):
            tiers = options.ways.split(",")
            print_ways(case, options.device + threads, tiers, options.seconds, options.repeat)
        return 0
    cases = list(read_cases(options.suite, options.only))
    if options.measure:
        print(json.dumps(measure(cases[0], options)))
        return 0
    figures = [compare(case, options) for case in cases]
    means, longest, firsts = zip(*figures, strict=True)
    print(f"{summary(means)}, longest call {max(longest):.2f}, of the first ones {max(firsts):.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
