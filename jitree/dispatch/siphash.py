"""SipHash-2-4 with the fixed key of ``vm.buffer.hash``: a hash of contents that is the same everywhere."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from jitree.base.copying import ranges
from jitree.base.layout import rows_of

_KEY: Final = struct.unpack("<QQ", bytes(range(16)))
_PART: Final = 1 << 13
"""Bytes between two looks, which take some milliseconds."""
_MASK: Final = 0xFFFFFFFFFFFFFFFF


def _rotate(value: int, amount: int) -> int:
    return ((value << amount) & _MASK) | (value >> (64 - amount))


def _round(v0: int, v1: int, v2: int, v3: int) -> tuple[int, int, int, int]:
    v0 = (v0 + v1) & _MASK
    v1 = _rotate(v1, 13) ^ v0
    v0 = _rotate(v0, 32)
    v2 = (v2 + v3) & _MASK
    v3 = _rotate(v3, 16) ^ v2
    v0 = (v0 + v3) & _MASK
    v3 = _rotate(v3, 21) ^ v0
    v2 = (v2 + v1) & _MASK
    v1 = _rotate(v1, 17) ^ v2
    v2 = _rotate(v2, 32)
    return v0, v1, v2, v3


def _absorbed(state: tuple[int, int, int, int], word: int) -> tuple[int, int, int, int]:
    v0, v1, v2, v3 = state
    v0, v1, v2, v3 = _round(*_round(v0, v1, v2, v3 ^ word))
    return v0 ^ word, v1, v2, v3


def siphash(data: memoryview, look: Callable[[], object]) -> int:
    """The unsigned 64-bit hash of bytes under the key 00 01 … 0F. ``look`` is called every few milliseconds
    and may end it."""
    k0, k1 = _KEY
    state = (
        k0 ^ 0x736F6D6570736575,
        k1 ^ 0x646F72616E646F6D,
        k0 ^ 0x6C7967656E657261,
        k1 ^ 0x7465646279746573,
    )
    whole = len(data) & ~7
    last = data[whole:].tobytes().ljust(7, b"\0") + bytes((len(data) & 0xFF,))
    for part in ranges(whole, _PART, look):
        for (word,) in rows_of(struct.Struct("<Q"), data[part]):
            state = _absorbed(state, word)
    v0, v1, v2, v3 = _absorbed(state, int.from_bytes(last, "little"))
    state = (v0, v1, v2 ^ 0xFF, v3)
    for _ in range(4):
        state = _round(*state)
    return state[0] ^ state[1] ^ state[2] ^ state[3]
