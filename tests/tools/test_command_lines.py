"""Command lines as people type them, and what they are told."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

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
    ("dump", "--version"): "jitree 0.",
    ("cache", "--version"): "jitree 0.",
    ("run", "--flagfile=version.flags"): "jitree 0.",
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
    ("dump", "cut.vmfb"): "truncated: the header says 21,077 bytes, the file has 20,954",
    ("run", "cut.vmfb"): "truncated: the header says 21,077 bytes, the file has 20,954",
    ("run", "cut2.vmfb"): "truncated: the header says ",
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
    assert outcome.code == 1 and outcome.stdout == ""
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
