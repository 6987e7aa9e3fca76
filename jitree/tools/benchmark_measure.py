"""Times a call for the needed number of iterations, and describes the machine."""

from __future__ import annotations

import math
import os
import re
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from jitree.base import processor
from jitree.errors import InvalidArgumentError, StatusError, pass_interruption
from jitree.tools.benchmark_report import BenchmarkRow
from jitree.tools.element_parsing import parse_float
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

_CACHE_FOLDER: Final = Path("/sys/devices/system/cpu/cpu0/cache")


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


def machine_context() -> dict[str, Any]:
    """The ``context`` object of a JSON report."""
    return {
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "host_name": socket.gethostname(),
        "executable": f"{sys.executable} -m jitree benchmark",
        "num_cpus": os.cpu_count() or 1,
        "mhz_per_cpu": round(max(map(float, processor.words("cpu MHz")), default=0.0)),
        "caches": _caches(),
        "load_avg": [round(load, 2) for load in os.getloadavg()],
        "library_version": "jitree",
        "library_build_type": "release",
        "json_schema_version": 1,
    }


def machine_header(context: dict[str, Any]) -> str:
    """The lines that a console report begins with, for stderr."""
    lines = [
        context["date"],
        f"Running {context['executable']}",
        f"Run on ({context['num_cpus']} X {context['mhz_per_cpu']} MHz CPU s)",
    ]
    if context["caches"]:
        lines.append("CPU Caches:")
    for cache in context["caches"]:
        instances = max(1, context["num_cpus"] // cache["num_sharing"])
        lines.append(f"  L{cache['level']} {cache['type']} {cache['size'] // 1024} KiB (x{instances})")
    lines.append("Load Average: " + ", ".join(f"{load:.2f}" for load in context["load_avg"]))
    known = ("date", "host_name", "executable", "num_cpus", "mhz_per_cpu", "caches", "load_avg")
    for key, value in context.items():
        if key not in known and not key.startswith(("library_", "json_")):
            lines.append(f"{key}: {value}")
    return "\n".join(lines) + "\n"


def _caches() -> list[dict[str, Any]]:
    caches = []
    for folder in sorted(_CACHE_FOLDER.glob("index*")):
        facts = {
            name: "".join(_lines(folder / name)[:1]) for name in ("type", "level", "size", "shared_cpu_list")
        }
        if not facts["size"].endswith("K"):
            continue
        caches.append(
            {
                "type": facts["type"],
                "level": int(facts["level"]),
                "size": int(facts["size"][:-1]) * 1024,
                "num_sharing": _count_processors(facts["shared_cpu_list"]),
            }
        )
    return caches


def _count_processors(text: str) -> int:
    """Processors in a list like ``0-3,8``."""
    count = 0
    for part in text.split(","):
        first, _, last = part.partition("-")
        count += int(last or first) - int(first) + 1
    return max(1, count)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError as error:
        pass_interruption(error)
        return []
