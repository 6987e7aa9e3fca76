"""What importer and compiler have said of models that they refused, and what is made of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jitree.compiling.models import explain
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


def test_names_are_as_the_file_has_them() -> None:
    """MLIR prints bytes of UTF-8 and quotes as their numbers."""
    nodes = {'日"本\\': NodePlace("Relu", "node 0 of 1")}
    found = explain('error: loc("\\E6\\97\\A5\\22\\E6\\9C\\AC\\\\"): no way\n', nodes)
    assert str(found) == """Relu '日"本\\' (node 0 of 1): no way"""


def test_what_the_compiler_says_of_its_flags() -> None:
    assert "flag of iree-compile" in str(
        explain("iree-compile: Unknown command line argument '--x'.  Try: …", {})
    )
    assert str(explain("iree-compile: Something else\n", {})) == "Something else"
    log = (
        "'x' is not a recognized processor\nLLVM ERROR: 64-bit code requested on a subtarget that doesn't …\n"
    )
    assert "(--processor=)" in str(explain(log, {}))


def test_long_messages_are_cut() -> None:
    found = explain("error: " + "x" * 5000, {})
    assert len(str(found)) < 400
    assert str(found).endswith("x …")


def test_rows_of_the_table_are_complete() -> None:
    from jitree.compiling import models

    rows = models._rows()
    assert len(rows) > 5
    for row in rows:
        assert row.reason and row.remedy
        named = set(re.findall(r"{(\w+)}", row.reason + row.remedy))
        assert named <= {"operator", *row.pattern.groupindex}
