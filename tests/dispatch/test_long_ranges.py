"""Instructions on long ranges of buffers: done in parts, between which they end with their call."""

from __future__ import annotations

import numpy as np
import pytest

from jitree.base.copying import PART
from jitree.dispatch.context import Context
from jitree.dispatch.plain import buffers as hashing
from jitree.errors import CancelledError
from jitree.modules.vmvx.kernels import in_python
from jitree.regs.buffer import VmBuffer
from jitree.regs.machine import Machine
from jitree.regs.ref_types import RefTypes
from jitree.vmfb.decode import BytecodeModule
from tests.assembler import Assembler

SIZE = 3 * PART + 5
TIERS = ("plain", "fast", "native")
INSTRUCTIONS = {
    "fill": "buffer.fill.i8 %r0, %i2:3, %i0:1, %i4",
    "copy": "buffer.copy %r0, %i2:3, %r1, %i2:3, %i0:1",
    "compare": "%i5 = buffer.compare %r0, %i2:3, %r1, %i2:3, %i0:1",
    "clone": "%r2 = buffer.clone %r0, %i2:3, %i0:1, %i4",
    "hash": "%i6:7 = buffer.hash %r0, %i2:3, %i0:1",
}


def context(tier: str, body: str, cconv: str) -> Context:
    module = Assembler("m").function("f", cconv, body).build()
    made = Context(RefTypes(), tier=tier)
    made.register([BytecodeModule.load(module, "m")])
    return made


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_they_end_between_parts(tier: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    body = f"%i0 = const.i64 {SIZE}\n%i2 = const.i64 0\n%i4 = const.i32 16\n{INSTRUCTIONS[name]}\nreturn"
    made = context(tier, body, "0rr_v")
    buffers = VmBuffer(SIZE), VmBuffer(SIZE)
    looks: list[Machine] = []

    def look(machine: Machine) -> None:
        looks.append(machine)
        if len(looks) == 3:
            raise CancelledError("as a deadline does")

    monkeypatch.setattr(Machine, "require_running", look)
    with pytest.raises(CancelledError, match="as a deadline does"):
        made.invoke(made.lookup("m.f"), buffers)
    assert not (name == "fill" and buffers[0].data.all()), "it has not ended"


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize(("source", "target"), [(0, 3), (3, 0), (0, PART + 1), (PART + 1, 0), (7, 7)])
def test_ranges_that_overlap(tier: str, source: int, target: int) -> None:
    length = SIZE - max(source, target)
    body = f"""
    %i0 = const.i64 {length}
    %i2 = const.i64 {source}
    %i4 = const.i64 {target}
    buffer.copy %r0, %i2:3, %r0, %i4:5, %i0:1
    return
    """
    made = context(tier, body, "0r_v")
    data = np.random.default_rng(1).integers(0, 256, SIZE, np.uint8)
    buffer = VmBuffer.alias(bytearray(data))
    made.invoke(made.lookup("m.f"), (buffer,))
    data[target : target + length] = data[source : source + length].copy()
    assert np.array_equal(buffer.data, data)


@pytest.mark.parametrize("tier", TIERS)
def test_long_results(tier: str) -> None:
    body = f"""
    %i0 = const.i64 {SIZE // 2}
    %i2 = const.i64 1
    %i4 = const.i32 43981
    buffer.fill.i16 %r0, %i2:3, %i8:9, %i4
    buffer.copy %r0, %i10:11, %r1, %i10:11, %i12:13
    %i5 = buffer.compare %r0, %i10:11, %r1, %i10:11, %i12:13
    %i4 = const.i32 1
    buffer.fill.i8 %r1, %i14:15, %i2:3, %i4
    %i6 = buffer.compare %r0, %i10:11, %r1, %i10:11, %i12:13
    return [%i5, %i6]
    """
    numbers = f"%i8 = const.i64 {SIZE // 2 - 1}\n%i10 = const.i64 0\n%i12 = const.i64 {SIZE}\n"
    made = context(tier, f"{numbers}%i14 = const.i64 {SIZE - 1}\n{body}", "0rr_ii")
    first, second = VmBuffer(SIZE), VmBuffer(SIZE)
    assert made.invoke(made.lookup("m.f"), (first, second)) == [1, 0]
    assert (first.data[2:-1].view(np.uint16) == 43981).all() and not first.data[[0, 1, -1]].any()


@pytest.mark.parametrize("size", [0, 7, 8, 8191, 8192, 8193, 20_001])
def test_hashes_do_not_depend_on_parts(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data = memoryview(np.random.default_rng(size).bytes(size))
    found = hashing.siphash(data, bool)
    monkeypatch.setattr(hashing, "_PART", 64)
    looks: list[None] = []
    assert hashing.siphash(data, lambda: looks.append(None)) == found
    assert len(looks) >= size // 64 - 1


def test_a_known_hash() -> None:
    """Of the paper: 15 bytes under the key that counts up."""
    assert hashing.siphash(memoryview(bytes(range(15))), bool) == 0xA129CA6149BE45E5


def test_kernels_in_python_look(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[None] = []
    monkeypatch.setattr("jitree.modules.vmvx.kernels.require_going_on", lambda: looks.append(None))
    out = VmBuffer(4 * 5000)
    in_python()["fill.2d.x32", "0irIIII_v"](3, out, 0, 5000, 1, 5000)
    assert (out.data.view(np.int32) == 3).all()
    assert len(looks) >= 5
