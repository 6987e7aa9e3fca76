"""The first process with an empty cache: machine code comes with the package, or is built beside the running
program, which adopts it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jitree.codegen.image import shipped

_ROOT = Path(__file__).parents[2]

_PROGRAM = """
from jitree import Session
from jitree.codegen import image
from jitree.dispatch.fast import LOOP
from jitree.hal.local import executor
from jitree.modules.hal import native as hal
from jitree.modules.hal.native import supply
from tests.modules.hal_programs import ROWS
from tests.modules.test_hal_native import outcome, whole_call

OWN = [LOOP, hal.RECIPE, executor.RECIPE]
module = whole_call(ROWS).module("m")
running = Session("local-sync", tier="auto")
running.load(module)
assert all(image._static[recipe.name].is_building for recipe in OWN), "one after the other"
expected = outcome(running, "m")

forced = Session("local-sync", tier="fast")
assert all(image._static[recipe.name].image is not None for recipe in OWN), "not waited for"
forced.load(module)
assert outcome(forced, "m") == expected

gave_up = []
refill = supply.Supplier.refill
supply.Supplier.refill = lambda supplier: (gave_up.append(1), refill(supplier))[1]
for session in (running, forced):
    for _ in range(20):
        gave_up.clear()
        assert outcome(session, "m") == expected
        if not gave_up:
            break
    assert not gave_up, f"tier {session.tier} still calls Python"
    session.close()
"""


def run(program: str, cache: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """The end of a process that ran a program in the project's folder."""
    environment = os.environ | {"JITREE_CACHE_DIR": str(cache), "PYTHONPATH": str(_ROOT)} | variables
    environment.pop("JITREE_TIER", None)
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=_ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_the_running_process_takes_up_what_is_built(tmp_path: Path) -> None:
    """As on a processor that no images are shipped for."""
    done = run(_PROGRAM, tmp_path, **{shipped.STAMP_VARIABLE: "none fits"})
    assert done.returncode == 0, done.stderr
    assert "building" in done.stderr


_FIRST_CALL = """
import sys
import numpy
import jitree
from jitree.codegen import image
from jitree.modules.hal.native import supply

called = []
image.Provider.start = lambda provider: called.append(provider.recipe.name)
session = jitree.Session("local-sync")
x = numpy.arange(16, dtype=numpy.float32)
add = session.load("perf/programs/call.vmfb").add
assert numpy.asarray(add(x, x)).tolist() == (x + x).tolist()
assert session.context.table.handle_pool is not None, "calls Python"
assert not called, called
print(sorted({"llvmlite", "numba", "subprocess"} & set(sys.modules)))
"""


@pytest.mark.skipif(shipped.fitting_level() is None, reason="no image fits this processor and these sources")
def test_the_first_call_runs_machine_code(tmp_path: Path) -> None:
    done = run(_FIRST_CALL, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
    assert not list(tmp_path.glob("*.image"))
