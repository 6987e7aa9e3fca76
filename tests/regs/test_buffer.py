"""``VmBuffer`` and memory blocks."""

from __future__ import annotations

import numpy as np
import pytest

from jitree.errors import InvalidArgumentError, ResourceExhaustedError
from jitree.regs.buffer import VmBuffer
from jitree.regs.memory import MemoryBlock, address_of, zeroed


@pytest.mark.parametrize("alignment", [64, 256, 4096])
def test_owned_memory(alignment: int) -> None:
    buffer = VmBuffer(100, alignment)
    assert buffer.address % alignment == 0
    assert (len(buffer), bytes(buffer), buffer.writable) == (100, bytes(100), True)
    np.asarray(buffer)[3] = 7
    assert bytes(buffer)[3] == 7
    assert np.asarray(buffer, dtype=np.int32)[3] == 7


def test_aliases() -> None:
    data = bytearray(b"abcdef")
    buffer = VmBuffer.alias(data)
    data[0] = ord("x")
    assert (bytes(buffer), buffer.writable) == (b"xbcdef", True)
    constant = VmBuffer.alias(memoryview(b"abcdef")[2:])
    assert (bytes(constant), constant.writable) == (b"cdef", False)
    assert constant.address == address_of(constant.data)
    assert len(VmBuffer.alias(b"")) == 0


def test_no_such_room() -> None:
    with pytest.raises(ResourceExhaustedError):
        VmBuffer(2**62)
    with pytest.raises(InvalidArgumentError):
        VmBuffer(-1)


def test_blocks_are_zero_and_page_aligned() -> None:
    block = MemoryBlock(1 << 30)
    assert block.address % 4096 == 0
    assert (block.i32[-1], block.i64[12345]) == (0, 0)
    block.f64[1] = 1.5
    assert block.i64[1] == 0x3FF8000000000000
    assert zeroed(10, 128).tolist() == [0] * 10
