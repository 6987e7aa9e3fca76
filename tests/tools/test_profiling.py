"""Flags that profile: ``--profile``, ``--device_profiling_*``, ``--print_device_statistics``, and the rows of
``jitree benchmark --dispatch_statistics``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jitree.errors import AbortedError
from jitree.tools.calling import PreparedCall
from tests.tools.command import Outcome, jitree

PROGRAM = Path(__file__).parent.parent / "data" / "programs" / "seen.vmfb"
CALL = (
    str(PROGRAM), "--function=normalized", "--input=4x64xf32=1", "--input=64x71xf32=1", "--input=71xf32=0",
    "--device=local-sync",
)  # fmt: skip
MATMUL = "normalized_dispatch_0_matmul_4x71x64_f32"
SOFTMAX = "normalized_dispatch_1_softmax_4x71xf32_dispatch_tensor_store"


def run(*flags: str) -> Outcome:
    return jitree("run", *CALL, *flags)


def slices(path: Path) -> dict[str, dict[str, Any]]:
    events = json.loads(path.read_text())["traceEvents"]
    return {event["name"]: event for event in events if event["ph"] == "X"}


def test_profiles(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    outcome = run(f"--profile={path}")
    assert outcome.code == 0 and outcome.stdout == run().stdout
    assert {MATMUL, SOFTMAX, "module.normalized"} <= set(slices(path)) and MATMUL in outcome.stderr
    assert "(bytecode, arguments, results)" in outcome.stderr, "with what is no dispatch"


def test_profiles_of_calls_that_fail(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    outcome = run(f"--profile={path}", "--input=1xf32")
    assert outcome.code == 1 and "INVALID_ARGUMENT" in outcome.stderr


class CountedCalls:
    """Of the calls that commands make, which one fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, failing: int = 0) -> None:
        self.count = 0
        self._failing = failing
        self._call = PreparedCall.call
        monkeypatch.setattr(PreparedCall, "call", lambda prepared: self._counted(prepared))

    def _counted(self, prepared: PreparedCall) -> list[Any]:
        self.count += 1
        if self.count == self._failing:
            raise AbortedError(f"call {self.count}")
        return self._call(prepared)


