"""Buffers and globals. What would fail takes a side exit before anything is written.

Offsets and counts of loads, stores and fills are in elements, so ``offset < length >> log2(width)`` is exact
for every 64-bit offset.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from jitree.codegen.ir_text import LLVM_TYPES
from jitree.dispatch.native.emitter import Emitter
from jitree.dispatch.native.prelude import BYTES, FIXED, GLOBALS
from jitree.dispatch.native.references import drop_all, has_type, retain_all
from jitree.dispatch.native.ssa import SsaInstruction, Value, operand
from jitree.regs.layout import MODULE

_SHIFTS: Final = {"i8": 0, "i16": 1, "i32": 2, "i64": 3, "f32": 2, "f64": 3}
_LOADS: Final = ("i8.u", "i8.s", "i16.u", "i16.s", "i32", "i64", "f32", "f64")
_ELEMENTS: Final = {"i8": "i8", "i16": "i16"} | LLVM_TYPES


def _element(emitter: Emitter, buffer: Value, extent: str, kind: str, offset: str) -> str:
    """The address of one element, which must lie in the buffer (``length``) or its writable part
    (``room``)."""
    limit, shift = emitter.buffer(buffer, extent), _SHIFTS[kind]
    if shift:
        limit = emitter.let(f"lshr i64 {limit}, {shift}")
    emitter.require(emitter.let(f"icmp ult i64 {offset}, {limit}"))
    address = emitter.buffer(buffer, "address")
    return emitter.let(f"getelementptr inbounds {_ELEMENTS[kind]}, ptr {address}, i64 {offset}")


def _emit_load(emitter: Emitter, instruction: SsaInstruction) -> None:
    kind, *extension = instruction.mnemonic.removeprefix("buffer.load.").split(".")
    buffer, offset = instruction.operands
    place = _element(emitter, buffer, "length", kind, operand(offset))
    expression = f"load {_ELEMENTS[kind]}, ptr {place}, align 1{BYTES}"
    if extension:
        operation = {"u": "zext", "s": "sext"}[extension[0]]
        expression = f"{operation} {kind} {emitter.let(expression)} to i32"
    emitter.define(instruction.results[0], expression)


def _emit_store(emitter: Emitter, instruction: SsaInstruction) -> None:
    kind = instruction.mnemonic.removeprefix("buffer.store.")
    buffer, offset, value = instruction.operands
    place = _element(emitter, buffer, "room", kind, operand(offset))
    stored = operand(value)
    if kind in ("i8", "i16"):
        stored = emitter.let(f"trunc i32 {stored} to {kind}")
    emitter.do(f"store {_ELEMENTS[kind]} {stored}, ptr {place}, align 1{BYTES}")


def _emit_fill(emitter: Emitter, instruction: SsaInstruction) -> None:
    """buffer, offset, count, value"""
    kind = instruction.mnemonic.removeprefix("buffer.fill.")
    offset, count, value = map(operand, instruction.operands[1:])
    if kind in ("f32", "f64"):
        value = emitter.let(f"bitcast {LLVM_TYPES[kind]} {value} to i{kind[1:]}")
    if _SHIFTS[kind] < 3:
        value = emitter.let(f"zext i32 {value} to i64")
    extent = _extent(emitter, instruction.operands[0], "writable")
    shift = str(_SHIFTS[kind])
    emitter.require(emitter.call("buffer_fill", "%state", *extent, offset, count, value, shift))
    emitter.spend_bytes(count)


def _extent(emitter: Emitter, buffer: Value, required: str = "is") -> tuple[str, str]:
    """The address and the length of what must be a buffer, or a ``writable`` one."""
    emitter.require(emitter.buffer(buffer, required))
    return emitter.buffer(buffer, "address"), emitter.buffer(buffer, "length")


def _emit_length(emitter: Emitter, instruction: SsaInstruction) -> None:
    buffer = instruction.operands[0]
    emitter.require(emitter.buffer(buffer, "is"))
    emitter.name(instruction.results[0], emitter.buffer(buffer, "length"))


def _emit_copy(emitter: Emitter, instruction: SsaInstruction) -> None:
    """source, offset, target, offset, length"""
    source, offset, target, into, length = instruction.operands
    place = *_extent(emitter, source), operand(offset), *_extent(emitter, target, "writable")
    emitter.require(emitter.call("buffer_copy", "%state", *place, operand(into), operand(length)))
    emitter.spend_bytes(operand(length))


def _emit_compare(emitter: Emitter, instruction: SsaInstruction) -> None:
    """lhs, offset, rhs, offset, length, result"""
    lhs, offset, rhs, start, length = instruction.operands
    place = *_extent(emitter, lhs), operand(offset), *_extent(emitter, rhs)
    equal = emitter.call("buffer_compare", "%state", *place, operand(start), operand(length))
    emitter.require(emitter.let(f"icmp ne i64 {equal}, -1"))
    emitter.spend_bytes(operand(length))
    emitter.define(instruction.results[0], f"trunc i64 {equal} to i32")


# -- globals ------------------------------------------------------------------------------------------------


def _value_place(emitter: Emitter, instruction: SsaInstruction, kind: str) -> str:
    """The address of a value global; a register's offset is checked here, a literal one was at load."""
    base = emitter.module_pointer("globals")
    if "indirect" not in instruction.mnemonic:
        return emitter.field(base, instruction.literals[0])
    offset = emitter.let(f"zext i32 {operand(instruction.operands[0])} to i64")
    module = emitter.state_pointer("module")
    size = emitter.let(f"load i64, ptr {emitter.field(module, MODULE['globals_size'])}, align 8{FIXED}")
    end = emitter.let(f"add i64 {offset}, {8 if kind.endswith('64') else 4}")
    emitter.require(emitter.let(f"icmp ule i64 {end}, {size}"))
    return emitter.let(f"getelementptr i8, ptr {base}, i64 {offset}")


