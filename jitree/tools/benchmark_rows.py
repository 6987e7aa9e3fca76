"""Measurements of benchmarks and their aggregates."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

UNIT_SECONDS: Final = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


@dataclass(frozen=True, slots=True)
class BenchmarkRow:
    """One line of a report. Times are seconds per call; for the ``cv`` aggregate they are ratios."""

    name: str
    run_name: str
    iterations: int
    """Calls that were measured; repetitions that went into an aggregate."""
    real_time: float
    cpu_time: float
    repetitions: int = 1
    repetition_index: int | None = None
    items_per_second: float | None = None
    aggregate: str | None = None
    """``mean``, ``median``, ``stddev`` or ``cv``."""
    error_message: str | None = None
    counters: dict[str, float] = field(default_factory=dict)

    @property
    def is_ratio(self) -> bool:
        return self.aggregate == "cv"


def _coefficient_of_variation(values: Sequence[float]) -> float:
    mean = statistics.fmean(values)
    return statistics.stdev(values) / mean if mean else 0.0


_AGGREGATES: Final[tuple[tuple[str, Callable[[Sequence[float]], float]], ...]] = (
    ("mean", statistics.fmean),
    ("median", statistics.median),
    ("stddev", statistics.stdev),
    ("cv", _coefficient_of_variation),
)


def aggregates(rows: Sequence[BenchmarkRow]) -> list[BenchmarkRow]:
    """Rows ``_mean _median _stddev _cv`` over the repetitions of one benchmark; none below two of them."""
    rows = [row for row in rows if row.error_message is None]
    if len(rows) < 2:
        return []
    rates = [row.items_per_second for row in rows if row.items_per_second is not None]
    return [
        replace(
            rows[0],
            name=f"{rows[0].run_name}_{name}",
            aggregate=name,
            repetition_index=None,
            iterations=len(rows),
            real_time=compute([row.real_time for row in rows]),
            cpu_time=compute([row.cpu_time for row in rows]),
            items_per_second=compute(rates) if len(rates) == len(rows) else None,
            counters={},
        )
        for name, compute in _AGGREGATES
    ]
