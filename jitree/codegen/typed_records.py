"""What records in memory (:mod:`jitree.codegen.record`) become as machine code."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from jitree.codegen.frontend import RecordType, primitive, record_access, signature, types
from jitree.codegen.record import place_of

_LONG = ir.IntType(64)


def _place(builder: Any, record: Any, offset: int, width: int) -> Any:
    return builder.inttoptr(builder.add(record, _LONG(offset)), ir.IntType(8 * width).as_pointer())


def _load(builder: Any, record: Any, offset: int, width: int) -> Any:
    kind = ir.IntType(8 * width)
    value = builder.load(_place(builder, record, offset, width), typ=kind, align=1)
    return value if width == 8 else builder.sext(value, _LONG)


def _store(builder: Any, record: Any, offset: int, width: int, value: Any) -> None:
    narrowed = value if width == 8 else builder.trunc(value, ir.IntType(8 * width))
    builder.store(narrowed, _place(builder, record, offset, width), align=1)


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
