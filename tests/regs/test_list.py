"""``VmList`` as Python uses it, and against a model."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitree.errors import CancelledError, FailedPreconditionError, InvalidArgumentError, OutOfRangeError
from jitree.regs.buffer import VmBuffer
from jitree.regs.handles import HandleTable
from jitree.regs.layout import KIND_BUFFER, LIST_EMPTY, LIST_I32, LIST_I64, LIST_REF, LIST_VARIANT
from jitree.regs.list import VmList
from jitree.regs.ref_types import RefTypes


def test_reads_like_a_sequence() -> None:
    items, buffer = VmList(), VmBuffer(1)
    for value in (1, 2.5, None, buffer):
        items.append(value)
    assert list(items) == [1, 2.5, None, buffer]
    assert (len(items), items[-1], items[-4]) == (4, buffer, 1)
    assert (items.tag(0), items.tag(2)) == (LIST_I64, LIST_REF)
    items[0] = buffer
    items[3] = -1
    assert list(items) == [buffer, 2.5, None, -1]
    for index in (4, -5):
        with pytest.raises(OutOfRangeError):
            items[index]
    with pytest.raises(OutOfRangeError):
        VmList()[0]


@pytest.mark.parametrize(
    ("kind", "value", "stored"),
    [("i8", 300, 44), ("i64", -5, -5), ("f32", 0.1, 0.10000000149011612), ("f64", 3, 3.0)],
)
def test_values_are_converted(kind: str, value: float, stored: float) -> None:
    items = VmList(kind)
    items.append(value)
    assert list(items) == [stored]


def test_a_failed_append_changes_nothing() -> None:
    items = VmList("i32")
    with pytest.raises(FailedPreconditionError):
        items.append(VmBuffer(1))
    with pytest.raises(InvalidArgumentError, match="a list of i32 has no"):
        items.append(2.5)
    assert len(items) == 0


def test_a_list_of_references_is_one_that_was_filled_by_and_by() -> None:
    buffers = [VmBuffer(1) for _ in range(3)]
    ref_types = RefTypes()
    table = HandleTable(ref_types, capacity=16)
    items, filled = VmList.of_references(KIND_BUFFER, buffers), VmList(KIND_BUFFER)
    for buffer in buffers:
        filled.append(buffer)
    for made in (items, filled):
        assert list(made) == buffers
        handle = table.wrap(made)
        assert [table.object(made.get_handle(index, KIND_BUFFER)) for index in range(3)] == buffers
        made.append(None)
        assert list(made) == [*buffers, None]
        table.release(handle)
    assert len(VmList.of_references(KIND_BUFFER, ())) == 0


def test_types_are_checked_when_the_vm_sees_the_list() -> None:
    ref_types = RefTypes()

    class Thing:
        pass

    kind = ref_types.register("test.thing", Thing)
    table = HandleTable(ref_types, capacity=8)
    items = VmList(kind)
    items.append(Thing())
    table.release(table.wrap(items))
    with pytest.raises(InvalidArgumentError, match=r"vm\.buffer stored into a list of test\.thing"):
        items.append(VmBuffer(1))
    wrong = VmList(kind)
    wrong.append(VmBuffer(1))
    with pytest.raises(InvalidArgumentError):
        table.wrap(wrong)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("resize"), st.integers(0, 12)),
        st.tuples(st.just("set"), st.integers(0, 11), st.integers(-5, 5)),
        st.tuples(st.just("ref"), st.integers(0, 11), st.integers(0, 3)),
        st.tuples(st.just("vm")),
        st.tuples(st.just("other vm")),
    ),
    max_size=40,
)


@given(steps)
def test_a_variant_list_follows_a_model(program: list[tuple[Any, ...]]) -> None:
    """Values and references come and go while the list wanders between no table and two."""
    tables = [HandleTable(RefTypes(), capacity=64) for _ in range(2)]
    buffers = [VmBuffer(number) for number in range(4)]
    items, model = VmList(), list[object]()
    for step in program:
        if step[0] == "resize":
            items.resize(step[1])
            model = model[: step[1]] + [None] * (step[1] - len(model))
        elif step[0] in ("vm", "other vm"):
            table = tables[step[0] == "vm"]
            table.release(table.wrap(items))
        elif step[1] < len(model):
            value = step[2] if step[0] == "set" else buffers[step[2]]
            items[step[1]] = model[step[1]] = value
        assert list(items) == model
        for table in tables:
            table.drain_deferred()
            held = {id(item) for item in model if isinstance(item, VmBuffer)}
            assert table.live_count == (len(held) if items.table is table else 0)
    items.resize(0)
    for table in tables:
        assert table.live_count == 0


def test_slots_say_what_they_hold() -> None:
    items = VmList("i32")
    items.resize(2)
    assert items.words.tolist()[:4] == [LIST_I32, 0, LIST_I32, 0]
    variants = VmList(capacity=5)
    variants.resize(1)
    assert (variants.tag(0), variants.capacity) == (LIST_EMPTY, 5)


def test_many_references_to_few_objects_are_dropped() -> None:
    table = HandleTable(RefTypes())
    objects = [VmBuffer(8) for _ in range(3)]
    items = VmList(LIST_REF)
    for index in range(10_000):
        items.append(objects[index % 3])
    table.wrap(items)
    handles = [table.wrap(item) for item in objects]
    before = table.live_count
    items.resize(2)
    assert [table.count(each) for each in handles] == [2, 2, 1]
    table.release(handles[2])
    assert table.live_count == before - 1
    items.resize(0)
    assert [table.count(each) for each in handles[:2]] == [1, 1]


@pytest.mark.parametrize("kind", [LIST_REF, LIST_VARIANT, LIST_I64])
def test_resizing_ends_between_parts(kind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jitree.regs.list.PART_SIZE", 10)
    looks: list[None] = []

    def look() -> None:
        looks.append(None)
        if len(looks) == 2:
            raise CancelledError("as a deadline does")

    items = VmList(kind)
    with pytest.raises(CancelledError):
        items.resize(35, look)
    assert len(items) == 0
    items.resize(35)
    looks.clear()
    with pytest.raises(CancelledError):
        items.resize(1, look)
    assert len(items) == 15
    items.resize(100)
    assert len(items) == 100 and (kind != LIST_I64 or [*items] == [0] * 100)
