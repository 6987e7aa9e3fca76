"""``vmvx.mmt4d``: products of matrices stored as tiles, the right one transposed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jitree.codegen.primitives import (
    DEPTH,
    SIDE,
    Bytes,
    ElementMemory,
    Floats,
    Words,
    add_bytes,
    add_floats,
    float_tile,
    float_zeros,
    integer_tile,
    integer_zeros,
    store_tile,
)
from jitree.modules.vmvx.operands import FLAGS, LONG, OK, is_size, product, readable, writable
from jitree.modules.vmvx.operands import SIZE as WRONG_SIZE
from jitree.regs.layout import Entry

TYPE_MASK = 0xFF
ACCUMULATE = 0x100
KNOWN_FLAGS = TYPE_MASK | ACCUMULATE | 0x200 | 0x400
"""The others allow a generic fallback and to skip rounding in between; both change nothing here."""
FLOATS, BYTES = 1, 2
"""Types, in the low byte of the flags: f32 to f32, i8 to i32."""
MOST_COMPILED, MOST_IN_PYTHON = 1 << 26, 1 << 14
"""Products of numbers that a call may make: some ten milliseconds."""
WORD = Words.width

Step = Callable[[Any, Any, Any], Any]


def add_tiles_of_floats(lhs: int, rhs: int, out: int, count: int, accumulate: int) -> None:
    """Adds the products of tiles of 8 x 1."""
    sums = float_tile(out) if accumulate != 0 else float_zeros()
    for index in range(count):
        at = WORD * SIDE * index
        sums = add_floats(sums, lhs + at, rhs + at)
    store_tile(out, sums)


def add_tiles_of_bytes(lhs: int, rhs: int, out: int, count: int, accumulate: int) -> None:
    """Adds the products of tiles of 8 x 2."""
    sums = integer_tile(out) if accumulate != 0 else integer_zeros()
    for index in range(count):
        at = SIDE * DEPTH * index
        sums = add_bytes(sums, lhs + at, rhs + at)
    store_tile(out, sums)


def of_any_tiles(
    step: Step, operands: type[ElementMemory], results: type[ElementMemory]
) -> Callable[..., None]:
    """Adds the products of tiles of any size, one by one; ``step(a, b, total)`` adds one."""

    def any_tiles(
        lhs_address: int, rhs_address: int, out_address: int, count: int, accumulate: int,
        tile_m: int, tile_n: int, tile_k: int,
    ) -> None:  # fmt: skip
        lhs, rhs, out = operands(lhs_address), operands(rhs_address), results(out_address)
        for row in range(tile_m):
            for column in range(tile_n):
                place = row * tile_n + column
                if accumulate == 0:
                    out[place] = 0
                for index in range(count):
                    left, right = (index * tile_m + row) * tile_k, (index * tile_n + column) * tile_k
                    for depth in range(tile_k):
                        out[place] = step(lhs[left + depth], rhs[right + depth], out[place])

    any_tiles.__name__ = f"{operands.__name__.lower()}_of_any_tiles"
    return any_tiles


def mmt4d(add_float: Step, add_integer: Step, most: int) -> Callable[..., int]:
    """``most``: products of numbers in one call; for more it tells :data:`LONG`."""
    floats_of_any_tiles = of_any_tiles(add_float, Floats, Floats)
    bytes_of_any_tiles = of_any_tiles(add_integer, Bytes, Words)

    def kernel(
        lhs: Entry, lhs_offset: int, lhs_stride: int,
        rhs: Entry, rhs_offset: int, rhs_stride: int,
        out: Entry, out_offset: int, out_stride: int,
        m: int, n: int, k: int, tile_m: int, tile_n: int, tile_k: int, flags: int,
    ) -> int:  # fmt: skip
        """``out[i, j, a, b] (+)= sum over k, c of lhs[i, k, a, c] * rhs[j, k, b, c]``; strides are those of i
        and j in front."""
        number = flags & TYPE_MASK
        if (number != FLOATS and number != BYTES) or flags & ~KNOWN_FLAGS != 0:
            return FLAGS
        if not (is_size(k) and is_size(tile_m) and is_size(tile_n) and is_size(tile_k)):
            return WRONG_SIZE
        width = WORD if number == FLOATS else 1
        left, right = product(tile_m, tile_k), product(tile_n, tile_k)
        status = readable(0, lhs, width, lhs_offset, lhs_stride, 0, m, 1, product(left, k))
        if status == OK:
            status = readable(1, rhs, width, rhs_offset, rhs_stride, 0, n, 1, product(right, k))
        whole = product(tile_m, tile_n)
        if status == OK:
            status = writable(2, out, WORD, out_offset, out_stride, 0, m, 1, product(whole, n))
        if status != OK or whole == 0 or n == 0:
            return status
        if tile_k == 0:
            k = 0
        if product(product(m, n), product(product(whole, tile_k), k)) > most:
            return LONG
        accumulate = flags & ACCUMULATE
        lhs_address = lhs.address + width * lhs_offset
        rhs_address = rhs.address + width * rhs_offset
        out_address = out.address + WORD * out_offset
        for i in range(m):
            row = lhs_address + width * i * lhs_stride
            for j in range(n):
                column = rhs_address + width * j * rhs_stride
                tile = out_address + WORD * (i * out_stride + j * whole)
                if number == FLOATS and tile_m == SIDE and tile_n == SIDE and tile_k == 1:
                    add_tiles_of_floats(row, column, tile, k, accumulate)
                elif number == BYTES and tile_m == SIDE and tile_n == SIDE and tile_k == DEPTH:
                    add_tiles_of_bytes(row, column, tile, k, accumulate)
                elif number == FLOATS:
                    floats_of_any_tiles(row, column, tile, k, accumulate, tile_m, tile_n, tile_k)
                else:
                    bytes_of_any_tiles(row, column, tile, k, accumulate, tile_m, tile_n, tile_k)
        return OK

    kernel.__name__ = "mmt4d"
    return kernel
