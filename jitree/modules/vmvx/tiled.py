"""Packs, unpacks and multiplies tiles: ``pack``, ``unpack``, ``mmt4d``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

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
    greater,
    integer_tile,
    integer_zeros,
    lesser,
    quotient,
    store_tile,
)
from jitree.errors import InvalidArgumentError
from jitree.modules.vmvx.operands import (
    FLAGS,
    LONG,
    MOST_ELEMENTS,
    OK,
    SIZE,
    TILES,
    is_size,
    product,
    readable,
    writable,
)
from jitree.modules.vmvx.operands import SIZE as WRONG_SIZE
from jitree.regs.layout import Entry

TYPE_MASK = 0xFF
TRANSPOSE_INNER = 0x100
TRANSPOSE_OUTER = 0x200
KNOWN_FLAGS = TYPE_MASK | TRANSPOSE_INNER | TRANSPOSE_OUTER
F32, I8, I32 = 1, 2, 3
WORD = Words.width

_TILE_SIZES: Final = {0x100: (8, 8, 1), 0x200: (8, 8, 2)}
"""M, N, K of a tile for matrix products of f32 and of i8, the same on every processor. Compiled programs
reserve room for multiples of 16 in each dimension, so tiles divide 16."""
_ROLES: Final = {1: (0, 2), 2: (1, 2), 3: (0, 1)}
"""Which of M, N, K the dimensions of lhs, rhs and result are."""


def pack(
    plain: Entry, plain_offset: int, plain_stride0: int, plain_stride1: int,
    packed: Entry, packed_offset: int, packed_stride0: int, packed_stride1: int,
    size0: int, size1: int, outer0: int, outer1: int, tile0: int, tile1: int, padding: int, flags: int,
) -> int:  # fmt: skip
    """Stores a matrix as tiles: outer0 x outer1 of tile0 x tile1 (in storage order), padded where it ends."""
    number = flags & TYPE_MASK
    if number < F32 or number > I32 or flags & ~KNOWN_FLAGS != 0:
        return FLAGS
    width = 1 if number == I8 else WORD
    if flags & TRANSPOSE_INNER != 0:  # lines of tiles are columns: of the matrix turned around they are rows
        size0, size1, plain_stride0, plain_stride1 = size1, size0, plain_stride1, plain_stride0
    if are_crossed(flags):
        outer0, outer1, packed_stride0, packed_stride1 = outer1, outer0, packed_stride1, packed_stride0
    status = fits(outer0, outer1, tile0, tile1, size0, size1)
    if status == OK:
        status = readable(0, plain, width, plain_offset, plain_stride0, plain_stride1, size0, size1, 1)
    tile = product(tile0, tile1)
    if status == OK:
        status = writable(
            1, packed, width, packed_offset, packed_stride0, packed_stride1, outer0, outer1, tile
        )
    if status != OK or tile == 0 or outer1 == 0:
        return status
    if product(product(outer0, outer1), tile) > MOST_ELEMENTS:
        return LONG
    plain_address = plain.address + width * plain_offset
    packed_address = packed.address + width * packed_offset
    for p in range(outer0):
        for q in range(outer1):
            for a in range(tile0):
                row, column = p * tile0 + a, q * tile1
                count = inside(row, column, tile1, size0, size1)
                source = plain_address + width * (row * plain_stride0 + column * plain_stride1)
                line = packed_address + width * (p * packed_stride0 + q * packed_stride1 + a * tile1)
                if number == I8:
                    bytes_in, bytes_out = Bytes(source), Bytes(line)
                    for b in range(count):
                        bytes_out[b] = bytes_in[b * plain_stride1]
                    for b in range(count, tile1):
                        bytes_out[b] = padding
                else:
                    words_in, words_out = Words(source), Words(line)
                    for b in range(count):
                        words_out[b] = words_in[b * plain_stride1]
                    for b in range(count, tile1):
                        words_out[b] = padding
    return OK


def unpack(
    packed: Entry, packed_offset: int, packed_stride0: int, packed_stride1: int,
    plain: Entry, plain_offset: int, plain_stride0: int, plain_stride1: int,
    outer0: int, outer1: int, tile0: int, tile1: int, size0: int, size1: int, flags: int,
) -> int:  # fmt: skip
    """The inverse of :func:`pack`; what is beyond size0 x size1 is dropped."""
    number, width = flags & TYPE_MASK, WORD
    if (number != F32 and number != I32) or flags & ~KNOWN_FLAGS != 0:
        return FLAGS
    if flags & TRANSPOSE_INNER != 0:
        size0, size1, plain_stride0, plain_stride1 = size1, size0, plain_stride1, plain_stride0
    if are_crossed(flags):
        outer0, outer1, packed_stride0, packed_stride1 = outer1, outer0, packed_stride1, packed_stride0
    status = fits(outer0, outer1, tile0, tile1, size0, size1)
    tile = product(tile0, tile1)
    if status == OK:
        status = readable(
            0, packed, width, packed_offset, packed_stride0, packed_stride1, outer0, outer1, tile
        )
    if status == OK:
        status = writable(1, plain, width, plain_offset, plain_stride0, plain_stride1, size0, size1, 1)
    if status != OK or size0 == 0 or size1 == 0:
        return status
    if product(size0, size1) > MOST_ELEMENTS:
        return LONG
    packed_address = packed.address + width * packed_offset
    plain_address = plain.address + width * plain_offset
    # Tiles that hold nothing of the matrix may be any number, where strides are zero.
    for p in range(lesser(outer0, quotient(size0 + tile0 - 1, tile0))):
        for q in range(lesser(outer1, quotient(size1 + tile1 - 1, tile1))):
            for a in range(lesser(tile0, size0 - p * tile0)):
                row, column = p * tile0 + a, q * tile1
                line = packed_address + width * (p * packed_stride0 + q * packed_stride1 + a * tile1)
                target = plain_address + width * (row * plain_stride0 + column * plain_stride1)
                stored, cells = Words(line), Words(target)
                for b in range(lesser(tile1, size1 - column)):
                    cells[b * plain_stride1] = stored[b]
    return OK


def are_crossed(flags: int) -> bool:
    """Whether one of tiles and lines is turned around and the other is not."""
    return (flags & TRANSPOSE_INNER != 0) != (flags & TRANSPOSE_OUTER != 0)


def fits(outer0: int, outer1: int, tile0: int, tile1: int, size0: int, size1: int) -> int:
    """Whether tiles have room for a matrix."""
    if not (is_size(outer0) and is_size(outer1) and is_size(tile0) and is_size(tile1)):
        return SIZE
    if size0 > product(outer0, tile0) or size1 > product(outer1, tile1):
        return TILES
    return OK


def inside(row: int, column: int, tile1: int, size0: int, size1: int) -> int:
    """Counts the elements of a line, from a place on, that the matrix has."""
    return 0 if row >= size0 else lesser(greater(size1 - column, 0), tile1)


def pack_dense(
    plain: Entry, plain_offset: int, plain_stride: int, packed: Entry, packed_offset: int, packed_stride: int,
    size0: int, size1: int, outer0: int, outer1: int, tile0: int, tile1: int, padding: int, flags: int,
) -> int:  # fmt: skip
    """The form of compilers up to May 2024: columns next to each other, tiles next to each other."""
    return pack(
        plain, plain_offset, plain_stride, 1, packed, packed_offset, packed_stride, tile0 * tile1,
        size0, size1, outer0, outer1, tile0, tile1, padding, flags,
    )  # fmt: skip


def unpack_dense(
    packed: Entry, packed_offset: int, packed_stride: int, plain: Entry, plain_offset: int, plain_stride: int,
    outer0: int, outer1: int, tile0: int, tile1: int, size0: int, size1: int, flags: int,
) -> int:  # fmt: skip
    """The form of compilers up to May 2024."""
    return unpack(
        packed, packed_offset, packed_stride, tile0 * tile1, plain, plain_offset, plain_stride, 1,
        outer0, outer1, tile0, tile1, size0, size1, flags,
    )  # fmt: skip


def query_tile_sizes(state: object, size0: int, size1: int, flags: int) -> tuple[int, int]:
    """Gives the tile extents to which a matrix product's operand should be packed.

    INVALID_ARGUMENT for an unknown operand or product.
    """
    role, tile = _ROLES.get(flags & TYPE_MASK), _TILE_SIZES.get(flags & ~TYPE_MASK)
    if role is None or tile is None:
        raise InvalidArgumentError(f"query_tile_sizes.2d: unknown flags {flags & 0xFFFFFFFF:#x}")
    return tile[role[0]], tile[role[1]]


ACCUMULATE = 0x100
KNOWN_PRODUCTS = TYPE_MASK | ACCUMULATE | 0x200 | 0x400
"""The others allow a generic fallback and to skip rounding in between; both change nothing here."""
FLOATS, BYTES = 1, 2
"""Types, in the low byte of the flags: f32 to f32, i8 to i32."""
MOST_COMPILED, MOST_IN_PYTHON = 1 << 26, 1 << 14
"""Products of numbers that a call may make: some ten milliseconds."""

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
        """Multiplies tiles: ``out[i, j, a, b] (+)= sum over k, c of lhs[i, k, a, c] * rhs[j, k, b, c]``;
        strides are those of i and j in front."""
        number = flags & TYPE_MASK
        if (number != FLOATS and number != BYTES) or flags & ~KNOWN_PRODUCTS != 0:
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
        depth = product(greater(tile_k, 1), greater(k, 1))  # without any, zeros are stored
        if product(product(m, n), product(whole, depth)) > most:
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
