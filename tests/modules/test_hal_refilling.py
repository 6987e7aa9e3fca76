"""Pools of the fast paths of ``hal`` that are empty, as all are at first."""

from __future__ import annotations

import weakref
from array import array
from collections import deque
from functools import partial
from typing import Any, Final

import numpy as np
import pytest

from jitree import Session
from jitree.codegen.record import size_of, words_of
from jitree.hal.buffer import Buffer, BufferView
from jitree.hal.operations import QueueOperations
from jitree.modules.hal.native.handle_pool import HandlePool
from jitree.modules.hal.native.layout import HandlePoolRecord
from jitree.modules.hal.native.pools import ArenaPool
from jitree.regs.buffer import VmBuffer
from jitree.regs.layout import Entry
from tests.api.direct import direct, needs_machine_code
from tests.api.programs import ECHO
from tests.base.interruption import interruptions
from tests.modules.hal_programs import ROWS, executable
from tests.modules.helpers import python_session
from tests.modules.test_hal_native import TEXT, outcome, whole_call

_HANDLE_POOL: Final = words_of(HandlePoolRecord)


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
    with python_session("local-sync") as plain:
        plain.load(module)
        outcome(plain, "m")
    assert allocated  # so this is what Python would call
    allocated.clear()
    for _ in range(8):  # until the site is bound, and after that
        outcome(session, "m")
        session.trim()
    assert not allocated
    session.close()


@needs_machine_code
@pytest.mark.parametrize("taken", [0, 1])
def test_one_entry_is_too_few(taken: int) -> None:
    """An argument takes two, for its buffer and its view: an odd number of entries is refilled, too."""
    values, blank = np.arange(4, dtype=np.float32), _HANDLE_POOL.blank
    with Session("local-sync", tier="fast") as session:
        echo = direct(session.load(ECHO).e1_f32, values)
        table = session.context.table
        pool = table.handle_pool
        assert isinstance(pool, HandlePool)
        first = pool._words[blank]
        if taken:
            pool._words[blank] = pool._following(first)
        before = table.live_count
        kept = [echo(values) for _ in range(300)]
        assert table.live_count >= before + 2 * len(kept)
        if taken:
            table.write(np.array([first]), {"link": pool._words[blank]})
            pool._words[blank] = first
        kept.clear()


@needs_machine_code
def test_an_interrupt_drops_no_reference_twice() -> None:
    """References are owed, or among those that machine code frees, and never both."""
    with Session("local-sync", tier="fast") as session:
        direct(session.load(ECHO).e1_f32, np.arange(4, dtype=np.float32))
        table = session.context.table
        pool = table.handle_pool
        assert isinstance(pool, HandlePool)
        handles = table.reserve(12)
        links = table._entries["i64"][:, words_of(Entry).link]
        before = pool._words[_HANDLE_POOL.dead]
        for interruption in interruptions(0):
            owed = handles.tolist()
            taken, rest = slice(len(owed)), handles[10:].tolist()
            interruption.during(partial(pool.drop_all, handles[:10], links, owed, taken, rest))
            dead, found = pool._words[_HANDLE_POOL.dead], []
            while dead != before:
                found.append(dead)
                dead = int(links[dead - table.base >> 6])
            assert sorted(owed + found) == handles.tolist() and len(owed) in (2, 12)
            pool._words[_HANDLE_POOL.dead] = before
        for handle in handles.tolist():
            table.unreserve(handle)


def test_an_interrupt_while_arenas_are_made() -> None:
    """What machine code finds lies in memory that is kept: else it would write to what others have."""
    for interruption in interruptions(0):
        words = array("q", bytes(size_of(HandlePoolRecord)))
        arenas = ArenaPool(words)
        interruption.during(arenas.supply)
        first = words[_HANDLE_POOL.arenas]
        assert not first or first in arenas._blocks


def test_memory_that_is_being_dropped_is_given_to_nobody() -> None:
    """Another thread that asks for its object, as the last reference goes, would have it without a count."""
    asked = list[object]()

    class Deferred(deque[Any]):
        def append(self, item: Any) -> None:
            asked.append(known())
            super().append(item)

    with Session("local-sync", tier="fast") as session:
        session.load(whole_call(ROWS).module("m"))
        for _ in range(5):
            outcome(session, "m")
        table = session.context.table
        table.deferred = Deferred(table.deferred)
        strings = VmBuffer.alias(TEXT), VmBuffer.alias(b"multiply")
        views = [session.to_device(np.ones((2, 8), np.float32)).buffer_view for _ in range(2)]
        results = session.call_direct("m.f", session.device, *views, executable(), *strings)
        (allocation,) = {item.buffer.allocation for item in results if isinstance(item, BufferView)}
        known = weakref.ref(allocation)
        del allocation, results
        assert asked == [None]
