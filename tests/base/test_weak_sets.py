"""Sets of objects as long as these live."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest

from jitree.base import dlpack, spare_memory
from jitree.base.finalizers import SharedWeakKeys, SharedWeakSet, SharedWeakValues
from jitree.codegen import image
from jitree.dispatch.native import tiering
from jitree.hal.device_memory import DeviceMemory
from jitree.hal.exchange import exporters
from jitree.hal.heap import HeapAllocator
from jitree.modules.native_library import module, references
from jitree.observe.observation import Observation
from jitree.vmfb import argument_placement
from tests.base.interruption import Interruption


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


def test_values_as_long_as_they_live() -> None:
    table, first, second = SharedWeakValues[object, Thing](), Thing(), Thing()
    table["a"], table["b"], table["c"] = first, second, first
    assert table.get("a") is first and table.get("x") is None and table.pop("x") is None
    assert table.pop("a") is first and list(table) == ["b", "c"]
    table["c"] = second  # in the place of one that dies later
    del first
    assert table.items() == [("b", second), ("c", second)] and table.values() == [second, second]
    del second
    assert table.items() == [] and table.get("c") is None and not table._references


def test_items_as_long_as_their_keys_live() -> None:
    table, first, second = SharedWeakKeys[Thing, object](), Thing(), Thing()
    assert table.setdefault(first, 1) == 1 == table.setdefault(first, 2) == table[first]
    table[first], table[second] = 3, None
    assert table.get(first) == 3 and table[second] is None and table.get(Thing()) is None
    with pytest.raises(KeyError):
        table[Thing()]
    del first
    assert list(table._items.values()) == [None]
    del second
    assert not table._items


TABLES = {
    "providers of images": image._providers, "exporters": exporters, "lent memory": HeapAllocator()._lent,
    "libraries": module._states,
}  # fmt: skip
BY_OBJECT = {
    "native code": tiering._modules, "ties": argument_placement._found,
    "array libraries": dlpack._functions,
    "references": references._tables, "observed executables": Observation(Mock(), ())._executables,
}  # fmt: skip


@pytest.mark.parametrize("name", [*TABLES, *BY_OBJECT, "packs"])
def test_an_interrupt_as_an_item_dies_comes_out(name: str) -> None:
    for place in range(1, 20):
        holder, key = [Thing()], object()
        if name in TABLES:
            TABLES[name][key] = holder[0]  # type: ignore[index]
        elif name in BY_OBJECT:
            BY_OBJECT[name][holder[0]] = {}  # type: ignore[index]
        else:
            image.packs.add(holder[0])  # type: ignore[arg-type]
        interruption = Interruption(place)
        assert interruption.during(holder.clear) == interruption.came, f"place {place} was lost"
        if not interruption.came:
            break
    assert 1 < place < 19


class Memory:
    byte_length = 64


class Device:
    uri = "a device"
    executables = ()

    def __init__(self) -> None:
        self.device_allocator = HeapAllocator()


def test_an_interrupt_as_tracked_memory_goes_comes_out() -> None:
    memory = DeviceMemory(cast(Any, Device()))
    for place in range(1, 20):
        holder = [Memory()]
        memory._note(cast(Any, holder[0]))
        assert memory.rows[0].live == 64
        interruption = Interruption(place)
        assert interruption.during(holder.clear) == interruption.came, f"place {place} was lost"
        assert memory.rows[0].live == memory.rows[0].live_count == 0
        if not interruption.came:
            break
    assert 1 < place < 19 and memory.tracked_peak == 64


def test_no_weak_container_of_python_is_used() -> None:
    """They call Python code as an item dies, in which what a signal's handler raises is lost."""
    root = Path(dlpack.__file__).parents[1]
    names = ("WeakSet(", "WeakKeyDictionary", "WeakValueDictionary")
    texts = {
        path: path.read_text(encoding="utf-8").replace("SharedWeakSet", "") for path in root.rglob("*.py")
    }
    used = [str(path) for path, text in texts.items() if any(name in text for name in names)]
    assert used == [str(root / "base" / "finalizers.py")]
