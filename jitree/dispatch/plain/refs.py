"""References: ref globals, constants, casts, comparison, selection.

An operand that moves gives its reference to the result and becomes null; one that does not is counted again.
"""

from __future__ import annotations

from typing import Final

from jitree.dispatch.plain.calls import Handler, take
from jitree.errors import InvalidArgumentError, OutOfRangeError
from jitree.regs.machine import Machine


def require_type(machine: Machine, handle: int, type_index: int) -> None:
    """INVALID_ARGUMENT unless a handle is null or of the type at an index of the module's type table."""
    if handle:
        table = machine.table
        expected, actual = machine.module.types[type_index], table.kind(handle)
        if expected != actual:
            names = table.ref_types
            raise InvalidArgumentError(
                f"source ref type mismatch: expected {names.name(expected)} but have {names.name(actual)}"
            )


def const_ref_zero(machine: Machine, pc: int) -> int:
    machine.set_ref(machine.code[pc + 1], 0)
    return pc + 2


def const_ref_rodata(machine: Machine, pc: int) -> int:
    code = machine.code
    machine.set_ref(code[pc + 2], machine.table.retain(machine.module.rodata[code[pc + 1]]))
    return pc + 3


def _load_global(machine: Machine, slot: int, type_index: int, register: int) -> None:
    handle = machine.module.ref_globals[slot]
    require_type(machine, handle, type_index)
    machine.set_ref(register, machine.table.retain(handle))


def _store_global(machine: Machine, slot: int, type_index: int, register: int, move: int) -> None:
    require_type(machine, machine.refs[register], type_index)
    ref_globals = machine.module.ref_globals
    old = ref_globals[slot]
    ref_globals[slot] = take(machine, machine.refs, register, move)
    machine.table.release(old)


def _checked_slot(machine: Machine, register: int) -> int:
    slot = machine.i32[register] & 0xFFFFFFFF
    count = len(machine.module.ref_globals)
    if slot >= count:
        raise OutOfRangeError(f"ref global {slot} out of range: the module has {count}")
    return slot


def global_load_ref(machine: Machine, pc: int) -> int:
    code = machine.code
    _load_global(machine, code[pc + 1], code[pc + 2], code[pc + 3])
    return pc + 4


def global_store_ref(machine: Machine, pc: int) -> int:
    code = machine.code
    _store_global(machine, code[pc + 1], code[pc + 2], code[pc + 3], code[pc + 4])
    return pc + 5


def global_load_indirect_ref(machine: Machine, pc: int) -> int:
    code = machine.code
    _load_global(machine, _checked_slot(machine, code[pc + 1]), code[pc + 2], code[pc + 3])
    return pc + 4


def global_store_indirect_ref(machine: Machine, pc: int) -> int:
    code = machine.code
    _store_global(machine, _checked_slot(machine, code[pc + 1]), code[pc + 2], code[pc + 3], code[pc + 4])
    return pc + 5


def select_ref(machine: Machine, pc: int) -> int:
    code, refs = machine.code, machine.refs
    chosen, other = (pc + 3, pc + 5) if machine.i32[code[pc + 1]] else (pc + 5, pc + 3)
    require_type(machine, refs[code[chosen]], code[pc + 2])
    handle = take(machine, machine.refs, code[chosen], code[chosen + 1])
    if code[other + 1]:
        machine.set_ref(code[other], 0)
    machine.set_ref(code[pc + 7], handle)
    return pc + 8


def switch_ref(machine: Machine, pc: int) -> int:
    code = machine.code
    index, count = machine.i32[code[pc + 1]], code[pc + 5]
    chosen = pc + 6 + 2 * index if 0 <= index < count else pc + 3
    require_type(machine, machine.refs[code[chosen]], code[pc + 2])
    machine.set_ref(code[pc + 6 + 2 * count], take(machine, machine.refs, code[chosen], code[chosen + 1]))
    return pc + 7 + 2 * count


def cast_any_ref(machine: Machine, pc: int) -> int:
    code = machine.code
    require_type(machine, machine.refs[code[pc + 1]], code[pc + 3])
    machine.set_ref(code[pc + 4], take(machine, machine.refs, code[pc + 1], code[pc + 2]))
    return pc + 5


def assign_ref(machine: Machine, pc: int) -> int:
    code = machine.code
    machine.set_ref(code[pc + 3], take(machine, machine.refs, code[pc + 1], code[pc + 2]))
    return pc + 4


def discard_refs(machine: Machine, pc: int) -> int:
    code = machine.code
    end = pc + 2 + 2 * code[pc + 1]
    for word in range(pc + 2, end, 2):
        if code[word + 1]:
            machine.set_ref(code[word], 0)
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


HANDLERS: Final[dict[str, Handler]] = {
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
