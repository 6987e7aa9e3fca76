"""``jitree run``: output as iree-run-module's, errors, exit codes, streams."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jitree.tools import run
from tests.tools.command import ECHO, PROGRAMS, ROOT, jitree, jitree_process, run_echo

GOLDENS = json.loads((Path(__file__).parent / "goldens.json").read_text())


def run_here(*flags: str) -> tuple[int, str]:
    """Exit code and standard output of ``jitree run`` in this process."""
    text = io.StringIO()
    with redirect_stdout(text):
        code = run.main(["--device=local-sync", "--tier=plain", f"--module={ECHO}", *flags])
    return code, text.getvalue()


def without_summaries(text: str) -> str:
    """Leaves out the lines that jitree adds to a comparison's report."""
    return "".join(line for line in text.splitlines(True) if " elements differ" not in line)


@pytest.mark.parametrize("golden", GOLDENS["values"], ids=lambda golden: str(golden["input"]))
def test_values_pass_through_a_program_as_in_the_reference_tool(golden: dict[str, Any]) -> None:
    flags = [f"--function={golden['function']}", f"--input={golden['input']}", *golden["flags"]]
    assert run_here(*flags) == (golden["exit"], golden["stdout"])


@pytest.mark.parametrize("golden", GOLDENS["commands"], ids=lambda golden: " ".join(golden["flags"]))
def test_output_is_that_of_the_reference_tool(golden: dict[str, Any]) -> None:
    code, text = run_here(*golden["flags"])
    assert (code, without_summaries(text)) == (golden["exit"], golden["stdout"])


def test_better_than_the_reference() -> None:
    assert run_here("--function=s_i32", "--input=7", "--expected_output=7")[0] == 0
    assert run_here("--function=s_i32", "--input=7", "--expected_output=(ignored)")[0] == 0
    assert run_here("--function=s_i32", "--input=7", "--expected_output=8") == (
        1,
        "EXEC @s_i32\n[FAILED] result[0]: i32 values differ\n  expected: 8\n  actual: 7\n",
    )
    assert run_here("--function=buffer") == (
        0,
        "EXEC @buffer\nresult[0]: vm.buffer\n4 bytes: 01020304\n",
    )
    assert run_here("--function=e1_i4", "--input=3xi4=1,-2,7")[1].endswith("\n3xi4=1 -2 7\n")
    assert run_here("--function=e1_i1", "--input=3xi1=1 0 true")[1].endswith("\n3xi1=01 00 01\n")


def test_narrow_floats_are_numbers(tmp_path: Path) -> None:
    """The VM has them as bits of an integer; the reference takes and prints those bits."""
    assert run_here("--function=s_f16", "--input=0.5") == (0, "EXEC @s_f16\nresult[0]: f16=0.5\n")
    assert run_here("--function=s_f16", "--input=f16=0.1", "--expected_output=0.1")[0] == 0
    assert run_here("--function=s_f16", "--input=0.5", "--expected_output=0.75")[0] == 1
    path = tmp_path / "half.npy"
    assert run_here("--function=s_f16", "--input=-2", f"--output=@{path}")[0] == 0
    assert np.load(path) == -2 and np.load(path).dtype == np.float16


def test_the_function_may_be_named_with_its_module() -> None:
    assert run_here("--function=module.s_i32", "--input=7")[0] == 0


def test_results_in_files(tmp_path: Path) -> None:
    raw, array = tmp_path / "a.bin", tmp_path / "b.npy"
    flags = ["--function=two", "--input=4xf32=1,2,3,4", "--input=7"]
    assert run_here(*flags, f"--output=@{raw}", f"--output=@{array}") == (0, "EXEC @two\n")
    assert np.fromfile(raw, np.float32).tolist() == [2, 4, 6, 8]
    assert np.load(array) == 7


