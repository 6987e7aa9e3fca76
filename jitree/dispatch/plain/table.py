"""Lists the handlers of all instructions; executes those on references, constants, globals and switches.

Floats move as bits, so that NaN payloads survive.
"""

from __future__ import annotations

import struct
from operator import attrgetter
from typing import Final

from jitree.codegen.numbers import i32, i64
from jitree.dispatch.plain import buffers, calls
from jitree.dispatch.plain.calls import BANKS, Handler, reference_to
from jitree.dispatch.plain.shapes import SHAPES
from jitree.dispatch.semantics import SEMANTICS
from jitree.errors import InvalidArgumentError, OutOfRangeError
from jitree.regs.layout import VALUE_TYPE_CODES
from jitree.regs.list import VmList
from jitree.regs.machine import Machine

_U32: Final = 0xFFFFFFFF


_list: Final = reference_to(VmList, "list")


def require_type(machine: Machine, handle: int, type_index: int) -> None:
    """Raises INVALID_ARGUMENT for a handle of another type than stated. Null passes; the type is an index
    into the module's table."""
    if handle:
        table = machine.table
        expected, actual = machine.module.types[type_index], table.kind(handle)
        if expected != actual:
            names = table.ref_types
            raise InvalidArgumentError(
                f"source ref type mismatch: expected {names.name(expected)} but have {names.name(actual)}"
            )


def const_ref_zero(machine: Machine, pc: int) -> int:
    machine.table.put(machine.refs, machine.code[pc + 1], 0)
    return pc + 2


def const_ref_rodata(machine: Machine, pc: int) -> int:
    code = machine.code
    machine.table.put(machine.refs, code[pc + 2], machine.module.rodata[code[pc + 1]])
    return pc + 3


def _load_global(machine: Machine, slot: int, pc: int) -> int:
    code, handle = machine.code, machine.module.ref_globals[slot]
    require_type(machine, handle, code[pc + 2])
    machine.table.put(machine.refs, code[pc + 3], handle)
    return pc + 4


def _store_global(machine: Machine, slot: int, pc: int) -> int:
    code, refs = machine.code, machine.refs
    require_type(machine, refs[code[pc + 3]], code[pc + 2])
    machine.table.pass_on(refs, code[pc + 3], code[pc + 4], machine.module.ref_globals, slot)
    return pc + 5


def _checked_slot(machine: Machine, register: int) -> int:
    slot = machine.i32[register] & 0xFFFFFFFF
    count = len(machine.module.ref_globals)
    if slot >= count:
        raise OutOfRangeError(f"ref global {slot} out of range: the module has {count}")
    return slot


def global_load_ref(machine: Machine, pc: int) -> int:
    return _load_global(machine, machine.code[pc + 1], pc)


def global_store_ref(machine: Machine, pc: int) -> int:
    return _store_global(machine, machine.code[pc + 1], pc)


def global_load_indirect_ref(machine: Machine, pc: int) -> int:
    return _load_global(machine, _checked_slot(machine, machine.code[pc + 1]), pc)


def global_store_indirect_ref(machine: Machine, pc: int) -> int:
    return _store_global(machine, _checked_slot(machine, machine.code[pc + 1]), pc)


def select_ref(machine: Machine, pc: int) -> int:
    code, refs = machine.code, machine.refs
    chosen, other = (pc + 3, pc + 5) if machine.i32[code[pc + 1]] else (pc + 5, pc + 3)
    require_type(machine, refs[code[chosen]], code[pc + 2])
    machine.table.pass_on(refs, code[chosen], code[chosen + 1], refs, code[pc + 7])
    if code[other + 1] and code[other] != code[pc + 7]:
        machine.table.put(refs, code[other], 0)
    return pc + 8


def switch_ref(machine: Machine, pc: int) -> int:
    code = machine.code
    index, count = machine.i32[code[pc + 1]], code[pc + 5]
    chosen = pc + 6 + 2 * index if 0 <= index < count else pc + 3
    require_type(machine, machine.refs[code[chosen]], code[pc + 2])
    target = code[pc + 6 + 2 * count]
    machine.table.pass_on(machine.refs, code[chosen], code[chosen + 1], machine.refs, target)
    return pc + 7 + 2 * count


def cast_any_ref(machine: Machine, pc: int) -> int:
    code = machine.code
    require_type(machine, machine.refs[code[pc + 1]], code[pc + 3])
    machine.table.pass_on(machine.refs, code[pc + 1], code[pc + 2], machine.refs, code[pc + 4])
    return pc + 5


def assign_ref(machine: Machine, pc: int) -> int:
    code = machine.code
    machine.table.pass_on(machine.refs, code[pc + 1], code[pc + 2], machine.refs, code[pc + 3])
    return pc + 4


