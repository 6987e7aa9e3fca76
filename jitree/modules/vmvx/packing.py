"""``vmvx.pack``, ``unpack``, ``query_tile_sizes.2d``: matrices to tiles and back."""

from __future__ import annotations

from typing import Final

from jitree.codegen.primitives import Bytes, Words, greater, lesser, quotient
from jitree.errors import InvalidArgumentError
from jitree.modules.vmvx.operands import (
    FLAGS,
    OK,
    SIZE,
    TILES,
    is_size,
    product,
    readable,
    writable,
)
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
    """Stores a matrix as outer0 x outer1 tiles of tile0 x tile1 (in storage order), padded where it ends."""
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
    if status != OK or tile == 0 or outer1 == 0:
        return status
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
    """How many elements of the line that begins at a place of the matrix are in the matrix."""
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
    """Extents of the tiles that an operand of a matrix product should be packed to.

    INVALID_ARGUMENT for an unknown operand or product.
    """
    role, tile = _ROLES.get(flags & TYPE_MASK), _TILE_SIZES.get(flags & ~TYPE_MASK)
    if role is None or tile is None:
        raise InvalidArgumentError(f"query_tile_sizes.2d: unknown flags {flags & 0xFFFFFFFF:#x}")
    return tile[role[0]], tile[role[1]]
