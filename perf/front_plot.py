"""Draws the plot of the README, plots/front.svg, from the figures that perf/README.md has.

    python perf/front_plot.py

Measures nothing. A bar is the geometric mean of a measurement, the mark the worst of its programs (above 1:
jitree is faster). What is not found in perf/README.md is an error, so the plot never has figures of its own.
Needs the extra `perf`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent
SOURCE = FOLDER / "README.md"
PLOT = FOLDER / "plots" / "front.svg"

PLACES = [
    ("Calls, one thread", "Calls", r"local-sync, from device: geometric mean (\S+) of 7, worst (\S+)"),
    ("Calls, threads", "Calls", r"local-task, from device: geometric mean (\S+) of 7, worst (\S+)"),
    ("Bytecode", "Bytecode against the C interpreter", r"geometric mean (\S+) of 7, worst (\S+)"),
    ("Kernels, the same VMVX file", "VMVX kernels", r"geometric mean (\S+) of 11, worst (\S+)"),
    ("Models, one thread", "Models", r"local-sync: geometric mean (\S+) of 23, worst (\S+)"),
    ("Models, threads", "Models", r"local-task: geometric mean (\S+) of 23, worst (\S+)"),
    ("Programs on a GPU", "Programs on a GPU", r"cuda: geometric mean (\S+) of 9, worst (\S+)"),
    (
        "Trained models on a GPU",
        "Programs on a GPU",
        r"A call takes (\S+) times less than iree.runtime's on the geometric mean \((\S+) at least\)",
    ),
    (
        "Trained models: onnxruntime",
        "Trained models",
        r"geometric means were (\S+) \(worst (\S+)\) on one thread",
    ),
]
"""Of each bar: its label, the section of perf/README.md and the words around mean and worst there."""


class Figure(NamedTuple):
    label: str
    mean: float
    worst: float


def figures(text: str) -> list[Figure]:
    """What the sections say; LookupError names the one that does not."""
    sections = dict(re.findall(r"^## (.*)\n((?:(?!## ).*\n?)*)", text, re.MULTILINE))
    found = []
    for label, section, pattern in PLACES:
        match = re.search(pattern, sections[section])
        if match is None:
            raise LookupError(f"perf/README.md, section '{section}', has no line like '{pattern}'")
        found.append(Figure(label, float(match[1]), float(match[2])))
    return found


def main() -> int:
    from charts import draw_means

    draw_means(
        {figure.label: (figure.mean, figure.worst) for figure in figures(SOURCE.read_text(encoding="utf-8"))},
        "time of iree.runtime (last bar: onnxruntime) / time of jitree; mark: worst program",
        PLOT,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