def test_a_whole_process() -> None:
    outcome = jitree_process(
        "run", ECHO, "--device=local-sync", "--function=two", "--input=4xf32=1,2,3,4", "--input=7"
    )
    assert outcome.code == 0 and outcome.stderr == ""
    assert outcome.stdout == "EXEC @two\nresult[0]: hal.buffer_view\n4xf32=2 4 6 8\nresult[1]: i32=7\n"


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        ("e2_f32", ["2x2xf32=1 2 3 -4.5"]),
        ("e1_i4", ["3xi4=1 -2 7"]),
        ("e1_bf16", ["2xbf16=1.5 -2"]),
        ("s_i64", ["-9223372036854775808"]),
        ("two", ["4xf32=1 2 3 4", "3"]),
        ("s_f16", ["1.5"]),
    ],
)
def test_a_separate_process_prints_the_same(function: str, inputs: list[str]) -> None:
    flags = [f"--function={function}", *(f"--input={text}" for text in inputs)]
    plain, confined = run_echo(*flags), run_echo("--sandbox=process", "--guard_pages", *flags)
    assert (confined.code, confined.stdout) == (plain.code, plain.stdout)
    assert run_echo("--zero_memory", *flags).stdout == plain.stdout


def test_a_separate_process_refuses_what_stays_in_it() -> None:
    flags = ["--sandbox=process", "--function=e1_f32", "--input=1xf32"]
    for refused in ("--tap=*", "--check_finite", "--profile=x.json"):
        outcome = run_echo(*flags, refused)
        assert outcome.code == 1 and "UNIMPLEMENTED" in outcome.stderr
    outcome = run_echo("--guard_pages", *flags[1:])
    assert "INVALID_ARGUMENT; guard_pages" in outcome.stderr
    outcome = run_echo("--sandbox=maybe", *flags[1:])
    assert "is not one of process" in outcome.stderr


def test_flags_from_a_file_and_positional_module(tmp_path: Path) -> None:
    flags = tmp_path / "flags.txt"
    flags.write_text("--function=s_i32\n# a comment\n--input=5\n--device=local-sync\n")
    outcome = jitree("run", ECHO, f"--flagfile={flags}")
    assert (outcome.code, outcome.stdout) == (0, "EXEC @s_i32\nresult[0]: i32=5\n")


@pytest.mark.parametrize("flags", [(), ("--sandbox=process",), ("--zero_memory",)], ids=str)
def test_module_from_standard_input(flags: tuple[str, ...]) -> None:
    run = ("run", "--module=-", "--device=local-sync", "--function=s_i32", "--input=5", *flags)
    outcome = jitree(*run, stdin=ECHO.read_bytes())
    assert (outcome.code, outcome.stdout) == (0, "EXEC @s_i32\nresult[0]: i32=5\n"), outcome.stderr


def test_standard_input_is_read_as_far_as_a_sandbox_allows() -> None:
    data = ECHO.read_bytes()
    flags = ("--module=-", "--device=local-sync", "--sandbox", f"--limit=load_size={len(data) - 1}")
    outcome = jitree("run", *flags, "--function=s_i32", "--input=5", stdin=data + bytes(5000))
    assert outcome.code == 1 and f"the module has {len(data)} bytes or more" in outcome.stderr


@pytest.mark.parametrize("mode", ["preload", "mmap"])
def test_both_module_modes(mode: str) -> None:
    assert run_here(f"--module_mode={mode}", "--function=s_i32", "--input=5")[0] == 0


@pytest.mark.parametrize("device", ["local-sync", "local-task", "local-task://?threads=2"])
def test_devices_by_uri(device: str) -> None:
    text = io.StringIO()
    with redirect_stdout(text):
        assert run.main([f"--module={ECHO}", f"--device={device}", "--function=s_i32", "--input=5"]) == 0


def test_statistics_follow_the_results() -> None:
    outcome = run_echo("--function=two", "--input=4xf32=1", "--input=7", "--print_statistics")
    lines = outcome.stderr.splitlines()
    assert lines[:2] == ["Device: local-sync", "[[ iree_hal_allocator_t memory statistics ]]"]
    assert lines[2].startswith("  HOST_LOCAL: ") and lines[3].startswith("DEVICE_LOCAL: ")
    assert "B peak / " in lines[3] and lines[3].endswith("B live") and outcome.stderr.endswith("\n\n")


def test_a_trace_goes_to_stderr() -> None:
    outcome = run_echo("--function=s_i32", "--input=5", "--trace_execution")
    assert outcome.stdout == "EXEC @s_i32\nresult[0]: i32=5\n"
    assert "[module.s_i32+" in outcome.stderr


def test_a_closed_pipe_ends_the_command_quietly() -> None:
    command = [sys.executable, "-m", "jitree", "run", "--device=local-sync", f"--module={ECHO}"]
    command += ["--function=e1_f32", "--input=100000xf32=1", "--output_max_element_count=100000"]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, cwd=ROOT, timeout=60, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


