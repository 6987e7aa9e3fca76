"""Times VMVX programs in a sandbox against an ordinary session, in one process.

    python perf/sandbox.py [--device local-sync local-task] [--seconds 0.5] [--only REGEX]
        [--limit NAME=NUMBER]

The figure of a program is the median time in the sandbox over the median time of the ordinary session (below
1.3 is the aim), for a call with arrays on the device whose results are read back. Needs no extra.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import fmean

from cases import own_call, read_cases
from comparison import alternate

import jitree

SUITE = Path(__file__).parent / "programs" / "first_second.json"


def measure(device: str, options: argparse.Namespace) -> None:
    ratios = []
    pairs = (text.split("=") for text in options.limit)
    limits = jitree.Limits(**{name: int(number) for name, number in pairs})
    for case in read_cases(options.suite, options.only):
        with (
            jitree.Session(device, tier="native") as free,
            jitree.Session(device, tier="native", sandbox=True, limits=limits) as confined,
        ):
            free_time, confined_time = alternate(
                [own_call(case, free), own_call(case, confined)], options.seconds
            )
        ratios.append(confined_time / free_time)
        figures = f"session {free_time * 1e6:10.1f} us  sandbox {confined_time * 1e6:10.1f} us"
        print(f"{case.name:18s} {figures}  ratio {ratios[-1]:8.3f}", flush=True)
    print(f"{device}: mean {fmean(ratios):.3f} of {len(ratios)}, highest {max(ratios):.3f}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="times VMVX programs in a sandbox")
    parser.add_argument("--device", nargs="+", default=["local-sync", "local-task"])
    parser.add_argument("--suite", type=Path, default=SUITE)
    parser.add_argument("--limit", nargs="*", default=["memory=1000000000", "handles=100000"])
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    for device in options.device:
        measure(device, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
