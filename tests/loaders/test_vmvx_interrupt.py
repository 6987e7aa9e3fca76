"""Ctrl-C in kernels that never end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = Path(__file__).parents[1] / "data" / "programs" / "endless.vmfb"
_SCRIPT = """
import os, signal, sys, threading
import numpy as np
import jitree

path, device, tier = sys.argv[1:]
search = jitree.load(path, device=device, tier=tier).f
begin = np.full(4096, 3, np.int32)
assert (np.asarray(search(begin, np.int32(7))) == 7).all()
for seconds in (0.0, 0.02, 0.2):
    kill = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
    try:
        kill.start()
        result = search(begin, np.int32(2))
    except KeyboardInterrupt:
        pass
    else:
        sys.exit(f"a result of a kernel that never ends: {np.asarray(result)}")
    kill.join()
    assert (np.asarray(search(begin, np.int32(7))) == 7).all()
"""


@pytest.mark.parametrize("tier", ["plain", "fast", "auto"])
@pytest.mark.parametrize("device", ["local-sync", "local-task://?threads=2"])
def test_an_endless_kernel_is_interrupted(device: str, tier: str) -> None:
    """On every thread that takes part; what follows is as usual, and the process ends."""
    program = [sys.executable, "-c", _SCRIPT, str(_PROGRAM), device, tier]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
