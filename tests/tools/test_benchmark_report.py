"""Benchmark reports against lines of Google Benchmark, and how calls are timed.

Timing is iterations, repetitions, warm-up and failures.
"""

from __future__ import annotations

import json
import time

import pytest

from jitree.errors import AbortedError, StatusError
from jitree.tools.benchmark_report import (
    Benchmark,
    BenchmarkRow,
    Duration,
    MeasuringPlan,
    ReportLayout,
    aggregates,
    console_report,
    csv_report,
    human_number,
    json_report,
    machine_context,
    machine_header,
    measure,
    parse_duration,
    time_text,
)

NAME = "BM_two/process_time/real_time"


def repetition(index: int, milliseconds: float, cpu: float, rate: float) -> BenchmarkRow:
    return BenchmarkRow(NAME, NAME, 10, milliseconds / 1e3, cpu / 1e3, 3, index, rate)


REPETITIONS = [
    repetition(0, 0.0044405, 0.0044405, 225195), repetition(1, 0.0026731, 0.0026731, 374097),
    repetition(2, 0.0023586, 0.0024, 423980),
]  # fmt: skip


def test_console_report_of_one_benchmark() -> None:
    row = BenchmarkRow(NAME, NAME, 10, 0.000005, 0.0000049, items_per_second=200108)
    assert console_report([row], ReportLayout("ms")) == (
        "----------------------------------------------------------------------------------------\n"
        "Benchmark                              Time             CPU   Iterations UserCounters...\n"
        "----------------------------------------------------------------------------------------\n"
        "BM_two/process_time/real_time      0.005 ms        0.005 ms           10 "
        "items_per_second=200.108k/s\n"
    )


def test_console_report_with_aggregates() -> None:
    lines = console_report(REPETITIONS + aggregates(REPETITIONS), ReportLayout("ms")).splitlines()
    assert lines[1] == (
        "Benchmark                                     Time             CPU   Iterations UserCounters..."
    )
    assert lines[3] == (
        "BM_two/process_time/real_time             0.004 ms        0.004 ms           10 "
        "items_per_second=225.195k/s"
    )
    assert lines[6] == (
        "BM_two/process_time/real_time_mean        0.003 ms        0.003 ms            3 "
        "items_per_second=341.091k/s"
    )
    assert lines[9].startswith("BM_two/process_time/real_time_cv          35.54 %         34.93 %      ")
    assert lines[9].endswith("       3 items_per_second=30.32%")


def test_console_report_of_a_failure_has_no_counters() -> None:
    row = BenchmarkRow(NAME, NAME, 0, 0, 0, error_message="INVALID_ARGUMENT; input0 shape")
    assert console_report([row], ReportLayout("ms")).splitlines()[1:] == [
        "Benchmark                              Time             CPU   Iterations",
        "------------------------------------------------------------------------",
        "BM_two/process_time/real_time ERROR OCCURRED: 'INVALID_ARGUMENT; input0 shape'",
    ]


def test_tabular_counters() -> None:
    row = BenchmarkRow(NAME, NAME, 10, 0.000005, 0.000005, items_per_second=211815)
    assert console_report([row], ReportLayout("ms", tabular_counters=True)).splitlines()[1:4:2] == [
        "Benchmark                              Time             CPU   Iterations items_per_second",
        "BM_two/process_time/real_time      0.005 ms        0.005 ms           10       211.815k/s",
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.005, "     0.005"),
        (2.37, "      2.37"),
        (23.71, "      23.7"),
        (237.1, "       237"),
        (2e12, "2.0000e+12"),
    ],
)
def test_times_have_ten_columns(value: float, text: str) -> None:
    assert time_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (200108, "200.108k"),
        (1e6, "1000k"),
        (2.5e6, "2.5M"),
        (12.5, "12.5"),
        (1050, "1050"),
        (0.5, "0.5"),
        (0.0025, "2.5m"),
        (0, "0"),
    ],
)
def test_counters_are_scaled(value: float, text: str) -> None:
    assert human_number(value) == text


def test_json_report() -> None:
    context = machine_context()
    report = json.loads(json_report(REPETITIONS + aggregates(REPETITIONS), context, "us"))
    assert report["context"] == context
    first, mean, ratio = (report["benchmarks"][index] for index in (0, 3, 6))
    assert first["run_type"] == "iteration" and first["repetition_index"] == 0
    assert first["real_time"] == pytest.approx(4.4405) and first["time_unit"] == "us"
    assert first["items_per_second"] == 225195 and "aggregate_name" not in first
    assert (mean["name"], mean["run_name"], mean["aggregate_name"]) == (f"{NAME}_mean", NAME, "mean")
    assert mean["real_time"] == pytest.approx((4.4405 + 2.6731 + 2.3586) / 3)
    assert ratio["aggregate_unit"] == "percentage" and ratio["real_time"] == pytest.approx(0.3555, abs=1e-4)


