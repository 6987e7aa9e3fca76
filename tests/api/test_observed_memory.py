"""What looks at a call takes little memory beside it: of a process with 190 MB of tensors, at most. It may
leave at any time."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from jitree import Session
from jitree.errors import CancelledError
from jitree.observe.observation import Onlooker
from jitree.observe.tensors import ObservedDispatch
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


class _Leaving(Onlooker):
    """Looks at one dispatch, leaves, and has the call cancelled."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def looks_at(self, dispatch: ObservedDispatch) -> None:
        self._session._observed().remove(self)
        self._session.cancel()


@pytest.mark.parametrize("device", ["local-sync", "local-task://?threads=2"])
def test_the_last_one_leaves_as_the_call_is_cancelled(device: str) -> None:
    """Machine code told of the failure where nobody was to be told any more: the process ended."""
    session = Session(device)
    layers = session.load(PROGRAMS / "chain.vmfb").layers
    x = np.ones((4, 8), np.float32)
    for _ in range(50):
        layers(x)
    for _ in range(3):
        with session.looked_at(_Leaving(session)), suppress(CancelledError):  # or it is done before
            layers(x)
    assert layers(x).shape == (4, 8)
