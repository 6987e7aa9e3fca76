"""Compiles Python functions on integers, and all that they call, to LLVM IR.

Parameters and results are ``int`` (64 bits, wrapping), ``bool``, ``None`` or a record class, as annotated.
Functions may use each other, what Numba can do with integers, and :mod:`~jitree.codegen.primitives` for
memory and calls of C.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from types import FunctionType
from typing import Any, Final

from llvmlite import ir

from jitree.codegen import primitives, processor_texts
from jitree.codegen.frontend import (
    RecordType,
    compiled,
    declared,
    is_primitive,
    primitive,
    record_access,
    record_type,
    register_type,
    signature,
    signature_of,
    types,
)
from jitree.codegen.image.worklist import spread
from jitree.codegen.primitives import APART, DEPTH, NUMBERS, SIDE, ElementMemory
from jitree.codegen.record import (
    Atomic,
    RecordField,
    atomic_add,
    atomic_load,
    atomic_replace,
    atomic_store,
    place_of,
)
from jitree.errors import InternalError

_BIT, _BYTE, _WORD, _LONG = (ir.IntType(width) for width in (1, 8, 32, 64))
_DOUBLE, _SINGLE = ir.DoubleType(), ir.FloatType()
_STACK_ALIGNMENT: Final = 64

_FLOAT = ir.FloatType()
_LANES: Final = range(SIDE)

ALIASES = "jitree"
"""The root of the names of what does not overlap."""


def _integers(result: Any, count: int) -> Callable[..., Any]:
    """The typing of a function from integers."""
    return lambda *given: signature(result, *[types.int64] * count) if len(given) == count else None


def _pointer(builder: Any, address: Any, kind: Any) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


def _load(builder: Any, address: Any, kind: Any, extend: str = "sext") -> Any:
    value = builder.load(_pointer(builder, address, kind), typ=kind, align=1)
    return value if kind is _LONG else getattr(builder, extend)(value, _LONG)


def _store(builder: Any, address: Any, kind: Any, value: Any) -> None:
    narrowed = value if kind is _LONG else builder.trunc(value, kind)
    builder.store(narrowed, _pointer(builder, address, kind), align=1)


def _memory(load: Callable[..., Any], store: Callable[..., Any], kind: Any, extend: str) -> None:
    """Loads and stores of one width."""
    primitive(
        load, _integers(types.int64, 1), lambda builder, _, given: _load(builder, given[0], kind, extend)
    )
    primitive(
        store, _integers(types.none, 2), lambda builder, _, given: _store(builder, given[0], kind, given[1])
    )


_memory(primitives.load8, primitives.store8, _BYTE, "zext")
_memory(primitives.load32, primitives.store32, _WORD, "sext")
_memory(primitives.load64, primitives.store64, _LONG, "")


def _call(builder: Any, stated: Any, given: Sequence[Any]) -> Any:
    kind = ir.FunctionType(_LONG, [value.type for value in given[1:]])
    return builder.call(_pointer(builder, given[0], kind), given[1:])


def _call_double(builder: Any, stated: Any, given: Sequence[Any]) -> Any:
    return _call(builder, stated, [given[0], builder.bitcast(given[1], _DOUBLE)])


def _call_int(builder: Any, stated: Any, given: Sequence[Any]) -> Any:
    kind = ir.FunctionType(_WORD, [value.type for value in given[1:]])
    return builder.sext(builder.call(_pointer(builder, given[0], kind), given[1:]), _LONG)


def _processor(function: Callable[..., Any], result: Any, *kinds: Any) -> None:
    """A function that :mod:`jitree.codegen.processor_texts` has for each processor."""
    returned = ir.VoidType() if result == types.none else _LONG

    def emit(builder: Any, stated: Any, given: Sequence[Any]) -> Any:
        kind = ir.FunctionType(returned, [value.type for value in given])
        name = processor_texts.PREFIX + function.__name__
        value = builder.call(declared(builder, kind, name), given)
        return None if result == types.none else value

    primitive(function, lambda *given: signature(result, *kinds) if given == kinds else None, emit)


_processor(primitives.ticks, types.int64)
_processor(primitives.pause, types.none)
_processor(primitives.flush_denormals, types.int64)
_processor(primitives.restore_denormals, types.none, types.int64)
primitive(primitives.call_kernel, _integers(types.int64, 4), _call_int)
primitive(primitives.call_int, lambda *given: signature(types.int64, *[types.int64] * len(given)), _call_int)
primitive(primitives.call, lambda *given: signature(types.int64, *[types.int64] * len(given)), _call)
primitive(primitives.call_double, _integers(types.int64, 2), _call_double)


def _narrow(builder: Any, stated: Any, given: Sequence[Any]) -> Any:
    single = builder.fptrunc(builder.bitcast(given[0], _DOUBLE), _SINGLE)
    return builder.sext(builder.bitcast(single, _WORD), _LONG)


def _widen(builder: Any, stated: Any, given: Sequence[Any]) -> Any:
    single = builder.bitcast(builder.trunc(given[0], _WORD), _SINGLE)
    return builder.bitcast(builder.fpext(single, _DOUBLE), _LONG)


def _bit_length(builder: Any, stated: Any, given: Sequence[Any]) -> Any:
    return builder.sub(_LONG(64), builder.ctlz(given[0], ir.IntType(1)(0)))


def _stack_address(builder: Any, stated: Any, given: Sequence[Any]) -> Any:
    pointer = _BYTE.as_pointer()
    frame = declared(builder, ir.FunctionType(pointer, [_WORD]), "llvm.frameaddress.p0")
    return builder.ptrtoint(builder.call(frame, [_WORD(0)]), _LONG)


def _stack(builder: Any, stated: Any, given: Sequence[Any]) -> Any:
    # LLVM makes memory of a known size part of the frame if it is asked for at the beginning; elsewhere it
    # moves the stack pointer, also in what the function is inlined into.
    with builder.goto_entry_block() if isinstance(given[0], ir.Constant) else nullcontext():
        block = builder.alloca(_BYTE, size=given[0])
    block.align = _STACK_ALIGNMENT
    return builder.ptrtoint(block, _LONG)


primitive(primitives.narrow, _integers(types.int64, 1), _narrow)
primitive(primitives.widen, _integers(types.int64, 1), _widen)
primitive(
    primitives.below,
    _integers(types.boolean, 2),
    lambda builder, _, given: builder.icmp_unsigned("<", *given),
)
primitive(primitives.quotient, _integers(types.int64, 2), lambda builder, _, given: builder.udiv(*given))
primitive(primitives.remainder, _integers(types.int64, 2), lambda builder, _, given: builder.urem(*given))
primitive(
    primitives.unlikely,
    lambda *given: signature(types.boolean, types.boolean),
    lambda builder, _, given: builder.call(
        builder.module.declare_intrinsic("llvm.expect", [_BIT], ir.FunctionType(_BIT, [_BIT, _BIT])),
        [given[0], _BIT(0)],
    ),
)
primitive(primitives.bit_length, _integers(types.int64, 1), _bit_length)
primitive(primitives.stack_address, _integers(types.int64, 0), _stack_address)
primitive(primitives.stack, _integers(types.int64, 1), _stack)


class _TileType(types.Type):  # type: ignore[misc]
    def __init__(self, name: str, element: Any) -> None:
        self.vector = ir.VectorType(element, SIDE)
        super().__init__(name)


_FLOATS, _INTEGERS = _TileType("float tile", _FLOAT), _TileType("integer tile", _WORD)
register_type(_TileType, lambda kind: ir.ArrayType(kind.vector, SIDE))


def _tile_pointer(builder: Any, address: Any, kind: Any, index: int = 0) -> Any:
    place = builder.inttoptr(address, kind.as_pointer())
    return builder.gep(place, [ir.IntType(64)(index)], source_etype=kind)


def _vector(builder: Any, address: Any, kind: Any, index: int = 0) -> Any:
    return builder.load(_tile_pointer(builder, address, kind, index), typ=kind, align=1)


def _shuffled(builder: Any, value: Any, lanes: Sequence[int]) -> Any:
    mask = ir.Constant(ir.VectorType(_WORD, len(lanes)), list(lanes))
    return builder.shuffle_vector(value, ir.Constant(value.type, ir.Undefined), mask)


def _spread(builder: Any, value: Any) -> Any:
    """The same value in all lanes."""
    nothing = ir.Constant(ir.VectorType(value.type, SIDE), ir.Undefined)
    return _shuffled(builder, builder.insert_element(nothing, value, _WORD(0)), [0] * SIDE)


def _loaded(kind: _TileType) -> Callable[..., Any]:
    def emit(builder: Any, stated: Any, given: Sequence[Any]) -> Any:
        tile = ir.Constant(ir.ArrayType(kind.vector, SIDE), ir.Undefined)
        for row in _LANES:
            tile = builder.insert_value(tile, _vector(builder, given[0], kind.vector, row), row)
        return tile

    return emit


def _zeros(kind: _TileType) -> Callable[..., Any]:
    return lambda builder, stated, given: ir.Constant(ir.ArrayType(kind.vector, SIDE), None)


def _store_tile(builder: Any, stated: Any, given: Sequence[Any]) -> None:
    vector = stated.args[1].vector
    for row in _LANES:
        total = builder.extract_value(given[1], row)
        builder.store(total, _tile_pointer(builder, given[0], vector, row), align=1)


def _added(step: Callable[[Any, Any, Any, Any], Any], width: int) -> Callable[..., Any]:
    """Adds a row by ``step(builder, total, lhs, rhs)``. Its operands are addresses; the left one is so
    wide."""

    def emit(builder: Any, stated: Any, given: Sequence[Any]) -> Any:
        tile, lhs, rhs = given
        for row in _LANES:
            left = builder.add(lhs, ir.IntType(64)(row * width))
            tile = builder.insert_value(tile, step(builder, builder.extract_value(tile, row), left, rhs), row)
        return tile

    return emit


def _add_floats(builder: Any, total: Any, lhs: Any, rhs: Any) -> Any:
    left = _spread(builder, builder.load(_tile_pointer(builder, lhs, _FLOAT), typ=_FLOAT, align=1))
    kind = ir.FunctionType(total.type, [total.type] * 3)
    add = declared(builder, kind, f"llvm.fmuladd.v{SIDE}f32")
    return builder.call(add, [left, _vector(builder, rhs, total.type), total])


def _add_bytes(builder: Any, total: Any, lhs: Any, rhs: Any) -> Any:
    pair, many = ir.IntType(8 * DEPTH), SIDE * DEPTH
    narrow, wide = ir.VectorType(ir.IntType(8), many), ir.VectorType(_WORD, many)
    left = _spread(builder, builder.load(_tile_pointer(builder, lhs, pair), typ=pair, align=1))
    left = builder.sext(builder.bitcast(left, narrow), wide)
    products = builder.mul(left, builder.sext(_vector(builder, rhs, narrow), wide), flags=("nsw",))
    halves = (_shuffled(builder, products, range(first, many, DEPTH)) for first in range(DEPTH))
    return builder.add(total, builder.add(*halves, flags=("nsw",)))


def _make_known() -> None:
    long = types.int64
    for kind, load, zeros, add, step in (
        (
            _FLOATS,
            primitives.float_tile,
            primitives.float_zeros,
            primitives.add_floats,
            _added(_add_floats, 4),
        ),
        (
            _INTEGERS,
            primitives.integer_tile,
            primitives.integer_zeros,
            primitives.add_bytes,
            _added(_add_bytes, DEPTH),
        ),
    ):
        primitive(zeros, lambda kind=kind: signature(kind), _zeros(kind))
        primitive(load, lambda given, kind=kind: signature(kind, long), _loaded(kind))
        primitive(add, lambda *given, kind=kind: signature(kind, kind, long, long), step)
    primitive(primitives.store_tile, lambda address, tile: signature(types.none, long, tile), _store_tile)


_make_known()


def _place(builder: Any, record: Any, field: RecordField) -> Any:
    return builder.inttoptr(builder.add(record, _LONG(field.offset)), _kind(field).as_pointer())


def _kind(field: RecordField) -> Any:
    return ir.IntType(8 * field.width)


def _marked(builder: Any, field: RecordField, access: Any) -> Any:
    """Tells LLVM what the access does not overlap."""
    if field.apart is not None:
        node = builder.module.add_metadata
        kind = node([field.apart, node([ALIASES]), _LONG(0)])
        access.set_metadata("tbaa", node([kind, kind, _LONG(0)]))
    return access


def _load_field(builder: Any, record: Any, field: RecordField) -> Any:
    target = field.target
    if target is not None and target.embedded:
        return builder.add(record, _LONG(field.offset))
    loaded = builder.load(_place(builder, record, field), typ=_kind(field), align=1)
    value = _marked(builder, field, loaded)
    if field.width == 8:
        return value
    return (builder.sext if field.signed else builder.zext)(value, _LONG)


def _store_field(builder: Any, record: Any, field: RecordField, value: Any) -> None:
    narrowed = value if field.width == 8 else builder.trunc(value, _kind(field))
    _marked(builder, field, builder.store(narrowed, _place(builder, record, field), align=1))


record_access(_load_field, _store_field)


def _of_records(result: Any, count: int) -> Callable[..., Any]:
    """The typing of a function of records of one class."""

    def typed(*given: Any) -> Any:
        known = len(given) == count and len(set(given)) == 1 and isinstance(given[0], RecordType)
        return signature(result, *given) if known else None

    return typed


def _compared(relation: str) -> Callable[..., Any]:
    def emit(builder: Any, stated: Any, given: Sequence[Any]) -> Any:
        right = given[1] if len(given) > 1 else _LONG(0)
        return builder.icmp_unsigned(relation, given[0], right)

    return emit


primitive(bool, _of_records(types.boolean, 1), _compared("!="))
primitive(operator.not_, _of_records(types.boolean, 1), _compared("=="))
primitive(operator.eq, _of_records(types.boolean, 2), _compared("=="))
primitive(operator.ne, _of_records(types.boolean, 2), _compared("!="))
primitive(place_of, _of_records(types.int64, 1), lambda builder, _, given: given[0])


def _atomic(result: Any, count: int) -> Callable[..., Any]:
    """The typing of a function of a word and numbers."""
    kinds = record_type(Atomic), *[types.int64] * count
    return lambda *given: signature(result, *kinds) if given[0] == kinds[0] else None


def _word(builder: Any, given: Sequence[Any]) -> Any:
    return builder.inttoptr(given[0], _LONG.as_pointer())


def _set(builder: Any, stated: Any, given: Sequence[Any]) -> None:
    builder.store_atomic(given[1], _word(builder, given), "release", 8)


def _replace(builder: Any, stated: Any, given: Sequence[Any]) -> Any:
    found = builder.cmpxchg(_word(builder, given), given[1], given[2], "seq_cst")
    return builder.extract_value(found, 1)


primitive(
    atomic_load,
    _atomic(types.int64, 0),
    lambda builder, _, given: builder.load_atomic(_word(builder, given), "seq_cst", 8),
)
primitive(atomic_store, _atomic(types.none, 1), _set)
primitive(
    atomic_add,
    _atomic(types.int64, 1),
    lambda builder, _, given: builder.atomic_rmw("add", _word(builder, given), given[1], "seq_cst"),
)
primitive(atomic_replace, _atomic(types.boolean, 2), _replace)


def _number(record: Any) -> Any:
    """The type of elements, None of what has none."""
    cls = record.cls if isinstance(record, RecordType) else None
    return getattr(types, NUMBERS[cls]) if cls in NUMBERS else None


def _element(builder: Any, stated: Any, given: Sequence[Any]) -> tuple[Any, Any]:
    """Its address and type."""
    number = _number(stated.args[0])
    kind = ir.FloatType() if number == types.float32 else ir.IntType(number.bitwidth)
    base = builder.inttoptr(given[0], kind.as_pointer())
    return builder.gep(base, [given[1]], source_etype=kind), kind


def _get_element(builder: Any, stated: Any, given: Sequence[Any]) -> Any:
    place, kind = _element(builder, stated, given)
    return builder.load(place, typ=kind, align=1)


def _set_element(builder: Any, stated: Any, given: Sequence[Any]) -> None:
    place, _ = _element(builder, stated, given)
    builder.store(given[2], place, align=1)


def _of_elements(record: Any, index: Any, *value: Any) -> Any:
    number = _number(record)
    if number is None:
        return None
    return signature(types.none if value else number, record, types.int64, *[number for _ in value])


primitive(operator.getitem, _of_elements, _get_element)
primitive(operator.setitem, _of_elements, _set_element)


IntegerFunction = Callable[..., Any]


def texts(functions: Iterable[IntegerFunction]) -> list[str]:
    """The IR of functions and of all that they call, a text each; the symbols are the functions' names."""
    return spread(_text, list(_reached(functions).values()))