@pytest.mark.parametrize("wanted", ["--profile", "--print_device_statistics", "--device_profiling_output"])
@pytest.mark.parametrize(
    ("flags", "calls"), [((), 2), (("--profile-warmup=3",), 4), (("--profile_warmup=0",), 1)]
)
def test_calls_before_the_one_that_is_profiled(
    flags: tuple[str, ...], calls: int, wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that adds up its arguments tells which call's results are printed."""
    call = (str(PROGRAM.with_name("state.vmfb")), "--function=accumulate", "--input=4xf32=3", CALL[-1])
    plain, path = jitree("run", *call), tmp_path / "trace.json"
    wanted = wanted if wanted.startswith("--print") else f"{wanted}={path}"
    counted = CountedCalls(monkeypatch)
    mode = ("--device_profiling_mode=dispatch-events",) if "output" in wanted else ()
    outcome = jitree("run", *call, wanted, *mode, *flags)
    assert (outcome.code, outcome.stdout) == (0, plain.stdout) and "4xf32=3 3 3 3" in plain.stdout
    assert counted.count == calls
    if path.exists():
        events = json.loads(path.read_text())["traceEvents"]
        assert [event["name"] for event in events].count("state.accumulate") == 1
    assert counted.count == calls and jitree("run", *call).stdout == plain.stdout
    assert counted.count == calls + 1, "no more without a profile"


def test_a_call_that_fails_is_profiled(tmp_path: Path) -> None:
    """It fails before, and then in the profile, which says where its time has gone."""
    path = tmp_path / "trace.json"
    call = (str(PROGRAM.with_name("state.vmfb")), "--function=positive", "--input=-1", CALL[-1])
    outcome = jitree("run", *call, f"--profile={path}")
    assert outcome.code == 1 and "value must be positive" in outcome.stderr
    assert outcome.stderr.count("value must be positive") == 1 and "state.positive" in slices(path)


def test_a_profiled_call_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    CountedCalls(monkeypatch, failing=3)
    outcome = run(f"--profile={tmp_path / 'trace.json'}", "--profile_warmup=2")
    assert outcome.code == 1 and "ABORTED; call 3" in outcome.stderr


@pytest.mark.parametrize(
    ("flags", "kept"),
    [
        ((), {MATMUL, SOFTMAX}), (("--device_profiling_filter_function=*softmax*",), {SOFTMAX}),
        (("--device-profiling-filter-function=none",), set()),
        (("--device_profiling_filter_command_index=0",), {MATMUL}),
        (("--device_profiling_filter_physical_device=0",), {MATMUL, SOFTMAX}),
        (("--device_profiling_filter_physical_device=1",), set()),
    ],
)  # fmt: skip
def test_device_profiles(flags: tuple[str, ...], kept: set[str], tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    outcome = run(
        "--device_profiling_mode=dispatch-events,queue-events", f"--device_profiling_output={path}", *flags
    )
    assert outcome.code == 0 and {MATMUL, SOFTMAX} & set(slices(path)) == kept
    assert ("no command is meant; names near" in outcome.stderr) == (not kept), outcome.stderr


def test_device_statistics() -> None:
    outcome = run("--print_device_statistics")
    assert outcome.code == 0 and "Device statistics:" in outcome.stderr
    assert MATMUL in outcome.stderr and "execute" in outcome.stderr


@pytest.mark.parametrize(
    ("flags", "status"),
    [
        (("--device_profiling_mode=dispatch-events",), "INVALID_ARGUMENT; --device_profiling_mode requires"),
        (
            ("--device_profiling_mode=dispatches", "--device_profiling_output=x"),
            "INVALID_ARGUMENT; unsupported",
        ),
        (("--device_profiling_mode=counters", "--device_profiling_output=x"), "UNIMPLEMENTED"),
        (("--print_device_statistics", "--device_profiling_output=x"), "INVALID_ARGUMENT"),
        (("--device_profiling_filter_queue=0", "--profile=x"), "UNIMPLEMENTED"),
        (("--profile=-",), "INVALID_ARGUMENT; --profile: '-' is no file"),
        (("--device_profiling_output=x",), "INVALID_ARGUMENT; --device_profiling_output requires"),
        (("--device_profiling_filter_command_index=0",), "INVALID_ARGUMENT; --device_profiling_filter_"),
        (("--profile=/missing/trace.json",), "UNAVAILABLE; unable to write"),
        (
            ("--profile=x", "--profile_warmup=-1"),
            "INVALID_ARGUMENT; flag 'profile_warmup': -1 is less than 0",
        ),
    ],
)
def test_flags_that_do_not_work(flags: tuple[str, ...], status: str) -> None:
    outcome = run(*flags)
    assert outcome.code == 1 and status in outcome.stderr


def test_dispatch_statistics() -> None:
    flags = "--benchmark_min_time=3x", "--benchmark_repetitions=2", "--benchmark_format=json"
    outcome = jitree("benchmark", *CALL, *flags, "--dispatch_statistics")
    assert outcome.code == 0, outcome.stderr
    rows = {row["name"]: row for row in json.loads(outcome.stdout)["benchmarks"]}
    dispatches = {name: row for name, row in rows.items() if "dispatch" in name}
    assert len(dispatches) == 3 and f"BM_normalized/{MATMUL}" in dispatches
    assert all(row["calls"] == 1 and row["iterations"] == 6 for row in dispatches.values())
    assert sum(row["percent"] for row in dispatches.values()) == pytest.approx(100)
    mean = rows["BM_normalized/process_time/real_time_mean"]
    assert mean["iterations"] == 2, "dispatches are in no aggregate"
    for other in ("--print_device_statistics", "--profile=x"):
        outcome = jitree("benchmark", *CALL, "--dispatch_statistics", other)
        assert outcome.code == 1 and "INVALID_ARGUMENT" in outcome.stderr


def test_tests_are_not_profiled() -> None:
    outcome = jitree("check", str(PROGRAM), "--profile=x")
    assert outcome.code == 1 and "UNIMPLEMENTED" in outcome.stderr
