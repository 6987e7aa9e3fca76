"""Commands and snippets of ``docs/compiling.md`` work as they stand there."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import jitree
from jitree.dispatch.variants import find_variants
from jitree.tools.compile import FLAGS
from jitree.vmfb.decode import BytecodeModule
from tests.api.onnx_files import chain
from tests.compiling.steps import steps_once as steps_once
from tests.tools.command import jitree as jitree_command

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "compiling.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
COMPILING = [block for block in BLOCKS if "jitree.compile(" in block]
SNIPPETS = "\n".join(block for block in BLOCKS if block not in COMPILING)
ONNX_COMMANDS = re.findall(r"^\$ jitree (compile .*)$", PAGE, re.MULTILINE)
COMMANDS = re.findall(r"^\$ (iree-compile .*)$", PAGE, re.MULTILINE)
COMPILER = "iree.compiler.tools.scripts.iree_compile"
X = np.arange(4, dtype=np.float32)


def test_snippets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("JITREE_CACHE_DIR", str(tmp_path))
    exec(compile(SNIPPETS, str(ROOT / "docs" / "compiling.md"), "exec"), {})


@pytest.fixture
def onnx_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, steps_once: None) -> None:
    """A file of that name where commands are given, and what compiles it."""
    for package in ("onnx", "onnxruntime", "iree.compiler.extras.onnx_importer"):
        pytest.importorskip(package, reason="needs pip install 'jitree[compile]' onnxruntime")
    (tmp_path / "model.onnx").write_bytes(chain([np.ones((4, 4), np.float32)], 3))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("snippet", COMPILING)
def test_snippets_that_compile(snippet: str, onnx_model: None) -> None:
    exec(compile(snippet, str(ROOT / "docs" / "compiling.md"), "exec"), {})
    assert jitree.inspect("model.vmfb").functions


@pytest.mark.parametrize("command", ONNX_COMMANDS)
def test_commands_for_models(command: str, onnx_model: None) -> None:
    outcome = jitree_command(*shlex.split(command))
    assert outcome.code == 0, outcome.stderr
    first, second = outcome.stdout.splitlines()
    assert first.startswith("model.vmfb: vmvx: sync func @main(%x: tensor<3x4xf32>) -> (")
    assert re.fullmatch(r"model\.vmfb: largest error against onnxruntime \S+ of the largest value", second)


def test_the_page_has_each_flag() -> None:
    named = {name.replace("-", "_") for name in re.findall(r"`--([a-z-]+)=", PAGE)}
    own = {flag.name for flag in FLAGS.flags} - {
        "help",
        "version",
        "verbose",
        "flagfile",
        "model",
        "output",
        "o",
    }
    assert own <= named


@pytest.mark.parametrize("command", COMMANDS)
def test_commands(command: str, tmp_path: Path) -> None:
    pytest.importorskip("iree.compiler")
    shutil.copy(ROOT / "tests" / "data" / "programs" / "arithmetic.mlir", tmp_path / "model.mlir")
    words = [sys.executable, "-m", COMPILER, *shlex.split(command)[1:]]
    subprocess.run(words, cwd=tmp_path, check=True, timeout=120, capture_output=True)
    module = BytecodeModule.load(tmp_path / "model.vmfb")
    backends = [name for name in ("vmvx", "llvm-cpu") if f"backends={name}" in command]
    assert (find_variants(module) is not None) == (len(backends) == 2)
    if backends:  # the rest is for a GPU
        with jitree.Session("local-sync") as session:
            np.testing.assert_array_equal(session.load(module).add(X, X), X + X)
