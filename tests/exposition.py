"""A reader of Prometheus' text format (version 0.0.4) that takes nothing which the format does not have.

It asks for what OpenMetrics wants of names as well: counters end in ``_total``.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from typing import Final

Labels = tuple[tuple[str, str], ...]
Samples = dict[tuple[str, Labels], float]

_NAME: Final = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_ESCAPED: Final = r"(?:[^\\\n\"]|\\[\\n\"])*"
_LABEL: Final = rf"[a-zA-Z_][a-zA-Z0-9_]*=\"{_ESCAPED}\""
_NUMBER: Final = r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?|[+-]Inf|NaN"
_HELP: Final = re.compile(rf"# HELP ({_NAME}) ((?:[^\\\n]|\\[\\n])+)")
_TYPE: Final = re.compile(rf"# TYPE ({_NAME}) (counter|gauge|histogram)")
_SAMPLE: Final = re.compile(rf"({_NAME})(?:\{{({_LABEL}(?:,{_LABEL})*)\}})? ({_NUMBER})")
_SUFFIXES: Final = {"counter": ("",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}


class _Family:
    """The samples of one name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.kind = ""
        self.samples: Samples = {}

    def add(self, line: str) -> None:
        found = _SAMPLE.fullmatch(line)
        assert found, f"no sample: {line!r}"
        name, written, number = found.groups()
        assert name in [self.name + suffix for suffix in _SUFFIXES[self.kind]], f"{line!r} in {self.name}"
        labels = tuple(re.findall(r"([a-zA-Z0-9_]+)=\"((?:[^\\\"]|\\.)*)\"", written or ""))
        assert len(dict(labels)) == len(labels), f"a label comes twice: {line!r}"
        key = name, labels
        assert key not in self.samples, f"a sample comes twice: {line!r}"
        value = float(number.replace("Inf", "inf"))
        assert self.kind == "gauge" or value >= 0, f"less than none: {line!r}"
        self.samples[key] = value

    def check(self) -> None:
        assert self.kind, f"# TYPE of {self.name} is missing"
        assert self.name.endswith("_total") == (self.kind == "counter"), self.name
        if self.kind == "histogram":
            self._check_histogram()

    def _check_histogram(self) -> None:
        """Each has its buckets in order, each with those before it, and all in the last."""
        buckets: dict[Labels, list[tuple[float, float]]] = defaultdict(list)
        for (name, labels), value in self.samples.items():
            if name.endswith("_bucket"):
                bound = float(dict(labels)["le"].replace("Inf", "inf"))
                buckets[tuple(label for label in labels if label[0] != "le")].append((bound, value))
        for name in ("_sum", "_count"):
            assert {labels for full, labels in self.samples if full == self.name + name} == set(buckets)
        for labels, pairs in buckets.items():
            bounds, counts = [bound for bound, _ in pairs], [count for _, count in pairs]
            assert bounds == sorted(set(bounds)) and bounds[-1] == math.inf and len(bounds) > 2
            assert counts == sorted(counts) and counts[-1] == self.samples[f"{self.name}_count", labels]


def samples(text: str) -> Samples:
    """(name, labels) → value. AssertionError for what is not of the format."""
    assert text.endswith("\n") and "\r" not in text
    families: dict[str, _Family] = {}
    family = _Family("")
    for line in text.split("\n")[:-1]:
        if described := _HELP.fullmatch(line):
            name = described[1]
            assert name not in families, f"{name} comes twice"
            family = families[name] = _Family(name)
        elif typed := _TYPE.fullmatch(line):
            assert typed[1] == family.name and not family.kind and not family.samples, line
            family.kind = typed[2]
        else:
            assert family.kind, f"a sample before its # TYPE: {line!r}"
            family.add(line)
    for each in families.values():
        each.check()
    return {key: value for each in families.values() for key, value in each.samples.items()}
