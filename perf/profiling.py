"""What profiling costs: the time of a call while the session is profiled over the time without.

    python perf/profiling.py [--device local-sync] [--suite LIST.json] [--seconds 2] [--only REGEX]

Both are measured in turns. The second figure is the share of the calls' time that the dispatches have.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from cases import own_call, read_cases

import jitree

SUITE = Path(__file__).parent / "programs" / "models.json"
_WARM = 5
"""Calls after which machine code makes them."""


def measured(call: Callable[[], object], seconds: float) -> list[float]:
    for _ in range(_WARM):
        call()
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return times


def main() -> int:
    parser = argparse.ArgumentParser(description="what profiling costs")
    parser.add_argument("--device", default="local-sync")
    parser.add_argument("--suite", type=Path, default=SUITE)
    parser.add_argument("--tier", default="fast")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    for case in read_cases(options.suite, options.only):
        with jitree.Session(device=options.device, tier=options.tier) as session:
            call = own_call(case, session)
            plain, profiled, shares = list[float](), list[float](), list[float]()
            for _ in range(10):
                plain += measured(call, options.seconds / 20)
                with session.profile() as profile:
                    profiled += measured(call, options.seconds / 20)
                shares.append(sum(row.total for row in profile.rows) / profile.total)
            ratio = median(profiled) / median(plain)
            print(f"{case.name}: {ratio:.3f}, dispatches {median(shares):.1%} of the calls", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
