"""Pools of the fast paths of ``hal`` that are empty, as all are at first."""

from __future__ import annotations

from typing import Any

import pytest

from jitree import Session
from jitree.hal.buffer import Buffer
from jitree.hal.operations import QueueOperations
from tests.modules.hal_programs import ROWS
from tests.modules.test_hal_native import outcome, whole_call


def test_memory_of_a_first_call_is_taken_by_machine_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python fills the pool that is empty, and machine code tries again."""
    module = whole_call(ROWS).module("m")
    session = Session("local-sync", tier="fast")
    session.load(module)
    allocated: list[int] = []
    allocate = QueueOperations.queue_alloca

    def noting(device: QueueOperations, *arguments: Any) -> Buffer:
        allocated.append(arguments[-1])
        return allocate(device, *arguments)

    monkeypatch.setattr(QueueOperations, "queue_alloca", noting)
    with Session("local-sync", tier="plain") as plain:
        plain.load(module)
        outcome(plain, "m")
    assert allocated  # so this is what Python would call
    allocated.clear()
    for _ in range(8):  # until the site is bound, and after that
        outcome(session, "m")
        session.trim()
    assert not allocated
    session.close()