ERRORS: list[tuple[list[str], str, list[str]]] = [
    (["--function=nofn"], "NOT_FOUND",
     ["no function `nofn` exported by module", "@s_i32(", "creating run context"]),
    ([], "INVALID_ARGUMENT",
     ["more than one exported function present; --function= must be specified explicitly", "@e1_f32("]),
    (["--function=e1_f32"], "INVALID_ARGUMENT",
     ["expected 1 arguments but passed 0", "`sync func @e1_f32("]),
    (["--function=e1_f32", "--input=1xf32", "--input=1xf32"], "INVALID_ARGUMENT",
     ["function expected fewer input values", "parsing input `1xf32`; parsing function inputs; `sync func"]),
    (["--function=two", "--input=4x1xf32=1", "--input=7"], "INVALID_ARGUMENT",
     ["input0 shape rank mismatch; expected 1 but have 2; expected shape `4`, actual shape `4x1`"]),
    (["--function=two", "--input=5xf32=1", "--input=7"], "INVALID_ARGUMENT",
     ["input0 shape dimension 0 mismatch; expected 4 but have 5; expected shape `4`, actual shape `5`"]),
    (["--function=two", "--input=4xi32=1", "--input=7"], "INVALID_ARGUMENT",
     ["input0 element type mismatch; expected f32 (21000020) but have i32 (10000020)"]),
    (["--function=two", "--input=(null)", "--input=7"], "INVALID_ARGUMENT",
     ["ref is null; input0 needs a tensor<4xf32>"]),
    (["--function=two", "--input=&4xf32=1", "--input=7"], "INVALID_ARGUMENT",
     ["ref type mismatch; input0 needs a tensor<4xf32> but got a hal.buffer"]),
    (["--function=s_i32", "--input=4xi32=1"], "INVALID_ARGUMENT", ["scalar", "parsing input `4xi32=1`"]),
    (["--function=s_i8", "--input=300"], "INVALID_ARGUMENT", ["input0", "300"]),
    (["--function=s_i32", "--input=abc"], "INVALID_ARGUMENT", ["'abc' is not an integer"]),
    (["--function=e1_f32", "--input=4xf32=1,2"], "OUT_OF_RANGE", ["input data string underflow"]),
    (["--function=s_i32", "--input=1", "--output=-", "--output=-"], "OUT_OF_RANGE",
     ["2 outputs specified", "outputting results; processing function outputs; `sync func @s_i32"]),
    (["--function=s_i32", "--input=1", "--output=x"], "UNIMPLEMENTED",
     ["unsupported output mode specification"]),
    (["--function=s_i32", "--input=1", "--expected_output=x"], "INVALID_ARGUMENT",
     ["parsing input `x`; parsing expected function outputs; processing function outputs; `sync func @"]),
    (["--device=nope"], "NOT_FOUND", ["no driver 'nope' registered", "local-sync"]),
    (["--module=/nonexistent/x.vmfb"], "NOT_FOUND", ["loading bytecode module at '/nonexistent/x.vmfb'"]),
    (["--module_mode=x"], "INVALID_ARGUMENT", ["module_mode"]),
    (["--modle=x"], "INVALID_ARGUMENT", ["unknown flag '--modle'", "'--module'"]),
    (["--output_max_element_count=abc"], "INVALID_ARGUMENT", ["'--output_max_element_count'", "'abc'"]),
    (["--equality_mode=x"], "INVALID_ARGUMENT", ["equality_mode"]),
    ([f"--module={PROGRAMS / 'parameters.vmfb'}", "--parameters=s=/nonexistent/a.irpa"], "NOT_FOUND",
     ["/nonexistent/a.irpa"]),
    (["--parameter_mode=x"], "INVALID_ARGUMENT", ["parameter_mode"]),
    (["--module=lib.so@create?a=b"], "NOT_FOUND", ["lib.so"]),
    (["--device_replay_output=x"], "UNIMPLEMENTED",
     ["flag 'device_replay_output' is not supported by jitree"]),
    (["--agents_md"], "UNIMPLEMENTED", ["flag 'agents_md' is not supported by jitree"]),
]  # fmt: skip


