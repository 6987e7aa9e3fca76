"""Streams that cannot be written, or are not there: one line says what, and none of it is a defect."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import jitree
from jitree.errors import UnavailableError, printable, tell
from jitree.tools.main import COMMANDS, dispatch, guarded, keep_standard_numbers
from tests.tools.command import ECHO, PROGRAMS, ROOT
from tests.tools.command import jitree as run

RUN = ["run", "--device=local-sync", f"--module={ECHO}", "--function=e1_f32", "--input=4xf32=1"]
BENCHMARK = ["benchmark", *RUN[1:], "--benchmark_min_time=1x"]
WRITERS: list[Sequence[str]] = [
    RUN, [*RUN, "--output=-"], BENCHMARK, [*BENCHMARK, "--benchmark_format=json"], ["dump", str(ECHO)],
    ["dump", "--output=disassembly", str(ECHO)], ["dump", "--output=flatbuffer-binary", str(ECHO)],
    ["dump", "--output=flatbuffer-json", str(ECHO)], ["dump", "--tiers", str(ECHO)], ["cache", "list"],
    ["devices"], ["--help"], ["--version"], *([command, "--help"] for command in COMMANDS),
]  # fmt: skip


@pytest.fixture(params=["full", "closed"])
def broken(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A stream that nothing can be written to; None is what Python makes of one that is closed."""
    if request.param == "closed":
        yield None
        return
    file = open("/dev/full", "w", encoding="utf-8")
    yield file
    with suppress(OSError):
        file.close()


