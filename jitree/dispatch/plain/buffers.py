"""Executes instructions on ``vm.buffer``: access, fill, copy, compare, hash.

New ones: :mod:`jitree.dispatch.plain.calls`. Offsets of load, store and fill count elements, all others
bytes. Ranges are computed exactly, with registers read as unsigned.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

import numpy as np

from jitree.base.copying import PART, ranges
from jitree.base.records import rows_of
from jitree.dispatch.plain.calls import BANKS, Handler, new_buffer, reference_to
from jitree.errors import OutOfRangeError, PermissionDeniedError
from jitree.regs.buffer import VmBuffer
from jitree.regs.layout import ACCESS_WRITE
from jitree.regs.machine import Machine

_U64: Final = 0xFFFFFFFFFFFFFFFF


_buffer: Final = reference_to(VmBuffer, "buffer")

_KEY: Final = struct.unpack("<QQ", bytes(range(16)))
_PART: Final = 1 << 13
"""Bytes between two looks, which take some milliseconds."""
_MASK: Final = 0xFFFFFFFFFFFFFFFF


def _writable(machine: Machine, register: int) -> VmBuffer:
    buffer = _buffer(machine, register)
    if not buffer.access & ACCESS_WRITE:
        raise PermissionDeniedError("buffer is read-only and cannot be written")
    return buffer


def _check_range(buffer: VmBuffer, offset: int, length: int) -> None:
    if offset + length > buffer.length:
        raise OutOfRangeError(
            f"byte range [{offset}, {offset + length}) out of bounds of a buffer of {buffer.length} bytes"
        )


def _load(code_format: str) -> Handler:
    fields = struct.Struct("<" + code_format)
    unpack, width = fields.unpack_from, fields.size
    bank, shift = BANKS[max(32, 8 * width)]

    def load(machine: Machine, pc: int) -> int:
        code = machine.code
        buffer = _buffer(machine, code[pc + 1])
        offset = (machine.i64[code[pc + 2] >> 1] & _U64) * width
        _check_range(buffer, offset, width)
        bank(machine)[code[pc + 3] >> shift] = unpack(buffer.view, offset)[0]
        return pc + 4

    return load


def _store(code_format: str) -> Handler:
    fields = struct.Struct("<" + code_format)
    pack, width = fields.pack_into, fields.size
    (bank, shift), mask = BANKS[max(32, 8 * width)], (1 << 8 * width) - 1

    def store(machine: Machine, pc: int) -> int:
        code = machine.code
        buffer = _writable(machine, code[pc + 1])
        offset = (machine.i64[code[pc + 2] >> 1] & _U64) * width
        _check_range(buffer, offset, width)
        pack(buffer.view, offset, bank(machine)[code[pc + 3] >> shift] & mask)
        return pc + 4

    return store


def _fill(dtype: str) -> Handler:
    width = np.dtype(dtype).itemsize
    (bank, shift), mask = BANKS[max(32, 8 * width)], (1 << 8 * width) - 1

    def fill(machine: Machine, pc: int) -> int:
        code, i64 = machine.code, machine.i64
        buffer = _writable(machine, code[pc + 1])
        offset = (i64[code[pc + 2] >> 1] & _U64) * width
        length = (i64[code[pc + 3] >> 1] & _U64) * width
        _check_range(buffer, offset, length)
        data = buffer.data[offset : offset + length].view(dtype)
        value = bank(machine)[code[pc + 4] >> shift] & mask
        for part in ranges(len(data), PART // width, machine.require_running):
            data[part] = value
        return pc + 5

    return fill


def _range(machine: Machine, at: int, buffer: VmBuffer, length: int) -> slice:
    """The bytes from the offset that an operand word names."""
    offset = machine.i64[machine.code[at] >> 1] & _U64
    _check_range(buffer, offset, length)
    return slice(offset, offset + length)


def buffer_clone(machine: Machine, pc: int) -> int:
    code = machine.code
    source, length = _buffer(machine, code[pc + 1]), machine.i64[code[pc + 3] >> 1] & _U64
    copied = _range(machine, pc + 2, source, length)
    copy = new_buffer(machine, length, code[pc + 4])
    data = source.data[copied]
    for part in ranges(length, PART, machine.require_running):
        copy.data[part] = data[part]
    machine.table.put_object(machine.refs, code[pc + 5], copy)
    return pc + 6


def buffer_length(machine: Machine, pc: int) -> int:
    code = machine.code
    machine.i64[code[pc + 2] >> 1] = _buffer(machine, code[pc + 1]).length
    return pc + 3


def buffer_copy(machine: Machine, pc: int) -> int:
    """Overlapping ranges are copied as if through a temporary."""
    code = machine.code
    source, target = _buffer(machine, code[pc + 1]), _buffer(machine, code[pc + 3])
    length = machine.i64[code[pc + 5] >> 1] & _U64
    copied = _range(machine, pc + 2, source, length)
    into = _range(machine, pc + 4, _writable(machine, code[pc + 3]), length)
    firsts = range(0, length, PART)
    if target.address + into.start > source.address + copied.start:
        firsts = firsts[::-1]  # so what is overwritten has been copied
    data, found = target.view[into], source.view[copied]
    for first in firsts:
        if length > PART:
            machine.require_running()
        data[first : first + PART] = found[first : first + PART]
    return pc + 6


def buffer_compare(machine: Machine, pc: int) -> int:
    code = machine.code
    lhs, rhs = _buffer(machine, code[pc + 1]), _buffer(machine, code[pc + 3])
    length = machine.i64[code[pc + 5] >> 1] & _U64
    left, right = _range(machine, pc + 2, lhs, length), _range(machine, pc + 4, rhs, length)
    one, other = lhs.data[left], rhs.data[right]
    parts = ranges(length, PART, machine.require_running)
    machine.i32[code[pc + 6]] = int(all(np.array_equal(one[part], other[part]) for part in parts))
    return pc + 7


def buffer_hash(machine: Machine, pc: int) -> int:

    code, i64 = machine.code, machine.i64
    buffer = _buffer(machine, code[pc + 1])
    hashed = buffer.view[_range(machine, pc + 2, buffer, i64[code[pc + 3] >> 1] & _U64)]
    result = siphash(hashed, machine.require_running)
    i64[code[pc + 4] >> 1] = result - (1 << 64) if result >> 63 else result
    return pc + 5


HANDLERS: Final[dict[str, Handler]] = {
    "buffer.load.i8.u": _load("B"),
    "buffer.load.i8.s": _load("b"),
    "buffer.load.i16.u": _load("H"),
    "buffer.load.i16.s": _load("h"),
    "buffer.load.i32": _load("i"),
    "buffer.load.f32": _load("i"),
    "buffer.load.i64": _load("q"),
    "buffer.load.f64": _load("q"),
    "buffer.store.i8": _store("B"),
    "buffer.store.i16": _store("H"),
    "buffer.store.i32": _store("I"),
    "buffer.store.f32": _store("I"),
    "buffer.store.i64": _store("Q"),
    "buffer.store.f64": _store("Q"),
    "buffer.fill.i8": _fill("u1"),
    "buffer.fill.i16": _fill("<u2"),
    "buffer.fill.i32": _fill("<u4"),
    "buffer.fill.f32": _fill("<u4"),
    "buffer.fill.i64": _fill("<u8"),
    "buffer.fill.f64": _fill("<u8"),
    "buffer.clone": buffer_clone,
    "buffer.length": buffer_length,
    "buffer.copy": buffer_copy,
    "buffer.compare": buffer_compare,
    "buffer.hash": buffer_hash,
}


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
