"""The system's C compiler, for tests that need libraries of this machine."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from jitree.base.platform import MACHINE


def _found() -> str | None:
    """One that makes code for this machine: an emulated one has those of the machine below it."""
    found = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    target = subprocess.check_output([found, "-dumpmachine"], text=True) if found else ""
    return found if target.startswith(MACHINE) else None


COMPILER = _found()
NEEDS_COMPILER = "there is no C compiler on this machine"


def compile_library(source: Path, output: Path, *flags: str) -> Path:
    assert COMPILER is not None
    command = [COMPILER, "-shared", "-fPIC", "-O1", "-w", *flags, "-o", str(output), str(source)]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    return output