def _emit_global_load(emitter: Emitter, instruction: SsaInstruction) -> None:
    result = instruction.results[0]
    place = _value_place(emitter, instruction, result.type)
    emitter.define(result, f"load {LLVM_TYPES[result.type]}, ptr {place}, align 1{GLOBALS}")


def _emit_global_store(emitter: Emitter, instruction: SsaInstruction) -> None:
    value = instruction.operands[-1]
    place = _value_place(emitter, instruction, value.type)
    emitter.do(f"store {LLVM_TYPES[value.type]} {operand(value)}, ptr {place}, align 1{GLOBALS}")


def _ref_place(emitter: Emitter, instruction: SsaInstruction) -> str:
    base = emitter.module_pointer("ref_globals")
    if "indirect" not in instruction.mnemonic:
        return emitter.field(base, 8 * instruction.literals[0])
    index = emitter.let(f"zext i32 {operand(instruction.operands[0])} to i64")
    module = emitter.state_pointer("module")
    place = emitter.field(module, MODULE["ref_global_count"])
    count = emitter.let(f"load i64, ptr {place}, align 8{FIXED}")
    emitter.require(emitter.let(f"icmp ult i64 {index}, {count}"))
    return emitter.let(f"getelementptr ptr, ptr {base}, i64 {index}")


def _emit_ref_load(emitter: Emitter, instruction: SsaInstruction) -> None:
    """(slot), type, result"""
    place = _ref_place(emitter, instruction)
    reference = emitter.let(f"load ptr, ptr {place}, align 8{GLOBALS}")
    emitter.require(has_type(emitter, reference, instruction.literals[-1]))
    emitter.do(f"call void @vm.retain(ptr {reference})")
    emitter.name(instruction.results[0], reference)
    drop_all(emitter, instruction.dropped)


def _emit_ref_store(emitter: Emitter, instruction: SsaInstruction) -> None:
    """(slot), type, value"""
    place = _ref_place(emitter, instruction)
    reference = operand(instruction.operands[-1])
    if reference != "null":
        emitter.require(has_type(emitter, reference, instruction.literals[-1]))
    retain_all(emitter, instruction.retained)
    old = emitter.let(f"load ptr, ptr {place}, align 8{GLOBALS}")
    emitter.do(f"store ptr {reference}, ptr {place}, align 8{GLOBALS}")
    emitter.do(f"call void @vm.drop(ptr {old}, ptr %state)")


EMITTERS: Final[dict[str, Callable[[Emitter, SsaInstruction], None]]] = {
    **{f"buffer.load.{kind}": _emit_load for kind in _LOADS},
    **{f"buffer.store.{kind}": _emit_store for kind in _SHIFTS},
    **{f"buffer.fill.{kind}": _emit_fill for kind in _SHIFTS},
    "buffer.length": _emit_length,
    "buffer.copy": _emit_copy,
    "buffer.compare": _emit_compare,
    **{f"global.load.{i}{kind}": _emit_global_load for i in ("", "indirect.")
       for kind in ("i32", "i64", "f32", "f64")},
    **{f"global.store.{i}{kind}": _emit_global_store for i in ("", "indirect.")
       for kind in ("i32", "i64", "f32", "f64")},
    **{f"global.load.{i}ref": _emit_ref_load for i in ("", "indirect.")},
    **{f"global.store.{i}ref": _emit_ref_store for i in ("", "indirect.")},
}  # fmt: skip
