"""Records in memory: what machine code does with them is what Python does."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from jitree.base.layout import Record
from jitree.codegen import functions
from jitree.codegen.image.compile import compile_object, host_target
from jitree.codegen.image.flat import map_image
from jitree.codegen.image.link import link
from jitree.codegen.record import Atomic, MemoryRecord, atomic_add, layout_of, place_of
from jitree.errors import InternalError

if TYPE_CHECKING:
    from jitree.codegen.record import i32, i64, u8

OWNER = Record("owner", "i64 total\ni64 first")


class Node(MemoryRecord):
    count: i32
    kind: i32
    wide: i64
    next: Node
    owner: Owner


class Owner(MemoryRecord, layout=OWNER):
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
    nodes = [base + 64 + layout_of(Node).size * number for number in range(4)]
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
    assert expected[:2] == [3, 64 + 2 * layout_of(Node).size]
    assert state_after(by_machine) == expected


def unknown_field(node: Node) -> int:
    return node.counter


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
    before: Node
    turns: Atomic
    last: i64


def test_a_class_lays_its_fields_out_in_order() -> None:
    """Each at a multiple of its size, as a table does; what is embedded takes a word, too."""
    layout = layout_of(Mixed)
    assert layout.offsets == {"tag": 0, "number": 4, "before": 8, "turns": 16, "last": 24}
    assert (layout.size, layout.word("number"), layout.word("last")) == (32, 1, 3)
    assert layout.offsets == Record("same", "u8 tag\ni32 number\ni64 before\ni64 turns\ni64 last").offsets
    memory = (ctypes.c_int64 * 4)()
    record = Mixed(ctypes.addressof(memory))
    record.tag, record.number, record.before, record.last = 200, -3, Node(48), 7
    assert atomic_add(record.turns, 5) == 0
    assert [*memory] == [200 | (-3 << 32), 48, 5, 7]
    assert (record.tag, record.number, record.before, record.last) == (200, -3, Node(48), 7)
