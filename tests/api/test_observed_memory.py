"""What looks at a call takes little memory beside it: of a process with 190 MB of tensors, at most."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.api.programs import PROGRAMS

ROOT = Path(__file__).resolve().parent.parent.parent
_CODE = """
import sys, numpy as np, jitree
path, rows = sys.argv[1], 1 << 20
arguments = np.ones((rows, 16), np.float32), np.ones((16, 24), np.float32), np.ones((24, 8), np.float32)
def call(session):
    np.asarray(session.load(path).layers(*arguments))
{work}
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""
_SESSION = "with jitree.Session('local-sync') as session:\n    "
_LARGEST = (24 * 4) << 20
"""Bytes of the largest tensor."""


@cache
def most_bytes(work: str) -> int:
    """That a process which does it has at one time."""
    run = [sys.executable, "-c", _CODE.format(work=work), str(PROGRAMS / "variants.vmfb")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(run, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout) << 10


pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="the system does not say")


@pytest.mark.parametrize(
    "work",
    [
        "with session.tap(): call(session)",
        "with session.tap(keep=lambda dispatch: None): call(session)",
        "with session.tap(keep='tensors', path=PATH): call(session)",
    ],
    ids=["statistics", "a function", "a file"],
)
def test_taps(work: str, tmp_path: Path) -> None:
    work = work.replace("PATH", repr(str(tmp_path / "taps.npz")))
    assert most_bytes(_SESSION + work) <= 1.1 * most_bytes(_SESSION + "call(session)")


def test_whole_tensors_count_on_top() -> None:
    kept = most_bytes(_SESSION + "with session.tap(keep='tensors'): call(session)")
    assert kept >= 1.5 * most_bytes(_SESSION + "call(session)")


def test_a_check_of_values() -> None:
    check = "with jitree.Session('local-sync', check_finite=True) as session:\n    call(session)"
    assert most_bytes(check) <= 1.1 * most_bytes(_SESSION + "call(session)")


def test_two_calls_in_lock_step() -> None:
    difference = "assert jitree.diff((path, 'local-sync'), (path, 'local-task'), 'layers', arguments).equal"
    assert most_bytes(difference) <= 2.2 * most_bytes(_SESSION + "call(session)") + _LARGEST
