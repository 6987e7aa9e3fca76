"""Times models compiled for llvm-cpu: jitree against iree.runtime, the same modules in one process.

    python perf/models.py [--device local-sync local-task] [--suite LIST.json] [--seconds 0.5] [--only REGEX]
    [--plot]

The figure of a model is the median time of iree.runtime over the median time of jitree for a call with arrays
on the device whose results are read back, both measured alternately in one run (above 1: jitree is faster).
`--suite` takes a list of other programs (see cases.py). `--plot` redraws plots/models.svg. Needs the extra
`perf`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from cases import compare, read_cases
from comparison import summary

FOLDER = Path(__file__).parent
SUITE = FOLDER / "programs" / "models.json"
PLOT = FOLDER / "plots" / "models.svg"


def measure(device: str, options: argparse.Namespace) -> dict[str, float]:
    """Ratio by model."""
    ratios = compare(read_cases(options.suite, options.only), device, options.seconds, tier=options.tier)
    print(f"{device}: {summary(list(ratios.values()))}", flush=True)
    return ratios


def main() -> int:
    parser = argparse.ArgumentParser(description="times models: jitree against iree.runtime")
    parser.add_argument("--device", nargs="+", default=["local-sync", "local-task"])
    parser.add_argument("--suite", type=Path, default=SUITE)
    parser.add_argument("--tier", default="fast")
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--only", default="")
    parser.add_argument("--plot", action="store_true")
    options = parser.parse_args()
    ratios = {device: measure(device, options) for device in options.device}
    if options.plot:
        from charts import draw_ratios

        draw_ratios(ratios, "models: time of iree.runtime / time of jitree", PLOT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