def test_json_report_of_a_failure() -> None:
    rows = [BenchmarkRow(NAME, NAME, 0, 0, 0, error_message='a "b"')]
    (benchmark,) = json.loads(json_report(rows, {}, "ms"))["benchmarks"]
    assert benchmark["error_occurred"] is True and benchmark["error_message"] == 'a "b"'


def test_csv_report() -> None:
    failure = BenchmarkRow(NAME, NAME, 0, 0, 0, error_message='a "b"')
    lines = csv_report([REPETITIONS[1], *aggregates(REPETITIONS)[3:], failure], "ms").splitlines()
    assert lines[0] == (
        "name,iterations,real_time,cpu_time,time_unit,bytes_per_second,items_per_second,label,"
        "error_occurred,error_message"
    )
    assert lines[1] == f'"{NAME}",10,0.0026731,0.0026731,ms,,374097,,,'
    assert lines[2].startswith(f'"{NAME}_cv",3,0.355')
    assert lines[3] == f'"{NAME}",,,,,,,,true,"a ""b"""'


def test_one_repetition_has_no_aggregates() -> None:
    assert aggregates(REPETITIONS[:1]) == []


def test_machine_header_names_processors_and_load() -> None:
    header = machine_header(machine_context() | {"note": "quiet"})
    assert "Run on (" in header and "Load Average: " in header and header.endswith("note: quiet\n")


class Call:
    """A call that takes a while."""

    def __init__(self, seconds: float = 0.0, fail_at: int = -1) -> None:
        self.seconds = seconds
        self.fail_at = fail_at
        self.count = 0

    def __call__(self) -> None:
        self.count += 1
        if self.count == self.fail_at:
            raise AbortedError("stopped")
        time.sleep(self.seconds)

    def benchmark(self) -> Benchmark:
        return Benchmark("BM_f/process_time/real_time", self)


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("0.5s", Duration(seconds=0.5)),
        ("2", Duration(seconds=2.0)),
        ("0s", Duration(seconds=0.0)),
        ("10x", Duration(iterations=10)),
    ],
)
def test_durations(text: str, duration: Duration) -> None:
    assert parse_duration(text) == duration


@pytest.mark.parametrize("text", ["", "x", "0x", "-1s", "1.5x", "nans", "infs", "1m"])
def test_bad_durations(text: str) -> None:
    with pytest.raises(StatusError, match="neither `<seconds>s` nor `<n>x`"):
        parse_duration(text)


def test_a_number_of_iterations_is_exact_for_every_repetition() -> None:
    call = Call()
    rows, failure = measure(call.benchmark(), MeasuringPlan(Duration(iterations=10), repetitions=3))
    assert failure is None
    assert call.count == 1 + 30
    assert [(row.iterations, row.repetition_index) for row in rows] == [(10, 0), (10, 1), (10, 2)]


def test_batches_count_calls() -> None:
    call = Call()
    (row,), _ = measure(call.benchmark(), MeasuringPlan(Duration(iterations=10), batch_size=4))
    assert call.count == 1 + 3 and row.iterations == 12
    assert not row.counters


def test_iterations_grow_until_the_time_is_reached() -> None:
    call = Call(seconds=0.001)
    (row,), _ = measure(call.benchmark(), MeasuringPlan(Duration(seconds=0.03)))
    assert row.iterations * row.real_time >= 0.03
    assert row.real_time >= 0.001 > row.cpu_time
    assert row.items_per_second == pytest.approx(1 / row.real_time)


def test_repetitions_keep_the_number_of_iterations_of_the_first() -> None:
    rows, _ = measure(Call(seconds=0.001).benchmark(), MeasuringPlan(Duration(seconds=0.01), repetitions=2))
    assert rows[0].iterations == rows[1].iterations


def test_warm_up_time() -> None:
    call = Call()
    measure(call.benchmark(), MeasuringPlan(Duration(iterations=1), warmup_seconds=0.2))
    assert call.count > 2


@pytest.mark.parametrize("duration", [Duration(iterations=2), Duration(seconds=0.0)])
def test_what_first_calls_prepare_is_not_measured(duration: Duration) -> None:
    call = Call()
    benchmark = Benchmark("BM_f", call, lambda: call.count >= 7)
    (row,), _ = measure(benchmark, MeasuringPlan(duration))
    assert call.count - row.iterations == 7


def test_calls_that_never_settle_are_measured() -> None:
    call = Call()
    (row,), _ = measure(Benchmark("BM_f", call, lambda: False), MeasuringPlan(Duration(seconds=0.0)))
    assert 1 < call.count - row.iterations <= 65


@pytest.mark.parametrize("fail_at", [1, 3])
def test_a_failing_call_ends_the_benchmark(fail_at: int) -> None:
    call = Call(fail_at=fail_at)
    (row,), failure = measure(call.benchmark(), MeasuringPlan(Duration(iterations=2), repetitions=5))
    assert call.count == fail_at
    assert isinstance(failure, AbortedError)
    assert row.error_message is not None and "ABORTED; stopped" in row.error_message
