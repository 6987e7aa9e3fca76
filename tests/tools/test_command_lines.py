"""Command lines as people type them, and what they are told."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from jitree import __version__
from jitree.tools.flags import Support
from jitree.tools.shells import TOOLS, flag_sets
from jitree.vmfb.archive import Archive
from jitree.vmfb.module import read_module
from tests.tools.command import ROOT, jitree

MODULE = ROOT / "examples" / "digits" / "digits.vmvx.vmfb"
RUN = ("run", "digits.vmfb", "--device=local-sync")
CALL = (*RUN, "--function=classify")

ANSWERS: dict[tuple[str, ...], str] = {
    ("run", "-h"): "# jitree run: calls a function",
    ("help", "run"): "# jitree run: calls a function",
    ("run", "nothing.vmfb", "--bad", "-h"): "# jitree run: calls a function",
    ("parameters", "create", "-h"): "# jitree parameters create: ",
    ("parameters", "-h"): "# jitree parameters: ",
    ("dump", "--version"): f"jitree {__version__}",
    ("cache", "--version"): f"jitree {__version__}",
    ("run", "--flagfile=version.flags"): f"jitree {__version__}",
    (*RUN, "--function=__init"): "EXEC @__init\n",
    ("parameters", "create", "--splat=k=4xf32", "--output=k.irpa"): "//===---",
}
"""What is answered on standard output with status 0, and how the answer begins."""

FAILURES: dict[tuple[str, ...], str] = {
    ("rum",): "unknown command 'rum'; did you mean 'run'?",
    ("parameters", "creat"): "there are create, convert, dump; did you mean 'create'?",
    (*RUN, "--functoin=classify"): "unknown flag '--functoin'; did you mean '--function'?",
    (*RUN, "--module_mode=prelaod"): "'prelaod' is not one of preload, mmap; did you mean 'preload'?",
    (
        *RUN,
        "--function=clasify",
    ): "NOT_FOUND; no function `clasify` exported by module 'module'; did you mean 'classify'?",
    ("run", "--device=local-taks", "digits.vmfb"): "did you mean 'local-task'?",
    ("run", "--device=gpu", "digits.vmfb"): "did you mean 'cuda'?",
    ("run", "--device=cuda:0", "digits.vmfb"): "did you mean 'cuda://0'?",
    ("run", "digit.vmfb"): "NOT_FOUND; no such file: 'digit.vmfb'; did you mean 'digits.vmfb'?",
    ("run", "flder/digits.vmfb"): "did you mean 'folder/digits.vmfb'?",
    ("dump", "elsewhere/digits.vmfb"): "did you mean 'digits.vmfb'?",
    (
        *CALL,
        "--input=@iput.npy",
    ): "unable to open file `iput.npy`: it does not exist; did you mean 'input.npy'?",
    (
        "run",
        "--flagfile=bad.flags",
    ): "did you mean '--function'? (`jitree run --help` lists them); bad.flags:3\n",
    ("run", "--flagfile=outer.flags"): "; outer.flags:1\n",
    ("run", "--flagfile=value.flags"): "'many' is not an integer; value.flags:1\n",
    (
        *CALL,
        "--device_allocator=foo",
    ): "INVALID_ARGUMENT; unrecognized allocator 'foo'; there are: caching, debug",
    ("run", "cut.vmfb"): "truncated: the header says 21,077 bytes, the file has 20,954",
    ("run", "cut2.vmfb"): "truncated: the header says ",
    ("run",): "no module was given; name one: --module=program.vmfb (`-` is standard input)",
    ("run", "model.mlir"): "the file is MLIR text; compile it with iree-compile first, or by `jitree compile",
    ("run", "folder"): "'folder' is a directory, not a module file",
    (*CALL, "--input=4x4x4xf32=1"): (
        "input0 shape rank mismatch; expected 2 but have 3; expected shape `8x8`, actual shape `4x4x4`"
    ),
    (*CALL, "--input=8x9xf32=1"): (
        "input0 shape dimension 1 mismatch; expected 8 but have 9; expected shape `8x8`, actual shape `8x9`"
    ),
    (*CALL, "--input=8x8xi32=1"): "element type mismatch; expected f32 (21000020) but have i32 (10000020)",
    (*CALL, "--input=8x8xf32=1 2"): "underflow: dst_i=2 < element_capacity=64; parsing input `8x8xf32=1 2`",
    (*CALL, "--input=8x8xf33=1"): "unknown element type 'f33'; known are i1 i2",
    (
        *CALL,
        "--input=8x8xf32=a",
    ): "'a' is not a number; parsing input `8x8xf32=a`; parsing function inputs; `",
    CALL: "expected 1 arguments but passed 0; missing: input0: tensor<8x8xf32>; invoking function",
    (*CALL, "--input=8x8xf32=1", "--input=1xf32"): "function expected fewer input values; it takes 1",
    (*CALL, "--input=8x8xf32=1", "--output=-", "--output=-"): "2 outputs specified but the provided variant",
    (*CALL, "--input=8x8xf32=1", "--task_topology_nodes=x", "--device=local-task"): (
        "task_topology_nodes='x' is not one of current, numa, all, or numbers of nodes as in 0,2"
    ),
    ("run", "--flagfile=bad.flag"): "No such file or directory; did you mean 'bad.flags'?",
}
"""Command lines that fail with status 1, and what standard error says among others."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the command lines name."""
    folder = tmp_path_factory.mktemp("lines")
    (folder / "folder").mkdir()
    shutil.copy(MODULE, folder / "digits.vmfb")
    shutil.copy(MODULE, folder / "folder" / "digits.vmfb")
    (folder / "input.npy").write_bytes(b"")
    whole = MODULE.read_bytes()
    (folder / "cut.vmfb").write_bytes(whole[:-500])
    (folder / "cut2.vmfb").write_bytes(whole[:500])
    for name, text in {
        "model.mlir": "module {\n  func.func @f() { return }\n}\n",
        "bad.flags": "# a comment\n\n--functoin=classify\n",
        "outer.flags": "--flagfile=absent\n",
        "value.flags": "--output_max_element_count=many\n",
        "version.flags": "--version\n",
    }.items():
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("line", ANSWERS, ids=" ".join)
def test_questions_are_answered(line: tuple[str, ...], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    outcome = jitree(*line)
    assert (outcome.code, outcome.stderr) == (0, "")
    assert outcome.stdout.startswith(ANSWERS[line])


@pytest.mark.parametrize("line", FAILURES, ids=" ".join)
def test_failures_say_what_to_do(
    line: tuple[str, ...], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    outcome = jitree(*line)
    assert outcome.code == 1 and outcome.stdout in ("", "EXEC @classify\n")
    assert FAILURES[line] in outcome.stderr


def test_statistics_are_those_when_all_is_given_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    outcome = jitree(*CALL, "--input=8x8xf32=1", "--print_statistics")
    assert "Device: local-sync\n[[ iree_hal_allocator_t memory statistics ]]\n" in outcome.stderr
    assert outcome.stderr.count("            0B live\n") == 2


def test_of_several_files_the_first_is_dumped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    both, one = jitree("dump", "digits.vmfb", "absent.vmfb"), jitree("dump", "digits.vmfb")
    assert (both.code, both.stdout) == (0, one.stdout)
    assert both.stderr == "jitree: one file is shown, 'digits.vmfb'; not 'absent.vmfb'\n"


KERNEL = (
    "benchmark-executable", "--device=local-sync", "--executable_format=vmvx-bytecode-fb",
    "--executable_file=kernel.vmvx", "--benchmark_min_time=2x", "--batch_size=2",
)  # fmt: skip


def test_dispatches_of_an_executable_are_measured(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    module = read_module(Archive.open(MODULE))
    Path("kernel.vmvx").write_bytes(next(row.data for row in module.rodata if bytes(row.data[:2]) == b"PK"))
    bindings = ["--binding=65536xi8", "--binding=65536xi8=1"]
    done = jitree(*KERNEL, "--workgroup_count=1,1,1", "--workgroup_count=0,1,1", *bindings)
    assert done.code == 0
    rows = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("BM_")]
    assert rows == [f"BM_dispatch_{x}x1x1/process_time/real_time" for x in (1, 0)]
    failed = jitree(*KERNEL, "--workgroup_count=1,1,1", "--entry_point=99")
    assert failed.code == 1 and "ERROR OCCURRED: 'jitree/hal/" in failed.stdout
    assert "OUT_OF_RANGE; dispatch of function 99" in failed.stderr
    for flag, text in {
        "--workgroup_count=1,1": "'1,1' is not of the form <x>,<y>,<z>",
        "--executable_file=kernel.vmv": "did you mean 'kernel.vmvx'?",
        "--executable_format=other": "no loader of this device takes executables of format 'other'",
        "--executable_format=": "INVALID_ARGUMENT; no executable was given",
        "--binding=&4xf32": "a binding is <shape>x<type>[=<values>] or a file",
    }.items():
        assert text in jitree(*KERNEL, flag).stderr


def test_tools_are_installed_under_the_names_of_iree(tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    made = jitree("install-tools", folder)
    assert made.code == 0 and made.stdout.split() == [str(folder / name) for name in TOOLS]
    assert "in front: export PATH=" in made.stderr
    call = [str(folder / "iree-run-module"), f"--module={MODULE}", "--input=8x8xf32=1", "--function=classify"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(call, capture_output=True, text=True, env=environment, timeout=100, check=False)
    assert done.stdout.startswith("EXEC @classify\n"), done.stderr
    assert jitree("install-tools", folder).code == 0
    (folder / "iree-cpuinfo").write_text("another")
    assert "ALREADY_EXISTS; '" in jitree("install-tools", folder).stderr
    assert (folder / "iree-cpuinfo").read_text() == "another"
    assert jitree("install-tools", folder, "--force").code == 0


COMPLETIONS = {
    "jitree ru": "run",
    "jitree parameters ": "convert create dump",
    "jitree parameters create --spl": "--splat=",
    "jitree run --module_": "--module_mode=",
    "jitree run --module_mode=": "preload mmap",
    "jitree run --device=local-s": "local-sync",
    "jitree run dig": "digits.vmfb",
    "jitree run --module=fol": "folder",
}
_ASK = """
source ./jitree.bash
compopt() { :; }
while IFS= read -r line; do
  COMP_LINE=$line COMP_POINT=${#line} COMP_WORDS=($line) COMPREPLY=()
  [[ $line == *" " ]] && COMP_WORDS+=("")
  COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
  _jitree
  echo "${COMPREPLY[*]}"
done
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    Path("jitree.bash").write_text(jitree("completion", "bash").stdout)
    asked = "".join(f"{line}\n" for line in COMPLETIONS)
    answer = subprocess.run(["bash", "-c", _ASK], input=asked, capture_output=True, text=True, check=True)
    assert dict(zip(COMPLETIONS, answer.stdout.splitlines(), strict=True)) == COMPLETIONS


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completions_have_every_flag_and_are_read(shell: str, tmp_path: Path) -> None:
    made = jitree("completion", shell)
    assert made.code == 0 and made.stderr == ""
    before = "-l " if shell == "fish" else "--"
    for flags in flag_sets():
        assert all(
            before + flag.name in made.stdout for flag in flags.flags if flag.support is not Support.REFUSED
        )
    if shutil.which(shell) is not None:
        (tmp_path / "completion").write_text(made.stdout)
        subprocess.run([shell, "-n", tmp_path / "completion"], check=True)
    assert "did you mean 'zsh'?" in jitree("completion", "zs").stderr


def test_a_path_of_thousands_of_folders_that_are_not_there() -> None:
    """One call inside another for each folder filled the stack."""
    outcome = jitree("dump", "a/" * 2000 + "b.vmfb")
    assert outcome.code == 1 and "NOT_FOUND" in outcome.stderr and "RecursionError" not in outcome.stderr
