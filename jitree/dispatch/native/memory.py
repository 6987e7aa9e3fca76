"""Buffers and globals. What would fail takes a side exit before anything is written.

Offsets and counts of loads, stores and fills are in elements, so ``offset < length >> log2(width)`` is exact
for every 64-bit offset.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from jitree.dispatch.native.emitter import Emitter
from jitree.dispatch.native.module_text import LLVM_TYPES, operand
from jitree.dispatch.native.prelude import BYTES, FIXED, GLOBALS
from jitree.dispatch.native.references import drop_all, has_type, retain_all
from jitree.dispatch.native.ssa import SsaInstruction, Value
from jitree.regs.layout import LIBRARY_FUNCTIONS, MODULE

_SHIFTS: Final = {"i8": 0, "i16": 1, "i32": 2, "i64": 3, "f32": 2, "f64": 3}
_LOADS: Final = ("i8.u", "i8.s", "i16.u", "i16.s", "i32", "i64", "f32", "f64")
_ELEMENTS: Final = {"i8": "i8", "i16": "i16"} | LLVM_TYPES


def _element(emitter: Emitter, buffer: Value, extent: str, kind: str, offset: str) -> str:
    """The address of one element, which must lie in the buffer (``length``) or its writable part
    (``room``)."""
    limit = _shifted(emitter, "lshr", emitter.buffer(buffer, extent), kind)
    emitter.require(emitter.let(f"icmp ult i64 {offset}, {limit}"))
    address = emitter.buffer(buffer, "address")
    return emitter.let(f"getelementptr inbounds {_ELEMENTS[kind]}, ptr {address}, i64 {offset}")


def _shifted(emitter: Emitter, operation: str, value: str, kind: str) -> str:
    shift = _SHIFTS[kind]
    return emitter.let(f"{operation} i64 {value}, {shift}") if shift else value


def _emit_load(emitter: Emitter, instruction: SsaInstruction) -> None:
    kind, *extension = instruction.mnemonic.removeprefix("buffer.load.").split(".")
    buffer, offset = instruction.operands
    place = _element(emitter, buffer, "length", kind, operand(offset))
    expression = f"load {_ELEMENTS[kind]}, ptr {place}, align 1{BYTES}"
    if extension:
        operation = {"u": "zext", "s": "sext"}[extension[0]]
        expression = f"{operation} {kind} {emitter.let(expression)} to i32"
    emitter.define(instruction.results[0], expression)


def _narrowed(emitter: Emitter, kind: str, value: Value) -> str:
    return emitter.let(f"trunc i32 {operand(value)} to {kind}") if kind in ("i8", "i16") else operand(value)


def _emit_store(emitter: Emitter, instruction: SsaInstruction) -> None:
    kind = instruction.mnemonic.removeprefix("buffer.store.")
    buffer, offset, value = instruction.operands
    place = _element(emitter, buffer, "room", kind, operand(offset))
    narrowed = _narrowed(emitter, kind, value)
    emitter.do(f"store {_ELEMENTS[kind]} {narrowed}, ptr {place}, align 1{BYTES}")


def _require_range(emitter: Emitter, offset: str, length: str, available: str) -> None:
    """Exact: neither side can wrap."""
    emitter.require(emitter.let(f"icmp ule i64 {offset}, {available}"))
    rest = emitter.let(f"sub i64 {available}, {offset}")
    emitter.require(emitter.let(f"icmp ule i64 {length}, {rest}"))


def _emit_fill(emitter: Emitter, instruction: SsaInstruction) -> None:
    """buffer, offset, count, value"""
    kind = instruction.mnemonic.removeprefix("buffer.fill.")
    buffer, offset, count, value = instruction.operands
    available = _shifted(emitter, "lshr", emitter.buffer(buffer, "length"), kind)
    _require_range(emitter, operand(offset), operand(count), available)
    emitter.require(emitter.buffer(buffer, "writable"))
    element = _ELEMENTS[kind]
    address = emitter.buffer(buffer, "address")
    start = emitter.let(f"getelementptr {element}, ptr {address}, i64 {operand(offset)}")
    narrowed = _narrowed(emitter, kind, value)
    emitter.module.define(_fill_function(element))
    emitter.do(f"call fastcc void @fill.{element}(ptr {start}, i64 {operand(count)}, {element} {narrowed})")


def _fill_function(element: str) -> str:
    return f"""define internal fastcc void @fill.{element}(ptr %start, i64 %count, {element} %value) #3 {{
entry:
  %none = icmp eq i64 %count, 0
  br i1 %none, label %done, label %more
more:
  %index = phi i64 [ 0, %entry ], [ %next, %more ]
  %place = getelementptr {element}, ptr %start, i64 %index
  store {element} %value, ptr %place, align 1{BYTES}
  %next = add nuw i64 %index, 1
  %last = icmp eq i64 %next, %count
  br i1 %last, label %done, label %more
done:
  ret void
}}"""


def _emit_length(emitter: Emitter, instruction: SsaInstruction) -> None:
    buffer = instruction.operands[0]
    emitter.require(emitter.buffer(buffer, "is"))
    emitter.name(instruction.results[0], emitter.buffer(buffer, "length"))


def _ranges(emitter: Emitter, instruction: SsaInstruction) -> tuple[str, str, str]:
    """Of (buffer, offset, buffer, offset, length): both addresses and the length, checked."""
    first, first_offset, second, second_offset, length = instruction.operands
    places = []
    for buffer, offset in ((first, first_offset), (second, second_offset)):
        emitter.require(emitter.buffer(buffer, "is"))
        _require_range(emitter, operand(offset), operand(length), emitter.buffer(buffer, "length"))
        address = emitter.buffer(buffer, "address")
        places.append(emitter.let(f"getelementptr i8, ptr {address}, i64 {operand(offset)}"))
    return places[0], places[1], operand(length)


def _emit_copy(emitter: Emitter, instruction: SsaInstruction) -> None:
    """source, offset, target, offset, length"""
    source, target, length = _ranges(emitter, instruction)
    emitter.require(emitter.buffer(instruction.operands[2], "writable"))
    memmove = emitter.library(LIBRARY_FUNCTIONS.index("memmove"))
    emitter.let(f"call ptr {memmove}(ptr {target}, ptr {source}, i64 {length})")


def _emit_compare(emitter: Emitter, instruction: SsaInstruction) -> None:
    """lhs, offset, rhs, offset, length, result"""
    lhs, rhs, length = _ranges(emitter, instruction)
    memcmp = emitter.library(LIBRARY_FUNCTIONS.index("memcmp"))
    order = emitter.let(f"call i32 {memcmp}(ptr {lhs}, ptr {rhs}, i64 {length})")
    result = instruction.results[0]
    emitter.conditions[result] = emitter.let(f"icmp eq i32 {order}, 0")
    emitter.define(result, f"zext i1 {emitter.conditions[result]} to i32")


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
