"""What the server tells of itself, in Prometheus' text format (version 0.0.4)."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import accumulate

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Seconds; a histogram has a bucket up to each, and one for what takes longer."""

Labels = tuple[tuple[str, str], ...]


class Histogram:
    """How many values were in each bucket, and their sum."""

    def __init__(self) -> None:
        self.sum = 0.0
        self._counts = [0] * (len(BOUNDS) + 1)

    def observe(self, value: float) -> None:
        """A bound belongs to the bucket that ends with it."""
        self._counts[bisect_left(BOUNDS, value)] += 1
        self.sum += value

    def lines(self, name: str, labels: Labels) -> Iterator[str]:
        """Each bucket counts those before it as well."""
        counts = list(accumulate(self._counts))
        for bound, count in zip((*BOUNDS, "+Inf"), counts, strict=True):
            yield sample(f"{name}_bucket", (*labels, ("le", str(bound))), count)
        yield sample(f"{name}_sum", labels, self.sum)
        yield sample(f"{name}_count", labels, counts[-1])


class Metrics:
    """What has become of requests since the process began. It outlives the programs that answer them."""

    def __init__(self) -> None:
        self.left = 0
        """Clients that have left before they had their answer."""
        self.endings: Counter[str] = Counter()
        """By finish reason: why texts end."""
        self._statuses: Counter[tuple[str, int]] = Counter()
        self._seconds: dict[str, Histogram] = {}

    def answered(self, path: str, status: int, seconds: float) -> None:
        """Paths are those of routes: any other would be a line for ever."""
        self._statuses[path, status] += 1
        self._seconds.setdefault(path, Histogram()).observe(seconds)

    def lines(self) -> Iterator[str]:
        yield from header("http_requests_total", "counter", "Requests, by status; 499: the client left first")
        for (path, status), count in self._statuses.items():
            yield sample("http_requests_total", (("path", path), ("status", str(status))), count)
        yield from header("http_clients_left_total", "counter", "Clients that left before the answer's end")
        yield sample("http_clients_left_total", (), self.left)
        name = "http_request_duration_seconds"
        yield from header(name, "histogram", "From the head of a request to the end of its answer")
        for path, histogram in self._seconds.items():
            yield from histogram.lines(name, (("path", path),))
        yield from header("texts_total", "counter", "Texts that have ended, by finish reason")
        for reason, count in self.endings.items():
            yield sample("texts_total", (("finish_reason", reason),), count)


def header(name: str, kind: str, text: str) -> tuple[str, str]:
    """It comes once, before the samples of a name."""
    return f"# HELP {name} {text}", f"# TYPE {name} {kind}"


def sample(name: str, labels: Labels, value: float) -> str:
    written = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels)
    return f"{name}{{{written}}} {value}" if written else f"{name} {value}"


def text_of(lines: Iterable[str]) -> bytes:
    """The last line ends as the others do."""
    return "".join(f"{line}\n" for line in lines).encode()


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