@pytest.mark.parametrize(("flags", "code", "texts"), ERRORS, ids=lambda value: str(value)[:60])
def test_errors_name_what_is_wrong(flags: list[str], code: str, texts: list[str]) -> None:
    from jitree.errors import StatusError

    with pytest.raises(StatusError) as caught:
        run_here(*flags)
    assert caught.value.code.name == code
    for text in texts:
        assert text in str(caught.value)


def test_archives_that_the_program_does_not_read_need_not_be_there() -> None:
    """`iree-compile --iree-parameter-export=a.irpa` writes none if the program keeps its constants."""
    flags = ("--function=s_i32", "--input=5", "--parameters=s=/nonexistent/a.irpa")
    outcome = jitree("run", "--module=-", "--device=local-sync", *flags, stdin=ECHO.read_bytes())
    assert (outcome.code, outcome.stdout) == (0, "EXEC @s_i32\nresult[0]: i32=5\n"), outcome.stderr


@pytest.mark.parametrize("flags", [(), ("--sandbox=process",), ("--zero_memory",)], ids=str)
def test_the_archive_may_be_written_while_the_program_is_read(flags: tuple[str, ...], tmp_path: Path) -> None:
    program, archive = PROGRAMS / "parameters.vmfb", tmp_path / "model.npz"
    write = "import numpy as np, sys, time; time.sleep(0.2); sys.stdout.buffer.write(open(sys.argv[1], 'rb')"
    write += ".read()); np.savez(sys.argv[2], w=np.eye(4, 3, dtype='f4'), b=np.ones(3, 'f4'))"
    command = [sys.executable, "-c", write, str(program), str(archive)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as compiler:
        done = subprocess.run(
            [
                sys.executable, "-m", "jitree", "run", "--module=-", "--device=local-sync",
                "--function=linear", "--input=2x4xf32=1 2 3 4 5 6 7 8", f"--parameters=model={archive}",
                f"--parameters={_scale(tmp_path)}", *flags,
            ],
            stdin=compiler.stdout, capture_output=True, text=True, cwd=ROOT, check=False,
        )  # fmt: skip
    assert done.stdout.endswith("result[0]: hal.buffer_view\n2x3xf32=[4 6 8][12 14 16]\n"), done.stderr


def _scale(folder: Path) -> Path:
    np.savez(folder / "rest.npz", scale=np.full(3, 2, "f4"))
    return folder / "rest.npz"


def test_no_module() -> None:
    outcome = jitree("run", "--function=f")
    assert outcome.code == 1 and outcome.stdout == ""
    assert "INVALID_ARGUMENT; no module was given" in outcome.stderr and "--module=" in outcome.stderr


def test_an_error_is_one_entry_with_its_place_and_no_traceback() -> None:
    outcome = run_echo("--function=nofn")
    assert outcome.code == 1 and outcome.stdout == ""
    assert outcome.stderr.startswith("jitree/tools/program.py:") and ": NOT_FOUND; " in outcome.stderr
    assert "Traceback" not in outcome.stderr
    verbose = run_echo("--function=nofn", "--verbose")
    assert "Traceback" in verbose.stderr and verbose.stderr.endswith(outcome.stderr)


@pytest.mark.parametrize("content", [b"", b"abc", b"\x7fELF" + bytes(100), b"module {\n}\n", bytes(1000)])
def test_files_that_are_no_modules(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.vmfb"
    path.write_bytes(content)
    outcome = jitree("run", path, "--device=local-sync")
    assert outcome.code == 1 and "INVALID_ARGUMENT" in outcome.stderr and str(path) in outcome.stderr


def test_help_is_a_flag_file(tmp_path: Path) -> None:
    outcome = jitree("run", "--help")
    assert outcome.code == 0 and "--output_max_element_count=1024\n" in outcome.stdout
    path = tmp_path / "flags.txt"
    path.write_text(outcome.stdout)
    code, _ = run_here(f"--flagfile={path}", "--device=local-sync", "--function=s_i32", "--input=1")
    assert code == 0


def test_what_a_run_on_the_plain_tier_does_not_import() -> None:
    program = (
        "import sys; from jitree.tools import run;"
        f"run.main(['--device=local-sync', '--tier=plain', '{ECHO}', '--function=s_i32', '--input=1']);"
        "print([m for m in ('numba', 'llvmlite', 'rich', 'click', 'asyncio', 'cuda') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, cwd=ROOT, timeout=60, check=True
    )
    assert done.stdout.decode().endswith("\n[]\n")


SEEN = ("--module=tests/data/programs/seen.vmfb", "--function=narrow", "--input=8xf32=1 2 3 4 5 70000 7 8")
NARROW = "narrow_dispatch_0_elementwise_8_f32xf16"


def test_taps(tmp_path: Path) -> None:
    outcome = jitree(
        "run", *SEEN, "--tap=*narrow*:stats", f"--tap={NARROW}:npz", f"--tap_output={tmp_path}/t.npz"
    )
    assert outcome.code == 0 and f"{NARROW} (dispatch 0): 8xf16 min 1 max 8" in outcome.stdout
    with np.load(tmp_path / "t.npz") as tensors:
        assert np.isinf(tensors[f"{NARROW}.0.output0"]).tolist() == [False] * 5 + [True] + [False] * 2
    outcome = jitree("run", *SEEN, "--tap=*", f"--tap-output={tmp_path}/t.txt")
    assert outcome.code == 0 and (tmp_path / "t.txt").read_text().startswith(NARROW)
    outcome = jitree("run", *SEEN, "--tap=*", "--tap_output=-")
    assert outcome.code == 0 and NARROW in outcome.stdout
    outcome = jitree("run", *SEEN, "--tap=*narow*")
    assert outcome.code == 1 and f"names near it: {NARROW}" in outcome.stderr
    outcome = jitree("run", *SEEN, "--tap=*:safetensors", f"--tap_output={tmp_path}/t.npz")
    assert outcome.code == 1 and "ends with .safetensors" in outcome.stderr
    outcome = jitree("run", *SEEN, "--tap=*", f"--tap_output={tmp_path}/no/t.txt")
    assert outcome.code == 1 and "UNAVAILABLE; --tap_output: cannot write" in outcome.stderr
    outcome = jitree("run", *SEEN, "--tap=*:npz")
    assert outcome.code == 1 and "--tap_output" in outcome.stderr


@pytest.mark.parametrize("flag", ["--check-finite", "--check_finite", "--check_finite=overflow"])
def test_the_first_value_that_is_not_finite(flag: str) -> None:
    outcome = jitree("run", *SEEN, flag)
    assert outcome.code == 1 and outcome.stderr.count("\n") == 1
    assert f"{NARROW} (dispatch 0) makes inf at (5,) (bits 0x7c00)" in outcome.stderr


def test_what_has_made_it_comes_first() -> None:
    """Not where the call waited for it, nor a result that it has reached."""
    declaration = "`sync func @narrow(%input0: tensor<8xf32>) -> (%output0: tensor<8xf16>)`"
    assert jitree_process("run", "--device=local-sync", *SEEN, "--check-finite").stderr == (
        f"DATA_LOSS; {NARROW} (dispatch 0) makes inf at (5,) (bits 0x7c00) in output 0 (8xf16, type: name), "
        "and its inputs have none: input 0 (8xf32), which comes from argument 0; module.narrow+00000116; "
        "while invoking host function hal.fence.await; "
        f"invoking function 'narrow'; {declaration}; module.narrow+00000148\n"
    )
    infinite = ("--device=local-sync", *SEEN[:2], "--input=8xf32=1 2 3 4 5 inf 7 8")
    assert jitree_process("run", *infinite, "--check-finite").stderr == (
        f"DATA_LOSS; {NARROW} (dispatch 0) reads inf at (5,) (bits 0x7f800000) in input 0, which comes from "
        "argument 0; module.narrow+00000116; result 0 has inf at (5,) (bits 0x7c00), which no dispatch made\n"
    )


def test_values_that_no_dispatch_makes() -> None:
    infinite = (*SEEN[:2], "--input=8xf32=1 2 3 4 5 inf 7 8")
    outcome = jitree("run", *infinite, "--check-finite")
    assert outcome.code == 1 and "which no dispatch made" in outcome.stderr
    assert f"{NARROW} (dispatch 0) reads inf at (5,) (bits 0x7f800000) in input 0" in outcome.stderr
    assert "which comes from argument 0" in outcome.stderr
    outcome = jitree("run", *infinite, "--check-finite=inputs")
    assert outcome.code == 1 and "argument 0 of module.narrow has inf at (5,)" in outcome.stderr
