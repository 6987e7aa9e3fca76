"""Element-wise functions of ``vmvx``: two dimensions, any strides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from jitree.codegen.numbers import i32, require_unsigned_division, signed_quotient
from jitree.codegen.primitives import Bytes, ElementMemory, Floats, Halves, Longs, Words
from jitree.modules.vmvx.operands import LONG, MOST_ELEMENTS, OK, readable, writable
from jitree.regs.layout import Entry

WORD = Words.width
Element = Callable[..., float]
Kernel = Callable[..., int]

BINARY: Final[dict[str, tuple[str, type[ElementMemory]]]] = {
    **{f"{name}.2d.f32": (f"{name}.f32", Floats) for name in ("add", "sub", "mul", "div")},
    **{f"{name}.2d.i32": (f"{name}.i32", Words) for name in ("add", "sub", "mul", "and", "or", "xor", "shl")},
    "shrs.2d.i32": ("shr.i32.s", Words),
    "shru.2d.i32": ("shr.i32.u", Words),
}
"""The instruction that is done for each element, and the type of elements."""
UNARY: Final[dict[str, tuple[str, type[ElementMemory]]]] = {
    **{f"{name}.2d.f32": (f"{name}.f32", Floats) for name in ("ceil", "floor", "rsqrt", "exp", "log")},
    **{f"{name}.2d.f32": (f"{name}.f32", Words) for name in ("abs", "neg")},
    "ctlz.2d.i32": ("ctlz.i32", Words),
}
COPIES: Final = {f"copy.2d.x{8 * kind.width}": kind for kind in (Bytes, Halves, Words, Longs)}


def divide_signed(lhs: int, rhs: int) -> int:
    """Towards zero; the most negative number over -1 wraps around."""
    require_unsigned_division(rhs)
    return i32(signed_quotient(lhs, rhs))


def binary(element: Element, kind: type[ElementMemory]) -> Kernel:
    width = kind.width

    def kernel(
        lhs: Entry, lhs_offset: int, lhs_stride0: int, lhs_stride1: int,
        rhs: Entry, rhs_offset: int, rhs_stride0: int, rhs_stride1: int,
        out: Entry, out_offset: int, out_stride0: int, out_stride1: int,
        size0: int, size1: int,
    ) -> int:  # fmt: skip
        status = readable(0, lhs, width, lhs_offset, lhs_stride0, lhs_stride1, size0, size1, 1)
        if status == OK:
            status = readable(1, rhs, width, rhs_offset, rhs_stride0, rhs_stride1, size0, size1, 1)
        if status == OK:
            status = writable(2, out, width, out_offset, out_stride0, out_stride1, size0, size1, 1)
        if status != OK or size1 == 0:
            return status
        if size0 * size1 > MOST_ELEMENTS:
            return LONG
        lhs_address = lhs.address + width * lhs_offset
        rhs_address = rhs.address + width * rhs_offset
        out_address = out.address + width * out_offset
        for row in range(size0):
            left = kind(lhs_address + width * lhs_stride0 * row)
            right = kind(rhs_address + width * rhs_stride0 * row)
            result = kind(out_address + width * out_stride0 * row)
            for column in range(size1):
                result[column * out_stride1] = element(
                    left[column * lhs_stride1], right[column * rhs_stride1]
                )
        return OK

    return kernel


def unary(element: Element, kind: type[ElementMemory]) -> Kernel:
    width = kind.width

    def kernel(
        operand: Entry, offset: int, stride0: int, stride1: int,
        out: Entry, out_offset: int, out_stride0: int, out_stride1: int,
        size0: int, size1: int,
    ) -> int:  # fmt: skip
        status = readable(0, operand, width, offset, stride0, stride1, size0, size1, 1)
        if status == OK:
            status = writable(1, out, width, out_offset, out_stride0, out_stride1, size0, size1, 1)
        if status != OK or size1 == 0:
            return status
        if size0 * size1 > MOST_ELEMENTS:
            return LONG
        address = operand.address + width * offset
        out_address = out.address + width * out_offset
        for row in range(size0):
            source = kind(address + width * stride0 * row)
            result = kind(out_address + width * out_stride0 * row)
            for column in range(size1):
                result[column * out_stride1] = element(source[column * stride1])
        return OK

    return kernel


def same(value: int) -> int:
    return value


def fill(value: int, out: Entry, offset: int, stride: int, size0: int, size1: int) -> int:
    """``out[i, j] = value``, columns next to each other."""
    status = writable(0, out, WORD, offset, stride, 1, size0, size1, 1)
    if status != OK or size1 == 0:
        return status
    if size0 * size1 > MOST_ELEMENTS:
        return LONG
    address = out.address + WORD * offset
    for row in range(size0):
        result = Words(address + WORD * stride * row)
        for column in range(size1):
            result[column] = value
    return OK
