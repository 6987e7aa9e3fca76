"""Long ranges in kernels: machine code looks between parts whether the call is to end."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import numpy as np
import pytest

from jitree.base.platform import address_of_function
from jitree.loaders.vmvx.kernels import ENTRY_CONVENTION
from jitree.regs import access
from jitree.regs.access import LONG_RANGE, buffer_compare, buffer_copy, buffer_fill
from jitree.regs.layout import LIBRARY_FUNCTIONS, STATE, MachineState
from jitree.regs.memory import address_of
from tests.assembler import Assembler
from tests.hal.native_kernels import aligned
from tests.loaders.vmvx.cut_programs import run_whole, with_code
from tests.loaders.vmvx.programs import load

SIZE = 3 * LONG_RANGE + 8
HALF = SIZE // 2 & -8
INSTRUCTIONS = {
    "fill": f"%i20 = const.i64 {SIZE // 4}\nbuffer.fill.i32 %r3, %i16:17, %i20:21, %i15",
    "copy": f"%i20 = const.i64 {HALF}\nbuffer.copy %r3, %i16:17, %r3, %i20:21, %i20:21",
    "overlapping copy": f"%i20 = const.i64 {SIZE - 8}\nbuffer.copy %r3, %i16:17, %r3, %i18:19, %i20:21",
    "compare": f"%i20 = const.i64 {SIZE - 8}\n%i14 = buffer.compare %r3, %i16:17, %r3, %i18:19, %i20:21\n"
    "buffer.store.i32 %r3, %i16:17, %i14",
    "compare with itself": f"%i20 = const.i64 {SIZE}\n"
    "%i14 = buffer.compare %r3, %i16:17, %r3, %i16:17, %i20:21\nbuffer.store.i32 %r3, %i16:17, %i14",
}


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_machine_code_does_what_the_interpreter_does(name: str) -> None:
    body = f"""
    %i9 = const.i32 0
    %r3 = list.get.ref %r2, %i9, !vm.buffer
    %i16 = const.i64 0
    %i18 = const.i64 8
    %i15 = const.i32 43981
    {INSTRUCTIONS[name]}
    return []
    """
    kernel = Assembler("k").function("f", ENTRY_CONVENTION, body, attrs={"binding_count": "1"}).build()
    before = np.random.default_rng(0).integers(0, 256, SIZE, np.uint8)
    found = []
    for loaded in (load(kernel, "plain"), with_code(lambda: load(kernel, "native"))):
        memory = aligned(before)
        run_whole(loaded, 1, (), [memory])
        found.append(memory.tobytes())
    assert found[0] == found[1] != before.tobytes()


@pytest.fixture
def state() -> Iterator[MachineState]:
    """That of a kernel, with the functions of the C library that are called."""
    functions = array("q", bytes(8 * len(LIBRARY_FUNCTIONS)))
    for name in ("memmove", "memcmp"):
        functions[LIBRARY_FUNCTIONS.index(name)] = address_of_function(name)
    words = array("q", bytes(STATE.size))
    made = MachineState(words.buffer_info()[0])
    words[STATE["math"] // 8] = words[STATE["scratch"] // 8] = functions.buffer_info()[0]
    yield made


@pytest.mark.parametrize("ends_at", [0, 1, 2])
def test_they_end_between_parts(state: MachineState, ends_at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In Python, which machine code is made from."""
    looks = 0

    def look(state: MachineState) -> bool:
        nonlocal looks
        looks += 1
        return looks == ends_at

    monkeypatch.setattr(access, "look", look)
    memory, other = aligned(np.zeros(SIZE, np.uint8)), aligned(np.ones(SIZE, np.uint8))
    at, source = address_of(memory), address_of(other)
    assert buffer_fill(state, at, SIZE, 0, SIZE, 7, 0) is (ends_at == 0)
    assert looks == (ends_at or 3) and memory.all() == (ends_at == 0)
    looks = 0
    memory[:] = 0
    assert buffer_copy(state, source, SIZE, 0, at, SIZE, 0, SIZE) is (ends_at == 0)
    assert looks == (ends_at or 3) and memory.all() == (ends_at == 0)
    looks = 0
    assert buffer_compare(state, at, SIZE, 0, at, SIZE, 0, SIZE) == (1 if ends_at == 0 else -1)
    assert looks == (ends_at or 3)
    looks = 0
    assert not buffer_copy(state, at, SIZE, 0, at, SIZE, 8, SIZE - 8) and not looks, "left to Python"
