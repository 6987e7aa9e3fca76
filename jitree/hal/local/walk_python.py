"""The walker of command lists in Python: executes them while the native walker is not there.

It needs neither numba nor llvmlite. A workgroup costs about a microsecond more than natively.
"""

from __future__ import annotations

import ctypes
import struct
from array import array
from typing import Final

import numpy as np

from jitree.hal.command_layout import (
    ENTRY_POINT,
    ENTRY_SPAN,
    KIND_BARRIER,
    KIND_COPY,
    KIND_DISPATCH_INDIRECT,
    KIND_FILL,
    KIND_UPDATE,
    SPAN_FIRST,
)
from jitree.hal.command_list import CommandList, check_workgroups
from jitree.hal.local.failure import function_failure
from jitree.hal.local.kernel_call import DISPATCH_STATE, WORKGROUP_STATE, kernel_call
from jitree.regs.memory import address_of, zeroed

_ENTRY: Final = struct.Struct("<3q6i")
_SPAN: Final = struct.Struct("<qq")
assert _ENTRY.size == ENTRY_POINT.size
_STATE_SIZE: Final = 64
_NO_FAILURE: Final = _STATE_SIZE - 8
"""Offset of a word behind a dispatch state."""
_COUNTS: Final = struct.Struct("<III")


class PythonWalker:
    """Executes command lists; one object per execution."""

    def __init__(self, commands: CommandList, addresses: array[int], lengths: array[int]) -> None:
        self._commands = commands
        self._addresses = addresses
        self._lengths = lengths
        self._addresses_at: int = addresses.buffer_info()[0]
        self._lengths_at: int = lengths.buffer_info()[0]
        self._memory = zeroed(2 * _STATE_SIZE + commands.most_local_memory)
        self._memory_at = address_of(self._memory)

    def run(self) -> None:
        """Runs every command in order. INTERNAL when a function fails, OUT_OF_RANGE for impossible counts."""
        addresses, lengths = self._addresses, self._lengths
        for number, row in enumerate(self._commands.decoded_rows()):
            kind, operand, operand_count = row[:3]
            if kind == KIND_BARRIER:
                continue
            if kind == KIND_FILL:
                pattern = (row[9] & 0xFFFFFFFF).to_bytes(4, "little")
                _fill(addresses[operand], lengths[operand], pattern)
            elif kind == KIND_COPY:
                length = min(lengths[operand], lengths[operand + 1])
                ctypes.memmove(addresses[operand + 1], addresses[operand], length)
            elif kind == KIND_UPDATE:
                data = self._commands.data[row[11] : row[11] + min(row[12], lengths[operand])]
                ctypes.memmove(addresses[operand], bytes(data), len(data))
            else:
                counts = row[5] & 0xFFFFFFFF, row[6] & 0xFFFFFFFF, row[7]
                if kind == KIND_DISPATCH_INDIRECT:
                    counts = _read_counts(addresses[operand + operand_count])
                self._dispatch(number, row, counts)

    def _dispatch(self, number: int, row: tuple[int, ...], counts: tuple[int, int, int]) -> None:
        _, operand, operand_count, constant, constant_count = row[:5]
        entry = ctypes.string_at(row[8], _ENTRY.size)
        code, environment, _, local_memory, flags, *_ = _ENTRY.unpack(entry)
        x_count, y_count, z_count = counts
        dispatch_at, workgroup_at = self._memory_at, self._memory_at + _STATE_SIZE
        local_at = workgroup_at + _STATE_SIZE if local_memory else 0
        state = memoryview(self._memory.data)
        constants_at = self._commands.constants.buffer_info()[0] + 4 * constant
        DISPATCH_STATE.pack_into(
            state, 0, 1, 1, 1, constant_count, x_count, y_count, z_count, 1, operand_count, constants_at,
            self._addresses_at + 8 * operand, self._lengths_at + 8 * operand, dispatch_at + _NO_FAILURE,
        )  # fmt: skip
        call = kernel_call()
        total = x_count * y_count * z_count
        if flags & ENTRY_SPAN and total:
            WORKGROUP_STATE.pack_into(state, _STATE_SIZE, 0, 0, 0, 0, 0, local_at, local_memory)
            _SPAN.pack_into(state, _STATE_SIZE + SPAN_FIRST, 0, total)
            result = call(code, environment, dispatch_at, workgroup_at)
            if result:
                x, y, z, *_ = WORKGROUP_STATE.unpack_from(state, _STATE_SIZE)
                raise function_failure(self._commands, number, result, (x, y, z))
            return
        for z in range(z_count):
            for y in range(y_count):
                for x in range(x_count):
                    WORKGROUP_STATE.pack_into(state, _STATE_SIZE, x, y, z, 0, 0, local_at, local_memory)
                    result = call(code, environment, dispatch_at, workgroup_at)
                    if result:
                        raise function_failure(self._commands, number, result, (x, y, z))


def _read_counts(address: int) -> tuple[int, int, int]:
    x, y, z = _COUNTS.unpack(ctypes.string_at(address, _COUNTS.size))
    check_workgroups(x, y, z)
    return x, y, z


def _fill(address: int, length: int, pattern: bytes) -> None:
    if pattern.count(pattern[:1]) == 4:
        ctypes.memset(address, pattern[0], length)
        return
    target = np.frombuffer(memoryview((ctypes.c_ubyte * length).from_address(address)), np.uint8)
    words = length // 4 * 4
    target[:words].reshape(-1, 4)[:] = np.frombuffer(pattern, np.uint8)
    target[words:] = np.frombuffer(pattern[: length - words], np.uint8)
