"""Processes that end while a session is in some state end with their own status, and say nothing of a crash.

:mod:`tests.fuzz.endings` has the table of states and ends.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import pytest

from tests.fuzz.endings import AWAITED, ENDS, STATES, said
from tests.hal.helpers import wait_until

ROOT = Path(__file__).parents[2]
SAYING = {"an exception": "PlannedError: planned", "SIGINT": "KeyboardInterrupt"}
"""What Python itself says of an end, after where it came."""
NOTICE = "jitree: building native code"


@pytest.fixture(scope="module")
def parent() -> Iterator[subprocess.Popen[str]]:
    """Forks the processes of all tests, and has imported for them."""
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.fuzz.endings"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as made:
        yield made


def processes(
    parent: subprocess.Popen[str], state: str, ends: list[str], folder: Path
) -> dict[str, tuple[int, str]]:
    """The process of each end, and how it has ended."""
    assert parent.stdin and parent.stdout
    print(state, folder, *ends, sep="\t", file=parent.stdin, flush=True)
    rows = [line.rstrip("\n").split("\t") for line in takewhile(str.strip, parent.stdout)]
    return {end: (int(process), how) for end, process, how in rows}


def is_left(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("state", [*STATES, AWAITED])
def test_a_process_ends_as_it_is_told_to(parent: subprocess.Popen[str], state: str, tmp_path: Path) -> None:
    ends = [end for end in ENDS if state != AWAITED or end != "its last line"]
    ended = processes(parent, state, ends, tmp_path)
    assert [*ended] == ends
    for end, (process, how) in ended.items():
        heard, complaint = (Path(said(str(tmp_path), end, number)).read_text() for number in (1, 2))
        lines = [line for line in complaint.splitlines() if not line.startswith(NOTICE)]
        assert heard == "reached\n", complaint
        assert how == str(ENDS[end][1]), complaint
        assert lines[-1:] == [SAYING[end]] if end in SAYING else not lines, complaint
        if "build" not in state:  # what is built outlives a process
            wait_until(lambda group=process: not is_left(group))  # type: ignore[misc]
