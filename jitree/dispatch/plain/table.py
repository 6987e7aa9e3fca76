"""Lists the handlers of all instructions; executes those on constants, globals and switches.

Floats move as bits, so that NaN payloads survive.
"""

from __future__ import annotations

import struct
from operator import attrgetter
from typing import Final

from jitree.dispatch.plain import buffers, calls
from jitree.dispatch.plain.calls import BANKS, Handler
from jitree.dispatch.plain.refs import LIST_HANDLERS, REF_HANDLERS
from jitree.dispatch.plain.shapes import SHAPES
from jitree.dispatch.semantics import SEMANTICS
from jitree.errors import OutOfRangeError
from jitree.regs.machine import Machine


def _checked_offset(machine: Machine, register: int, size: int) -> int:
    offset = machine.i32[register] & 0xFFFFFFFF
    end = machine.module.module.globals_size
    if offset + size > end:
        raise OutOfRangeError(
            f"global at byte {offset} of {size} bytes: the module has {end} bytes of globals"
        )
    return offset


def _handlers(width: int) -> dict[str, Handler]:
    """Handlers of instructions on values of so many bits."""
    bank, shift = BANKS[width]
    words, size = width // 32, width // 8
    literal = struct.Struct("<i" if width == 32 else "<q")
    global_bank, global_shift = attrgetter(f"module.global_i{width}"), shift + 2

    def const_zero(machine: Machine, pc: int) -> int:
        bank(machine)[machine.code[pc + 1] >> shift] = 0
        return pc + 2

    def const(machine: Machine, pc: int) -> int:
        code = machine.code
        high = code[pc + words] << width - 32
        bank(machine)[code[pc + 1 + words] >> shift] = high | (code[pc + 1] & 0xFFFFFFFF if shift else 0)
        return pc + 2 + words

    def switch(machine: Machine, pc: int) -> int:
        code, registers = machine.code, bank(machine)
        index, count = machine.i32[code[pc + 1]], code[pc + 3]
        source = code[pc + 4 + index] if 0 <= index < count else code[pc + 2]
        registers[code[pc + 4 + count] >> shift] = registers[source >> shift]
        return pc + 5 + count

    # The verifier has checked direct offsets; compilers align them.
    def global_load(machine: Machine, pc: int) -> int:
        code = machine.code
        bank(machine)[code[pc + 2] >> shift] = global_bank(machine)[code[pc + 1] >> global_shift]
        return pc + 3

    def global_store(machine: Machine, pc: int) -> int:
        code = machine.code
        global_bank(machine)[code[pc + 1] >> global_shift] = bank(machine)[code[pc + 2] >> shift]
        return pc + 3

    def global_load_indirect(machine: Machine, pc: int) -> int:
        code = machine.code
        offset = _checked_offset(machine, code[pc + 1], size)
        bank(machine)[code[pc + 2] >> shift] = literal.unpack_from(machine.module.global_bytes, offset)[0]
        return pc + 3

    def global_store_indirect(machine: Machine, pc: int) -> int:
        code = machine.code
        offset = _checked_offset(machine, code[pc + 1], size)
        literal.pack_into(machine.module.global_bytes, offset, bank(machine)[code[pc + 2] >> shift])
        return pc + 3

    functions: dict[str, Handler] = {
        "const.{}.zero": const_zero,
        "const.{}": const,
        "switch.{}": switch,
        "global.load.{}": global_load,
        "global.store.{}": global_store,
        "global.load.indirect.{}": global_load_indirect,
        "global.store.indirect.{}": global_store_indirect,
    }
    return {name.format(f"{kind}{width}"): handler for name, handler in functions.items() for kind in "if"}


VALUE_HANDLERS: Final[dict[str, Handler]] = _handlers(32) | _handlers(64)


BY_MNEMONIC: Final[dict[str, Handler]] = {
    name: SHAPES[row.argument_types, row.result_type](row.function) for name, row in SEMANTICS.items()
}
for _handlers_of in (
    VALUE_HANDLERS, REF_HANDLERS, buffers.HANDLERS, LIST_HANDLERS, calls.HANDLERS,
):  # fmt: skip
    BY_MNEMONIC.update(_handlers_of)
