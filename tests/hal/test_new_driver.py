"""A driver is added by a folder, as CONTRIBUTING.md says, and all of the package has it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_PROGRAM = """
import numpy, jitree
with jitree.Session("mine") as session:
    call = session.load("perf/programs/call.vmfb")
    x = numpy.ones(16, "f4")
    assert session.device.uri == "mine://" and not numpy.asarray(call.add(x, x)).any()
"""


def test_a_folder_is_enough(tmp_path: Path) -> None:
    """The commands of CONTRIBUTING.md as they stand there, and the device that they make."""
    for part in ("jitree", "tests", "perf"):
        shutil.copytree(_ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    commands = _recipe()
    assert [command.partition(" ")[0] for command in commands] == ["cp", "sed"]
    for command in commands:
        subprocess.run(["sh", "-euc", command], cwd=tmp_path, timeout=60, check=True)
    folder = tmp_path / "jitree" / "mine"
    texts = [file.read_text(encoding="utf-8") for file in sorted(folder.glob("*.py"))]
    assert len(texts) == 3 and not any("null" in text.lower() for text in texts), "all names are the new ones"
    _run(tmp_path, "-m", "ruff", "check", "--config", str(_ROOT / "pyproject.toml"), str(folder))
    _run(tmp_path, "-c", _PROGRAM)
    assert "mine: executes nothing" in _run(tmp_path, "-m", "jitree", "devices", "--list_drivers")
    files = [f"tests/{name}.py" for name in ("hal/test_driver", "hal/test_buffer", "test_layers")]
    passed = _run(tmp_path, "-m", "pytest", "-q", "-n", "0", "-k", "mine", *files)
    assert "passed" in passed and "failed" not in passed


def _recipe() -> list[str]:
    text = (_ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.partition("### Add a driver")[2].partition("### Add a command")[0]
    return re.findall(r"^\$ (.+)$", section, re.MULTILINE)


def _run(folder: Path, *arguments: str) -> str:
    result = subprocess.run(
        [sys.executable, "-P", *arguments], cwd=folder, env={**os.environ, "PYTHONPATH": str(folder)},
        text=True, timeout=200, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout[-4000:]
    return result.stdout
