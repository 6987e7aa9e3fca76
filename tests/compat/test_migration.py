"""Both columns of the table in ``docs/migrate.md`` run, and come to the same."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

import jitree
import jitree.compat.iree_runtime as rt
from tests.compat.transcript import FOLDER, read

ROOT = Path(__file__).resolve().parent.parent.parent
PATH = ROOT / "tests" / "data" / "releases" / "simple_mul-3.13.0.vmfb"


def columns() -> tuple[list[str], list[str]]:
    text = (ROOT / "docs" / "migrate.md").read_text()
    table = text.partition("| iree.runtime | jitree |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (?:`(.+?)`)? ?\| (?:`(.+?)`)? ?\|$", table, re.MULTILINE)
    left, right = zip(*rows, strict=True)
    return [line for line in left if line], [line for line in right if line]


def run(lines: list[str]) -> dict[str, Any]:
    scope: dict[str, Any] = {
        "rt": rt, "jitree": jitree, "np": np, "path": PATH, "data": PATH.read_bytes(),
        "x": np.arange(4, dtype=np.float32),
    }  # fmt: skip
    exec("\n".join(lines), scope)
    return scope


def test_both_columns_come_to_the_same() -> None:
    left, right = columns()
    assert len(left) == 15 and len(right) == 12
    theirs, ours = run(left), run(right)
    for name in ("host", "again"):
        np.testing.assert_array_equal(theirs[name], ours[name])
    assert theirs["names"] == ours["names"] and theirs["declared"] == ours["declared"]
    assert theirs["drivers"] == sorted(ours["drivers"])
    assert theirs["one"].name == ours["one"].name


def test_the_differences_are_those_that_are_recorded() -> None:
    """What stands in the table is what the transcripts say, which are run."""
    text = (ROOT / "docs" / "migrate.md").read_text()
    table = text.partition("| Call | iree.runtime 3.13 | jitree |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `(.+?)` \| (.+?) \| `(.+?)` \|$", table, re.MULTILINE)
    assert len(rows) == table.count("\n") - 1
    steps = {step.text: step for path in FOLDER.glob("*.txt") for group in read(path) for step in group.steps}
    for call, there, here in rows:
        step = steps[call]
        assert step.here and shown(step.here) == here, call
        assert there[0] != "`" or f"`{shown(step.there)}`" == there, call


def shown(outcome: str) -> str:
    """A value without its type, or the name of an error."""
    kind, _, value = outcome.partition(" ")
    return kind[:-1] if kind.endswith(":") else value
