"""Checked machine code ends the process where it accesses what it must not, and says where."""

from __future__ import annotations

import subprocess
import sys

import pytest

from jitree.base.platform import MACHINE, SYSTEM
from jitree.codegen.checked.instrument import size_of
from jitree.errors import UnimplementedError


@pytest.mark.skipif(MACHINE != "x86_64" or SYSTEM != "linux", reason="the map has its place there")
def test_each_access_is_looked_up() -> None:
    command = [sys.executable, "-m", "tests.checked", "-m", "tests.codegen.checked_accesses"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (
        0,
        "done\n0 places in checked code accessed what they must not\n",
    ), ended.stderr


@pytest.mark.parametrize(
    ("kind", "size"),
    [("i1", 1), ("i33", 5), ("ptr", 8), ("<16 x i1>", 2), ("<3 x float>", 12), ("[2 x <4 x i32>]", 32)],
)
def test_size_of_a_type(kind: str, size: int) -> None:
    assert size_of(kind) == size


def test_size_that_is_not_known() -> None:
    with pytest.raises(UnimplementedError, match="x86_fp80"):
        size_of("x86_fp80")
