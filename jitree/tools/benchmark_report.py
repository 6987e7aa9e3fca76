"""Times calls, and reports them in the layout of Google Benchmark.

Reports are a table on the console, JSON and CSV; they describe the machine too.
"""

from __future__ import annotations

import json
import math
import os
import re
import socket
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from jitree.base.arguments import number_of
from jitree.base.platform import processor
from jitree.base.platform.topology import describe
from jitree.base.tables import TextTable
from jitree.errors import InvalidArgumentError, StatusError
from jitree.tools.element_parsing import parse_float
from jitree.tools.reporting import error_line

UNIT_SECONDS: Final = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


@dataclass(frozen=True, slots=True)
class BenchmarkRow:
    """One line of a report.

    Times are seconds per call; for the ``cv`` aggregate they are ratios.
    """

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
    unit: str | None = None
    """Of its times, whatever the report's is."""
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


CSV_HEADER: Final = (
    "name,iterations,real_time,cpu_time,time_unit,bytes_per_second,items_per_second,label,"
    "error_occurred,error_message"
)
_BIG_UNITS: Final = "kMGTPEZY"
_SMALL_UNITS: Final = "munpfazy"
_AGGREGATE_SUFFIX: Final = "_stddev"
_COUNTER_WIDTH: Final = 10


@dataclass(frozen=True, slots=True)
class ReportLayout:
    """How a console report looks."""

    unit: str
    tabular_counters: bool = False


def time_text(value: float) -> str:
    """A number in ten columns with about three significant digits."""
    if value < 1.0:
        return f"{value:10.3f}"
    if value < 10.0:
        return f"{value:10.2f}"
    if value < 100.0:
        return f"{value:10.1f}"
    return f"{value:1.4e}" if value > 9999999999 else f"{value:10.0f}"


def human_number(value: float) -> str:
    """``203.359k``, ``1.5M``, ``12.5``, ``2.5m``."""
    if value >= 1100:
        for unit in _BIG_UNITS:
            value /= 1000
            if value < 1100:
                return f"{value:g}{unit}"
    if 0 < value < 0.01:
        for unit in _SMALL_UNITS:
            value *= 1000
            if value >= 0.01:
                return f"{value:g}{unit}"
    return f"{value:g}"


def console_report(rows: Sequence[BenchmarkRow], layout: ReportLayout) -> str:
    """A heading and one line a row; names are padded to the longest."""
    width = max([len("Benchmark")] + [len(_widest_name(row)) for row in rows])
    counters = _counter_names(rows[0]) if rows else []
    heading = f"{'Benchmark':<{width}} {'Time':>13} {'CPU':>15} {'Iterations':>12}"
    if counters and layout.tabular_counters:
        heading += "".join(f" {name:>{_COUNTER_WIDTH}}" for name in counters)
    elif counters:
        heading += " UserCounters..."
    rule = "-" * len(heading)
    lines = [rule, heading, rule]
    values = [_console_values(row, layout) for row in rows]
    lines += [f"{row.name:<{width}} {text}" for row, text in zip(rows, values, strict=True)]
    titles = ["Benchmark", "Time", "CPU", "Iterations", "UserCounters..."]
    cells = [[row.name, *_cells(row, text)] for row, text in zip(rows, values, strict=True)]
    return TextTable.of("\n".join(lines) + "\n", [titles, *cells])


def _cells(row: BenchmarkRow, values: str) -> list[str]:
    """What a terminal shows beside a name, of the columns of a line."""
    if row.error_message is not None:
        return [values, "", "", ""]
    time, time_unit, cpu, cpu_unit, iterations, *_ = values.split()
    counters = "  ".join(f"{name}={_counter_text(row, name)}" for name in _counter_names(row))
    return [f"{time} {time_unit}", f"{cpu} {cpu_unit}", iterations, counters]


def _widest_name(row: BenchmarkRow) -> str:
    """Aggregates of later repetitions must fit, although their rows come after."""
    return row.run_name + _AGGREGATE_SUFFIX if row.repetitions > 1 else row.name


def _console_values(row: BenchmarkRow, layout: ReportLayout) -> str:
    if row.error_message is not None:
        return f"ERROR OCCURRED: '{row.error_message}'"
    if row.is_ratio:
        times = f"{100 * row.real_time:10.2f} %    {100 * row.cpu_time:10.2f} %    "
    else:
        unit = row.unit or layout.unit
        seconds = UNIT_SECONDS[unit]
        real, cpu = time_text(row.real_time / seconds), time_text(row.cpu_time / seconds)
        times = f"{real} {unit:<4} {cpu} {unit:<4} "
    text = f"{times}{row.iterations:10d}"
    for name in _counter_names(row):
        value = _counter_text(row, name)
        text += (
            f" {value:>{max(_COUNTER_WIDTH, len(name))}}" if layout.tabular_counters else f" {name}={value}"
        )
    return text


