"""Constants, value globals and switches. Floats move as bits, so that NaN payloads survive."""

from __future__ import annotations

import struct
from typing import Final

from jitree.dispatch.plain.handler import Handler
from jitree.errors import OutOfRangeError
from jitree.regs.machine import Machine

_I32: Final = struct.Struct("<i")
_I64: Final = struct.Struct("<q")


def const_i32_zero(machine: Machine, pc: int) -> int:
    machine.i32[machine.code[pc + 1]] = 0
    return pc + 2


def const_i64_zero(machine: Machine, pc: int) -> int:
    machine.i64[machine.code[pc + 1] >> 1] = 0
    return pc + 2


def const_i32(machine: Machine, pc: int) -> int:
    code = machine.code
    machine.i32[code[pc + 2]] = code[pc + 1]
    return pc + 3


def const_i64(machine: Machine, pc: int) -> int:
    code = machine.code
    machine.i64[code[pc + 3] >> 1] = (code[pc + 1] & 0xFFFFFFFF) | (code[pc + 2] << 32)
    return pc + 4


def switch_i32(machine: Machine, pc: int) -> int:
    code, i32 = machine.code, machine.i32
    index, count = i32[code[pc + 1]], code[pc + 3]
    source = code[pc + 4 + index] if 0 <= index < count else code[pc + 2]
    i32[code[pc + 4 + count]] = i32[source]
    return pc + 5 + count


def switch_i64(machine: Machine, pc: int) -> int:
    code, i64 = machine.code, machine.i64
    index, count = machine.i32[code[pc + 1]], code[pc + 3]
    source = code[pc + 4 + index] if 0 <= index < count else code[pc + 2]
    i64[code[pc + 4 + count] >> 1] = i64[source >> 1]
    return pc + 5 + count


# Value globals. The verifier has checked direct offsets; compilers align them, but nothing demands it.


def global_load_i32(machine: Machine, pc: int) -> int:
    code = machine.code
    machine.i32[code[pc + 2]] = machine.module.global_i32[code[pc + 1] >> 2]
    return pc + 3


def global_store_i32(machine: Machine, pc: int) -> int:
    code = machine.code
    machine.module.global_i32[code[pc + 1] >> 2] = machine.i32[code[pc + 2]]
    return pc + 3


def global_load_i64(machine: Machine, pc: int) -> int:
    code = machine.code
    machine.i64[code[pc + 2] >> 1] = machine.module.global_i64[code[pc + 1] >> 3]
    return pc + 3


def global_store_i64(machine: Machine, pc: int) -> int:
    code = machine.code
    machine.module.global_i64[code[pc + 1] >> 3] = machine.i64[code[pc + 2] >> 1]
    return pc + 3


def _checked_offset(machine: Machine, register: int, width: int) -> int:
    offset = machine.i32[register] & 0xFFFFFFFF
    size = machine.module.module.globals_size
    if offset + width > size:
        raise OutOfRangeError(
            f"global at byte {offset} of {width} bytes: the module has {size} bytes of globals"
        )
    return offset


def global_load_indirect_i32(machine: Machine, pc: int) -> int:
    code = machine.code
    offset = _checked_offset(machine, code[pc + 1], 4)
    machine.i32[code[pc + 2]] = _I32.unpack_from(machine.module.global_bytes, offset)[0]
    return pc + 3


def global_store_indirect_i32(machine: Machine, pc: int) -> int:
    code = machine.code
    offset = _checked_offset(machine, code[pc + 1], 4)
    _I32.pack_into(machine.module.global_bytes, offset, machine.i32[code[pc + 2]])
    return pc + 3


def global_load_indirect_i64(machine: Machine, pc: int) -> int:
    code = machine.code
    offset = _checked_offset(machine, code[pc + 1], 8)
    machine.i64[code[pc + 2] >> 1] = _I64.unpack_from(machine.module.global_bytes, offset)[0]
    return pc + 3


def global_store_indirect_i64(machine: Machine, pc: int) -> int:
    code = machine.code
    offset = _checked_offset(machine, code[pc + 1], 8)
    _I64.pack_into(machine.module.global_bytes, offset, machine.i64[code[pc + 2] >> 1])
    return pc + 3


def _rows(width: int) -> dict[str, Handler]:
    functions: dict[str, Handler] = {
        "const.{}.zero": const_i32_zero if width == 32 else const_i64_zero,
        "const.{}": const_i32 if width == 32 else const_i64,
        "switch.{}": switch_i32 if width == 32 else switch_i64,
        "global.load.{}": global_load_i32 if width == 32 else global_load_i64,
        "global.store.{}": global_store_i32 if width == 32 else global_store_i64,
        "global.load.indirect.{}": global_load_indirect_i32 if width == 32 else global_load_indirect_i64,
        "global.store.indirect.{}": global_store_indirect_i32 if width == 32 else global_store_indirect_i64,
    }
    return {name.format(f"{kind}{width}"): handler for name, handler in functions.items() for kind in "if"}


HANDLERS: Final[dict[str, Handler]] = _rows(32) | _rows(64)
