"""Modules of the package that are loaded anew: unsupported, but nothing crashes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import gc, importlib, sys
import numpy as np
import jitree
from jitree.errors import StatusError
from tests.api.programs import ARITHMETIC, ASYNCHRONOUS

def attempt(action):
    try:
        action()
    except Exception:  # classes of one name are two now
        pass

def opened():
    with jitree.Session("local-sync") as new:
        new.load(ARITHMETIC)
        new["arithmetic.add"](x, x)

x = np.ones(4, np.float32)
session = jitree.Session("local-task")
session.load(ARITHMETIC, ASYNCHRONOUS)
kept = [session["arithmetic.add"](x, x) for _ in range(20)]
modules = [module for name, module in sys.modules.items() if name.partition(".")[0] == "jitree"]
for module in modules[::int(sys.argv[1])]:
    attempt(lambda: importlib.reload(module))  # of records, some may be of the old class
for action in (
    lambda: session["arithmetic.add"](x, x), lambda: kept[0].tolist(),
    lambda: session["asynchronous.add"].submit(x, x).tolist(), opened, kept.clear, session.close, gc.collect,
):
    attempt(action)
print(len(modules) > 100)
"""


@pytest.mark.parametrize("order", [1, -1])
def test_all_modules_are_loaded_anew(order: int) -> None:
    """What the process had made before went on with its end as memory of the interpreter was gone."""
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(order)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.stderr == ""
    assert (ended.returncode, ended.stdout) == (0, "True\n")
