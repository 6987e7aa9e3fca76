"""An instruction is added by a row and a function, as CONTRIBUTING.md says, and all of the package has it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.dispatch.new_instructions import ADDITIONS, add_to

_ROOT = Path(__file__).parents[2]
_WRITE_TABLES = """
import sys
from jitree.tools.ship_images import write_tables
write_tables()
assert "jitree.vmfb.opcode_table" not in sys.modules, "images would be made with the tables of before"
"""


def test_a_row_and_a_function_are_enough(tmp_path: Path) -> None:
    package = tmp_path / "jitree"
    shutil.copytree(_ROOT / "jitree", package, ignore=shutil.ignore_patterns("__pycache__", "*.image"))
    (tmp_path / "tests").symlink_to(_ROOT / "tests")
    text = (_ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.partition("### Add an instruction")[2].partition("### Add a release")[0]
    row, function = re.findall(r"^```\w+\n(.*?)^```", section, re.MULTILINE | re.DOTALL)[:2]
    add_to(package, row.strip(), "integer", function)
    for addition in ADDITIONS:
        add_to(package, addition.row, addition.family, addition.function)
    _with_fewer_superinstructions(package / "vmfb" / "superinstructions.py")
    _run(tmp_path, "-c", _WRITE_TABLES)
    _run(tmp_path, "-m", "tests.dispatch.new_instructions")


def _with_fewer_superinstructions(path: Path) -> None:
    """Half of what the loop takes to compile are superinstructions: those of comparisons and branches do."""
    text = path.read_text(encoding="utf-8")
    for whole, fewer in (
        ("(*_BRANCHES, *_STRAIGHT)", "_BRANCHES[: len(COMPARES)]"),
        ("product(_COMMON_SHAPES", "product(SHAPES[:1]"),
    ):
        assert text.count(whole) == 1
        text = text.replace(whole, fewer)
    path.write_text(text, encoding="utf-8")


def _run(folder: Path, *arguments: str) -> None:
    environment = {**os.environ, "JITREE_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": str(folder)}
    result = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, text=True, timeout=280, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout[-4000:]
