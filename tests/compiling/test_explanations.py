"""What importer and compiler have said of models that they refused, and what is made of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jitree.compiling.explanations import explain
from jitree.compiling.onnx_files import NodePlace

NODES = {
    "/decoder/If": NodePlace("If", "node 41 of 96, makes 'out' of 'condition'"),
    "conv1": NodePlace("Conv", "node 0 of 2, makes 'y' of 'x', 'w'"),
}

ROWS = [
    line.split("\t")
    for line in Path(__file__).with_name("recorded.tsv").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
]


@pytest.mark.parametrize(("message", "expected"), ROWS)
def test_recorded_messages(message: str, expected: str) -> None:
    found = explain(f"a warning\n{message}\nmore: error: of what follows\n", NODES)
    assert str(found) == expected


def test_a_log_without_an_error() -> None:
    assert explain("", {}) is None
    assert explain("warning: careful\nKilled\n", {}) is None


def test_long_messages_are_cut() -> None:
    found = explain("error: " + "x" * 5000, {})
    assert len(str(found)) < 400
    assert str(found).endswith("x …")


def test_rows_of_the_table_are_complete() -> None:
    from jitree.compiling import explanations

    rows = explanations._rows()
    assert len(rows) > 5
    for row in rows:
        assert row.reason and row.remedy
        named = set(re.findall(r"{(\w+)}", row.reason + row.remedy))
        assert named <= {"operator", *row.pattern.groupindex}
