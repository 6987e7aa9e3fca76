"""Machine code that is entered in the middle of a nest: it goes on to the nest's header, and from there in
vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jitree.dispatch.native import tiering
from jitree.regs import machine
from jitree.regs.buffer import VmBuffer
from tests.dispatch.harness import Vm, compile_here, load
from tests.dispatch.native.nests.programs import REFS, SIZES, Level, Text, module

ROWS, COLUMNS, DEPTH = 9, 20, 11
ELEMENTS = 512


def _matmul(text: Text, at: list[str]) -> None:
    row, column, k = at
    out = text.index(7, (row, COLUMNS), (column, 1))
    left = text.load("f32", 1, text.index(0, (row, DEPTH), (k, 1)))
    right = text.load("f32", 2, text.index(3, (k, COLUMNS), (column, 1)))
    text.store("f32", 0, out, text.op("fma.f32", left, right, text.load("f32", 0, out)))


MATMUL = load(module([Level(ROWS), Level(COLUMNS), Level(DEPTH)], _matmul))


class Looks:
    """What was found each time that native code was looked for in the middle of a function."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: list[int] = []
        resume_address = tiering.resume_address

        def look(*arguments: Any) -> int:
            self.found.append(resume_address(*arguments))
            return self.found[-1]

        monkeypatch.setattr(tiering, "resume_address", look)


def _memory() -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.normal(0, 1, ELEMENTS).astype(np.float32) for _ in range(REFS)]


def _run(tier: str, shared: bool) -> list[np.ndarray]:
    """The buffers afterwards; ``shared``: the first one is the second one too, which no guard lets pass."""
    memory = _memory()
    buffers = [VmBuffer.alias(memory[0 if shared and number == 1 else number]) for number in range(REFS)]
    vm = Vm(tier)
    vm.add(MATMUL).call("f", *buffers, *[0] * SIZES)
    return memory


@pytest.mark.parametrize("shared", [False, True], ids=["nest", "no nest"])
@pytest.mark.parametrize("fuel", [50, 131, 1000, 2003])
def test_a_nest_is_entered_wherever_it_is(fuel: int, shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = _run("plain", shared)
    native = compile_here(MATMUL)
    assert len(native.places(0)) == 1 and len(native.places(0, "tails")) == 2
    monkeypatch.setattr(machine, "FUEL", fuel)
    monkeypatch.setattr(machine, "FIRST_FUEL", fuel)
    monkeypatch.setattr(machine, "TIME", 0)
    looks = Looks(monkeypatch)
    for one, other in zip(_run("auto", shared), expected, strict=True):
        assert np.array_equal(one.view(np.int32), other.view(np.int32))
    assert native.provider.image is not None
    assert native.provider.image.addresses["tail.0"] in looks.found
    assert len(looks.found) <= 4 * sum(map(bool, looks.found)), "branches are not looked at one by one"


def test_nests_that_no_guard_lets_pass_are_not_stepped_through(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_here(MATMUL)
    monkeypatch.setattr(machine, "FUEL", 400)
    monkeypatch.setattr(machine, "FIRST_FUEL", 400)
    monkeypatch.setattr(machine, "TIME", 0)
    looks = Looks(monkeypatch)
    _run("auto", True)
    turns = ROWS * COLUMNS * DEPTH
    assert len(looks.found) < turns // 20
