"""``jitree benchmark`` on a real program."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jitree.dispatch.context import Context
from jitree.errors import NotFoundError, StatusError
from jitree.tools import benchmark, benchmark_report
from tests.api.direct import needs_machine_code
from tests.assembler import Assembler
from tests.tools.command import ECHO, PROGRAMS

ASYNCHRONOUS = PROGRAMS / "asynchronous.vmfb"
NAME = "BM_two/process_time/real_time"
TWO = ("--function=two", "--input=4xf32=1", "--input=7", "--benchmark_min_time=3x")


def outcome(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, str, str]:
    """Exit code and streams of the command in this process."""
    code = benchmark.main(["--device=local-sync", "--tier=plain", f"--module={ECHO}", *flags])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_one_function(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = outcome(capsys, *TWO)
    lines = out.splitlines()
    assert code == 0 and len(lines) == 4
    assert lines[1].split() == ["Benchmark", "Time", "CPU", "Iterations", "UserCounters..."]
    assert lines[3].split()[0] == NAME and lines[3].split()[5] == "3"
    assert lines[3].split()[6].startswith("items_per_second=") and len(lines[3].split()) == 7
    assert "Load Average: " in err


def test_without_a_name_functions_that_take_nothing_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = outcome(capsys, "--benchmark_list_tests")
    assert out == "BM_buffer/process_time/real_time\n"


@pytest.mark.parametrize(("pattern", "found"), [("t.o", True), ("zz", False), ("-two", False), ("-zz", True)])
def test_filters(pattern: str, found: bool, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = outcome(capsys, *TWO, f"--benchmark_filter={pattern}", "--benchmark_list_tests")
    assert code == (0 if found else 1) and (out == f"{NAME}\n") is found
    assert (f"Failed to match any benchmarks against regex: {pattern}\n" in err) is not found


def measured_dispatches(path: Path) -> Path:
    """A module as the compiler makes of an executable: ``dispatch`` passes only with batches of four."""
    body = """
        %i1 = const.i32 4
        %i2 = cmp.eq.i32 %i0, %i1
        cond_br %i2, ^right, ^wrong
        ^right:
        return
        ^wrong:
        %i3 = const.i32 9
        fail %i3, "another size"
    """
    module = Assembler("m").function("dispatch$0", "0i_v", body, attrs={"iree.benchmark": "dispatch"})
    module.function("entry$0", "0v_v", "return", attrs={"iree.benchmark": "entry"})
    module.function("other", "0v_v", "return", attrs={"iree.benchmark": "whatever"})
    module.function("hidden$0", "0v_v", "return").function("plain", "0v_v", "return")
    module.function("number", "0i_v", "return")
    path.write_bytes(module.build())
    return path


def test_functions_that_the_compiler_made_to_be_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--device=local-sync", "--tier=plain", str(measured_dispatches(tmp_path / "m.vmfb")))
    assert benchmark.main([*flags, "--benchmark_list_tests"]) == 0
    names = [line.split("/")[0] for line in capsys.readouterr().out.splitlines()]
    assert names == ["BM_dispatch$0", "BM_entry$0", "BM_other", "BM_plain"]
    calls = ("--benchmark_filter=dispatch", "--benchmark_min_time=8x", "--benchmark_format=json")
    assert benchmark.main([*flags, *calls, "--batch_size=4"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["benchmarks"]
    assert row["iterations"] == 8 and row["time_unit"] == "us"
    assert benchmark.main([*flags, *calls, "--batch_size=3"]) == 1
    assert "another size" in capsys.readouterr().err


def test_a_named_dispatch_takes_the_inputs_that_are_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = measured_dispatches(tmp_path / "m.vmfb")
    flags = ("--device=local-sync", "--tier=plain", str(path), "--benchmark_min_time=4x", "--batch_size=2")
    assert benchmark.main([*flags, "--function=dispatch$0", "--input=4"]) == 0
    assert benchmark.main([*flags, "--function=dispatch$0", "--input=2"]) == 1
    capsys.readouterr()


def test_json_and_aggregates(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, err = outcome(
        capsys, *TWO, "--benchmark_format=json", "--benchmark_repetitions=2", "--batch_size=2",
        "--benchmark_context=who=me", "--time_unit=us",
    )  # fmt: skip
    report = json.loads(out)
    assert report["context"]["who"] == "me" and not err, "the context is in the report"
    assert {(row["family_index"], row["per_family_instance_index"]) for row in report["benchmarks"]} == {
        (0, 0)
    }
    assert [row["name"].removeprefix(NAME) for row in report["benchmarks"]] == [
        "", "", "_mean", "_median", "_stddev", "_cv",
    ]  # fmt: skip
    assert report["benchmarks"][0]["iterations"] == 4 and report["benchmarks"][0]["time_unit"] == "us"


def test_reports_in_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "report.csv"
    _, out, _ = outcome(
        capsys, *TWO, f"--benchmark_out={path}", "--benchmark_out_format=csv", "--benchmark_repetitions=2",
        "--benchmark_display_aggregates_only",
    )  # fmt: skip
    assert f"{NAME} " not in out and f"{NAME}_mean" in out
    assert path.read_text().count(f'"{NAME}",3,') == 2


@needs_machine_code
@pytest.mark.parametrize("size", [1, 4])
def test_calls_are_made_as_python_programs_make_them(
    size: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By machine code, from the third one on."""
    general: list[str] = []
    invoke = Context.invoke

    def counted(context: Context, function: Any, arguments: Any) -> list[Any]:
        general.append(function.name)
        return invoke(context, function, arguments)

    monkeypatch.setattr(Context, "invoke", counted)
    code, out, _ = outcome(
        capsys, "--tier=fast", *TWO[:-1], "--benchmark_min_time=40x", f"--batch_size={size}"
    )
    assert code == 0 and out.splitlines()[3].split()[5] == "40"
    assert general.count("two") == 2


