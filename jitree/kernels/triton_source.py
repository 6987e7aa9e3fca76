"""Holds the kernels of :mod:`jitree.kernels.by_triton`, as Triton reads them.

Sizes are known when they are compiled. Blocks that reach over an edge are masked.
"""

# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def _at(pointer, PLACE: tl.constexpr, first, second, third):
    """Where a tensor of float32 is in its binding: so many bytes from the beginning, or as a constant says,
    of number -1 - PLACE. Tensors begin at multiples of 64 bytes."""
    if PLACE == -1:
        pointer += tl.multiple_of(first // 4, 16)
    elif PLACE == -2:
        pointer += tl.multiple_of(second // 4, 16)
    elif PLACE == -3:
        pointer += tl.multiple_of(third // 4, 16)
    else:
        pointer += PLACE // 4
    return pointer


@triton.jit
def product(
    lhs,
    rhs,
    out,
    first,
    second,
    third,
    LHS: tl.constexpr,
    RHS: tl.constexpr,
    OUT: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    TILE: tl.constexpr,
    STEP: tl.constexpr,
):
    """Computes a tile by three products of half the digits, nearly float32's."""
    batch = tl.program_id(2)
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    lhs = _at(lhs, LHS, first, second, third) + batch * ROWS * DEPTH
    rhs = _at(rhs, RHS, first, second, third) + batch * DEPTH * COLUMNS
    sums = tl.zeros((TILE, TILE), tl.float32)
    for begin in range(0, DEPTH, STEP):
        k = begin + tl.arange(0, STEP)
        is_left = (row[:, None] < ROWS) & (k[None, :] < DEPTH)
        is_right = (k[:, None] < DEPTH) & (column[None, :] < COLUMNS)
        left = tl.load(lhs + row[:, None] * DEPTH + k[None, :], mask=is_left, other=0.0)
        right = tl.load(rhs + k[:, None] * COLUMNS + column[None, :], mask=is_right, other=0.0)
        sums = tl.dot(left, right, sums, input_precision="tf32x3")
    is_inside = (row[:, None] < ROWS) & (column[None, :] < COLUMNS)
    out = _at(out, OUT, first, second, third) + batch * ROWS * COLUMNS
    tl.store(out + row[:, None] * COLUMNS + column[None, :], sums, mask=is_inside)


@triton.jit
def softmax(scores, out, COLUMNS: tl.constexpr, WIDTH: tl.constexpr):
    """One row."""
    place = tl.arange(0, WIDTH)
    first = tl.program_id(0) * COLUMNS
    row = tl.load(scores + first + place, mask=place < COLUMNS, other=-float("inf"))
    weights = tl.exp(row - tl.max(row, 0))
    tl.store(out + first + place, weights / tl.sum(weights, 0), mask=place < COLUMNS)


@triton.jit
def layer_norm(
    rows, factors, summands, out, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, EPSILON: tl.constexpr
):
    """One row."""
    place = tl.arange(0, WIDTH)
    is_inside = place < COLUMNS
    first = tl.program_id(0) * COLUMNS
    row = tl.load(rows + first + place, mask=is_inside, other=0.0)
    apart = tl.where(is_inside, row - tl.sum(row, 0) / COLUMNS, 0.0)
    scale = tl.rsqrt(tl.sum(apart * apart, 0) / COLUMNS + EPSILON)
    factor = tl.load(factors + place, mask=is_inside, other=0.0)
    summand = tl.load(summands + place, mask=is_inside, other=0.0)
    tl.store(out + first + place, apart * scale * factor + summand, mask=is_inside)
