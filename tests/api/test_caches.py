"""Caches that programs update in place, in every way in which they say so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jitree
from jitree import Array, Session
from jitree.api.module import Module
from jitree.errors import FailedPreconditionError, InvalidArgumentError, OutOfRangeError
from jitree.hal.fence import Fence
from tests.api.programs import CACHES

START = np.arange(128, dtype=np.float32).reshape(16, 8)
STEPS = 6


@pytest.fixture
def module(session: Session) -> Module:
    """On the fast tier machine code makes calls from the third one on."""
    return session.load(CACHES)


def token(step: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.full(8, 100 * step, np.float32)


def address(array: Any) -> int:
    return int(np.asarray(array).__array_interface__["data"][0])


def into(module: Module, step: int, cache: Array) -> tuple[Any, Array]:
    sums, result = module.into(token(step), step, cache)
    assert address(result) == address(cache)
    return sums, cache


def into_by_name(module: Module, step: int, cache: Array) -> tuple[Any, Array]:
    sums, result = module.into(token(step), step, out=cache)
    return sums, result


def to_itself(module: Module, step: int, cache: Array) -> tuple[Any, Array]:
    sums, result = module.to(token(step), step, cache, out=cache)
    return sums, result


def donated(module: Module, step: int, cache: Array) -> tuple[Any, Array]:
    sums, result = module.donated(token(step), step, jitree.donate(cache))
    with pytest.raises(FailedPreconditionError, match="donated"):
        module.donated(token(step), step, cache)
    return sums, result


def view(module: Module, step: int, cache: Array) -> tuple[Any, Array]:
    return module.view(token(step), step, cache), cache


def later(module: Module, step: int, cache: Array) -> tuple[Any, Array]:
    sums, result = module.later(token(step), step, cache)
    return sums, result


def submitted(module: Module, step: int, cache: Array) -> tuple[Any, Array]:
    sums, _ = module.later.submit(token(step), step, cache)
    return sums, cache


FUNCTIONS = {into_by_name: "into", to_itself: "to", submitted: "later"}


@pytest.mark.parametrize(
    "step", [into, into_by_name, to_itself, donated, view, later, submitted], ids=lambda step: step.__name__
)
def test_a_cache_stays_where_it_is(module: Module, session: Session, step: Any) -> None:
    cache, expected = session.to_device(START), START.copy()
    place, used = address(cache), []
    for position in range(STEPS):
        before = session.device_allocator.statistics.device.allocated
        sums, cache = step(module, position, cache)
        expected[position] = token(position)
        assert np.array_equal(sums, expected.sum(axis=0)) and np.array_equal(cache, expected)
        assert address(cache) == place
        used.append(session.device_allocator.statistics.device.allocated - before)
    assert max(used[2:]) < START.nbytes, "results and scratch memory, no cache"
    if session.tier == "fast":
        assert module[FUNCTIONS.get(step, step.__name__)].is_direct


def test_the_program_keeps_a_cache(module: Module) -> None:
    expected = np.zeros((16, 8), np.float32)
    for position in range(STEPS):
        expected[position] = token(position)
        assert np.array_equal(module.own(token(position), position), expected.sum(axis=0))


@pytest.mark.parametrize("name", ["into", "donated", "view", "later", "unsaid", "own"])
@pytest.mark.parametrize("position", [16, -1, 1 << 40])
def test_a_position_outside_of_the_cache(module: Module, session: Session, name: str, position: int) -> None:
    for _ in range(4):
        cache = session.to_device(START)
        with pytest.raises(OutOfRangeError, match="outside a buffer"):
            module[name](token(1), position, *([] if name == "own" else [cache]))
        assert np.array_equal(cache, START)


def test_a_donated_cache_is_gone(module: Module, session: Session) -> None:
    for _ in range(4):
        cache = session.to_device(START)
        _, same = module.into(token(0), 0, cache)
        with pytest.raises(InvalidArgumentError, match="donated and passed a second time"):
            module.to(token(0), 0, jitree.donate(cache), out=same)
        module.donated(token(0), 0, jitree.donate(cache))
        with pytest.raises(FailedPreconditionError, match="donated"):
            cache[0]
        with pytest.raises(FailedPreconditionError, match="donated"):
            np.asarray(cache)
        with pytest.raises(FailedPreconditionError, match="donated"):
            module.view(token(0), 0, cache)
        assert same.shape == (16, 8), "another array over the memory lives on"


def test_users_of_a_cache_wait_for_submitted_calls(module: Module, session: Session) -> None:
    """Whatever uses a cache after a submitted call that updates it sees the update."""
    for attempt in range(4):
        gate = Fence.create(session.device)
        first = Array(session.to_device(token(9)).buffer_view, session.device, gate)
        cache = session.to_device(START)
        sums, result = module.later.submit(first, 2, cache)
        assert not cache.ready and not sums.ready and not result.ready, attempt
        again, _ = module.later.submit(token(5), 3, cache)
        gate.signal()
        expected = START.copy()
        expected[2] = token(9)
        assert np.array_equal(sums, expected.sum(axis=0))
        expected[3] = token(5)
        assert np.array_equal(again, expected.sum(axis=0)) and np.array_equal(cache, expected)
