"""Little stack: of the threads that calls come from, or of a process (:mod:`tests.fuzz.stacks`)."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.stacks import SMALLEST

ROOT = Path(__file__).parents[2]
LIMIT = 4 * SMALLEST
"""Of a process. numpy alone ends one whose first thread has 64 KiB."""


def _limited() -> None:
    resource.setrlimit(resource.RLIMIT_STACK, (LIMIT, LIMIT))


@pytest.mark.parametrize("is_of_threads", [True, False])
def test_nothing_ends_the_process_where_there_is_little_stack(is_of_threads: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.stacks", *([str(SMALLEST)] if is_of_threads else [])],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
        preexec_fn=None if is_of_threads else _limited,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