@pytest.mark.parametrize("arguments", WRITERS, ids=" ".join)
def test_output_that_cannot_be_written(
    arguments: Sequence[str], broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = io.StringIO()
    monkeypatch.setattr(sys, "stdout", broken)
    monkeypatch.setattr(sys, "stderr", messages)
    assert dispatch(arguments) == 1
    *_, last = messages.getvalue().splitlines()
    reason = "it is closed" if broken is None else "No space left on device"
    assert last.endswith(f"UNAVAILABLE; standard output cannot be written: {reason}")
    assert "defect" not in messages.getvalue() and "Traceback" not in messages.getvalue()


@pytest.mark.parametrize(
    "arguments", [RUN, BENCHMARK, ["devices"], [*RUN, "--trace_execution"]], ids=" ".join
)
def test_messages_that_cannot_be_written(
    arguments: Sequence[str], broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody wants them: the command does what it does otherwise, and prints no message among its output."""
    expected = run(*arguments)
    output = io.StringIO()
    monkeypatch.setattr(sys, "stdout", output)
    monkeypatch.setattr(sys, "stderr", broken)
    monkeypatch.setenv("JITREE_TIER", "plain")
    assert dispatch(arguments) == expected.code == 0
    assert len(output.getvalue().splitlines()) == len(expected.stdout.splitlines()) > 0


@pytest.mark.parametrize("arguments", [["--nothing"], ["run", "--nothing"], ["cache"]], ids=" ".join)
def test_errors_that_cannot_be_written(
    arguments: Sequence[str], broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = io.StringIO()
    monkeypatch.setattr(sys, "stdout", output)
    monkeypatch.setattr(sys, "stderr", broken)
    assert dispatch(arguments) == 1 and output.getvalue() == ""


def test_processes_end_as_they_should(tmp_path: Path) -> None:
    """Also by what Python writes when it ends."""
    program = f"exec {sys.executable} -m jitree {' '.join(RUN)} {{}}"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JITREE_TIER": "plain"}

    def ended(redirections: str) -> tuple[int, str]:
        command = ["sh", "-c", program.format(redirections)]
        done = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True, timeout=120)
        return done.returncode, done.stderr

    for redirection, reason in ((">/dev/full", "No space left on device"), (">&-", "it is closed")):
        code, said = ended(redirection)
        assert code == 1 and said.endswith(f"standard output cannot be written: {reason}\n")
        assert len(said.splitlines()) == 1
    for redirection in ("2>/dev/full", "2>&-"):
        assert ended(f">{tmp_path}/out {redirection}") == (0, "")
        assert (tmp_path / "out").read_text().startswith("EXEC @e1_f32\n")
    assert ended(f"--output=@{tmp_path}/a.npy >/dev/null 2>&- <&-") == (0, "")
    assert (tmp_path / "a.npy").read_bytes().startswith(b"\x93NUMPY")


def test_numbers_of_standard_streams_stay_theirs(tmp_path: Path) -> None:
    """What native code says is not written into a file that was opened later."""
    program = (
        "import os; from jitree.tools.main import keep_standard_numbers\n"
        "os.closerange(0, 3); keep_standard_numbers()\n"
        f"file = os.open({str(tmp_path / 'numbers')!r}, os.O_WRONLY | os.O_CREAT)\n"
        "os.write(2, b'lost'); os.write(file, b'%d' % file)"
    )
    subprocess.run([sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True)
    assert int((tmp_path / "numbers").read_text()) > 2
    before = os.fstat(1).st_ino
    keep_standard_numbers()
    assert os.fstat(1).st_ino == before


@pytest.mark.parametrize("arguments", [["dump", "-"], ["run", "--module=-", "--function=f"]], ids=" ".join)
def test_input_that_is_closed(
    arguments: Sequence[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert dispatch(arguments) == 1
    assert "UNAVAILABLE; standard input cannot be read: it is closed" in capsys.readouterr().err
    with jitree.Session("local-sync") as session, pytest.raises(UnavailableError, match="it is closed"):
        session.load("-")


def test_closed_pipes_end_a_command_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    messages = io.StringIO()
    with open(writing, "w", encoding="utf-8") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        monkeypatch.setattr(sys, "stderr", messages)
        assert dispatch(["--help"]) == 1
    assert messages.getvalue() == ""


def failing(error: BaseException) -> int:
    def command(arguments: Sequence[str]) -> int:
        raise error

    return guarded(command, [])


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            OSError(28, "No space left on device", "x"),
            "UNAVAILABLE; the system refuses it: [Errno 28] No space",
        ),
        (PermissionError(13, "Permission denied"), "UNAVAILABLE; the system refuses it: [Errno 13] Perm"),
        (MemoryError(), "RESOURCE_EXHAUSTED; there is not enough memory: MemoryError"),
        (
            ModuleNotFoundError("No module named 'llvmlite.binding'", name="llvmlite.binding"),
            "UNAVAILABLE; the Python package llvmlite is not installed; numba and llvmlite compile machine "
            "code: pip install jitree brings them",
        ),
        (
            ImportError("libLLVM.so: no such file"),
            "UNAVAILABLE; a Python package cannot be imported: libLLVM",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_defect(error: Exception, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert failing(error) == 1
    said = capsys.readouterr().err
    assert text in said and "defect" not in said and len(said.splitlines()) == 1


def test_texts_of_other_encodings(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(raw, encoding="ascii", write_through=True))
    assert run("dump", str(PROGRAMS / "\udcff\u00e9\udc80.vmfb")).code == 1
    assert dispatch(["dump", str(PROGRAMS / "\udcff\u00e9\udc80.vmfb")]) == 1
    assert b"\\xff\\xe9\\x80.vmfb" in raw.getvalue()
    assert printable("\udcff\u00e9\udc80\x1b\ud800") == "\\xff\u00e9\\x80\\1B\\D800"


@pytest.mark.parametrize("kind", ["npz", "npy", "safetensors", "json", "bin"])
def test_files_that_cannot_be_written(kind: str, tmp_path: Path) -> None:
    full = tmp_path / f"full.{kind}"
    full.symlink_to("/dev/full")
    for mode in "@+":
        outcome = run(*RUN, f"--output={mode}{full}")
        assert outcome.code == 1
        if (mode, kind) == ("+", "npz"):
            assert "is not a numpy archive" in outcome.stderr, "a device is not read for it"
        else:
            assert f"UNAVAILABLE; unable to write file `{full}`: No space" in outcome.stderr


def test_messages_of_programs_without_a_stream(broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", broken)
    output = io.StringIO()
    monkeypatch.setattr(sys, "stdout", output)
    tell("building ...\n")
    assert output.getvalue() == ""
