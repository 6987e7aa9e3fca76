"""``vm.list``. Values move as bits; indices and sizes are unsigned."""

from __future__ import annotations

from typing import Final

from jitree.codegen.numbers import i32, i64
from jitree.dispatch.plain.calls import BANKS, Handler, reference_to
from jitree.errors import StatusError
from jitree.regs.layout import VALUE_TYPE_CODES
from jitree.regs.list import VmList
from jitree.regs.machine import Machine

_U32: Final = 0xFFFFFFFF


_list: Final = reference_to(VmList, "list")


def list_alloc(machine: Machine, pc: int) -> int:
    code = machine.code
    items = VmList(machine.module.types[code[pc + 1]])
    items.reserve(machine.i32[code[pc + 2]] & _U32, machine.table.bounds)
    machine.set_ref(code[pc + 3], machine.table.wrap(items))
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
    machine.set_ref(code[pc + 4], machine.table.retain(handle))
    return pc + 5


def list_set_ref(machine: Machine, pc: int) -> int:
    code, table = machine.code, machine.table
    items = _list(machine, code[pc + 1])
    register = code[pc + 3]
    handle = table.retain(machine.refs[register])
    try:
        items.set_handle(machine.i32[code[pc + 2]] & _U32, handle)
    except StatusError:
        table.release(handle)
        raise
    if code[pc + 4]:
        machine.set_ref(register, 0)
    return pc + 5


HANDLERS: Final[dict[str, Handler]] = {
    "list.alloc": list_alloc,
    "list.reserve": list_reserve,
    "list.size": list_size,
    "list.resize": list_resize,
    **{f"list.get.{kind}": _get(kind) for kind in ("i32", "i64", "f32", "f64")},
    **{f"list.set.{kind}": _set(kind) for kind in ("i32", "i64", "f32", "f64")},
    "list.get.ref": list_get_ref,
    "list.set.ref": list_set_ref,
}
