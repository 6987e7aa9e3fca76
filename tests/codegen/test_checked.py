"""Checked machine code ends the process where it accesses what it must not, and says where."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from jitree.base.platform import MACHINE, SYSTEM
from jitree.codegen.checked.instrument import instrumented, size_of
from jitree.codegen.checked.layout import NOT_CHECKED, REPORTS
from jitree.codegen.image import compile
from jitree.codegen.image.compile import host_target, target_machine
from jitree.codegen.image.generated import Unit
from jitree.errors import UnimplementedError
from tests.codegen import images


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


def _checked(body: str) -> str:
    """The text of a function with checks."""
    declared = "declare void @llvm.stackrestore.p0(ptr)\ndeclare void @llvm.mystery.p0(ptr)\n"
    target = host_target()
    text = f"{declared}define void @f(ptr %p) {{\n{body}\n  ret void\n}}\n"
    target_machine(target)  # sets up all targets
    return str(instrumented(text, target_machine(target), llvm.parse_assembly))


def test_stacks_that_are_taken_back_access_nothing() -> None:
    """LLVM writes it after calls that it has inlined in loops."""
    assert "checked" not in _checked("  call void @llvm.stackrestore.p0(ptr %p)").partition("ret void")[0]


def test_code_that_cannot_be_checked_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its program is interpreted, so that a run would say nothing of it."""
    reports = tmp_path / "reports"
    monkeypatch.setenv(REPORTS, str(reports))
    with pytest.raises(UnimplementedError, match=r"call void @llvm\.mystery"):
        _checked("  call void @llvm.mystery.p0(ptr %p)")
    assert reports.read_text().startswith(f"{NOT_CHECKED}UNIMPLEMENTED; it is not known what is accessed")


def test_campaigns_check_code_that_llvm_hardly_optimises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "CHECKED", True)
    unit = Unit(("define void @f(ptr %p) {\n  store i32 7, ptr %p\n  ret void\n}\n",), ("f",))
    with images.few_passes():
        assert b"f, line 1: store i32 7" in compile.compile_unit(unit, host_target())
