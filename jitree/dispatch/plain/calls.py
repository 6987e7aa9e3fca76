"""Executes calls, branches, failure, new buffers and the way out to the host.

Says what a handler is, and how it reads references.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import Final, TypeVar

from jitree.codegen.record import words_of
from jitree.dispatch.engine import AGAIN, YIELD
from jitree.errors import InternalError, InvalidArgumentError, NotFoundError, status_error
from jitree.regs.buffer import VmBuffer
from jitree.regs.layout import COMPILED_DONE, STATE_WORDS, FrameRecord
from jitree.regs.machine import STOP, Machine
from jitree.regs.records import FunctionRecord
from jitree.vmfb.words import TAG_REF_MOVE, TAG_VALUE32, TAG_VALUE64

T = TypeVar("T")

Handler = Callable[[Machine, int], int]
"""``handler(machine, pc) -> next pc``: executes the instruction at word ``pc`` of ``machine.code``.

Returns STOP when the engine must stop. When it raises, nothing of the instruction has happened.
"""

BANKS: Final[dict[int, tuple[Callable[[Machine], memoryview], int]]] = {
    32: (attrgetter("i32"), 0), 64: (attrgetter("i64"), 1),
}  # fmt: skip
"""By width: a machine's view of registers with values, floats as bits; by how many bits a slot is shifted to
be an index of it."""


def reference_to(cls: type[T], name: str) -> Callable[[Machine, int], T]:
    """Reads a ref register that must hold a ``cls``, which programs know as ``vm.<name>``.

    INVALID_ARGUMENT for null and for other types.
    """

    def read(machine: Machine, register: int) -> T:
        table = machine.table
        value = table.object(machine.refs[register])
        if not isinstance(value, cls):
            if value is None:
                raise InvalidArgumentError(f"{name} reference is null")
            actual = table.ref_types.name(table.ref_types.id_of(value))
            raise InvalidArgumentError(f"ref type mismatch: expected vm.{name} but have {actual}")
        return value

    return read


_CodeCall: Final = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_int64] * 4)
_CODE_CALLS: Final[dict[int, Callable[[int, int, int, int], int]]] = {}
"""Machine code of host functions (COMPILED_DONE), by address."""
_FRAME: Final = words_of(FrameRecord)
MINIMUM_ALIGNMENT: Final = 16
_U64: Final = 0xFFFFFFFFFFFFFFFF


def call_internal(machine: Machine, pc: int) -> int:
    code = machine.code
    first = pc + 5
    results = first + 3 * code[pc + 3]
    passed = (code[at : at + 3] for at in range(first, results, 3))
    return _call(machine, pc, machine.module.function(code[pc + 2]), passed, results)


def _call(
    machine: Machine, pc: int, callee: FunctionRecord, passed: Iterable[Sequence[int]], results: int
) -> int:
    """Enters a function. ``passed`` are its arguments: tag, source, destination; ``results`` is the place of
    the list of its results."""
    i32, i64, refs = machine.i32, machine.i64, machine.refs
    machine.push(callee, pc + machine.code[pc + 1], results)
    for tag, source, destination in passed:
        if tag == TAG_VALUE32:
            machine.i32[destination] = i32[source]
        elif tag == TAG_VALUE64:
            machine.i64[destination >> 1] = i64[source >> 1]
        else:
            machine.table.pass_on(refs, source, tag == TAG_REF_MOVE, machine.refs, destination)
    return callee.start


def call_import(machine: Machine, pc: int) -> int:
    """Calls a host function by Python: its machine code has refused."""
    code, module = machine.code, machine.module
    site = module.sites[code[pc + 2]]
    if site is None:
        first_call = module.first_calls.get(code[pc + 3])
        if first_call is None:
            return _call_across(machine, pc)
        site = partial(first_call, code[pc + 2])
    if machine.table.readers:
        site = partial(_call_told, site, code[pc + 3])
    waits = site(machine)
    if waits:
        if waits == AGAIN:
            return pc
        machine.pc = pc
        machine.resume_pc = pc + code[pc + 1]
        return STOP
    return pc + code[pc + 1]


def call_import_by_code(machine: Machine, pc: int) -> int:
    """Calls a host function by its machine code, else by Python."""
    code, frames, frame = machine.code, machine.frames, machine.frame
    address = machine.module.compiled(code[pc + 3])
    if not address or machine.table.readers:
        return call_import(machine, pc)
    call = _CODE_CALLS.get(address) or _CODE_CALLS.setdefault(address, _CodeCall(address))
    values, refs = frames[frame + _FRAME.values], frames[frame + _FRAME.refs]
    while call(machine.state_address, values, refs, machine.code_address + 4 * (pc + 6)) != COMPILED_DONE:
        following = call_import(machine, pc)
        if following != pc:
            return following
    if machine.state[STATE_WORDS.released]:
        machine.table.drain(machine.state)
    return pc + code[pc + 1]


def _call_told(site: Callable[[Machine], int], number: int, machine: Machine) -> int:
    """Calls an import, and tells readers of it."""
    from jitree.base.events import ImportCall, telling

    with telling(machine.table.readers, ImportCall(machine.module.module, number)):
        return site(machine)


def _call_across(machine: Machine, pc: int) -> int:
    """Calls another module's function, or fails for a missing import."""
    code, module = machine.code, machine.module
    callee = module.function_imports[code[pc + 3]]
    if callee is None:
        name = module.module.imports[code[pc + 3]].full_name
        raise NotFoundError(f"optional import '{name}' was not resolved and cannot be called")
    first = pc + 6
    results = first + 2 * code[pc + 4]
    places = zip(range(first, results, 2), callee.argument_slots, strict=True)
    passed = ((code[at], code[at + 1], destination) for at, destination in places)
    return _call(machine, pc, callee, passed, results)


