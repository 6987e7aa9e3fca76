"""A compiler that is a script: it writes a module that is there already, or what it is told to."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from jitree.compiling import programs

ROOT = Path(__file__).resolve().parents[2]
MODULE = ROOT / "perf" / "programs" / "call.vmfb"
SOURCE = ROOT / "perf" / "programs" / "call.mlir"

SCRIPT = """#!{python}
import os, pathlib, subprocess, sys, time
folder = pathlib.Path(__file__).parent
(folder / "arguments").write_text("\\n".join(sys.argv[1:]))
target = sys.argv[sys.argv.index("-o") + 1]
if (folder / "sleeps").exists():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (folder / "number").write_text(str(child.pid))
    (folder / "number").rename(folder / "child")
    time.sleep(600)
if (folder / "warns").exists():
    sys.stderr.write((folder / "warns").read_text())
if (folder / "says").exists():
    pathlib.Path(target).write_bytes(b"half a module")
    sys.stderr.write((folder / "says").read_text())
    sys.exit(1)
pathlib.Path(target).write_bytes(pathlib.Path({module!r}).read_bytes())
"""


class ScriptedCompiler:
    """What the script is told, by files beside it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def says(self, text: str) -> None:
        """It fails from now on, with these messages."""
        (self._folder / "says").write_text(text)

    def warns(self, text: str) -> None:
        """It says so, and succeeds."""
        (self._folder / "warns").write_text(text)

    def sleeps(self) -> None:
        """It takes ten minutes, and has a child that does so."""
        (self._folder / "sleeps").write_text("")

    @property
    def has_child(self) -> bool:
        return (self._folder / "child").exists()

    @property
    def child(self) -> int:
        return int((self._folder / "child").read_text())

    @property
    def arguments(self) -> list[str]:
        return (self._folder / "arguments").read_text().split("\n")


@pytest.fixture
def no_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if neither the compiler nor onnxruntime were installed."""
    monkeypatch.setattr(programs, "_spec", lambda name: None)
    monkeypatch.setenv("PATH", "")


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_packages: None) -> ScriptedCompiler:
    """A compiler on the search path, the only one."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "iree-compile"
    script.write_text(SCRIPT.format(python=sys.executable, module=str(MODULE)))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    return ScriptedCompiler(folder)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The source of the module that the script writes."""
    path = tmp_path / "call.mlir"
    shutil.copy(SOURCE, path)
    return path
