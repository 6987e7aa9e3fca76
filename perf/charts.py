"""Plots of measurements, as files under plots/."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "jitree"  # the same figures give the same file
from matplotlib import pyplot  # noqa: E402  the back end comes first


def draw_ratios(ratios: Mapping[str, Mapping[str, float]], title: str, path: Path) -> None:
    """Bars: a group per program, a bar per device; a line at 1."""
    names = list(next(iter(ratios.values())))
    figure, axes = pyplot.subplots(figsize=(max(8, 0.6 * len(names)), 3.6))
    width = 0.8 / len(ratios)
    for position, (device, by_name) in enumerate(ratios.items()):
        places = [index + (position - (len(ratios) - 1) / 2) * width for index in range(len(names))]
        bars = axes.bar(places, [by_name[name] for name in names], width, label=device)
        axes.bar_label(bars, fmt="%.2g", fontsize=7)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xticks(range(len(names)), names, rotation=20)
    axes.set_yscale("log")
    axes.set_title(title)
    axes.legend()
    _save(figure, path)


def draw_means(means: Mapping[str, tuple[float, float]], title: str, path: Path) -> None:
    """A bar for each mean, from above to below, with a mark at the worst; a line at 1."""
    figure, axes = pyplot.subplots(figsize=(8, 0.32 * len(means) + 0.8))
    places = range(len(means))
    mean, worst = zip(*means.values(), strict=True)
    bars = axes.barh(places, [value - 1 for value in mean], 0.6, left=1)
    axes.bar_label(bars, [f"{value:.3g}" for value in mean], padding=3, fontsize=8)
    axes.plot(worst, places, "|", color="black", markersize=10)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks(places, means)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlim(0.6, 2 * max(mean))
    axes.set_xticks([1, 2, 5, 10, 20, 50, 100, 200], ["1", "2", "5", "10", "20", "50", "100", "200"])
    axes.minorticks_off()
    axes.set_title(title, fontsize=9)
    _save(figure, path)


def draw_scaling(results: Mapping[int, Mapping[str, tuple[float, float]]], path: Path) -> None:
    """Speed over that of one thread, a panel per program; iree.runtime dashed."""
    numbers = list(results)
    names = list(results[numbers[0]])
    figure, panels = pyplot.subplots(2, -(-len(names) // 2), figsize=(9, 5), squeeze=False)
    for panel in panels.flat[len(names) :]:
        panel.remove()
    for panel, name in zip(panels.flat, names, strict=False):
        peer, own = zip(*(results[number][name] for number in numbers), strict=True)
        panel.plot(numbers, [own[0] / seconds for seconds in own], "o-", label="jitree")
        panel.plot(numbers, [own[0] / seconds for seconds in peer], "x--", label="iree.runtime")
        panel.set_title(name, fontsize=9)
        panel.set_xticks(numbers)
        panel.set_ylim(bottom=0)
    panels[0][0].legend(fontsize=7)
    figure.suptitle("speed by number of threads (jitree with one thread = 1)")
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
