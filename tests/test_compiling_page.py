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
from jitree.dispatch.bytecode_module import BytecodeModule
from jitree.dispatch.variants import find_variants

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "compiling.md").read_text()
SNIPPETS = "\n".join(re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
COMMANDS = re.findall(r"^\$ (iree-compile .*)$", PAGE, re.MULTILINE)
COMPILER = "iree.compiler.tools.scripts.iree_compile"
X = np.arange(4, dtype=np.float32)


def test_snippets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("JITREE_CACHE_DIR", str(tmp_path))
    exec(compile(SNIPPETS, str(ROOT / "docs" / "compiling.md"), "exec"), {})


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
