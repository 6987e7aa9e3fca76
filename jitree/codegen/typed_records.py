"""What records in memory (:mod:`jitree.codegen.record`) become as machine code."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from jitree.codegen.atomics import Atomic, atomic_add, atomic_load, atomic_replace, atomic_store
from jitree.codegen.elements import NUMBERS
from jitree.codegen.frontend import RecordType, primitive, record_access, record_type, signature, types
from jitree.codegen.record import RecordField, place_of

_LONG = ir.IntType(64)
ALIASES = "jitree"
"""The root of the names of what does not overlap."""


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


def _load(builder: Any, record: Any, field: RecordField) -> Any:
    target = field.target()
    if target is not None and target.embedded:
        return builder.add(record, _LONG(field.offset))
    loaded = builder.load(_place(builder, record, field), typ=_kind(field), align=1)
    value = _marked(builder, field, loaded)
    if field.width == 8:
        return value
    return (builder.sext if field.signed else builder.zext)(value, _LONG)


def _store(builder: Any, record: Any, field: RecordField, value: Any) -> None:
    narrowed = value if field.width == 8 else builder.trunc(value, _kind(field))
    _marked(builder, field, builder.store(narrowed, _place(builder, record, field), align=1))


record_access(_load, _store)


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
