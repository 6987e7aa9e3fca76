"""Times programs on a GPU: jitree against the cuda driver of iree.runtime, the same modules in one process.

    python perf/cuda_programs.py [--device cuda] [--suite LIST.json] [--seconds 0.5] [--only REGEX]
    python perf/cuda_programs.py --host
    python perf/cuda_programs.py --growth 10000

The figure of a program is the median time of iree.runtime over the median time of jitree for a call with
arrays on the device whose results are read back, both measured alternately in one run (above 1: jitree is
faster). `newton` reads from the device in each of its 200 steps, `chain` is a hundred small dispatches.

`--host` reports how long a call occupies the calling thread, that is until it returns while the device still
works. `--growth` makes so many calls of every program, in turn, and reports by how much the device memory in
use has grown since the first tenth of them. Needs the extras `perf` and `cuda`, and an NVIDIA GPU.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from cases import compare, own_call, read_cases
from comparison import summary

import jitree

SUITE = Path(__file__).parent / "programs" / "cuda.json"
_WARM_CALLS = 5
"""After which a call takes the way that it takes from then on."""
_HOST_CALLS = 50


def compare_all(options: argparse.Namespace) -> None:
    ratios = compare(read_cases(options.suite, options.only), options.device, options.seconds)
    print(f"{options.device}: {summary(list(ratios.values()))}")


def host_times(options: argparse.Namespace) -> None:
    """Prints what a call takes of the calling thread."""
    for case in read_cases(options.suite, options.only):
        with jitree.Session(device=options.device) as session:
            function = session.load(case.module)[case.function]
            arguments = [session.to_device(argument) for argument in case.arguments]
            for _ in range(_WARM_CALLS):
                wait(function(*arguments))
            times = []
            for _ in range(_HOST_CALLS):
                start = time.perf_counter()
                results = function(*arguments)
                times.append(time.perf_counter() - start)
                wait(results)
        print(f"{case.name:18s} returns after {statistics.median(times) * 1e6:8.1f} us", flush=True)


def wait(results: Any) -> None:
    for array in results if isinstance(results, tuple) else (results,):
        array.wait()


def growth(options: argparse.Namespace) -> None:
    """Prints how much more device memory is in use after many calls than after a tenth of them."""
    with ExitStack() as stack:
        device: Any = stack.enter_context(jitree.Instance.default().create_device(options.device))
        calls = [
            own_call(case, stack.enter_context(jitree.Session(device=device)))
            for case in read_cases(options.suite, options.only)
        ]
        for turn in range(options.growth):
            if turn == options.growth // 10:
                before = free_memory(device)
            for call in calls:
                call()
        grown = before - free_memory(device)
        print(f"{options.growth} calls of {len(calls)} programs: {grown} bytes more in use on the device")


def free_memory(device: Any) -> int:
    """Bytes that the driver could still give out."""
    device.context.enter()
    free: int = device.context.api.call("cuMemGetInfo")[0]
    return free


def main() -> int:
    parser = argparse.ArgumentParser(description="times programs on a GPU: jitree against iree.runtime")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--suite", type=Path, default=SUITE)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--only", default="")
    parser.add_argument("--host", action="store_true")
    parser.add_argument("--growth", type=int, default=0, metavar="CALLS")
    options = parser.parse_args()
    if options.growth:
        growth(options)
    elif options.host:
        host_times(options)
    else:
        compare_all(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
