"""Rows of tables in memory, as long as an interrupted frame has them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jitree

_PACKAGE = Path(jitree.__file__).parent
_SCRIPT = """
import gc, struct
from jitree.base.records import rows_of

class Holder:
    pass

rows = memoryview(bytes(16))  # older than what refers to it: the collector comes to it first
holder = Holder()
holder.circle, holder.numbers = holder, rows_of(struct.Struct("<q"), rows)
assert next(holder.numbers) == (0,)
del rows, holder
assert gc.collect()
"""


def test_rows_that_are_garbage_do_not_crash() -> None:
    """With what an iterator of ``struct`` over a memoryview does, the process ends."""
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr


def test_no_other_code_iterates_over_rows_of_memory() -> None:
    users = [path.name for path in _PACKAGE.rglob("*.py") if "iter_unpack(" in path.read_text("utf-8")]
    assert users == ["records.py"]
