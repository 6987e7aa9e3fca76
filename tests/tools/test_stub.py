"""The Python module that `jitree stub` writes: only what the compiled one has, typed."""

from __future__ import annotations

import ast
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.assembler import Assembler
from tests.tools.command import PROGRAMS, jitree

USES = """
import numpy as np
from arithmetic import load

module = load()
sums = module.add(np.zeros(4), [1, 2, 3, 4])
module.absent
module.add(1, 2, 3)
module["absent"]
module.scale(sums, "text")
"""
WRONG = {7: "attr-defined", 8: "call-arg", 9: "index", 10: "arg-type"}
"""What mypy says of those lines."""


def test_a_type_checker_knows_what_there_is(tmp_path: Path) -> None:
    written = tmp_path / "arithmetic.py"
    assert jitree("stub", PROGRAMS / "arithmetic.vmfb", f"--output={written}").code == 0
    (tmp_path / "uses.py").write_text(USES)
    (tmp_path / "mypy.ini").write_text("[mypy]\n[mypy-jitree.*,numpy.*]\nfollow_imports = skip\n")
    command = [sys.executable, "-m", "mypy", "--config-file=mypy.ini", "--cache-dir=cache", "uses.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    found = {int(row): kind for row, kind in re.findall(r"uses.py:(\d+): error: .*\[(.*)\]", done.stdout)}
    assert found == WRONG, done.stdout


def stub_of(module: Assembler, folder: Path) -> tuple[str, dict[str, Any]]:
    (folder / "m.vmfb").write_bytes(module.build())
    outcome = jitree("stub", folder / "m.vmfb")
    assert outcome.code == 0, outcome.stderr
    (folder / "written.py").write_text(outcome.stdout)
    return outcome.stdout, runpy.run_path(str(folder / "written.py"))


@pytest.mark.parametrize(
    ("name", "is_method"),
    [
        ("plain", True),
        ("_hidden", True),
        ("session", False),
        ("lambda", False),
        ("a-b", False),
        ('"""x', False),
    ],
)
def test_names_of_any_kind(name: str, is_method: bool, tmp_path: Path) -> None:
    module = Assembler(name).function(name, "0i_i", "return [%i0]").function("__init", "0v_v", "return []")
    text, written = stub_of(module, tmp_path)
    classes = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    methods = {node.name for node in classes[0].body if isinstance(node, ast.FunctionDef)}
    assert methods == {"__getitem__"} | ({name} if is_method else set())
    assert f"Literal[{name!r}]" in text
    loaded = written["load"](device="local-sync")
    assert loaded[name](7) == 7


@pytest.mark.parametrize("program", ["outputs", "echo", "workspaces", "asynchronous", "nibbles"])
def test_programs_of_all_kinds_have_one(program: str, tmp_path: Path) -> None:
    outcome = jitree("stub", PROGRAMS / f"{program}.vmfb")
    compile(outcome.stdout, "stub", "exec")
    assert outcome.code == 0 and np.all(["object" not in line for line in outcome.stdout.splitlines()])
