"""Calls where Python's stack is nearly full: each ends in its result, RecursionError or a status, and the
session is as good as before."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jitree import CustomModule, Session
from jitree.api.calls.native.handle_owners import LARGE
from jitree.api.module import Module
from jitree.errors import StatusError
from jitree.loaders.vmvx import worker as vmvx_worker
from jitree.modules.hal.native.handle_pool import HandlePool
from tests.api.direct import direct, needs_machine_code, prepare_calls
from tests.api.programs import ECHO

PROGRAM = Path(__file__).parents[2] / "examples/custom_module/program.vmfb"
X = np.linspace(-1, 1, 8, dtype=np.float32)
EXPECTED = 2 * (X * 2) / (1 + abs(X))
ROOM = range(1, 200)
"""Frames that are left. Calls take fewer than the last of them."""

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def program(session: Session) -> Module:
    """Kernels on the VM around functions of the host."""
    module = CustomModule("activation")

    @module.export(signature="f32, f32 -> f32")
    def decay(rate: float, step: float) -> float:
        return rate / (1 + step)

    @module.export(signature="array, f32 -> array")
    def softsign(x: Any, scale: float) -> Any:
        x = np.asarray(x)
        return np.float32(scale) * x / (1 + abs(x))

    session.load(module)
    return session.load(PROGRAM)


def leaving(room: int, work: Callable[[], Any]) -> Any:
    """What ``work`` gives where so many frames are left."""

    def down(more: int) -> Any:
        return work() if more <= 0 else down(more - 1)

    used, frame = 0, sys._getframe()
    while frame.f_back is not None:
        used, frame = used + 1, frame.f_back
    return down(sys.getrecursionlimit() - used - room)


@pytest.mark.parametrize("tier", ["plain", "fast", "native"])
@pytest.mark.parametrize("device", ["local-sync", "local-task://?threads=2"])
def test_calls_where_the_stack_is_nearly_full(device: str, tier: str) -> None:
    """ctypes made an ArgumentError of it; callbacks and compiled code did not get into Python any more after
    it, or never came out."""
    with Session(device=device, tier=tier) as session:
        module = program(session)
        placed = session.to_device(X)
        calls: list[Callable[[], Any]] = [
            lambda: np.asarray(module.layer(X, 1.0)),
            lambda: module.layer(placed, 1.0).to_host(),
            lambda: session.to_device(X).to_host() * 0 + EXPECTED,
            lambda: np.full(session.empty((8,)).shape, EXPECTED),
        ]
        for call in calls:
            ends = set()
            for room in ROOM:
                try:
                    np.testing.assert_allclose(leaving(room, call), EXPECTED, atol=1e-6)
                    ends.add(True)
                except (RecursionError, StatusError):
                    ends.add(False)
                np.testing.assert_allclose(np.asarray(module.layer(X, 1.0)), EXPECTED, atol=1e-6)
            assert ends == {True, False}


def test_arguments_are_not_to_blame_for_a_full_stack() -> None:
    """No list is among them."""
    with Session(device="local-sync", tier="fast") as session:
        module = program(session)
        met = set()
        for room in ROOM:
            try:
                leaving(room, lambda: module.layer(X, 1.0))
            except (RecursionError, StatusError) as error:
                met.add(str(error))
        assert met and not [text for text in met if "lists in lists" in text]


def test_a_failure_that_was_not_looked_at_is_not_that_of_a_later_dispatch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ctrl-C comes, or the stack is full, after a kernel has failed and before Python knows."""

    def fail(*arguments: object) -> int:
        raise ZeroDivisionError

    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    with Session(device="local-sync", tier="fast") as session:
        module = program(session)
        for _ in range(3):
            np.testing.assert_allclose(np.asarray(module.layer(X, 1.0)), EXPECTED, atol=1e-6)
        with monkeypatch.context() as patch:
            patch.setattr(vmvx_worker.Worker, "run", fail)
            patch.setattr(HandlePool, "take_failure", interrupt)
            with pytest.raises(KeyboardInterrupt):
                module.layer(X, 1.0)
        for _ in range(400):  # now and then Python does what machine code has refused
            np.testing.assert_allclose(np.asarray(module.layer(X, 1.0)), EXPECTED, atol=1e-6)


@needs_machine_code
@pytest.mark.parametrize("is_closed", [True, False])
def test_arrays_that_die_after_one_that_died_where_the_stack_was_full(is_closed: bool) -> None:
    """What takes them back could not begin there, and was gone: all later ones stayed with their session."""
    for room in range(1, 30):
        with Session("local-sync", tier="fast") as session:
            prepare_calls()
            large = np.zeros(LARGE // 4, np.float32)
            echo = direct(session.load(ECHO).e1_f32, large)
            table, kept, dying = session.context.table, [echo(large), echo(large)], [echo(large)]
            if is_closed:
                session.close()
            before = table.live_count
            with suppress(RecursionError):
                leaving(room, dying.clear)
            dying.clear()
            kept.pop()
            assert table.live_count <= before - 4, f"a view and a buffer each, {room} frames left"
