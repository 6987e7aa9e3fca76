"""Values in the slots of a ``vm.list``: 64 bits each, integers sign extended, floats as their bits."""

from __future__ import annotations

import struct
from typing import Final

from jitree.errors import pass_interruption
from jitree.regs.layout import LIST_F32, LIST_F64, LIST_I8, LIST_I16, LIST_I32, LIST_I64
from jitree.vmfb.words import signed

_INTEGER_BITS: Final = {LIST_I8: 8, LIST_I16: 16, LIST_I32: 32, LIST_I64: 64}
_F32: Final = struct.Struct("<f")
_F64: Final = struct.Struct("<d")


def _f32_bits(value: float) -> int:
    try:
        return int.from_bytes(_F32.pack(value), "little")
    except OverflowError as error:  # beyond binary32: infinity, as the conversion instruction gives
        pass_interruption(error)
        return 0x7F800000 if value > 0 else 0xFF800000


def to_bits(code: int, value: float) -> int:
    """The slot contents of a value of a LIST_* value code; integers are truncated and sign extended."""
    bits = _INTEGER_BITS.get(code)
    if bits is not None:
        return signed(int(value), bits)
    if code == LIST_F32:
        return _f32_bits(value)
    return int.from_bytes(_F64.pack(value), "little", signed=True)


def from_bits(code: int, bits: int) -> int | float:
    """The value of slot contents of a LIST_* value code."""
    if code == LIST_F32:
        return float(_F32.unpack(struct.pack("<I", bits & 0xFFFFFFFF))[0])
    if code == LIST_F64:
        return float(_F64.unpack(struct.pack("<q", bits))[0])
    return bits


def convert(source: int, bits: int, target: int) -> int:
    """Slot contents of code ``target`` from those of code ``source``: integers change width, floats convert,
    and between integers and floats the result is 0."""
    if source == target:
        return bits
    if target in _INTEGER_BITS:
        return signed(bits, _INTEGER_BITS[target]) if source in _INTEGER_BITS else 0
    return 0 if source in _INTEGER_BITS else to_bits(target, from_bits(source, bits))