def discard_refs(machine: Machine, pc: int) -> int:
    code = machine.code
    end = pc + 2 + 2 * code[pc + 1]
    for word in range(pc + 2, end, 2):  # also those without the flag, as upstream does
        machine.table.put(machine.refs, code[word], 0)
    return end


def cmp_eq_ref(machine: Machine, pc: int) -> int:
    code, refs = machine.code, machine.refs
    machine.i32[code[pc + 3]] = int(refs[code[pc + 1]] == refs[code[pc + 2]])
    return pc + 4


def cmp_ne_ref(machine: Machine, pc: int) -> int:
    code, refs = machine.code, machine.refs
    machine.i32[code[pc + 3]] = int(refs[code[pc + 1]] != refs[code[pc + 2]])
    return pc + 4


def cmp_nz_ref(machine: Machine, pc: int) -> int:
    code = machine.code
    machine.i32[code[pc + 2]] = int(machine.refs[code[pc + 1]] != 0)
    return pc + 3


REF_HANDLERS: Final[dict[str, Handler]] = {
    "const.ref.zero": const_ref_zero,
    "const.ref.rodata": const_ref_rodata,
    "global.load.ref": global_load_ref,
    "global.store.ref": global_store_ref,
    "global.load.indirect.ref": global_load_indirect_ref,
    "global.store.indirect.ref": global_store_indirect_ref,
    "select.ref": select_ref,
    "switch.ref": switch_ref,
    "cast.any.ref": cast_any_ref,
    "assign.ref": assign_ref,
    "discard.refs": discard_refs,
    "cmp.eq.ref": cmp_eq_ref,
    "cmp.ne.ref": cmp_ne_ref,
    "cmp.nz.ref": cmp_nz_ref,
}


def list_alloc(machine: Machine, pc: int) -> int:
    code = machine.code
    items = VmList(machine.module.types[code[pc + 1]])
    items.reserve(machine.i32[code[pc + 2]] & _U32, machine.table.bounds)
    machine.table.put_object(machine.refs, code[pc + 3], items)
    machine.table.supply_lists()
    return pc + 4


def list_reserve(machine: Machine, pc: int) -> int:
    code = machine.code
    _list(machine, code[pc + 1]).reserve(machine.i32[code[pc + 2]] & _U32)
    return pc + 3


def list_size(machine: Machine, pc: int) -> int:
    code = machine.code
    machine.i32[code[pc + 2]] = _list(machine, code[pc + 1]).size
    return pc + 3


def list_resize(machine: Machine, pc: int) -> int:
    code = machine.code
    _list(machine, code[pc + 1]).resize(machine.i32[code[pc + 2]] & _U32, machine.require_running)
    return pc + 3


def _get(kind: str) -> Handler:
    value_code, (bank, shift) = VALUE_TYPE_CODES[kind], BANKS[int(kind[1:])]
    narrowed = i64 if shift else i32

    def get(machine: Machine, pc: int) -> int:
        code = machine.code
        bits = _list(machine, code[pc + 1]).get_bits(machine.i32[code[pc + 2]] & _U32, value_code)
        bank(machine)[code[pc + 3] >> shift] = narrowed(bits)
        return pc + 4

    return get


def _set(kind: str) -> Handler:
    value_code, (bank, shift) = VALUE_TYPE_CODES[kind], BANKS[int(kind[1:])]

    def set_value(machine: Machine, pc: int) -> int:
        code = machine.code
        items = _list(machine, code[pc + 1])
        items.set_bits(machine.i32[code[pc + 2]] & _U32, value_code, bank(machine)[code[pc + 3] >> shift])
        return pc + 4

    return set_value


def list_get_ref(machine: Machine, pc: int) -> int:
    code = machine.code
    items = _list(machine, code[pc + 1])
    handle = items.get_handle(machine.i32[code[pc + 2]] & _U32, machine.module.types[code[pc + 3]])
    machine.table.put(machine.refs, code[pc + 4], handle)
    return pc + 5


def list_set_ref(machine: Machine, pc: int) -> int:
    code = machine.code
    register = code[pc + 3]
    _list(machine, code[pc + 1]).set_handle(machine.i32[code[pc + 2]] & _U32, machine.refs[register])
    if code[pc + 4]:
        machine.table.put(machine.refs, register, 0)
    return pc + 5


LIST_HANDLERS: Final[dict[str, Handler]] = {
    "list.alloc": list_alloc,
    "list.reserve": list_reserve,
    "list.size": list_size,
    "list.resize": list_resize,
    **{f"list.get.{kind}": _get(kind) for kind in ("i32", "i64", "f32", "f64")},
    **{f"list.set.{kind}": _set(kind) for kind in ("i32", "i64", "f32", "f64")},
    "list.get.ref": list_get_ref,
    "list.set.ref": list_set_ref,
}


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
