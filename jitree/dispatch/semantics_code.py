"""Makes machine code of semantics functions. Here are types and instructions of the primitives that they are
written over, and the LLVM IR that Numba makes of the functions.

Only builders and tests import this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, Final

from llvmlite import ir

from jitree.codegen import functions, numbers, processor_texts  # noqa: F401  (it makes primitives known)
from jitree.codegen.frontend import declared, inlined, primitive, signature, signature_of, standing_for, types
from jitree.codegen.image.worklist import spread
from jitree.codegen.vector_math.ir import FUNCTIONS, function_texts
from jitree.dispatch.native import rows as rows_of_functions
from jitree.dispatch.native import side_exits
from jitree.dispatch.semantics import SEMANTICS
from jitree.regs import access

_NUMBERS: Final = {"i32": types.int32, "i64": types.int64, "f32": types.float32, "f64": types.float64}

MNEMONICS: Final = tuple(
    mnemonic for mnemonic, semantic in SEMANTICS.items() if semantic.math_function is None
)
"""Instructions whose function becomes machine code; the others are calls of C functions."""


COMPILED: Final = tuple(mnemonic for mnemonic in MNEMONICS if mnemonic not in FUNCTIONS)
"""Instructions whose functions Numba compiles."""


def symbol(mnemonic: str) -> str:
    """The name that the function of an instruction has as machine code."""
    return f"semantics.{mnemonic}"


_COUNTING: Final = (
    access.retain, access.lost, access.join, access.drop, access.put, access.move,
)  # fmt: skip


@cache
def texts() -> list[str]:
    """Gives the IR of all semantics functions, to be inlined. They are ``result
    @"semantics.add.i32"(arguments)``, and what counts references."""
    made = dict(pair for group in spread(_made, COMPILED) for pair in group.items())
    for function in (
        *_COUNTING,
        side_exits.materialise,
        *side_exits.FUNCTIONS,
        *side_exits.PACKED,
        *access.FUNCTIONS,
        *access.FUEL_FUNCTIONS,
    ):
        made |= inlined(function, function.__name__, signature_of(function))
    return [*made.values(), _vector_math(name for name in MNEMONICS if name in FUNCTIONS)]


def rows() -> bytes:
    """:func:`~jitree.dispatch.native.rows.encode` of all that compiled functions are written with."""
    names = {symbol(mnemonic): mnemonic for mnemonic in COMPILED}
    called = (*side_exits.FUNCTIONS, side_exits.packed, *access.CALLED, *access.FUEL_CALLED)
    names |= {name: name for name in ("retain", "drop", *(item.__name__ for item in called))}
    return rows_of_functions.encode(texts(), names)


def stand_in(mnemonic: str) -> Callable[..., Any]:
    """What functions call for an instruction whose text (:func:`texts_of`) is linked with theirs."""
    return standing_for(symbol(mnemonic), _signature(mnemonic))


def texts_of(mnemonics: Iterable[str]) -> list[str]:
    """The IR of some instructions' functions."""
    wanted = list(mnemonics)
    made = [text for name in wanted if name in COMPILED for text in _made(name).values()]
    return [*made, _vector_math(name for name in wanted if name in FUNCTIONS)]


def _signature(mnemonic: str) -> Any:
    semantic = SEMANTICS[mnemonic]
    return signature(_NUMBERS[semantic.result_type], *(_NUMBERS[kind] for kind in semantic.argument_types))


def _made(mnemonic: str) -> dict[str, str]:
    """What Numba made, by symbol: the function of an instruction, and what it calls."""
    return inlined(SEMANTICS[mnemonic].function, symbol(mnemonic), _signature(mnemonic))


def _vector_math(mnemonics: Iterable[str]) -> str:
    """Gives one text, so that shared tables are there once."""
    parts = (part for name in mnemonics for part in function_texts(name, f'@"{symbol(name)}"', 1))
    return "\n".join(dict.fromkeys(parts))


# -- what primitives become ----------------------------------------------------------------------------------

Emit = Callable[[Any, Any, Sequence[Any]], Any]


def _is_integer(*kinds: Any) -> bool:
    return all(isinstance(kind, types.Integer) for kind in kinds)


def _is_float(*kinds: Any) -> bool:
    return all(isinstance(kind, types.Float) for kind in kinds)


def _wider(kinds: Sequence[Any]) -> Any:
    return max(kinds, key=lambda kind: kind.bitwidth)


def _as(kind: Any, accepts: Callable[..., bool]) -> Callable[..., Any]:
    """The typing of a conversion."""
    return lambda given: signature(kind, given) if accepts(given) else None


def _from(source: Any, kind: Any) -> Callable[..., Any]:
    """The typing of a function of one operand."""
    return lambda given: signature(kind, source)


def _alike(count: int, accepts: Callable[..., bool]) -> Callable[..., Any]:
    """The typing of an operation: operands and result have the type of the widest operand."""

    def typed(*given: Any) -> Any:
        if len(given) != count or not accepts(*given):
            return None
        return signature(_wider(given), *[_wider(given)] * count)

    return typed


def _resized(builder: Any, stated: Any, given: Sequence[Any]) -> Any:
    """An integer of another width; a longer one is what the operand's type, not the result's, says."""
    source, target = stated.args[0], stated.return_type
    kind = ir.IntType(target.bitwidth)
    if target.bitwidth <= source.bitwidth:
        return builder.trunc(given[0], kind)
    return (builder.sext if source.signed else builder.zext)(given[0], kind)


def _rounded(builder: Any, stated: Any, given: Sequence[Any]) -> Any:
    """A float of another width."""
    source, target = stated.args[0], stated.return_type
    if source == target:
        return given[0]
    if target == types.float32:
        return builder.fptrunc(given[0], ir.FloatType())
    return builder.fpext(given[0], ir.DoubleType())


