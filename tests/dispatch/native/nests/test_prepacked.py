"""Constants in the order of lanes: what their copies hold, who may make them, and nests that read them."""

from __future__ import annotations

import ctypes
import struct
from array import array
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Final

import llvmlite.binding as llvm
import numpy as np
import pytest

from jitree.codegen.image.compile import host_target, target_machine
from jitree.codegen.record import words_of
from jitree.dispatch.native import rows, side_exits
from jitree.dispatch.native.rows import METADATA, on_pointers
from jitree.dispatch.native.ssa import Value
from jitree.regs.layout import (
    PACKED_LINE,
    PACKED_ROWS,
    SCRATCH,
    STATE,
    STATE_WORDS,
    MachineState,
    Packed,
    Scratch,
)
from tests.dispatch.native.nests.harness import Bytes, Compiled, own_machine
from tests.dispatch.native.nests.interpreter import interpret
from tests.dispatch.native.nests.programs import Body, Level, Text, argument, only_nest, program

_SCRATCH: Final = words_of(Scratch)

_PACKED: Final = words_of(Packed)

ROOM = _PACKED.room
NEXT = _PACKED.next


class Copier:
    """Constants with room for copies, and the function that makes these."""

    def __init__(self, size: int, room: int) -> None:
        memory = np.random.default_rng(0).integers(0, 256, size + PACKED_LINE, np.uint8)
        first = -memory.ctypes.data % PACKED_LINE
        self.constants = memory[first : first + size]
        self.copies = np.zeros(size, np.uint8)
        self.marks = np.zeros(size // PACKED_LINE + 1, np.int64)
        start = self.constants.ctypes.data
        distance = self.copies.ctypes.data - start
        self.record = array("q", (start, size, distance, self.marks.ctypes.data, room, 0))
        self.scratch = array("q", bytes(SCRATCH.size))
        self.scratch[_SCRATCH.packed] = self.record.buffer_info()[0]
        self.state = array("q", bytes(STATE.size))
        self.state[STATE_WORDS.scratch] = self.scratch.buffer_info()[0]
        self.distance = distance
        machine = target_machine(host_target())
        declared: list[str] = []
        code = [rows.function(declared.append, "packed"), on_pointers("packed"), METADATA]
        text = (
            "\n".join([*declared, *code])
            + """
attributes #3 = { nounwind noinline }
define i64 @find(ptr %state, ptr %first, i64 %depth, i64 %blocks) {
  %result = call fastcc i64 @vm.packed(ptr %state, ptr %first, i64 %depth, i64 %blocks)
  ret i64 %result
}"""
        )
        module = llvm.parse_assembly(text)
        module.triple, module.data_layout = machine.triple, str(machine.target_data)
        module.verify()
        self._engine = llvm.create_mcjit_compiler(module, own_machine(host_target()))
        self._engine.finalize_object()
        kind = ctypes.CFUNCTYPE(
            ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64
        )
        self._find = kind(self._engine.get_function_address("find"))

    def find(self, offset: int, depth: int, blocks: int = 1) -> bool:
        """Whether there are copies of blocks that begin so many bytes after the first constant."""
        found = self._find(self.state.buffer_info()[0], self.record[0] + offset, depth, blocks)
        assert found in (0, self.distance)
        return bool(found)

    def holds(self, offset: int, depth: int) -> bool:
        """Whether a block's copy has its columns side by side."""
        place = slice(offset, offset + 4 * PACKED_ROWS * depth)
        block = self.constants[place].view(np.int32).reshape(PACKED_ROWS, depth)
        return bool((self.copies[place].view(np.int32).reshape(depth, PACKED_ROWS) == block.T).all())


def test_the_second_time_makes_a_copy() -> None:
    copier = Copier(1 << 16, 1 << 20)
    size = 4 * PACKED_ROWS * 64
    assert not copier.find(size, 64, 2) and not copier.copies.any()
    assert copier.find(size, 64, 2)
    assert copier.holds(size, 64) and copier.holds(2 * size, 64)
    assert copier.record[ROOM] == (1 << 20) - 2 * size
    assert copier.find(2 * size, 64) and copier.record[ROOM] == (1 << 20) - 2 * size
    assert not copier.copies[:size].any() and not copier.copies[3 * size :].any()


def test_constants_of_several_files() -> None:
    """The records are looked through until one has the block."""
    copier, other, third = Copier(1 << 16, 1 << 20), Copier(1 << 16, 1 << 20), Copier(1 << 16, 1 << 20)
    copier.record[NEXT] = other.record.buffer_info()[0]
    other.record[NEXT] = third.record.buffer_info()[0]
    at = third.record[0] - copier.record[0]
    find = copier._find
    state = copier.state.buffer_info()[0]
    assert [find(state, copier.record[0] + at, 64, 1) for _ in range(3)] == [
        0,
        third.distance,
        third.distance,
    ]
    assert third.holds(0, 64) and not copier.copies.any() and not other.copies.any()
    assert find(state, third.record[0] + (1 << 16), 64, 1) == 0
    assert not copier.find(0, 64) and copier.find(0, 64) and copier.holds(0, 64)


@pytest.mark.parametrize("other", [(0, 128), (64, 64), (4096, 128), (8128, 64), (64, 16)])
def test_blocks_that_overlap_another_have_no_copy(other: tuple[int, int]) -> None:
    """The first one has: its copy stays as it is."""
    copier = Copier(1 << 16, 1 << 20)
    for _ in range(3):
        copier.find(4096, 64)
    assert copier.find(4096, 64)
    if other == (4096, 128) or (other[0] + 64 * other[1] > 4096 and other[0] < 8192):
        for _ in range(4):
            assert not copier.find(*other)
    else:
        for _ in range(3):
            copier.find(*other)
        assert copier.find(*other) and copier.holds(*other)
    assert copier.find(4096, 64) and copier.holds(4096, 64)


def test_what_is_no_constant_has_no_copy() -> None:
    size = 4 * PACKED_ROWS * 64
    copier = Copier(2 * size, 1 << 20)
    for offset, depth, blocks in (
        (-64, 64, 1), (2 * size, 64, 1), (size + 64, 64, 1), (0, 64, 3), (0, 1 << 19, 1), (32, 64, 1),
        (-(1 << 40), 64, 1), (1 << 40, 64, 1),
    ):  # fmt: skip
        for _ in range(4):
            assert not copier.find(offset, depth, blocks)
    assert not copier.copies.any() and not copier.marks.any()


def test_room_ends() -> None:
    size = 4 * PACKED_ROWS * 64
    copier = Copier(8 * size, 3 * size + 100)
    for _ in range(5):
        for number in range(8):
            copier.find(number * size, 64)
    found = [copier.find(number * size, 64) for number in range(8)]
    assert found == [True] * 3 + [False] * 5
    assert copier.record[ROOM] == 100


def test_no_record() -> None:
    copier = Copier(1 << 14, 1 << 20)
    copier.scratch[_SCRATCH.packed] = 0
    assert not any(copier.find(0, 64) for _ in range(4))
    copier.state[STATE_WORDS.scratch] = 0
    assert not any(copier.find(0, 64) for _ in range(4))


def test_python_copies_the_same() -> None:
    """The functions that Numba has compiled, as they stand."""
    copier, other, random = Copier(1 << 16, 1 << 15), Copier(1 << 16, 1 << 15), Random(0)
    other.constants[:] = copier.constants
    for _ in range(1000):
        offset = PACKED_LINE * random.randrange(-4, 1 << 10)
        depth, blocks = random.choice((16, 64)), random.choice((1, 2))
        state = MachineState(other.state.buffer_info()[0])
        found = side_exits.packed(state, other.record[0] + offset, depth, blocks)
        assert copier.find(offset, depth, blocks) is bool(found)
        assert copier.record[ROOM] == other.record[ROOM]
    assert (copier.marks == other.marks).all() and (copier.copies == other.copies).all()
    assert {1, 2, 3} < set(copier.marks.tolist())


def test_threads_meet_the_same_blocks() -> None:
    """Some overlap: whatever is said to have a copy has a whole one, at once and at the end."""
    copier = Copier(1 << 18, 1 << 17)
    depths = (64, 80, 128, 256)

    def use(seed: int) -> set[tuple[int, int]]:
        random, found = Random(seed), set()
        for _ in range(3000):
            depth = random.choice(depths)
            offset = 4096 * random.randrange(60)
            if offset + 64 * depth <= 1 << 18 and copier.find(offset, depth):
                assert copier.holds(offset, depth)
                found.add((offset, depth))
        return found

    with ThreadPoolExecutor(4) as threads:
        found = set[tuple[int, int]]().union(*threads.map(use, range(4)))
    assert found and all(copier.find(*block) and copier.holds(*block) for block in found)
    taken = sum(64 * depth for _, depth in found)
    assert copier.record[ROOM] == (1 << 17) - taken
    assert sum(64 * depth + 64 for _, depth in found) <= 1 << 18


def product(depth: int, rows: int) -> Body:
    """Rows of one matrix by the rows of another, added to what memory holds."""

    def body(text: Text, at: list[str]) -> None:
        row, column, k = at
        left = text.load("f32", 1, text.index(3, (row, depth), (k, 1)))
        right = text.load("f32", 2, text.index(argument(0), (column, depth), (k, 1)))
        out = text.index(0, (row, rows), (column, 1))
        text.store("f32", 0, out, text.op("fma.f32", left, right, text.load("f32", 0, out)))

    return body


@pytest.mark.parametrize("columns", [16, 48, 64, 96])
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("depth", [64, 80])
def test_products(rows: int, columns: int, depth: int) -> None:
    """With copies and without, memory is what the instructions leave."""
    function = program([Level(rows), Level(columns), Level(depth)], product(depth, columns))
    nest = only_nest(function)
    assert nest.plan.alternative is not None
    random = np.random.default_rng(1)
    base = 5
    matrix = random.normal(0, 1, base + columns * depth).astype(np.float32)
    blocks = matrix[base:].reshape(columns // PACKED_ROWS, PACKED_ROWS, depth)
    copy = np.concatenate([matrix[:base], blocks.transpose(0, 2, 1).ravel()])
    given: list[Bytes] = [random.normal(0, 1, 4096).astype(np.float32).view(np.uint8) for _ in range(2)]
    refs = [value for value in function.arguments if value.type == "ref"]
    others = [value for value in function.arguments if value.type != "ref"]
    scalars = dict(zip(others, (base, 0, 0, 0), strict=False))
    results = []
    for run in (None, 0, copy.ctypes.data - matrix.ctypes.data):
        buffers = [given[0].copy(), given[1], matrix.view(np.uint8), np.zeros(4, np.uint8)]
        values: dict[Value, float | Bytes] = {**scalars, **dict(zip(refs, buffers, strict=False))}
        if run is None:
            interpret(nest.loop, values)
        else:
            assert Compiled(nest, run).run(values) == rows
        results.append(buffers[0].tobytes())
    assert results[0] == results[1] == results[2]


def test_a_copy_is_what_is_read() -> None:
    """Where there is one: another matrix in its place gives other sums."""
    function = program([Level(1), Level(16), Level(64)], product(64, 16))
    refs = [value for value in function.arguments if value.type == "ref"]
    others = [value for value in function.arguments if value.type != "ref"]
    matrix, copy = np.zeros(1024, np.float32), np.ones(1024, np.float32)
    ones = np.ones(100, np.float32)
    out = np.zeros(16, np.float32)
    buffers = [out.view(np.uint8), ones.view(np.uint8), matrix.view(np.uint8), np.zeros(4, np.uint8)]
    values: dict[Value, float | Bytes] = {
        **dict.fromkeys(others, 0),
        **dict(zip(refs, buffers, strict=False)),
    }
    Compiled(only_nest(function), copy.ctypes.data - matrix.ctypes.data).run(values)
    assert (out == 64).all()


@pytest.mark.parametrize(
    "rows,columns,depth,base", [(1, 20, 64, 0), (1, 16, 63, 0), (1, 16, 48, 0), (64, 64, 64, 0)]
)
def test_what_is_not_packed(rows: int, columns: int, depth: int, base: int) -> None:
    """Rows that are no whole blocks, or that many rows of the other matrix meet."""
    function = program([Level(rows), Level(columns), Level(depth)], product(depth, columns))
    assert only_nest(function).plan.alternative is None
    assert struct.calcsize("f") * PACKED_ROWS == PACKED_LINE
