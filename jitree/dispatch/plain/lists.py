"""``vm.list``. Values move as bits; indices and sizes are unsigned."""

from __future__ import annotations

from typing import Final

from jitree.dispatch.plain.handler import Handler, reference_to
from jitree.errors import StatusError
from jitree.regs.layout import LIST_F32, LIST_F64, LIST_I32, LIST_I64
from jitree.regs.list import VmList
from jitree.regs.machine import Machine

_U32: Final = 0xFFFFFFFF


_list: Final = reference_to(VmList, "list")


def list_alloc(machine: Machine, pc: int) -> int:
    code = machine.code
    items = VmList(machine.module.types[code[pc + 1]], machine.i32[code[pc + 2]] & _U32)
    machine.set_ref(code[pc + 3], machine.table.wrap(items))
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
    _list(machine, code[pc + 1]).resize(machine.i32[code[pc + 2]] & _U32)
    return pc + 3


def _get32(value_code: int) -> Handler:
    def get(machine: Machine, pc: int) -> int:
        code, i32 = machine.code, machine.i32
        bits = _list(machine, code[pc + 1]).get_bits(i32[code[pc + 2]] & _U32, value_code)
        i32[code[pc + 3]] = ((bits + 0x80000000) & _U32) - 0x80000000
        return pc + 4

    return get


def _get64(value_code: int) -> Handler:
    def get(machine: Machine, pc: int) -> int:
        code = machine.code
        items = _list(machine, code[pc + 1])
        machine.i64[code[pc + 3] >> 1] = items.get_bits(machine.i32[code[pc + 2]] & _U32, value_code)
        return pc + 4

    return get


def _set32(value_code: int) -> Handler:
    def set_value(machine: Machine, pc: int) -> int:
        code, i32 = machine.code, machine.i32
        items = _list(machine, code[pc + 1])
        items.set_bits(i32[code[pc + 2]] & _U32, value_code, i32[code[pc + 3]])
        return pc + 4

    return set_value


def _set64(value_code: int) -> Handler:
    def set_value(machine: Machine, pc: int) -> int:
        code = machine.code
        items = _list(machine, code[pc + 1])
        items.set_bits(machine.i32[code[pc + 2]] & _U32, value_code, machine.i64[code[pc + 3] >> 1])
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
    "list.get.i32": _get32(LIST_I32),
    "list.get.f32": _get32(LIST_F32),
    "list.get.i64": _get64(LIST_I64),
    "list.get.f64": _get64(LIST_F64),
    "list.get.ref": list_get_ref,
    "list.set.i32": _set32(LIST_I32),
    "list.set.f32": _set32(LIST_F32),
    "list.set.i64": _set64(LIST_I64),
    "list.set.f64": _set64(LIST_F64),
    "list.set.ref": list_set_ref,
}