def _from_integer(builder: Any, stated: Any, given: Sequence[Any]) -> Any:
    kind = ir.FloatType() if stated.return_type == types.float32 else ir.DoubleType()
    return (builder.sitofp if stated.args[0].signed else builder.uitofp)(given[0], kind)


def _to_integer(builder: Any, stated: Any, given: Sequence[Any]) -> Any:
    return builder.fptosi(given[0], ir.IntType(64))


def _instruction(name: str) -> Emit:
    """An instruction of LLVM's, by its name in llvmlite."""
    return lambda builder, _, given: getattr(builder, name)(*given)


def _bits(target: Any) -> Emit:
    return lambda builder, _, given: builder.bitcast(given[0], target)


def _intrinsic(name: str) -> Emit:
    """Declares an LLVM function of one operand and its type."""

    def emit(builder: Any, stated: Any, given: Sequence[Any]) -> Any:
        return builder.call(builder.module.declare_intrinsic(name, [given[0].type]), given)

    return emit


def _of_processor(function: Function) -> Emit:
    """Calls what :mod:`jitree.codegen.processor_texts` has for a type."""

    def emit(builder: Any, stated: Any, given: Sequence[Any]) -> Any:
        kind = ir.FunctionType(given[0].type, [value.type for value in given])
        name = f"{processor_texts.PREFIX}{function.__name__}.{given[0].type}"
        return builder.call(declared(builder, kind, name), given)

    return emit


def _leading_zeros(builder: Any, stated: Any, given: Sequence[Any]) -> Any:
    return builder.ctlz(given[0], ir.IntType(1)(0))


def _choice(condition: Any, *given: Any) -> Any:
    kind = _wider(given)
    return signature(kind, types.boolean, kind, kind)


def _refused(*given: Any) -> Any:
    return signature(types.none, *given)


def _nothing(builder: Any, stated: Any, given: Sequence[Any]) -> None:
    """The caller, which inlines the function, has made sure before."""


Function = Callable[..., Any]

_CONVERSIONS: Final[tuple[tuple[Function, Any, Callable[..., bool], Emit], ...]] = (
    (numbers.i8, types.int8, _is_integer, _resized),
    (numbers.i16, types.int16, _is_integer, _resized),
    (numbers.i32, types.int32, _is_integer, _resized),
    (numbers.i64, types.int64, _is_integer, _resized),
    (numbers.u32, types.uint32, _is_integer, _resized),
    (numbers.u64, types.uint64, _is_integer, _resized),
    (numbers.f32, types.float32, _is_float, _rounded),
    (numbers.f64, types.float64, _is_float, _rounded),
    (numbers.f32_from_integer, types.float32, _is_integer, _from_integer),
    (numbers.f64_from_integer, types.float64, _is_integer, _from_integer),
    (numbers.integer, types.int64, _is_float, _to_integer),
)
"""Conversions from one type to another."""

_OF_ONE_TYPE: Final[tuple[tuple[Function, Any, Any, Emit], ...]] = (
    (numbers.f32_to_bits, types.float32, types.int32, _bits(ir.IntType(32))),
    (numbers.f32_of_bits, types.int32, types.float32, _bits(ir.FloatType())),
    (numbers.f64_to_bits, types.float64, types.int64, _bits(ir.IntType(64))),
    (numbers.f64_of_bits, types.int64, types.float64, _bits(ir.DoubleType())),
    (numbers.leading_zeros_32, types.int32, types.int32, _leading_zeros),
    (numbers.leading_zeros_64, types.int64, types.int64, _leading_zeros),
    (numbers.require_unsigned_division, types.int64, types.none, _nothing),
)
"""Functions of one operand, whose type is known: operand, result, and what they become."""

_OPERATIONS: Final[tuple[tuple[Function, int, Callable[..., bool], Emit], ...]] = (
    (numbers.signed_quotient, 2, _is_integer, _instruction("sdiv")),
    (numbers.unsigned_quotient, 2, _is_integer, _instruction("udiv")),
    (numbers.signed_remainder, 2, _is_integer, _instruction("srem")),
    (numbers.unsigned_remainder, 2, _is_integer, _instruction("urem")),
    (numbers.shift_right_logical, 2, _is_integer, _instruction("lshr")),
    (numbers.divide, 2, _is_float, _instruction("fdiv")),
    (numbers.square_root, 1, _is_float, _intrinsic("llvm.sqrt")),
    (numbers.unfolded, 1, _is_float, _intrinsic("llvm.arithmetic.fence")),
    (numbers.round_down, 1, _is_float, _intrinsic("llvm.floor")),
    (numbers.round_up, 1, _is_float, _intrinsic("llvm.ceil")),
    (numbers.round_half_away, 1, _is_float, _intrinsic("llvm.round")),
)
"""Functions whose operands and result have one type: how many operands, which types, and what they become."""


def _make_known() -> None:
    for function, kind, accepts, emit in _CONVERSIONS:
        primitive(function, _as(kind, accepts), emit)
    for function, source, kind, emit in _OF_ONE_TYPE:
        primitive(function, _from(source, kind), emit)
    for function, count, accepts, emit in _OPERATIONS:
        primitive(function, _alike(count, accepts), emit)
    primitive(numbers.choose, _choice, _instruction("select"))
    for function, count in ((numbers.rounded_once, 3), (numbers.flushed, 1)):
        primitive(function, _alike(count, _is_float), _of_processor(function))
    for name in ("signed_division", "exact", "exact_32", "count"):
        primitive(getattr(numbers, f"require_{name}"), _refused, _nothing)


_make_known()
