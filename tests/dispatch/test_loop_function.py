"""The loop as a function of Numba's: programs run by it as by its image."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_HERE = Path(__file__).parent
TABLE = ("buffers", "context", "control", "lists", "refs", "values", "waiting")
"""Tests that are made for every tier."""


def test_the_table_of_programs_runs_through_the_function() -> None:
    files = [str(_HERE / f"test_{name}.py") for name in TABLE]
    plugins = ["-p", "tests.dispatch.loop_function", "-n", "0", "-p", "no:cacheprovider"]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, "-k", "fast", *files],
        cwd=_HERE.parents[1], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=280,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout[-4000:]
    assert " passed" in result.stdout
    assert "calls of the function:" in result.stdout
    calls = int(result.stdout.partition("calls of the function: ")[2].split()[0])
    assert calls > 200
