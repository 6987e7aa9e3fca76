"""Handlers of ``vm.buffer`` instructions. What would fail takes a side exit before anything is written.

Offsets and counts of loads, stores and fills are in elements, so ``offset < length >> log2(width)`` is exact
for every 64-bit offset.
"""

from __future__ import annotations

from typing import Final

from jitree.dispatch.fast.handler import Handler
from jitree.dispatch.fast.references import require_kind
from jitree.regs.layout import ACCESS_WRITE, ENTRY, KIND_BUFFER

_SHIFTS: Final = {"i8": 0, "i16": 1, "i32": 2, "i64": 3, "f32": 2, "f64": 3}
_LOADS: Final = ("i8.u", "i8.s", "i16.u", "i16.s", "i32", "i64", "f32", "f64")
MNEMONICS: Final = (
    *(f"buffer.load.{kind}" for kind in _LOADS),
    *(f"buffer.store.{kind}" for kind in _SHIFTS),
    *(f"buffer.fill.{kind}" for kind in _SHIFTS),
    "buffer.length", "buffer.copy", "buffer.compare",
)  # fmt: skip


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


def _extent(handler: Handler, position: int, writable: bool = False) -> tuple[str, str]:
    """The address and the length of the buffer that an operand word names."""
    entry = require_kind(handler, position, KIND_BUFFER)
    if writable:
        _require_writable(handler, entry)
    return _address(handler, entry), _length(handler, entry)


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


def _emit_store(handler: Handler, kind: str) -> None:
    """buffer, offset, value"""
    handler.fetch(1, 4)
    entry = require_kind(handler, 1, KIND_BUFFER)
    place = _element_place(handler, entry, kind, handler.value("i64", 2))
    _require_writable(handler, entry)
    bits = _bits(kind)
    value = handler.value(bits, 3)
    if kind in ("i8", "i16"):
        bits, value = kind, handler.let(f"trunc i32 {value} to {kind}")
    handler.do(f"store {bits} {value}, ptr {place}, align 1")
    handler.advance(4)


def _emit_fill(handler: Handler, kind: str) -> None:
    """buffer, offset, count, value"""
    extent, bits = _extent(handler, 1, writable=True), _bits(kind)
    offset, count, value = handler.value("i64", 2), handler.value("i64", 3), handler.value(bits, 4)
    wide = value if bits == "i64" else handler.let(f"zext i32 {value} to i64")
    shift = str(_SHIFTS[kind])
    handler.require(handler.call("buffer_fill", "%state", *extent, offset, count, wide, shift))
    handler.spend_bytes(count)
    handler.advance(5)


def _emit_length(handler: Handler) -> None:
    """buffer, result"""
    handler.set_value("i64", 2, _length(handler, require_kind(handler, 1, KIND_BUFFER)))
    handler.advance(3)


def _emit_copy(handler: Handler) -> None:
    """source, offset, target, offset, length"""
    source, target = (*_extent(handler, 1), handler.value("i64", 2)), _extent(handler, 3, writable=True)
    into, length = handler.value("i64", 4), handler.value("i64", 5)
    handler.require(handler.call("buffer_copy", "%state", *source, *target, into, length))
    handler.spend_bytes(length)
    handler.advance(6)


def _emit_compare(handler: Handler) -> None:
    """lhs, offset, rhs, offset, length, result"""
    ranges = [text for at in (1, 3) for text in (*_extent(handler, at), handler.value("i64", at + 1))]
    length = handler.value("i64", 5)
    equal = handler.call("buffer_compare", "%state", *ranges, length)
    handler.require(handler.let(f"icmp ne i64 {equal}, -1"))
    handler.set_value("i32", 6, handler.let(f"trunc i64 {equal} to i32"))
    handler.spend_bytes(length)
    handler.advance(7)
