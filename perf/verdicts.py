"""Judges rows of measurements of two checkouts: which have fallen, by what measure; see against.py."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

ALLOWED = 1.03
"""More than so many times as much is a fall."""
_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_TIME = re.compile(r"([A-Za-z(][^\d\n]*?)[ :]+(-?\d+(?:\.\d+)?) (us|ms|ns|s)\b")
_PEERS = ("iree.runtime", "onnxruntime", "torch")

Measures = Mapping[str, Sequence[float]]
"""By measure, a figure for each round."""


class Figure(NamedTuple):
    """A time that a line of a report states."""

    label: str
    seconds: float


class Verdict(NamedTuple):
    measure: str
    ratio: float
    """New by base, the median of the rounds."""
    least: float
    most: float

    @property
    def is_clear(self) -> bool:
        """All rounds say the same, which seven do once in 64 times by chance."""
        return not self.least <= 1 <= self.most

    @property
    def has_fallen(self) -> bool:
        return self.ratio > ALLOWED and self.is_clear

    @property
    def is_open(self) -> bool:
        """It may have fallen; more rounds tell."""
        return self.ratio > ALLOWED and not self.is_clear


def figures(line: str) -> tuple[str, list[Figure]]:
    """The name of a row and the times it states; none if the line is no row."""
    found = list(_TIME.finditer(line))
    if not found:
        return line.strip(), []
    name, first = _name(line[: found[0].start(2)].rstrip(" :"))
    labels = [first, *(match[1].strip() for match in found[1:])]
    seconds = [float(match[2]) * _UNITS[match[3]] for match in found]
    return name, [Figure(*pair) for pair in zip(labels, seconds, strict=True)]


def _name(text: str) -> tuple[str, str]:
    """Apart: the name of a row, and the label of its first time, which two spaces or a peer's name begin."""
    for peer in _PEERS:
        if text.endswith(peer):
            return text.removesuffix(peer).strip(), peer
    name, _, label = text.rpartition("  ")
    return (name.strip(), label) if name else (label, "")


def own_times(found: Sequence[Figure]) -> Iterator[tuple[int, str, float]]:
    """Place, label and time of what is ours in a row: by the time of a peer in the same row, if there is one,
    which the same load of the machine has slowed down."""
    peer = next((figure.seconds for figure in found if figure.label.startswith(_PEERS)), 1.0)
    for place, (label, seconds) in enumerate(found):
        if not label.startswith((*_PEERS, "beyond")) and peer > 0:
            yield place, label, seconds / peer


def compared(base: Sequence[float], new: Sequence[float], measure: str = "time") -> Verdict:
    """Round by round, as the two of a round ran one after the other."""
    ratios = [after / before for before, after in zip(base, new, strict=False) if before > 0 and after > 0]
    return Verdict(measure, median(ratios), min(ratios), max(ratios)) if ratios else Verdict(measure, 1, 1, 1)


def judged(base: Measures, new: Measures) -> Verdict:
    """By time where that is clear; else by instructions if both sides have counted them, or by the
    processor's time."""
    by_time = compared(base["time"], new["time"])
    finer = [
        compared(base[measure], new[measure], measure)
        for measure in ("instructions", "processor")
        if base.get(measure) and new.get(measure)
    ]
    return by_time if by_time.is_clear or not finer else finer[0]


def table(verdicts: Mapping[str, Verdict], missing: Sequence[str] = ()) -> Iterator[str]:
    """What has fallen and what may have, the worst first; then the rows that only one side has."""
    for name, verdict in sorted(verdicts.items(), key=lambda item: -item[1].ratio):
        sign = "fallen" if verdict.has_fallen else "open" if verdict.is_open else ""
        rounds = f"{verdict.least:7.3f} to{verdict.most:7.3f}"
        yield f"{name:70s} {verdict.ratio:7.3f}  {rounds}  {verdict.measure:12s} {sign}".rstrip()
    for name in missing:
        yield f"{name:70s} of one checkout only"
