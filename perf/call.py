"""Times calls whose work takes no time: jitree against iree.runtime, the same modules in one process.

    python perf/call.py [--device local-sync local-task] [--from device numpy] [--suite LIST.json]
    [--seconds 0.5] [--only REGEX] [--plot] [--unknown]

The figure of a call is the median time of iree.runtime over the median time of jitree, both measured
alternately in one run (above 1: jitree is faster). Results are read back. `--from device` passes arrays that
are on the device, `--from numpy` numpy arrays. `--suite` takes a list of other programs (see cases.py).
`--unknown` hides from machine code how this
interpreter lays out objects. `--plot` redraws plots/call.svg. Needs the extra `perf`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from cases import DEVICE, NUMPY, compare, read_cases
from comparison import summary

FOLDER = Path(__file__).parent
SUITE = FOLDER / "programs" / "call.json"
PLOT = FOLDER / "plots" / "call.svg"
SOURCES = (DEVICE, NUMPY)


def measure(device: str, source: str, options: argparse.Namespace) -> dict[str, float]:
    """Ratio by program."""
    cases = read_cases(options.suite, options.only)
    ratios = compare(cases, device, options.seconds, source, tier=options.tier)
    print(f"{device}, from {source}: {summary(list(ratios.values()))}", flush=True)
    return ratios


def main() -> int:
    parser = argparse.ArgumentParser(description="times calls: jitree against iree.runtime")
    parser.add_argument("--device", nargs="+", default=["local-sync", "local-task"])
    parser.add_argument("--from", dest="sources", nargs="+", choices=SOURCES, default=list(SOURCES))
    parser.add_argument("--suite", type=Path, default=SUITE)
    parser.add_argument("--tier", default="fast")
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--only", default="")
    parser.add_argument("--plot", action="store_true")
    parser.add_argument("--unknown", action="store_true")
    options = parser.parse_args()
    if options.unknown:
        from jitree.api.calls.native import cpython_layout

        cpython_layout.is_supported = lambda: False  # type: ignore[assignment]
    ratios = {
        f"{device}, from {source}": measure(device, source, options)
        for device in options.device
        for source in options.sources
    }
    if options.plot:
        from charts import draw_ratios

        draw_ratios(ratios, "calls: time of iree.runtime / time of jitree", PLOT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
