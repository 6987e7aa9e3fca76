"""Element-wise functions of ``vmvx``: two dimensions, any strides."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np

from jitree.errors import InvalidArgumentError
from jitree.modules.vmvx.operands import Array, source, target

Binary = Callable[[Array, Array], Array]
Unary = Callable[[Array], Array]

_SHIFT_MASK: Final = 31
"""Counts from 32 on are undefined; processors take the low bits."""


def binary(
    dtype: Any,
    compute: Binary,
    lhs: object,
    lhs_offset: int,
    lhs_stride0: int,
    lhs_stride1: int,
    rhs: object,
    rhs_offset: int,
    rhs_stride0: int,
    rhs_stride1: int,
    out: object,
    out_offset: int,
    out_stride0: int,
    out_stride1: int,
    size0: int,
    size1: int,
) -> None:
    """``out[i, j] = compute(lhs[i, j], rhs[i, j])``"""
    sizes = (size0, size1)
    left = source(lhs, dtype, lhs_offset, (lhs_stride0, lhs_stride1), sizes)
    right = source(rhs, dtype, rhs_offset, (rhs_stride0, rhs_stride1), sizes)
    result = target(out, dtype, out_offset, (out_stride0, out_stride1), sizes)
    result[...] = compute(left, right)


def unary(
    dtype: Any,
    compute: Unary,
    operand: object,
    offset: int,
    stride0: int,
    stride1: int,
    out: object,
    out_offset: int,
    out_stride0: int,
    out_stride1: int,
    size0: int,
    size1: int,
) -> None:
    """``out[i, j] = compute(operand[i, j])``"""
    sizes = (size0, size1)
    argument = source(operand, dtype, offset, (stride0, stride1), sizes)
    result = target(out, dtype, out_offset, (out_stride0, out_stride1), sizes)
    result[...] = compute(argument)


def fill(value: int, out: object, offset: int, stride: int, size0: int, size1: int) -> None:
    """``out[i, j] = value``, columns next to each other."""
    target(out, np.int32, offset, (stride, 1), (size0, size1))[...] = value


def _divide_signed(lhs: Array, rhs: Array) -> Array:
    """Towards zero; the most negative number over -1 wraps around. Quotients are exact in binary64."""
    _check_divisors(rhs)
    return np.trunc(np.divide(lhs, rhs, dtype=np.float64)).astype(np.int64).astype(np.int32)


def _divide_unsigned(lhs: Array, rhs: Array) -> Array:
    _check_divisors(rhs)
    return lhs // rhs


def _check_divisors(divisors: Array) -> None:
    if not divisors.all():
        raise InvalidArgumentError("division by zero")


def _shift_left(lhs: Array, rhs: Array) -> Array:
    shifted: Array = np.left_shift(lhs, rhs & np.uint32(_SHIFT_MASK))
    return shifted


def _shift_right(lhs: Array, rhs: Array) -> Array:
    shifted: Array = np.right_shift(lhs, rhs & rhs.dtype.type(_SHIFT_MASK))
    return shifted


def _instruction(mnemonic: str) -> Unary:
    """An instruction for each element: numpy's functions round otherwise."""

    def compute(operand: Array) -> Array:
        from jitree.dispatch.semantics import SEMANTICS  # programs that do not call this start without it

        result: Array = np.frompyfunc(SEMANTICS[mnemonic].function, 1, 1)(operand).astype(np.float32)
        return result

    return compute


def _reciprocal_square_root(operand: Array) -> Array:
    return np.reciprocal(np.sqrt(operand))


def _count_leading_zeros(operand: Array) -> Array:
    _, bit_lengths = np.frexp(operand.astype(np.float64))
    return np.int32(32) - bit_lengths


def _same(operand: Array) -> Array:
    return operand


_BINARY: Final[dict[str, tuple[Any, Binary]]] = {
    "add.2d.f32": (np.float32, np.add),
    "sub.2d.f32": (np.float32, np.subtract),
    "mul.2d.f32": (np.float32, np.multiply),
    "div.2d.f32": (np.float32, np.divide),
    "add.2d.i32": (np.int32, np.add),
    "sub.2d.i32": (np.int32, np.subtract),
    "mul.2d.i32": (np.int32, np.multiply),
    "divs.2d.i32": (np.int32, _divide_signed),
    "divu.2d.i32": (np.uint32, _divide_unsigned),
    "and.2d.i32": (np.int32, np.bitwise_and),
    "or.2d.i32": (np.int32, np.bitwise_or),
    "xor.2d.i32": (np.int32, np.bitwise_xor),
    "shl.2d.i32": (np.uint32, _shift_left),
    "shrs.2d.i32": (np.int32, _shift_right),
    "shru.2d.i32": (np.uint32, _shift_right),
}
_UNARY: Final[dict[str, tuple[Any, Unary]]] = {
    "abs.2d.f32": (np.float32, np.abs),
    "ceil.2d.f32": (np.float32, np.ceil),
    "floor.2d.f32": (np.float32, np.floor),
    "neg.2d.f32": (np.float32, np.negative),
    "exp.2d.f32": (np.float32, _instruction("exp.f32")),
    "log.2d.f32": (np.float32, _instruction("log.f32")),
    "rsqrt.2d.f32": (np.float32, _reciprocal_square_root),
    "ctlz.2d.i32": (np.uint32, _count_leading_zeros),
    "copy.2d.x8": (np.uint8, _same),
    "copy.2d.x16": (np.uint16, _same),
    "copy.2d.x32": (np.uint32, _same),
    "copy.2d.x64": (np.uint64, _same),
}
BINARY: Final = {name: partial(binary, *row) for name, row in _BINARY.items()}
UNARY: Final = {name: partial(unary, *row) for name, row in _UNARY.items()}
