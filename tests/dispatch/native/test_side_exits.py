"""What compiled functions do to frames and memory when they leave, run as Python."""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitree.dispatch.native import side_exits
from jitree.regs.layout import (
    ENTRY,
    FRAME,
    FUNCTION,
    IMPORT,
    LIBRARY_FUNCTIONS,
    MODULE,
    SCRATCH,
    SLOW_DONE,
    SLOW_REFUSED,
    SLOW_STOP,
    STATE,
    Entry,
    FrameRecord,
    FunctionEntry,
    ImportEntry,
    MachineState,
    ModuleEntry,
    Scratch,
)
from jitree.regs.memory import address_of

Words = npt.NDArray[np.int64]


class Memory:
    """A state block, three frames, and a module of two functions with 6 value slots and 3 references."""

    def __init__(self) -> None:
        self.blocks = {
            name: np.zeros(size // 8, np.int64)
            for name, size in {
                "state": STATE.size, "frames": 3 * FRAME.size, "module": MODULE.size,
                "functions": 2 * FUNCTION.size, "import": IMPORT.size,
            }.items()
        }  # fmt: skip
        self.state = MachineState(address_of(self.blocks["state"]))
        self.state.module = ModuleEntry(address_of(self.blocks["module"]))
        self.state.module.code = 4000
        self.state.module.functions = address_of(self.blocks["functions"])
        for ordinal in range(2):
            function = FunctionEntry(self.state.module.functions + ordinal * FUNCTION.size)
            function.value_count, function.ref_count, function.module = 6, 3, self.state.module

    def frame(self, number: int) -> FrameRecord:
        return FrameRecord(address_of(self.blocks["frames"]) + number * FRAME.size)


@pytest.fixture
def memory() -> Memory:
    return Memory()


@given(st.integers(-(2**63), 2**63 - 1))
def test_clear(bits: int) -> None:
    refs = np.arange(1, 65, dtype=np.int64)
    side_exits.clear(address_of(refs), bits)
    assert [value == 0 for value in refs.tolist()] == [bool(bits >> slot & 1) for slot in range(64)]


def test_constants() -> None:
    values, rows = np.zeros(6, np.int32), np.array([5 << 32 | 0xFFFFFFFE, 7, 2 << 32 | 1 << 31], np.int64)
    side_exits.constants(address_of(values), address_of(rows), 3)
    assert values.tolist() == [7, 0, -(2**31), 0, 0, -2]


def test_functions_that_leave_look_as_if_interpreted(memory: Memory) -> None:
    state, outer, inner = memory.state, memory.frame(1), memory.frame(2)
    side_exits.side_exit(state, inner, 800, 900, 1, 5, 77)
    side_exits.suspend(state, outer, 600, 700, 0, 3, 9)
    assert (state.pc, state.values, state.refs, state.fuel) == (4020, 800, 900, 77)
    assert state.frame == inner and inner.results == 4036
    assert (inner.values, inner.refs, inner.values_end, inner.refs_end) == (800, 900, 824, 924)
    assert (outer.pc, outer.values_end, outer.refs_end) == (4012, 624, 724)
    side_exits.pop(state, inner)
    assert state.frame == outer and (state.pc, state.values, state.refs) == (4012, 600, 700)
    assert state.module == outer.function.module


def test_an_instruction_is_done_by_python_or_refused(memory: Memory) -> None:
    state, frame, imported = memory.state, memory.frame(0), ImportEntry(address_of(memory.blocks["import"]))
    assert side_exits.slow(state, frame, 0, 0, 0, 2, ImportEntry(0)) == SLOW_REFUSED
    seen = []

    def plain_handler(place: int) -> int:
        seen.append((MachineState(place).outcome, MachineState(place).pc))
        MachineState(place).outcome = SLOW_DONE
        return 0

    address = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(plain_handler)
    state.slow = ctypes.cast(address, ctypes.c_void_p).value or 0
    assert side_exits.slow(state, frame, 0, 0, 0, 2, imported) == SLOW_DONE
    assert seen == [(SLOW_STOP, 4008)]
    imported.function = 8
    assert side_exits.slow(state, frame, 0, 0, 0, 2, imported) == SLOW_REFUSED


@pytest.mark.parametrize(
    ("length", "taken"), [(0, True), (1, True), (64, True), (128, True), (129, False), (-1, False)]
)
def test_memory_that_dies_with_its_function(memory: Memory, length: int, taken: bool) -> None:
    scratch, entry, data = (np.zeros(size // 8, np.int64) for size in (SCRATCH.size, ENTRY.size, 128 + 63))
    data[:] = -1
    library = np.zeros(len(LIBRARY_FUNCTIONS), np.int64)
    memory.state.math = address_of(library)
    library[side_exits.MEMSET // 8] = ctypes.cast(ctypes.CDLL(None).memset, ctypes.c_void_p).value or 0
    record = memory.state.scratch = Scratch(address_of(scratch))
    record.free, record.next, record.limit = (
        Entry(address_of(entry)),
        address_of(data),
        address_of(data) + 128 + 63,
    )
    made = side_exits.allocate(memory.state, length)
    assert bool(made) == taken == bool(record.taken)
    if taken:
        assert (made.address, made.length, made.count) == (address_of(data), length, 1)
        assert not data.view(np.uint8)[:length].any() and data.view(np.uint8)[length:].all()
        assert not record.free and record.next == address_of(data) + (length + 63) // 64 * 64
        assert not side_exits.allocate(memory.state, 1)
