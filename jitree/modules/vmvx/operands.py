"""Operands of ``vmvx`` functions: elements of buffers, inside the buffer by proof.

Offsets, strides and sizes count elements and come as signed 64-bit integers. A check gives OK or what is
wrong, with the number of the operand; nothing has happened then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from jitree.codegen.primitives import apart, bit_length
from jitree.errors import InvalidArgumentError, OutOfRangeError, PermissionDeniedError, StatusError
from jitree.regs.buffer import VmBuffer
from jitree.regs.layout import ACCESS_WRITE, COMPILED_DONE, Entry

OK = COMPILED_DONE
SIZE, STRIDE, OUTSIDE, READ_ONLY, FLAGS, TILES, AGAIN = 1, 2, 3, 4, 5, 6, 7
OPERAND = 8
"""One more for each operand before the one that is meant."""
LONG = 3 * OPERAND
"""Nothing is wrong, but it takes so long that it has to be done in parts."""
MOST_ELEMENTS = 1 << 20
"""That are computed at once, some milliseconds in machine code."""
SIZE_LIMIT = 1 << 32
STRIDE_MINIMUM = -(1 << 31)
FAR_BITS = 57
FAR = 1 << FAR_BITS
"""More elements than any buffer has; a sum of four times 8 bytes is below 2**63."""
USUAL_BITS = 28
"""Numbers that are not negative and no longer than that need no look at what wraps."""
_REASONS: Final[dict[int, tuple[type[StatusError], str]]] = {
    SIZE: (InvalidArgumentError, "a size of operand {} is negative or not below 2**32"),
    STRIDE: (InvalidArgumentError, "a stride of operand {} does not fit 32 bits"),
    OUTSIDE: (OutOfRangeError, "an element that it touches is outside of operand {}"),
    READ_ONLY: (PermissionDeniedError, "operand {} is read-only"),
    FLAGS: (InvalidArgumentError, "unknown flags"),
    AGAIN: (InvalidArgumentError, "elements of operand {} would be written more than once"),
    TILES: (InvalidArgumentError, "the matrix does not fit into the tiles"),
}


def product(left: int, right: int) -> int:
    """The product of numbers that are not negative; at most FAR."""
    if left == 0 or right == 0:
        return 0
    if bit_length(left) + bit_length(right) > FAR_BITS:
        return FAR
    return left * right


def reach(stride: int, size: int) -> int:
    """Bytes from the first of some elements to the last."""
    return product(stride, size - 1) if stride >= 0 else -product(-stride, size - 1)


def is_size(size: int) -> bool:
    return size >= 0 and size < SIZE_LIMIT


def is_stride(stride: int) -> bool:
    return stride >= STRIDE_MINIMUM and stride < SIZE_LIMIT


def readable(
    operand: int, entry: Entry, width: int, offset: int, stride0: int, stride1: int, size0: int, size1: int,
    block: int,
) -> int:  # fmt: skip
    """Tells whether an operand has ``size0`` x ``size1`` blocks of adjacent elements."""
    if (size0 | size1 | stride0 | stride1 | offset | block) >> USUAL_BITS == 0:
        end = offset + stride0 * (size0 - 1) + stride1 * (size1 - 1) + block
        if width * end <= entry.length:
            return OK
    return checked(operand, entry, width, offset, stride0, stride1, size0, size1, block)


@apart
def checked(
    operand: int, entry: Entry, width: int, offset: int, stride0: int, stride1: int, size0: int, size1: int,
    block: int,
) -> int:  # fmt: skip
    """As :func:`readable`, of any numbers."""
    if not (is_size(size0) and is_size(size1)):
        return SIZE + OPERAND * operand
    if not (is_stride(stride0) and is_stride(stride1)):
        return STRIDE + OPERAND * operand
    if size0 == 0 or size1 == 0 or block == 0:
        return OK
    if offset < 0 or offset >= FAR:
        return OUTSIDE + OPERAND * operand
    first = last = offset
    step0, step1 = reach(stride0, size0), reach(stride1, size1)
    if step0 < 0:
        first += step0
    else:
        last += step0
    if step1 < 0:
        first += step1
    else:
        last += step1
    if first < 0 or width * (last + block) > entry.length:
        return OUTSIDE + OPERAND * operand
    return OK


def writable(
    operand: int, entry: Entry, width: int, offset: int, stride0: int, stride1: int, size0: int, size1: int,
    block: int,
) -> int:  # fmt: skip
    """As :func:`readable`, of what is written: not more elements than there are, since a stride of zero lets
    one instruction work for years."""
    if entry.access & ACCESS_WRITE == 0:
        return READ_ONLY + OPERAND * operand
    status = readable(operand, entry, width, offset, stride0, stride1, size0, size1, block)
    if status == OK and width * product(product(size0, size1), block) > entry.length:
        return AGAIN + OPERAND * operand
    return status


def call(name: str, kernel: Callable[..., int], cconv: str, arguments: Sequence[object]) -> bool:
    """Calls a kernel from Python and raises what is wrong; False for what is :data:`LONG`.

    A kernel only looks at the address, length and access of its buffers, which those of Python have as
    handles do."""
    for kind, argument in zip(cconv[1:], arguments, strict=False):
        if kind == "r" and not isinstance(argument, VmBuffer):
            raise InvalidArgumentError(f"vmvx.{name}: expected a buffer but got {type(argument).__name__}")
    status = kernel(*arguments)
    if status == LONG:
        return False
    if status != OK:
        error, reason = _REASONS[status % OPERAND]
        shown = ", ".join(map(repr, arguments))
        raise error(f"vmvx.{name}({shown}): {reason.format(status // OPERAND)}")
    return True