def return_(machine: Machine, pc: int) -> int:
    code = machine.code
    results, at, (i32, i64, _, _, refs) = machine.caller_results()
    for word in range(pc + 2, pc + 2 + 2 * code[pc + 1], 2):
        tag, source, destination = code[word], code[word + 1], results[at + 1]
        at += 2
        if tag == TAG_VALUE32:
            i32[destination] = machine.i32[source]
        elif tag == TAG_VALUE64:
            i64[destination >> 1] = machine.i64[source >> 1]
        else:
            machine.table.pass_on(machine.refs, source, tag == TAG_REF_MOVE, refs, destination)
    return machine.pop()


def import_resolved(machine: Machine, pc: int) -> int:
    code = machine.code
    machine.i32[code[pc + 2]] = int(machine.module.resolved[code[pc + 1]])
    return pc + 3


def new_buffer(machine: Machine, length: int, register: int) -> VmBuffer:
    """Aligned as the register says."""
    requested = machine.i32[register]
    if requested < 0 or requested & (requested - 1):
        raise InvalidArgumentError(f"alignment {requested} is not a power of two")
    alignment = max(requested, MINIMUM_ALIGNMENT)
    charge = machine.table.bounds.charge(length)
    buffer = VmBuffer(length, alignment)
    buffer.charge = charge
    return buffer


def buffer_alloc(machine: Machine, pc: int) -> int:
    code = machine.code
    buffer = new_buffer(machine, machine.i64[code[pc + 1] >> 1] & _U64, code[pc + 2])
    machine.table.put_object(machine.refs, code[pc + 3], buffer)
    return pc + 4


def host_exit(machine: Machine, pc: int) -> int:
    machine.pc = pc
    return STOP


def move(machine: Machine, tag: int, source: int, destination: int) -> None:
    """Copies one register to another of its bank; TAG_REF_MOVE nulls the source."""
    if tag == TAG_VALUE32:
        machine.i32[destination] = machine.i32[source]
    elif tag == TAG_VALUE64:
        machine.i64[destination >> 1] = machine.i64[source >> 1]
    elif source != destination:
        machine.table.pass_on(machine.refs, source, tag == TAG_REF_MOVE, machine.refs, destination)


def _moves(machine: Machine, word: int) -> None:
    """A remap list: one after the other, not at once."""
    code = machine.code
    for at in range(word + 1, word + 1 + 3 * code[word], 3):
        move(machine, code[at], code[at + 1], code[at + 2])


def br(machine: Machine, pc: int) -> int:
    _moves(machine, pc + 2)
    return pc + machine.code[pc + 1]


def br_bare(machine: Machine, pc: int) -> int:
    return pc + machine.code[pc + 1]


def cond_br(machine: Machine, pc: int) -> int:
    code = machine.code
    return pc + (code[pc + 2] if machine.i32[code[pc + 1]] else code[pc + 3])


def br_table(machine: Machine, pc: int) -> int:
    code = machine.code
    index = machine.i32[code[pc + 1]]
    return pc + (code[pc + 4 + index] if 0 <= index < code[pc + 3] else code[pc + 2])


def yield_(machine: Machine, pc: int) -> int:
    _moves(machine, pc + 2)
    machine.pc = pc
    machine.resume_pc = pc + machine.code[pc + 1]
    machine.pending = YIELD
    return STOP


def fail(machine: Machine, pc: int) -> int:
    """Status 0 does not fail: execution goes on in the next block of the file."""
    code = machine.code
    status = machine.i32[code[pc + 1]]
    if status:
        raise status_error(status, machine.module.program.string(code[pc + 2]))
    if not code[pc + 3]:
        raise InternalError("fail with status OK at the end of the function: there is no block to go on with")
    return pc + code[pc + 3]


def trace(machine: Machine, pc: int) -> int:
    """``trace`` and ``print`` say nothing; references they are given to keep are dropped."""
    code = machine.code
    end = pc + 3 + 2 * code[pc + 2]
    for at in range(pc + 3, end, 2):
        if code[at] == TAG_REF_MOVE:
            machine.table.put(machine.refs, code[at + 1], 0)
    return end


def block(machine: Machine, pc: int) -> int:
    return pc + 1


HANDLERS: Final[dict[str, Handler]] = {
    "call.internal": call_internal,
    "call.import": call_import,
    "return": return_,
    "import.resolved": import_resolved,
    "buffer.alloc": buffer_alloc,
    "host.exit": host_exit,
    "br": br,
    "br.bare": br_bare,
    "cond_br": cond_br,
    "br_table": br_table,
    "break": br,
    "cond_break": cond_br,
    "yield": yield_,
    "fail": fail,
    "trace": trace,
    "print": trace,
    "block": block,
}
