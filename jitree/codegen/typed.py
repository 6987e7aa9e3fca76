"""What the functions of :mod:`jitree.codegen.primitives` become as machine code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Final

from llvmlite import ir

from jitree.codegen import primitives, processor, processor_texts
from jitree.codegen.frontend import declared, primitive, signature, types

_BIT, _BYTE, _WORD, _LONG = (ir.IntType(width) for width in (1, 8, 32, 64))
_DOUBLE, _SINGLE = ir.DoubleType(), ir.FloatType()
_STACK_ALIGNMENT: Final = 64


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


_processor(processor.ticks, types.int64)
_processor(processor.pause, types.none)
_processor(processor.flush_denormals, types.int64)
_processor(processor.restore_denormals, types.none, types.int64)
primitive(processor.call_kernel, _integers(types.int64, 4), _call_int)
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
