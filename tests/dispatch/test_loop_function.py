"""The loop as a function of Numba's: programs run by it as by its image, and images give its results."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from jitree.codegen.image import shipped

_ROOT = Path(__file__).parents[2]


def _printed(kind: str, log: int | None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.codegen.image_results", kind],
        cwd=_ROOT, stdout=subprocess.PIPE, stderr=log, text=True, timeout=280,
    )  # fmt: skip


@pytest.fixture(scope="module")
def by_function() -> subprocess.CompletedProcess[str]:
    """One process for both tests: to compile the function takes most of their time."""
    return _printed("function", subprocess.PIPE)


def test_the_table_of_programs_runs_through_the_function(
    by_function: subprocess.CompletedProcess[str],
) -> None:
    assert by_function.returncode == 0, by_function.stderr[-4000:]
    assert " passed" in by_function.stderr
    calls = int(by_function.stderr.partition("calls of the function: ")[2].split()[0])
    assert calls > 200


@pytest.mark.skipif(shipped.fitting_level() is None, reason="no image fits this processor and these sources")
def test_results_are_alike_at_all_levels_and_those_of_the_function(
    by_function: subprocess.CompletedProcess[str],
) -> None:
    """They depend neither on what the processor has nor on what compiles the loop."""
    levels = list(shipped.LEVELS)
    fitting = shipped.fitting_level()
    assert fitting is not None
    machine, _ = shipped.LEVELS[fitting]
    lesser = [level for level in levels[levels.index(fitting) :] if shipped.LEVELS[level][0] == machine]
    printed = {"function": by_function.stdout}
    for level in lesser:
        done = _printed(level, None)
        assert done.returncode == 0
        printed[level] = done.stdout
    assert len(printed["function"].splitlines()) > 150
    if "x86-64-v2" in printed:  # it cannot fuse the multiplications and additions of products of f32
        fused = next(line for line in printed["function"].splitlines() if line.startswith("products 0 "))
        printed["x86-64-v2"] = re.sub(r"(?m)^products 0 .*$", fused, printed["x86-64-v2"])
    assert set(printed.values()) == {printed["function"]}
