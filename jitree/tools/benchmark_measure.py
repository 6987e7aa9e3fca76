"""Timing of a call: how many iterations, how often, and what came out."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from jitree.errors import InvalidArgumentError, StatusError
from jitree.tools.benchmark_report import BenchmarkRow
from jitree.tools.number_parsing import parse_float
from jitree.tools.reporting import error_line

MAX_ITERATIONS: Final = 1_000_000_000
_SAFETY: Final = 1.4
"""Next attempts aim at this multiple of the wanted time, as Google Benchmark does."""
_MAX_GROWTH: Final = 10.0
_SIGNIFICANT: Final = 0.1
"""A run shorter than this share of the wanted time predicts badly: growth is limited then."""
_MOST_UNSETTLED: Final = 16
_UNSETTLED_SECONDS: Final = 0.2
"""Batches, and seconds, after which a call is measured that still prepares something."""


@dataclass(frozen=True, slots=True)
class Duration:
    """How long to measure: seconds, or a number of iterations."""

    seconds: float = 0.5
    iterations: int | None = None


@dataclass(frozen=True, slots=True)
class MeasuringPlan:
    """How one benchmark is measured."""

    duration: Duration
    repetitions: int = 1
    warmup_seconds: float = 0.0
    batch_size: int = 1


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A named call. ``call_batch`` makes ``batch_size`` calls and waits for their results.

    ``is_settled`` says whether the next ones are made as those before were."""

    name: str
    call_batch: Callable[[], object]
    is_settled: Callable[[], bool] = lambda: True


def parse_duration(text: str) -> Duration:
    """``0.5s``, ``0.5`` or ``10x``."""
    match = re.fullmatch(r"([0-9]+)x", text)
    if match is not None and int(match.group(1)) > 0:
        return Duration(iterations=int(match.group(1)))
    try:
        seconds = parse_float(text.removesuffix("s"))
    except InvalidArgumentError:
        seconds = -1.0
    if not 0 <= seconds < math.inf:
        raise InvalidArgumentError(
            f"flag '--benchmark_min_time': '{text}' is neither `<seconds>s` nor `<n>x`"
        )
    return Duration(seconds=seconds)


def measure(benchmark: Benchmark, plan: MeasuringPlan) -> tuple[list[BenchmarkRow], StatusError | None]:
    """One row per repetition; after a failure a row with its message, and the failure.

    One batch is run before measuring, and more during the warm-up time of the plan; where seconds are
    measured, also until the first calls have prepared what later ones use.
    """
    rows: list[BenchmarkRow] = []
    try:
        _warm_up(benchmark, plan)
        batches = plan.duration.iterations
        count = max(1, math.ceil(batches / plan.batch_size)) if batches else None
        for index in range(plan.repetitions):
            count, real, cpu = _timed(benchmark, count, plan.duration.seconds)
            calls = count * plan.batch_size
            rows.append(
                BenchmarkRow(
                    benchmark.name,
                    benchmark.name,
                    calls,
                    real / calls,
                    cpu / calls,
                    plan.repetitions,
                    index,
                    calls / real if real else None,
                )
            )
    except StatusError as error:
        failed = BenchmarkRow(benchmark.name, benchmark.name, 0, 0.0, 0.0, error_message=error_line(error))
        return [failed], error
    return rows, None


def _warm_up(benchmark: Benchmark, plan: MeasuringPlan) -> None:
    started = time.perf_counter()
    most = _MOST_UNSETTLED if plan.duration.iterations is None else 1
    batches, passed = 0, 0.0
    while (
        not batches
        or passed < plan.warmup_seconds
        or (batches < most and passed < _UNSETTLED_SECONDS and not benchmark.is_settled())
    ):
        benchmark.call_batch()
        batches += 1
        passed = time.perf_counter() - started


def _timed(benchmark: Benchmark, count: int | None, wanted: float) -> tuple[int, float, float]:
    """Number of batches, their wall seconds and process seconds; a given count is used as it is."""
    attempt = count or 1
    while True:
        real, cpu = _run(benchmark.call_batch, attempt)
        if count is not None or real >= wanted or attempt >= MAX_ITERATIONS:
            return attempt, real, cpu
        growth = wanted * _SAFETY / max(real, 1e-9)
        if real / wanted <= _SIGNIFICANT:
            growth = min(growth, _MAX_GROWTH)
        attempt = min(MAX_ITERATIONS, max(math.ceil(growth * attempt), attempt + 1))


def _run(call_batch: Callable[[], object], count: int) -> tuple[float, float]:
    cpu = time.process_time()
    started = time.perf_counter()
    for _ in range(count):
        call_batch()
    return time.perf_counter() - started, time.process_time() - cpu
