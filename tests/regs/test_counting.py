"""References are counted alike by the methods of the table, by the functions that machine code is made of and
by the machine code."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitree.codegen import functions
from jitree.codegen.image.compile import compile_object, host_target
from jitree.codegen.image.flat import Image, map_image
from jitree.codegen.image.link import link
from jitree.regs import access
from jitree.regs.buffer import VmBuffer
from jitree.regs.handles import HandleTable
from jitree.regs.layout import COUNT_UNLIMITED, ENTRY, STATE, Entry, Released
from jitree.regs.memory import address_of
from jitree.regs.ref_types import RefTypes
from jitree.vmfb.words import TAG_REF_COPY, TAG_REF_MOVE

NAMES = ("retain", "drop", "move")
REGISTERS = 5
OBJECTS = 3

Step = tuple[int, int, int]
"""Tag, source, target."""
steps = st.tuples(
    st.sampled_from([TAG_REF_COPY, TAG_REF_MOVE]),
    st.integers(0, REGISTERS - 1),
    st.integers(0, REGISTERS - 1),
)


@cache
def _image() -> Image:
    texts = functions.texts(getattr(access, name) for name in NAMES)
    return map_image(link([compile_object(texts, NAMES, host_target())], NAMES))


def _compiled(name: str) -> Callable[..., Any]:
    count = {"retain": 1, "drop": 2, "move": 8}[name]
    return ctypes.CFUNCTYPE(*[ctypes.c_int64] * (count + 1))(_image().addresses[name])


def _moved_by_table(table: HandleTable, registers: Any, state: Any, step: Step) -> None:
    tag, source, target = step
    handle = int(registers[source])
    if tag == TAG_REF_COPY:
        table.retain(handle)
    else:
        registers[source] = 0
    old = int(registers[target])
    registers[target] = handle
    table.release(old)


def _moved_by_function(table: HandleTable, registers: Any, state: Any, step: Step) -> None:
    place, released = address_of(registers), Released(address_of(state) + STATE["released"])
    access.move(*step, 0, place, 0, place, released)


def _moved_by_machine_code(table: HandleTable, registers: Any, state: Any, step: Step) -> None:
    place = address_of(registers)
    _compiled("move")(*step, 0, place, 0, place, address_of(state) + STATE["released"])


def _counts(program: list[Step], move: Callable[..., None]) -> list[list[int]]:
    """References to each object, 0 when it is gone, after each step."""
    table = HandleTable(RefTypes(), capacity=OBJECTS)
    objects = [VmBuffer(1) for _ in range(OBJECTS)]
    registers = np.zeros(REGISTERS, np.int64)
    registers[:OBJECTS] = [table.wrap(item) for item in objects]
    state = np.zeros(STATE.size // 8, np.int64)
    rows = []
    for step in program:
        move(table, registers, state, step)
        table.drain(state.data)
        handles = [table.address_of(item) for item in objects]
        rows.append([table.count(handle) if handle else 0 for handle in handles])
        assert rows[-1] == [handle != 0 and int((registers == handle).sum()) for handle in handles]
    return rows


@given(st.lists(steps, max_size=30))
def test_moves_count_alike(program: list[Step]) -> None:
    expected = _counts(program, _moved_by_table)
    assert _counts(program, _moved_by_function) == expected
    assert _counts(program, _moved_by_machine_code) == expected


@pytest.mark.parametrize("count", [COUNT_UNLIMITED, COUNT_UNLIMITED + 5, 2**31 - 1])
def test_entries_without_a_limit_are_not_counted(count: int) -> None:
    memory = np.zeros(ENTRY.size // 8, np.int64)
    entry, released = Entry(address_of(memory)), np.zeros(1, np.int64)
    entry.count = count
    access.retain(entry)
    access.drop(entry, Released(address_of(released)))
    assert _compiled("retain")(address_of(memory)) == address_of(memory)
    _compiled("drop")(address_of(memory), address_of(released))
    assert entry.count == count and not released.any()
    table, obj = HandleTable(RefTypes()), VmBuffer(8)
    handle = table.wrap(obj)
    table.set_word(handle, "count", count)
    assert table.retain(handle) == table.wrap(obj) == handle
    table.release(handle)
    table.release_all([handle] * 99)
    assert table.count(handle) == count and table.object(handle) is obj


def test_null_is_left_alone() -> None:
    assert not access.retain(Entry(0)) and _compiled("retain")(0) == 0
    access.drop(Entry(0), Released(0))
    _compiled("drop")(0, 0)
