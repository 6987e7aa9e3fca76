"""``vm.list`` instructions: sizes, conversions, references, variants."""

from __future__ import annotations

import math

import pytest

from jitree.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    OutOfRangeError,
    ResourceExhaustedError,
)
from jitree.regs.buffer import VmBuffer
from jitree.regs.list import VmList
from tests.assembler import Assembler
from tests.dispatch.harness import Thing, Vm, load

ELEMENT_TYPES = ["i8", "i16", "i32", "i64", "f32", "f64"]
LETTERS = {"i32": "i", "i64": "I", "f32": "f", "f64": "F"}


def _module() -> Assembler:
    module = Assembler("l")
    for name, element in [(kind, kind) for kind in ELEMENT_TYPES] + [
        ("buffers", "!vm.buffer"), ("things", "!test.thing"), ("variant", "!vm.opaque"),
        ("lists", "!vm.list<i8>"),
    ]:  # fmt: skip
        module.function(f"alloc_{name}", "0i_r", f"%r0 = list.alloc {element}, %i0\nreturn [%R0]")
    module.function("reserve", "0ri_v", "list.reserve %r0, %i0\nreturn []")
    module.function("resize", "0ri_v", "list.resize %r0, %i0\nreturn []")
    module.function("size", "0r_i", "%i0 = list.size %r0\nreturn [%i0]")
    for kind, letter in LETTERS.items():
        result = "%i2:3" if kind.endswith("64") else "%i2"
        module.function(f"get_{kind}", f"0ri_{letter}", f"%i2 = list.get.{kind} %r0, %i0\nreturn [{result}]")
        value = "%i2" if kind.endswith("64") else "%i1"
        module.function(f"set_{kind}", f"0ri{letter}_v", f"list.set.{kind} %r0, %i0, {value}\nreturn []")
    for name, kind in (("buffer", "!vm.buffer"), ("thing", "!test.thing"), ("opaque", "!vm.opaque")):
        module.function(f"get_{name}", "0ri_r", f"%r1 = list.get.ref %r0, %i0, {kind}\nreturn [%R1]")
    module.function("set_ref", "0rir_v", "list.set.ref %r0, %i0, %r1\nreturn []")
    module.function("move_ref", "0rir_r", "list.set.ref %r0, %i0, %R1\nreturn [%r1]")
    return module


MODULE = load(_module())


@pytest.fixture
def lists(vm: Vm) -> Vm:
    return vm.add(MODULE)


def make(vm: Vm, kind: str, size: int = 3) -> VmList:
    [items] = vm.call(f"alloc_{kind}", size)
    vm.call("resize", items, size)
    return items  # type: ignore[no-any-return]


def test_capacity_is_not_size(lists: Vm) -> None:
    [items] = lists.call("alloc_i32", 5)
    assert lists.call("size", items) == [0]
    lists.call("reserve", items, 100)
    assert lists.call("size", items) == [0]
    assert items.capacity == 100
    with pytest.raises(OutOfRangeError):
        lists.call("get_i32", items, 0)


@pytest.mark.parametrize("kind", ELEMENT_TYPES)
def test_shrinking_and_growing_gives_zeroes(lists: Vm, kind: str) -> None:
    items = make(lists, kind)
    for index in range(3):
        lists.call("set_i32" if kind[0] == "i" else "set_f32", items, index, 7)
    lists.call("resize", items, 1)
    lists.call("resize", items, 40)
    assert list(items) == [7] + [0] * 39


@pytest.mark.parametrize("call", ["get_i32", "set_i32", "get_buffer", "set_ref"])
@pytest.mark.parametrize("index", [3, -1, 2**31 - 1, -(2**31)])
def test_indices_are_checked(lists: Vm, call: str, index: int) -> None:
    items = make(lists, "variant")
    arguments = {"set_i32": (1,), "set_ref": (None,)}.get(call, ())
    with pytest.raises(OutOfRangeError):
        lists.call(call, items, index, *arguments)


