"""Where programs are found that compile, and what is said where they crash."""

from __future__ import annotations

import sys
import time
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from jitree.compiling import programs
from jitree.compiling.programs import CompilerWork, MessageLog, compiler


@pytest.fixture
def work(tmp_path: Path) -> CompilerWork:
    return CompilerWork(str(tmp_path), MessageLog(str(tmp_path / "log")), time.monotonic() + 60, print)


def peer_that(says: str, work: CompilerWork, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter that does so, whatever it is to run."""
    script = Path(work.path("python"))
    script.write_text(f"#!/bin/sh\n{says}\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    monkeypatch.setattr(programs, "_spec", lambda name: ModuleSpec(name, None))


def test_a_crash_of_onnxruntime_is_a_reason(work: CompilerWork, monkeypatch: pytest.MonkeyPatch) -> None:
    peer_that("kill -SEGV $$", work, monkeypatch)
    assert work.ask_peer("fold", "a", work.path("b")) == "onnxruntime has crashed (SIGSEGV)"


def test_what_onnxruntime_says_last_is_the_reason(
    work: CompilerWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer_that("echo first; echo last >&2; exit 1", work, monkeypatch)
    assert work.ask_peer("run", "a", work.path("b")) == "onnxruntime refuses the model: last"
    peer_that("exit 3", work, monkeypatch)
    assert work.ask_peer("run", "a", work.path("b")) == "onnxruntime refuses the model: exit status 3"
    peer_that("exit 0", work, monkeypatch)
    assert work.ask_peer("run", "a", work.path("b")) == ""


def test_without_onnxruntime(work: CompilerWork, no_packages: None) -> None:
    reason = work.ask_peer("fold", "a", work.path("b"))
    assert reason == "onnxruntime is not installed (pip install onnxruntime)"


def test_the_compiler_of_the_packages_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "package" / "_mlir_libs"
    other = tmp_path / "bin"
    for folder in (library, other):
        folder.mkdir(parents=True)
        (folder / "iree-compile").write_text("#!/bin/sh\n")
        (folder / "iree-compile").chmod(0o755)
    monkeypatch.setenv("PATH", str(other))
    spec = ModuleSpec("iree.compiler", None, is_package=True)
    assert spec.submodule_search_locations is not None
    spec.submodule_search_locations.append(str(tmp_path / "package"))
    monkeypatch.setattr(programs, "_spec", lambda name: spec)
    assert compiler() == [str(library / "iree-compile")]
    monkeypatch.setattr(programs, "_spec", lambda name: None)
    assert compiler() == [str(other / "iree-compile")]
