"""What the functions of :mod:`jitree.codegen.tiles` become as machine code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from llvmlite import ir

from jitree.codegen import tiles
from jitree.codegen.frontend import declared, primitive, register_type, signature, types
from jitree.codegen.tiles import DEPTH, SIDE

_WORD, _FLOAT = ir.IntType(32), ir.FloatType()
_LANES: Final = range(SIDE)


class _TileType(types.Type):  # type: ignore[misc]
    def __init__(self, name: str, element: Any) -> None:
        self.vector = ir.VectorType(element, SIDE)
        super().__init__(name)


_FLOATS, _INTEGERS = _TileType("float tile", _FLOAT), _TileType("integer tile", _WORD)
register_type(_TileType, lambda kind: ir.ArrayType(kind.vector, SIDE))


def _pointer(builder: Any, address: Any, kind: Any, index: int = 0) -> Any:
    place = builder.inttoptr(address, kind.as_pointer())
    return builder.gep(place, [ir.IntType(64)(index)], source_etype=kind)


def _vector(builder: Any, address: Any, kind: Any, index: int = 0) -> Any:
    return builder.load(_pointer(builder, address, kind, index), typ=kind, align=1)


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


def _store(builder: Any, stated: Any, given: Sequence[Any]) -> None:
    vector = stated.args[1].vector
    for row in _LANES:
        total = builder.extract_value(given[1], row)
        builder.store(total, _pointer(builder, given[0], vector, row), align=1)


def _added(step: Callable[[Any, Any, Any, Any], Any], width: int) -> Callable[..., Any]:
    """``step(builder, total, lhs, rhs)`` adds to a row, from the addresses of its left operand, which is so
    wide, and of the right one."""

    def emit(builder: Any, stated: Any, given: Sequence[Any]) -> Any:
        tile, lhs, rhs = given
        for row in _LANES:
            left = builder.add(lhs, ir.IntType(64)(row * width))
            tile = builder.insert_value(tile, step(builder, builder.extract_value(tile, row), left, rhs), row)
        return tile

    return emit


def _add_floats(builder: Any, total: Any, lhs: Any, rhs: Any) -> Any:
    left = _spread(builder, builder.load(_pointer(builder, lhs, _FLOAT), typ=_FLOAT, align=1))
    kind = ir.FunctionType(total.type, [total.type] * 3)
    add = declared(builder, kind, f"llvm.fmuladd.v{SIDE}f32")
    return builder.call(add, [left, _vector(builder, rhs, total.type), total])


def _add_bytes(builder: Any, total: Any, lhs: Any, rhs: Any) -> Any:
    pair, many = ir.IntType(8 * DEPTH), SIDE * DEPTH
    narrow, wide = ir.VectorType(ir.IntType(8), many), ir.VectorType(_WORD, many)
    left = _spread(builder, builder.load(_pointer(builder, lhs, pair), typ=pair, align=1))
    left = builder.sext(builder.bitcast(left, narrow), wide)
    products = builder.mul(left, builder.sext(_vector(builder, rhs, narrow), wide), flags=("nsw",))
    halves = (_shuffled(builder, products, range(first, many, DEPTH)) for first in range(DEPTH))
    return builder.add(total, builder.add(*halves, flags=("nsw",)))


def _make_known() -> None:
    long = types.int64
    for kind, load, zeros, add, step in (
        (_FLOATS, tiles.float_tile, tiles.float_zeros, tiles.add_floats, _added(_add_floats, 4)),
        (_INTEGERS, tiles.integer_tile, tiles.integer_zeros, tiles.add_bytes, _added(_add_bytes, DEPTH)),
    ):
        primitive(zeros, lambda kind=kind: signature(kind), _zeros(kind))
        primitive(load, lambda given, kind=kind: signature(kind, long), _loaded(kind))
        primitive(add, lambda *given, kind=kind: signature(kind, kind, long, long), step)
    primitive(tiles.store_tile, lambda address, tile: signature(types.none, long, tile), _store)


_make_known()