@pytest.mark.parametrize(
    ("element", "stored", "value", "read", "expected"),
    [
        ("i8", "i32", 0x1FF, "i32", -1),
        ("i8", "i64", 0x17F, "i64", 127),
        ("i16", "i32", 0x18000, "i64", -0x8000),
        ("i32", "i64", 2**33 + 5, "i32", 5),
        ("i32", "i64", 2**31, "i64", -(2**31)),
        ("i64", "i32", -2, "i64", -2),
        ("i64", "i64", 2**40 + 3, "i32", 3),
        ("f32", "f64", 0.1, "f32", 0.10000000149011612),
        ("f32", "f64", 1e300, "f64", math.inf),
        ("f64", "f32", 0.5, "f64", 0.5),
        ("f64", "f64", 0.1, "f32", 0.10000000149011612),
        ("i32", "f32", 3.0, "i32", 0),
        ("i64", "f64", 3.0, "i64", 0),
        ("f32", "i32", 3, "f32", 0.0),
        ("f64", "i64", 3, "f64", 0.0),
        ("i32", "i32", 3, "f32", 0.0),
        ("f64", "f64", 3.0, "i64", 0),
        ("variant", "i32", -3, "i64", -3),
        ("variant", "i64", 2**32 + 1, "i32", 1),
        ("variant", "f32", 1.5, "f64", 1.5),
        ("variant", "f64", 1.5, "i32", 0),
        ("variant", "i64", 5, "f32", 0.0),
    ],
)
def test_conversions(lists: Vm, element: str, stored: str, value: float, read: str, expected: float) -> None:
    items = make(lists, element)
    lists.call(f"set_{stored}", items, 1, value)
    assert lists.call(f"get_{read}", items, 1) == [expected]
    assert lists.call(f"get_{read}", items, 2) == [0] if element != "variant" else True


def test_references(lists: Vm) -> None:
    items, buffer, thing = make(lists, "variant"), VmBuffer(4), Thing()
    lists.keep("set_ref", items, 0, buffer)
    assert lists.keep("move_ref", items, 1, thing) == [None]
    assert lists.call("get_buffer", items, 0) == [buffer]
    assert lists.call("get_thing", items, 1) == [thing]
    assert lists.call("get_thing", items, 0) == [None], "of another type than asked for"
    assert lists.call("get_buffer", items, 2) == [None], "empty"
    assert lists.call("get_opaque", items, 0) == [None]
    assert list(items) == [buffer, thing, None]
    assert lists.context.table.live_count == 2, "held by the list"
    lists.keep("resize", items, 1)
    assert lists.context.table.live_count == 1
    lists.keep("set_i32", items, 0, 1)
    assert lists.context.table.live_count == 0


def test_typed_reference_lists(lists: Vm) -> None:
    items, buffer = make(lists, "buffers"), VmBuffer(4)
    lists.keep("set_ref", items, 0, buffer)
    lists.keep("set_ref", items, 0, None)
    lists.keep("set_ref", items, 1, buffer)
    assert lists.call("get_buffer", items, 0) == [None]
    with pytest.raises(InvalidArgumentError):
        lists.keep("set_ref", items, 1, Thing())
    with pytest.raises(FailedPreconditionError):
        lists.call("set_i32", items, 1, 1)
    with pytest.raises(FailedPreconditionError):
        lists.call("get_i32", items, 1)
    with pytest.raises(FailedPreconditionError):
        lists.call("get_f64", items, 2)
    assert list(items) == [None, buffer, None]


def test_values_and_references_do_not_mix(lists: Vm) -> None:
    values, variants = make(lists, "i32"), make(lists, "variant")
    for items in (values, variants):
        lists.call("set_i32", items, 0, 5)
        with pytest.raises(FailedPreconditionError):
            lists.call("get_buffer", items, 0)
    with pytest.raises(FailedPreconditionError):
        lists.keep("set_ref", values, 0, VmBuffer(1))
    with pytest.raises(FailedPreconditionError):
        lists.keep("set_ref", values, 0, None)
    with pytest.raises(FailedPreconditionError, match="empty"):
        lists.call("get_i32", variants, 1)
    lists.keep("set_ref", variants, 0, None)
    with pytest.raises(FailedPreconditionError):
        lists.call("get_i64", variants, 0)
    assert list(values) == [5, 0, 0]


