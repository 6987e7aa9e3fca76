"""A run under emulation that was cut off goes on with what is left (`tests/aarch64/outcomes.py`)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.aarch64 import outcomes

ROOT = Path(__file__).parents[1]
TESTS = """
import os, pathlib, pytest
def test_passes(): pass
def test_skips_itself(): pytest.skip("a reason")
@pytest.fixture
def wrong(): yield; assert False
def test_fails_at_its_end(wrong): pass
def test_ends_the_process(): os._exit(200)
@pytest.mark.parametrize("path", [os.getcwd() + "/x"])
def test_of_a_path(path): pass
"""


def test_the_next_run_has_what_is_left(tmp_path: Path) -> None:
    """Each run is in a tree of its own."""
    kept = tmp_path / "kept.tsv"
    codes = []
    for number in range(3):
        tree = tmp_path / f"tree.{number}"
        (tree / "tests/part").mkdir(parents=True)
        (tree / "tests/part/test_of_emulation.py").write_text(TESTS)
        command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", ".", "tests"]
        plugins = ["-p", "tests.aarch64.outcomes", "-p", "no:cacheprovider"]
        environment = os.environ | {outcomes.VARIABLE: str(kept), "PYTHONPATH": str(ROOT)}
        done = subprocess.run([*command, *plugins], cwd=tree, env=environment, capture_output=True, text=True)
        codes.append(done.returncode)
    assert codes == [200, 1, 1], done.stdout + done.stderr
    known = {test.partition("::")[2]: outcome for test, outcome in outcomes.outcomes(kept.open()).items()}
    assert known == {
        "test_passes": "passed",
        "test_skips_itself": "skipped",
        "test_fails_at_its_end": "failed",
        "test_ends_the_process": "started",
        "test_of_a_path[x]": "passed",
    }
    starts = [line for line in kept.read_text().splitlines() if line.startswith("started")]
    assert sum("test_passes" in line for line in starts) == 1
    assert sum("test_fails" in line for line in starts) == 3


def test_counts_are_rows_of_the_page() -> None:
    """By folder; files beside the folders are together."""
    known = outcomes.outcomes(
        ["started\ttests/hal/groups/test_a.py::test_a", "passed\ttests/hal/groups/test_a.py::test_a",
         "skipped\ttests/hal/test_b.py::test_a[a/b]", "failed\ttests/test_c.py::test_a"]
    )  # fmt: skip
    assert outcomes.counts(known) == ["| `tests` | 0 | 0 | 1 | 0 |", "| `tests/hal` | 1 | 1 | 0 | 0 |"]
