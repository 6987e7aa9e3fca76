"""How much Python runs to write machine code of kernels: a program waits for it."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

from jitree.dispatch.native.lower import Lowered, lower
from jitree.dispatch.native.source import ModuleSource, from_program
from jitree.loaders.vmvx import kernels as vmvx_kernels
from jitree.loaders.vmvx.kernels import kernels
from jitree.vmfb.decode import BytecodeModule

EXAMPLE = Path(__file__).parents[3] / "examples" / "digits" / "digits.vmvx.vmfb"


@pytest.fixture(scope="module")
def write() -> Callable[[], Lowered]:
    """Writes all kernels of the example, without what is done once in a process."""
    module = BytecodeModule.load(EXAMPLE.read_bytes(), "module")
    (executable,) = vmvx_kernels.executables(module.module)
    source: ModuleSource = from_program(executable.program)
    ordinals = [export.ordinal for export in kernels(executable.module)]

    def again() -> Lowered:
        return lower(source, (), ordinals, asks=False, roots=ordinals, kernels=ordinals)

    again()
    return again


def calls(work: Callable[[], object]) -> Counter[str]:
    """Of Python functions, by name."""
    found: Counter[str] = Counter()

    def note(frame: FrameType, event: str, value: object) -> None:
        if event == "call":
            found[frame.f_code.co_name] += 1

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return found


def test_kernels_are_written_with_few_calls(write: Callable[[], Lowered]) -> None:
    """Some 72,000 for seven kernels; they took 162,000 when each question was answered anew."""
    assert 10_000 < calls(write).total() < 100_000


def test_what_instructions_read_and_write_is_found_once(write: Callable[[], Lowered]) -> None:
    """For which views are valid and for which values are needed."""
    count = calls(write)
    assert count["_views_of"] == count["_fill"] > 50


def test_text_is_the_same_again(write: Callable[[], Lowered]) -> None:
    """Answers that are kept are no others."""
    assert write().text == write().text