def test_what_is_no_list_is_refused(lists: Vm) -> None:
    for call in (
        ("size",),
        ("resize", 1),
        ("reserve", 1),
        ("get_i64", 0),
        ("set_f64", 0, 1.0),
        ("get_thing", 0),
    ):
        with pytest.raises(InvalidArgumentError, match="null"):
            lists.call(call[0], None, *call[1:])
        with pytest.raises(InvalidArgumentError, match=r"expected vm\.list but have vm\.buffer"):
            lists.call(call[0], VmBuffer(1), *call[1:])


def test_absurd_sizes(lists: Vm) -> None:
    items = make(lists, "i8")
    for size in (-1, 2**31 - 1):
        with pytest.raises(ResourceExhaustedError):
            lists.call("resize", items, size)
        with pytest.raises(ResourceExhaustedError):
            lists.call("reserve", items, size)
        with pytest.raises(ResourceExhaustedError):
            lists.call("alloc_variant", size)
    assert lists.call("size", items) == [3]


def test_lists_of_lists(lists: Vm) -> None:
    outer, inner = make(lists, "lists"), VmList("i64")
    inner.append(5)
    lists.keep("set_ref", outer, 0, inner)
    assert lists.call("get_i32", outer[0], 0) == [5]
    with pytest.raises(InvalidArgumentError):
        lists.keep("set_ref", outer, 0, VmBuffer(1))


def test_a_list_made_by_the_host(lists: Vm) -> None:
    buffer = VmBuffer(1)
    items = VmList()
    for value in (1, 2.5, buffer, None):
        items.append(value)
    assert lists.keep("get_i32", items, 0) == [1]
    assert lists.call("get_f32", items, 1) == [2.5]
    assert lists.call("get_buffer", items, 2) == [buffer]
    items.append(buffer)
    assert lists.call("get_buffer", items, 4) == [buffer]
    assert list(items) == [1, 2.5, buffer, None, buffer]


def test_a_list_wanders_between_contexts(lists: Vm) -> None:
    other = Vm("plain").add(MODULE)
    buffer = VmBuffer(1)
    items = make(lists, "variant")
    lists.keep("set_ref", items, 0, buffer)
    assert other.keep("get_buffer", items, 0) == [buffer]
    lists.context.table.drain_deferred()
    assert lists.context.table.live_count == 0, "its references are handles of the other context now"
    assert lists.keep("get_buffer", items, 0) == [buffer]
    other.context.close()


def test_a_list_in_use_by_another_context_is_refused(lists: Vm) -> None:
    keep = Assembler("k", ref_global_count=1)
    keep.function("keep", "0r_v", "global.store.ref 0, !vm.list<?>, %R0\nreturn []")
    items = make(lists, "variant")
    lists.add(keep)
    lists.keep("keep", items)
    other = Vm("plain").add(MODULE)
    with pytest.raises(FailedPreconditionError, match="in use by another context"):
        other.call("size", items)
    other.context.close()


@pytest.mark.parametrize("bad", [object(), "text"])
def test_a_list_with_an_element_that_is_no_reference_stays_as_it_was(lists: Vm, bad: object) -> None:
    buffer = VmBuffer(1)
    items = VmList()
    for value in (buffer, bad, 7):
        items.append(value)
    for _ in range(2):
        with pytest.raises(InvalidArgumentError, match="not a registered ref type"):
            lists.call("size", items)
        assert list(items) == [buffer, bad, 7]
    items[1] = buffer
    assert lists.keep("get_buffer", items, 1) == [buffer]
