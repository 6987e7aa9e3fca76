"""What programs of a sandbox want of the system they do not get, whatever they call."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from jitree.codegen.image.shipped import STAMP_VARIABLE

ROOT = Path(__file__).resolve().parents[2]


def test_programs_reach_nothing_outside() -> None:
    """``python -m tests.security.random_imports 30000`` makes more of them. With the images that are shipped:
    others are built, by a process, before the first program."""
    command = [sys.executable, "-m", "tests.security.random_imports", "200", "1"]
    variables = {name: value for name, value in os.environ.items() if name != STAMP_VARIABLE}
    result = subprocess.run(
        command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == ""
    assert "OK" in result.stderr and "PERMISSION_DENIED" in result.stderr
