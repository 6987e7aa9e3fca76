"""A driver is added by a folder, as CONTRIBUTING.md says, and all of the package has it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_PROGRAM = """
import numpy, jitree
with jitree.Session("idle") as session:
    call = session.load("perf/programs/call.vmfb")
    x = numpy.ones(16, "f4")
    assert session.device.uri == "idle://" and not numpy.asarray(call.add(x, x)).any()
"""


def test_a_folder_is_enough(tmp_path: Path) -> None:
    """The null device under another name."""
    for part in ("jitree", "tests", "perf"):
        shutil.copytree(_ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    folder = tmp_path / "jitree" / "idle"
    shutil.copytree(_ROOT / "jitree" / "hal" / "null", folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in folder.iterdir():
        text = file.read_text(encoding="utf-8").replace("jitree.hal.null", "jitree.idle")
        file.write_text(text.replace('"null"', '"idle"'), encoding="utf-8")
    _run(tmp_path, "-c", _PROGRAM)
    assert "idle: executes nothing" in _run(tmp_path, "-m", "jitree", "devices", "--list_drivers")
    files = [f"tests/{name}.py" for name in ("hal/test_driver", "hal/test_buffer", "test_layers")]
    passed = _run(tmp_path, "-m", "pytest", "-q", "-n", "0", "-k", "idle", *files)
    assert "passed" in passed and "failed" not in passed


def _run(folder: Path, *arguments: str) -> str:
    result = subprocess.run(
        [sys.executable, "-P", *arguments], cwd=folder, env={**os.environ, "PYTHONPATH": str(folder)},
        text=True, timeout=200, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout[-4000:]
    return result.stdout