@pytest.mark.parametrize(
    ("size", "concurrency", "expected"),
    [(4, 1, "cccc"), (1, 4, "c"), (3, 4, "sss012"), (5, 2, "ss0s1s2s43"), (4, 3, "sss0s312")],
)
def test_as_many_calls_run_as_are_to_overlap(size: int, concurrency: int, expected: str) -> None:
    """The one that began first is waited for before the next one begins."""
    events: list[str] = []

    def start() -> int:
        events.append("s")
        return events.count("s") - 1

    submission = (lambda: start), lambda begun: events.append(str(begun))
    benchmark._batch(lambda: events.append("c"), submission, size, concurrency)()
    assert "".join(events) == expected


OVERLAPPING = ("--benchmark_min_time=40x", "--batch_size=8", "--batch_concurrency=4")


@needs_machine_code
@pytest.mark.parametrize("device", ["local-sync", "local-task"])
def test_overlapping_calls_are_submitted_as_python_programs_do(
    device: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By machine code, from the third one on. With fences of Python every operation would be Python's."""
    general: list[str] = []
    invoke = Context.invoke

    def counted(context: Context, function: Any, *others: Any) -> list[Any]:
        general.append(function.name)
        return invoke(context, function, *others)

    monkeypatch.setattr(Context, "invoke", counted)
    flags = [f"--module={ASYNCHRONOUS}", f"--device={device}", "--tier=fast", "--function=add", *OVERLAPPING]
    outputs = ["--enable_output_processing", "--expected_output=64xf32=3"]
    for others in ([], outputs):
        general.clear()
        assert benchmark.main([*flags, "--input=64xf32=1", "--input=64xf32=2", *others]) == 0
        assert capsys.readouterr().out.splitlines()[3].split()[5] == "40"
        assert general.count("add") == 2


def test_overlapping_calls_without_arrays_as_results(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Only their fence says when they are done."""
    program = Assembler("m").import_function("hal.fence.signal", "0r_v")
    attributes = {"iree.abi.model": "coarse-fences"}
    program.function("f", "0rr_v", "call @hal.fence.signal [%r1]\nreturn", attrs=attributes)
    (tmp_path / "m.vmfb").write_bytes(program.build())
    flags = [f"--module={tmp_path / 'm.vmfb'}", "--device=local-sync", "--tier=plain", "--function=f"]
    assert benchmark.main([*flags, *OVERLAPPING]) == 0
    assert capsys.readouterr().out.splitlines()[3].split()[5] == "40"


@needs_machine_code
@pytest.mark.parametrize("least", ["0s", "3x"])
def test_preparing_machine_code_is_not_measured(
    least: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settled: list[bool] = []
    run = benchmark_report._run

    def looked(call_batch: Any, count: int) -> tuple[float, float]:
        settled.append(call_batch.func.is_settled)
        return run(call_batch, count)

    monkeypatch.setattr(benchmark_report, "_run", looked)
    code, _, _ = outcome(capsys, "--tier=fast", *TWO[:-1], f"--benchmark_min_time={least}")
    assert code == 0 and settled == [True]


def test_a_failing_call(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = outcome(capsys, "--function=two", "--input=5xf32=1", "--input=7")
    assert code == 1
    assert f"{NAME} ERROR OCCURRED: '" in out and "shape dimension 0 mismatch" in out
    assert "INVALID_ARGUMENT; input0 shape dimension 0 mismatch" in err


def test_results_of_the_last_iteration(capsys: pytest.CaptureFixture[str]) -> None:
    first = ("--enable_output_processing", "--expected_output=4xf32=2")
    code, out, _ = outcome(capsys, *TWO, *first, "--expected_output=7")
    assert code == 0 and out.splitlines()[3].startswith(NAME)
    assert out.splitlines()[4:] == ["[SUCCESS] all function outputs matched their expected values."]
    code, out, err = outcome(capsys, *TWO, *first, "--expected_output=8")
    assert code == 1 and out.splitlines()[3].startswith(NAME)
    assert out.splitlines()[4].startswith("[FAILED] result[1]: i32 values differ")
    assert err.endswith("\n") and "differ" not in err
    code, out, _ = outcome(capsys, *TWO, "--enable_output_processing", "--output=", "--output=-")
    assert code == 0 and out.splitlines()[3].startswith(NAME) and out.splitlines()[4:] == ["i32=7"]
    _, out, _ = outcome(capsys, *TWO, "--enable_output_processing", "--benchmark_format=csv")
    assert out.splitlines()[1].startswith(f'"{NAME}"') and out.splitlines()[2] == "result[0]: hal.buffer_view"


def test_results_are_those_of_the_last_measured_call(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmark_report, "_MOST_UNSETTLED", 1)
    program = Assembler("counter", globals_size=4).function("next", "0v_i", """
        %i0 = global.load.i32 0
        %i1 = const.i32 1
        %i0 = add.i32 %i0, %i1
        global.store.i32 0, %i0
        return [%i0]
    """)  # fmt: skip
    (tmp_path / "counter.vmfb").write_bytes(program.build())
    flags = [f"--module={tmp_path / 'counter.vmfb'}", "--tier=plain", "--device=local-sync"]
    flags += ["--enable_output_processing", "--benchmark_min_time=6x", "--batch_size=2"]
    assert benchmark.main(flags) == 0
    assert capsys.readouterr().out.endswith("result[0]: i32=8\n")  # one batch warms up, three are measured


def test_output_is_processed_of_one_function(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    program = Assembler("two").function("f", "0v_v", "return").function("g", "0v_v", "return")
    (tmp_path / "two.vmfb").write_bytes(program.build())
    flags = [f"--module={tmp_path / 'two.vmfb'}", "--device=local-sync", "--enable_output_processing"]
    with pytest.raises(StatusError, match="one function, here are 2; use --function"):
        benchmark.main(flags)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("--batch_size=0", "less than 1"),
        ("--benchmark_repetitions=0", "less than 1"),
        ("--benchmark_min_time=x", "neither `<seconds>s` nor `<n>x`"),
        ("--benchmark_filter=(", "flag '--benchmark_filter'"),
        ("--benchmark_context=x", "is not <key>=<value>"),
        ("--benchmark_out=/no/such/folder/x.json", "unable to write file"),
    ],
)
def test_bad_flags(flag: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(StatusError) as caught:
        outcome(capsys, *TWO, flag)
    assert text in str(caught.value) and not capsys.readouterr().out


def test_flags_of_the_benchmark_library_that_do_nothing_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome(capsys, *TWO, "--benchmark_perf_counters=x")[0] == 0


def test_a_dry_run_makes_one_call(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = outcome(capsys, *TWO, "--benchmark_dry_run", "--benchmark_repetitions=3")
    assert [line.split()[5] for line in out.splitlines()[3:]] == ["1"]


@pytest.mark.parametrize(("choice", "coloured"), [("auto", 0), ("false", 0), ("true", 1), ("TRUE", 1)])
def test_colours_that_are_asked_for(
    choice: str, coloured: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(benchmark, "use_colours", lambda stream, style: asked.append(style))
    outcome(capsys, *TWO, f"--benchmark_color={choice}")
    assert len(asked) == coloured


def test_results_are_kept_of_calls_as_python_makes_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which are the ones to measure."""
    from jitree.tools.calling import PreparedCall

    monkeypatch.setattr(PreparedCall, "call", lambda self: pytest.fail("called by way of the VM"))
    flags = ["--enable_output_processing", "--expected_output=4xf32=2", "--expected_output=7"]
    assert outcome(capsys, *TWO, *flags)[0] == 0


def test_numbers_and_lists_that_are_kept(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    program = Assembler("kinds").function("f", "0v_iIfFr", """
        %i0 = const.i32 -2
        %i2 = const.i64 -3
        %i4 = const.f32 1.5
        %i6 = const.f64 2.5
        %i8 = const.i32 1
        %r0 = list.alloc i32, %i8
        list.resize %r0, %i8
        return [%i0, %i2, %i4, %i6, %r0]
    """)  # fmt: skip
    (tmp_path / "kinds.vmfb").write_bytes(program.build())
    flags = [f"--module={tmp_path / 'kinds.vmfb'}", "--device=local-sync", "--enable_output_processing"]
    assert benchmark.main([*flags, "--benchmark_min_time=2x"]) == 0
    shown = capsys.readouterr().out
    assert "i32=-2\n" in shown and "i64=-3\n" in shown and "f32=1.5\n" in shown and "i32=0" in shown


@pytest.mark.parametrize("name", ["a\ud800", "a\0"])
def test_an_executable_with_a_name_that_no_file_has(name: str) -> None:
    flags = ["--device=local-sync", "--executable_format=vmvx-bytecode-fb", f"--executable_file={name}"]
    with pytest.raises(NotFoundError, match="cannot read 'a"):
        benchmark.executable_main(flags)
