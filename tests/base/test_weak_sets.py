"""Sets of objects as long as these live."""

from __future__ import annotations

import sys
import threading

from jitree.base import spare_memory
from jitree.base.weak_sets import SharedWeakSet


class Thing:
    kept = most_kept = reserved = 0

    def give_up(self) -> None:
        raise AssertionError("no memory is short")


def test_what_is_added_while_another_is_looked_at() -> None:
    things, found = [Thing(), Thing()], SharedWeakSet[Thing]()
    assert not found
    for thing in things:
        found.add(thing)
        found.add(thing)
    seen = []
    for thing in found:
        seen.append(thing)
        things.append(Thing())
        found.add(things[-1])
    assert set(seen) == set(things[:2]) and len(list(found)) == 4


def test_what_is_gone() -> None:
    things, found = [Thing() for _ in range(3)], SharedWeakSet[Thing]()
    for thing in things:
        found.add(thing)
    del thing, things[0]
    assert set(found) == set(things)
    for _ in found:
        things.clear()
    del _
    assert not found and list(found) == []


def test_threads_that_add_while_others_look() -> None:
    """As programs are loaded while kernels look what memory is left."""
    interval, done = sys.getswitchinterval(), threading.Event()

    def add() -> None:
        while not done.is_set():
            things = [Thing() for _ in range(10)]
            for thing in things:
                spare_memory.add(thing)

    thread = threading.Thread(target=add)
    sys.setswitchinterval(1e-6)
    try:
        thread.start()
        for _ in range(2000):
            spare_memory.look()
    finally:
        sys.setswitchinterval(interval)
        done.set()
        thread.join()