def _counter_names(row: BenchmarkRow) -> list[str]:
    return (["items_per_second"] if row.items_per_second is not None else []) + list(row.counters)


def _counter_text(row: BenchmarkRow, name: str) -> str:
    if name == "items_per_second":
        assert row.items_per_second is not None
        if row.is_ratio:
            return f"{100 * row.items_per_second:.2f}%"
        return f"{human_number(row.items_per_second)}/s"
    return human_number(row.counters[name])


def json_report(rows: Sequence[BenchmarkRow], context: dict[str, Any], unit: str) -> str:
    """The report as one JSON object: ``context`` and ``benchmarks``."""
    families = {name: number for number, name in enumerate(dict.fromkeys(row.run_name for row in rows))}
    benchmarks = [_json_row(row, row.unit or unit, families[row.run_name]) for row in rows]
    return json.dumps({"context": context, "benchmarks": benchmarks}, indent=2) + "\n"


def _json_row(row: BenchmarkRow, unit: str, family: int) -> dict[str, Any]:
    seconds = 1.0 if row.is_ratio else UNIT_SECONDS[unit]
    result: dict[str, Any] = {
        "name": row.name,
        "family_index": family,
        "per_family_instance_index": 0,
        "run_name": row.run_name,
        "run_type": "aggregate" if row.aggregate else "iteration",
        "repetitions": row.repetitions,
    }
    if row.repetition_index is not None:
        result["repetition_index"] = row.repetition_index
    result["threads"] = 1
    if row.aggregate is not None:
        result["aggregate_name"] = row.aggregate
        result["aggregate_unit"] = "percentage" if row.is_ratio else "time"
    if row.error_message is not None:
        result |= {"error_occurred": True, "error_message": row.error_message}
    result |= {
        "iterations": row.iterations,
        "real_time": row.real_time / seconds,
        "cpu_time": row.cpu_time / seconds,
        "time_unit": unit,
    }
    if row.items_per_second is not None:
        result["items_per_second"] = row.items_per_second
    return result | row.counters


def csv_report(rows: Sequence[BenchmarkRow], unit: str) -> str:
    """The report as comma-separated values; absent ones are empty."""
    return "".join(line + "\n" for line in [CSV_HEADER, *(_csv_row(row, row.unit or unit) for row in rows)])


def _csv_row(row: BenchmarkRow, unit: str) -> str:
    name = _csv_text(row.name)
    if row.error_message is not None:
        return f"{name},,,,,,,,true,{_csv_text(row.error_message)}"
    seconds = 1.0 if row.is_ratio else UNIT_SECONDS[unit]
    rate = "" if row.items_per_second is None else f"{row.items_per_second:g}"
    return (
        f"{name},{row.iterations},{row.real_time / seconds:g},{row.cpu_time / seconds:g},"
        f"{'' if row.is_ratio else unit},,{rate},,,"
    )


def _csv_text(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def render(
    file_format: str,
    rows: Sequence[BenchmarkRow],
    context: Callable[[], dict[str, Any]],
    layout: ReportLayout,
) -> str:
    """A whole report as ``console``, ``json`` or ``csv``."""
    match file_format:
        case "json":
            return json_report(rows, context(), layout.unit)
        case "csv":
            return csv_report(rows, layout.unit)
    return console_report(rows, layout)


MAX_ITERATIONS: Final = 1_000_000_000
_SAFETY: Final = 1.4
"""Next attempts aim at this multiple of the wanted time, as Google Benchmark does."""
_MAX_GROWTH: Final = 10.0
_SIGNIFICANT: Final = 0.1
"""A run shorter than this share of the wanted time predicts badly: growth is limited then."""
_MOST_UNSETTLED: Final = 64
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
    if match is not None and number_of(match.group(1)) > 0:
        return Duration(iterations=number_of(match.group(1)))
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

    One batch is run before measuring, and more during the warm-up time of the plan and until the first
    calls have prepared what later ones use.
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
    batches, passed = 0, 0.0
    while (
        not batches
        or passed < plan.warmup_seconds
        or (batches < _MOST_UNSETTLED and passed < _UNSETTLED_SECONDS and not benchmark.is_settled())
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
    return [
        {"type": cache.kind, "level": cache.level, "size": cache.size, "num_sharing": len(cache.sharing)}
        for cache in describe(0).caches
        if cache.size
    ]
