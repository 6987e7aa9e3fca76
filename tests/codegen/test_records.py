"""Records in memory: what machine code does with them is what Python does."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from jitree.codegen import functions
from jitree.codegen.image.compile import compile_object, host_target
from jitree.codegen.image.flat import map_image
from jitree.codegen.image.link import link
from jitree.codegen.record import (
    Atomic,
    MemoryRecord,
    Repeated,
    atomic_add,
    fields_of,
    layout_of,
    place_of,
    size_of,
    words_of,
)
from jitree.errors import InternalError
from jitree.hal.command_layout import Command, KernelEntry, LoggedEvent, Workgroup
from jitree.regs.layout import Entry, FrameRecord

if TYPE_CHECKING:
    from jitree.codegen.record import i32, i64, line, u8, u16, u32


class Node(MemoryRecord):
    count: i32
    kind: i32
    wide: i64
    next: Node
    owner: Owner


class Owner(MemoryRecord):
    total: i64
    first: Node


def count_up(owner: Owner, place: int) -> int:
    """Counts every node, turns the list around and puts a node in front of it."""
    node, last, length = owner.first, Node(0), 0
    while node:
        node.count += 1
        node.wide = node.count * node.kind - node.wide
        node.owner.total += node.wide
        following = node.next
        node.next = last
        last, node = node, following
        length += 1
    new = Node(place)
    new.next = last
    new.owner = owner
    owner.first = new
    return length if owner.first == new and new.owner == owner and not node else -1


def place_of_second(owner: Owner) -> int:
    return place_of(owner.first.next) if owner.first and owner.first.next != owner.first else 0


def unused(owner: Owner) -> None:
    """Stores a number that 32 bits do not hold."""
    owner.first.count = -(1 << 40) - 3


FUNCTIONS: list[Callable[..., object]] = [count_up, place_of_second, unused]


def state_after(call: Callable[[str, int, int], object]) -> list[object]:
    """What calls of the functions give and leave in memory, with addresses as numbers of words."""
    memory = (ctypes.c_int64 * 32)()
    base = ctypes.addressof(memory)
    nodes = [base + 64 + size_of(Node) * number for number in range(4)]
    owner = base
    memory[1] = nodes[0]
    for number, node in enumerate(nodes[:3]):
        word = (node - base) // 8
        memory[word] = (number - 1 & 0xFFFFFFFF) | (7 * number - 9 << 32)
        memory[word + 1], memory[word + 3] = 100 - number, owner
        memory[word + 2] = nodes[number + 1] if number < 2 else 0
    results: list[object] = []
    for name, *arguments in (("count_up", owner, nodes[3]), ("place_of_second", owner), ("unused", owner)):
        result = call(str(name), *map(int, arguments))
        results.append(result - base if name == "place_of_second" and isinstance(result, int) else result)
    return [*results[:2], *(word - base if 0 <= word - base < 256 else word for word in memory)]


def test_machine_code_does_what_python_does() -> None:
    names = [function.__name__ for function in FUNCTIONS]
    image = map_image(link([compile_object(functions.texts(FUNCTIONS), names, host_target())], names))

    def by_machine(name: str, *arguments: int) -> object:
        code = ctypes.CFUNCTYPE(*[ctypes.c_int64] * (len(arguments) + 1))(image.addresses[name])
        return code(*arguments)

    def by_python(name: str, first: int, *others: int) -> object:
        return globals()[name](Owner(first), *others)

    expected = state_after(by_python)
    assert expected[:2] == [3, 64 + 2 * size_of(Node)]
    assert state_after(by_machine) == expected


def unknown_field(node: Node) -> int:
    found: int = node.counter  # type: ignore[attr-defined]
    return found


def number_for_a_record(node: Node) -> None:
    node.next = 5  # type: ignore[assignment]


def record_for_a_number(node: Node) -> int:
    return node.next + 1  # type: ignore[operator]


def other_record(node: Node, owner: Owner) -> int:
    return 1 if node == owner else 0


@pytest.mark.parametrize("function", [unknown_field, number_for_a_record, record_for_a_number, other_record])
def test_types_are_checked(function: Callable[..., object]) -> None:
    with pytest.raises(InternalError, match=rf"^INTERNAL; {function.__name__}: "):
        functions.texts([function])


class Mixed(MemoryRecord):
    tag: u8
    number: i32
    before: MemoryRecord
    turns: Atomic
    last: i64


class Inside(MemoryRecord):
    embedded = True
    half: u16
    word: u32


class Longer(Mixed):
    """As the other one; what comes before it is one of these, and more follows."""

    before: Longer
    halves: u16 = Repeated(3)
    inside: Inside
    shared: line
    after: i32


def test_a_class_lays_its_fields_out_in_order() -> None:
    """Each at a multiple of its size; what is embedded takes a word, too."""
    layout, words = layout_of(Mixed), words_of(Mixed)
    assert layout.offsets == {"tag": 0, "number": 4, "before": 8, "turns": 16, "last": 24}
    assert (layout["last"], size_of(Mixed), words.number, words.last) == (24, 32, 1, 3)
    memory = (ctypes.c_int64 * 4)()
    record = Mixed(ctypes.addressof(memory))
    record.tag, record.number, record.before, record.last = 200, -3, Node(48), 7
    assert atomic_add(record.turns, 5) == 0
    assert [*memory] == [200 | (-3 << 32), 48, 5, 7]
    assert (record.tag, record.number, record.before, record.last) == (200, -3, Node(48), 7)


def test_a_class_may_follow_another_repeat_numbers_and_have_records_inside() -> None:
    """Lines begin at multiples of their size; its own fields follow those of the other class."""
    layout, words = layout_of(Longer), words_of(Longer)
    assert list(layout.offsets)[:5] == list(layout_of(Mixed).offsets)
    places = {"halves": 32, "inside": 40, "shared": 128, "after": 256}
    assert layout.offsets == layout_of(Mixed).offsets | places and size_of(Longer) == 264
    assert (words.halves, words.after) == (16, 64)
    memory = (ctypes.c_int64 * (size_of(Longer) // 8))()
    record = Longer(ctypes.addressof(memory))
    record.before, record.halves, record.inside.word, record.after = record, 9, 1 << 31, -4
    assert atomic_add(record.shared, 3) == 0 and record.before.before == record
    assert {number: value for number, value in enumerate(memory) if value} == {
        1: ctypes.addressof(memory), 4: 9, 5: -(1 << 63), 16: 3, 32: 0xFFFFFFFC,
    }  # fmt: skip


def test_nothing_is_laid_out_before_it_is_asked_for() -> None:
    class Late(MemoryRecord):
        count: i64 = Repeated(2)

    assert vars(Late)["count"] == 2
    assert layout_of(Late).packer().size == 8 and size_of(Late) == 16
    assert Late(0) == Late(0) and not Late(0) and fields_of(Late)["count"].width == 8


def test_records_that_others_lay_out_are_as_long_as_theirs() -> None:
    """Of tables with rows of 64 bytes, and of what kernels and drivers are given."""
    assert size_of(Command) == layout_of(Command).packer().size == 64
    assert size_of(LoggedEvent) == layout_of(LoggedEvent).packer().size == 64
    assert size_of(Entry) == size_of(FrameRecord) == 64
    assert size_of(KernelEntry) == size_of(Workgroup) == 48
