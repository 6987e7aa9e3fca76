"""The least memory under which a program with kernels runs is the same on every tier and in every call, also
after one that failed."""

from __future__ import annotations

import gc
from bisect import bisect_left
from functools import cache

import numpy as np
import pytest

import jitree
from jitree.errors import ResourceExhaustedError
from tests.hal.native_kernels import aligned
from tests.security.programs import VMVX

IMAGE = aligned(np.ones((8, 8), np.float32))
"""No copy of it is needed."""
CALLS = 5


def session(tier: str, memory: int, device: str = "local-sync") -> jitree.Session:
    return jitree.Session(device, tier=tier, sandbox=True, limits=jitree.Limits(memory=memory))


def fits(tier: str, memory: int) -> bool:
    """Whether calls succeed, all of them or none."""
    outcomes = set()
    try:
        with session(tier, memory) as confined:
            digits = confined.load(VMVX)
            for _ in range(CALLS):
                try:
                    digits.classify(IMAGE)
                    outcomes.add(True)
                except ResourceExhaustedError:
                    outcomes.add(False)
    except ResourceExhaustedError:
        return False
    assert len(outcomes) == 1, "a limit does not depend on what was called before"
    return outcomes.pop()


@cache
def least() -> int:
    return bisect_left(range(1 << 20), True, key=lambda memory: fits("fast", memory))


@pytest.mark.parametrize("tier", ["plain", "fast", "native", "auto"])
def test_the_least_memory_is_the_same_in_every_call(tier: str) -> None:
    assert fits(tier, least())
    assert not fits(tier, least() - 1)


@pytest.mark.parametrize("tier", ["plain", "fast", "native", "auto"])
@pytest.mark.parametrize("device", ["local-sync", "local-task://?threads=2"])
def test_a_call_that_failed_keeps_no_memory(tier: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JITREE_TRACEBACK", raising=False)
    with session(tier, least() + (1 << 16), device) as confined:
        digits = confined.load(VMVX)
        gc.collect()
        gc.disable()
        try:
            for _ in range(CALLS):
                taken = confined.empty((1 << 16) + 1, np.uint8)
                with pytest.raises(ResourceExhaustedError, match="the limit on memory"):
                    digits.classify(IMAGE)
                del taken
                left = confined.empty(1 << 16, np.uint8)
                digits.classify(IMAGE)
                del left
        finally:
            gc.enable()


@pytest.mark.parametrize("tier", ["fast", "native", "auto"])
def test_the_host_has_what_results_had(tier: str) -> None:
    with session(tier, least()) as confined:
        digits = confined.load(VMVX)
        room = bisect_left(range(1 << 20), True, key=lambda size: not _has_room(confined, size)) - 1
        for _ in range(CALLS):
            digits.classify(IMAGE)
            assert _has_room(confined, room) and not _has_room(confined, room + 1)


def _has_room(confined: jitree.Session, size: int) -> bool:
    try:
        confined.empty(size, np.uint8)
    except ResourceExhaustedError:
        return False
    return True
