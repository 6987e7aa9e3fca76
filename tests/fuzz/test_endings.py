"""Processes that end while a session is in some state end with their own status, and say nothing of a crash.

:mod:`tests.fuzz.endings` has the table of states and ends.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.endings import AWAITED, ENDS, STATES
from tests.hal.helpers import wait_until

ROOT = Path(__file__).parents[2]
SECONDS = 120.0
SAYING = {"an exception": "PlannedError: planned", "SIGINT": "KeyboardInterrupt"}
"""What Python itself says of an end, after where it came."""
NOTICE = "jitree: building native code"


def begin(state: str, end: str, folder: Path) -> subprocess.Popen[str]:
    """Images are in the test's folder, where they are what is built."""
    surroundings = os.environ | ({"JITREE_CACHE_DIR": str(folder)} if "build" in state else {})
    return subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-m", "tests.fuzz.endings", state, end],
        cwd=ROOT, env=surroundings, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


def is_left(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("state", [*STATES, AWAITED])
def test_a_process_ends_as_it_is_told_to(state: str, tmp_path: Path) -> None:
    ends = [end for end in ENDS if state != AWAITED or end != "its last line"]
    processes = {end: begin(state, end, tmp_path) for end in ends}
    try:
        for end, process in processes.items():
            said, complaint = process.communicate(timeout=SECONDS)
            lines = [line for line in complaint.splitlines() if not line.startswith(NOTICE)]
            assert said == "reached\n", complaint
            assert process.returncode == ENDS[end][1], complaint
            assert lines[-1:] == [SAYING[end]] if end in SAYING else not lines, complaint
            if "build" not in state:  # what is built outlives a process
                wait_until(lambda group=process.pid: not is_left(group))  # type: ignore[misc]
    finally:
        for process in processes.values():
            process.kill()
