"""Handlers of ``vm.buffer`` instructions. What would fail leaves the loop before anything is written.

Offsets and counts of loads, stores and fills are in elements, so ``offset < length >> log2(width)`` is exact
for every 64-bit offset.
"""

from __future__ import annotations

from typing import Final

from jitree.dispatch.fast.handler import Handler
from jitree.dispatch.fast.references import require_kind
from jitree.dispatch.native.module_text import LLVM_TYPES
from jitree.regs.layout import ACCESS_WRITE, ENTRY, KIND_BUFFER, LIBRARY_FUNCTIONS, STATE

_SHIFTS: Final = {"i8": 0, "i16": 1, "i32": 2, "i64": 3, "f32": 2, "f64": 3}
_LOADS: Final = ("i8.u", "i8.s", "i16.u", "i16.s", "i32", "i64", "f32", "f64")
MNEMONICS: Final = (
    *(f"buffer.load.{kind}" for kind in _LOADS),
    *(f"buffer.store.{kind}" for kind in _SHIFTS),
    *(f"buffer.fill.{kind}" for kind in _SHIFTS),
    "buffer.length", "buffer.copy", "buffer.compare",
)  # fmt: skip
_FILL_CHUNK: Final = 4096
"""A fill copies what it has written so far, at most this much at a time: the source stays in cache."""


def emit(handler: Handler, mnemonic: str) -> None:
    operation, *kind = mnemonic.split(".")[1:]
    if operation == "load":
        _emit_load(handler, *kind)
    elif operation == "store":
        _emit_store(handler, kind[0])
    elif operation == "fill":
        _emit_fill(handler, kind[0])
    else:
        {"length": _emit_length, "copy": _emit_copy, "compare": _emit_compare}[operation](handler)


def _bits(kind: str) -> str:
    return "i64" if kind.endswith("64") else "i32"


def _length(handler: Handler, entry: str) -> str:
    return handler.load("i64", handler.field(entry, ENTRY["length"]))


def _address(handler: Handler, entry: str) -> str:
    return handler.pointer_field(entry, ENTRY["address"])


def _require_writable(handler: Handler, entry: str) -> None:
    access = handler.load("i32", handler.field(entry, ENTRY["access"]))
    bit = handler.let(f"and i32 {access}, {ACCESS_WRITE}")
    handler.require(handler.let(f"icmp ne i32 {bit}, 0"))


def _element_place(handler: Handler, entry: str, kind: str, offset: str) -> str:
    """The address of one element, which must lie in the buffer."""
    limit = handler.let(f"lshr i64 {_length(handler, entry)}, {_SHIFTS[kind]}")
    handler.require(handler.let(f"icmp ult i64 {offset}, {limit}"))
    byte = handler.let(f"shl i64 {offset}, {_SHIFTS[kind]}")
    return handler.element("i8", _address(handler, entry), byte)


def _emit_load(handler: Handler, kind: str, extension: str = "") -> None:
    """buffer, offset, result"""
    handler.fetch(1, 4)
    entry = require_kind(handler, 1, KIND_BUFFER)
    place = _element_place(handler, entry, kind, handler.value("i64", 2))
    if extension:
        narrow = handler.let(f"load {kind}, ptr {place}, align 1")
        value = handler.let(f"{extension}ext {kind} {narrow} to i32".replace("uext", "zext"))
    else:
        value = handler.load(_bits(kind), place, alignment=1)
    handler.set_value(_bits(kind), 3, value)
    handler.advance(4)


def _narrowed(handler: Handler, kind: str, position: int) -> tuple[str, str]:
    """(IR type, value) of the pattern that a store or fill writes."""
    value = handler.value(_bits(kind), position)
    if kind in ("i8", "i16"):
        return kind, handler.let(f"trunc i32 {value} to {kind}")
    return LLVM_TYPES[_bits(kind)], value


def _emit_store(handler: Handler, kind: str) -> None:
    """buffer, offset, value"""
    handler.fetch(1, 4)
    entry = require_kind(handler, 1, KIND_BUFFER)
    place = _element_place(handler, entry, kind, handler.value("i64", 2))
    _require_writable(handler, entry)
    bits, value = _narrowed(handler, kind, 3)
    handler.do(f"store {bits} {value}, ptr {place}, align 1")
    handler.advance(4)


