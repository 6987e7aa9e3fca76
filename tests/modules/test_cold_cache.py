"""The first process with an empty cache: machine code is built beside a running program, which adopts it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]

_PROGRAM = """
from jitree import Session
from jitree.dispatch import image
from jitree.dispatch.fast.engine import LOOP
from jitree.hal.local import walk_image
from jitree.modules.hal.native import image as hal, supply
from tests.modules.hal_programs import ROWS
from tests.modules.test_hal_native import outcome, whole_call

OWN = [LOOP, hal.RECIPE, walk_image.RECIPE]
module = whole_call(ROWS).module("m")
running = Session("local-sync", tier="auto")
running.load(module)
assert all(image.provider(recipe).is_building for recipe in OWN), "one after the other"
expected = outcome(running, "m")

forced = Session("local-sync", tier="fast")
assert all(image.provider(recipe).image is not None for recipe in OWN), "not waited for"
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


def test_the_running_process_takes_up_what_is_built(tmp_path: Path) -> None:
    environment = os.environ | {"JITREE_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(_ROOT)}
    environment.pop("JITREE_TIER", None)
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "building" in done.stderr