def _text(function: IntegerFunction) -> str:
    """INTERNAL if a variable is a float or without sign: what Numba then does differs from Python. Functions
    of elements may have floats, which they move, and leave arithmetic to the semantics."""
    made = compiled(function, function.__name__, signature_of(function))
    has_elements = any(_is_elements(kind) for kind in made.variables.values())
    for name, kind in made.variables.items() if not has_elements else ():
        if isinstance(kind, types.Float) or (isinstance(kind, types.Integer) and not kind.signed):
            raise InternalError(f"{function.__name__}: '{name}' has type {kind}, which is no signed integer")
    return made.text.replace('"no-builtins"', 'noinline "no-builtins"') if function in APART else made.text


def _is_elements(kind: Any) -> bool:
    return isinstance(kind, RecordType) and issubclass(kind.cls, ElementMemory)


def _reached(functions: Iterable[IntegerFunction]) -> dict[str, IntegerFunction]:
    """Functions by name. INTERNAL if two have the same."""
    found: dict[str, IntegerFunction] = {}
    waiting = list(functions)
    while waiting:
        function = waiting.pop()
        name = function.__name__
        if name not in found:
            waiting += _callees(function)
        if found.setdefault(name, function) is not function:
            raise InternalError(f"two functions of the name {name}")
    return found


def _callees(function: IntegerFunction) -> list[IntegerFunction]:
    used = [function.__globals__.get(name) for name in function.__code__.co_names]
    used += [cell.cell_contents for cell in function.__closure__ or ()]
    return [item for item in used if isinstance(item, FunctionType) and not is_primitive(item)]
