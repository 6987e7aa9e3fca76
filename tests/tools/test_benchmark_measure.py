"""How benchmarks are timed: iterations, repetitions, warm-up, failures."""

from __future__ import annotations

import time

import pytest

from jitree.errors import AbortedError, StatusError
from jitree.tools.benchmark_report import Benchmark, Duration, MeasuringPlan, measure, parse_duration


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


@pytest.mark.parametrize(("duration", "before"), [(Duration(iterations=2), 1), (Duration(seconds=0.0), 7)])
def test_what_first_calls_prepare_is_not_measured(duration: Duration, before: int) -> None:
    """Where a number of calls is asked for, that many are made after one."""
    call = Call()
    benchmark = Benchmark("BM_f", call, lambda: call.count >= 7)
    (row,), _ = measure(benchmark, MeasuringPlan(duration))
    assert call.count - row.iterations == before


def test_calls_that_never_settle_are_measured() -> None:
    call = Call()
    (row,), _ = measure(Benchmark("BM_f", call, lambda: False), MeasuringPlan(Duration(seconds=0.0)))
    assert 1 < call.count - row.iterations < 20


@pytest.mark.parametrize("fail_at", [1, 3])
def test_a_failing_call_ends_the_benchmark(fail_at: int) -> None:
    call = Call(fail_at=fail_at)
    (row,), failure = measure(call.benchmark(), MeasuringPlan(Duration(iterations=2), repetitions=5))
    assert call.count == fail_at
    assert isinstance(failure, AbortedError)
    assert row.error_message is not None and "ABORTED; stopped" in row.error_message