def _require_range(handler: Handler, offset: str, length: str, available: str) -> None:
    """Exact: neither side can wrap."""
    handler.require(handler.let(f"icmp ule i64 {offset}, {available}"))
    rest = handler.let(f"sub i64 {available}, {offset}")
    handler.require(handler.let(f"icmp ule i64 {length}, {rest}"))


def _emit_fill(handler: Handler, kind: str) -> None:
    """buffer, offset, count, value: writes one element, then copies what is written to the bytes after it"""
    entry = require_kind(handler, 1, KIND_BUFFER)
    shift = _SHIFTS[kind]
    offset, count = handler.value("i64", 2), handler.value("i64", 3)
    _require_range(handler, offset, count, handler.let(f"lshr i64 {_length(handler, entry)}, {shift}"))
    _require_writable(handler, entry)
    bits, value = _narrowed(handler, kind, 4)
    start = handler.element("i8", _address(handler, entry), handler.let(f"shl i64 {offset}, {shift}"))
    size = handler.let(f"shl i64 {count}, {shift}")
    first, done = handler.fresh("first"), handler.fresh("filled")
    handler.branch(handler.let(f"icmp eq i64 {count}, 0"), done, first)
    handler.label(first)
    handler.do(f"store {bits} {value}, ptr {start}, align 1")
    _emit_repeat(handler, start, size, 1 << shift, first, done)
    handler.label(done)
    handler.advance(5)


def _emit_repeat(handler: Handler, start: str, size: str, width: int, before: str, done: str) -> None:
    head, copy = handler.fresh("repeat"), handler.fresh("more")
    written, following = f"%{head}.written", f"%{head}.next"
    memmove = _library(handler, "memmove")
    handler.jump(head)
    handler.label(head)
    handler.do(f"{written} = phi i64 [ {width}, %{before} ], [ {following}, %{copy} ]")
    handler.branch(handler.let(f"icmp ult i64 {written}, {size}"), copy, done)
    handler.label(copy)
    rest = handler.let(f"sub i64 {size}, {written}")
    chunk = handler.let(f"call i64 @llvm.umin.i64(i64 {written}, i64 {_FILL_CHUNK})")
    length = handler.let(f"call i64 @llvm.umin.i64(i64 {chunk}, i64 {rest})")
    target = handler.element("i8", start, written)
    handler.let(f"call ptr {memmove}(ptr {target}, ptr {start}, i64 {length})")
    handler.do(f"{following} = add i64 {written}, {length}")
    handler.jump(head)


def _library(handler: Handler, name: str) -> str:
    table = handler.pointer_field("%state", STATE["math"])
    return handler.pointer_field(table, 8 * LIBRARY_FUNCTIONS.index(name))


def _emit_length(handler: Handler) -> None:
    """buffer, result"""
    handler.set_value("i64", 2, _length(handler, require_kind(handler, 1, KIND_BUFFER)))
    handler.advance(3)


def _ranges(handler: Handler) -> tuple[str, str, str, str, str]:
    """Of (buffer, offset, buffer, offset, length): both entries, both addresses and the length, checked."""
    first, second = require_kind(handler, 1, KIND_BUFFER), require_kind(handler, 3, KIND_BUFFER)
    length = handler.value("i64", 5)
    places = []
    for entry, position in ((first, 2), (second, 4)):
        offset = handler.value("i64", position)
        _require_range(handler, offset, length, _length(handler, entry))
        places.append(handler.element("i8", _address(handler, entry), offset))
    return first, second, places[0], places[1], length


def _emit_copy(handler: Handler) -> None:
    """source, offset, target, offset, length"""
    _, target, source_place, target_place, length = _ranges(handler)
    _require_writable(handler, target)
    memmove = _library(handler, "memmove")
    handler.let(f"call ptr {memmove}(ptr {target_place}, ptr {source_place}, i64 {length})")
    handler.advance(6)


def _emit_compare(handler: Handler) -> None:
    """lhs, offset, rhs, offset, length, result"""
    *_, lhs, rhs, length = _ranges(handler)
    memcmp = _library(handler, "memcmp")
    order = handler.let(f"call i32 {memcmp}(ptr {lhs}, ptr {rhs}, i64 {length})")
    handler.set_value("i32", 6, handler.let(f"zext i1 {handler.let(f'icmp eq i32 {order}, 0')} to i32"))
    handler.advance(7)
