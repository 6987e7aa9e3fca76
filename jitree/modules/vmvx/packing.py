"""``vmvx.pack``, ``unpack``, ``query_tile_sizes.2d``: matrices to tiles and back."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from jitree.errors import InvalidArgumentError
from jitree.modules.vmvx.operands import Array, source, target

_TYPE_MASK: Final = 0xFF
_PACK_TYPES: Final[dict[int, Any]] = {1: np.uint32, 2: np.uint8, 3: np.uint32}
"""As bits: f32, i8, i32."""
_UNPACK_TYPES: Final[dict[int, Any]] = {1: np.uint32, 3: np.uint32}
TRANSPOSE_INNER: Final = 0x100
TRANSPOSE_OUTER: Final = 0x200

_TILES: Final = {0x100: (8, 8, 1), 0x200: (8, 8, 2)}
"""M, N, K of a tile for matrix products of f32 and of i8, the same on every processor. Compiled programs
reserve room for multiples of 16 in each dimension, so tiles divide 16."""
_ROLES: Final = {1: (0, 2), 2: (1, 2), 3: (0, 1)}
"""Which of M, N, K the dimensions of lhs, rhs and result are."""


def pack(
    plain: object,
    plain_offset: int,
    plain_stride0: int,
    plain_stride1: int,
    packed: object,
    packed_offset: int,
    packed_stride0: int,
    packed_stride1: int,
    size0: int,
    size1: int,
    outer0: int,
    outer1: int,
    tile0: int,
    tile1: int,
    padding: int,
    flags: int,
) -> None:
    """Stores a matrix as outer0 x outer1 tiles of tile0 x tile1 (in storage order), padded where it ends.

    INVALID_ARGUMENT for unknown flags and for a matrix that does not fit into the tiles.
    """
    dtype = _element_type("pack", _PACK_TYPES, flags)
    matrix = source(plain, dtype, plain_offset, (plain_stride0, plain_stride1), (size0, size1))
    strides = (packed_stride0, packed_stride1, tile1, 1)
    storage = target(packed, dtype, packed_offset, strides, (outer0, outer1, tile0, tile1))
    tiles = _in_matrix_order(storage, flags)
    _check_fit("pack", tiles, size0, size1)
    rows, columns, height, width = tiles.shape
    if (rows * height, columns * width) != (size0, size1):
        padded = np.full((rows * height, columns * width), padding & int(np.iinfo(dtype).max), dtype)
        padded[:size0, :size1] = matrix
        matrix = padded
    tiles[...] = matrix.reshape(rows, height, columns, width).transpose(0, 2, 1, 3)


def pack_dense(
    plain: object,
    plain_offset: int,
    plain_stride: int,
    packed: object,
    packed_offset: int,
    packed_stride: int,
    size0: int,
    size1: int,
    outer0: int,
    outer1: int,
    tile0: int,
    tile1: int,
    padding: int,
    flags: int,
) -> None:
    """The form of compilers up to May 2024: columns next to each other, tiles next to each other."""
    pack(
        plain, plain_offset, plain_stride, 1, packed, packed_offset, packed_stride, tile0 * tile1,
        size0, size1, outer0, outer1, tile0, tile1, padding, flags,
    )  # fmt: skip


def unpack(
    packed: object,
    packed_offset: int,
    packed_stride0: int,
    packed_stride1: int,
    plain: object,
    plain_offset: int,
    plain_stride0: int,
    plain_stride1: int,
    outer0: int,
    outer1: int,
    tile0: int,
    tile1: int,
    size0: int,
    size1: int,
    flags: int,
) -> None:
    """The inverse of :func:`pack`; what is beyond size0 x size1 is dropped."""
    dtype = _element_type("unpack", _UNPACK_TYPES, flags)
    strides = (packed_stride0, packed_stride1, tile1, 1)
    storage = source(packed, dtype, packed_offset, strides, (outer0, outer1, tile0, tile1))
    matrix = target(plain, dtype, plain_offset, (plain_stride0, plain_stride1), (size0, size1))
    tiles = _in_matrix_order(storage, flags)
    _check_fit("unpack", tiles, size0, size1)
    rows, columns, height, width = tiles.shape
    whole = tiles.transpose(0, 2, 1, 3).reshape(rows * height, columns * width)
    matrix[...] = whole[:size0, :size1]


def unpack_dense(
    packed: object,
    packed_offset: int,
    packed_stride: int,
    plain: object,
    plain_offset: int,
    plain_stride: int,
    outer0: int,
    outer1: int,
    tile0: int,
    tile1: int,
    size0: int,
    size1: int,
    flags: int,
) -> None:
    """The form of compilers up to May 2024."""
    unpack(
        packed, packed_offset, packed_stride, tile0 * tile1, plain, plain_offset, plain_stride, 1,
        outer0, outer1, tile0, tile1, size0, size1, flags,
    )  # fmt: skip


def query_tile_sizes(size0: int, size1: int, flags: int) -> tuple[int, int]:
    """Extents of the tiles that an operand of a matrix product should be packed to.

    INVALID_ARGUMENT for an unknown operand or product.
    """
    role, tile = _ROLES.get(flags & _TYPE_MASK), _TILES.get(flags & ~_TYPE_MASK)
    if role is None or tile is None:
        raise InvalidArgumentError(f"query_tile_sizes.2d: unknown flags {flags & 0xFFFFFFFF:#x}")
    return tile[role[0]], tile[role[1]]


def _element_type(name: str, types: dict[int, Any], flags: int) -> Any:
    dtype = types.get(flags & _TYPE_MASK)
    if dtype is None or flags & ~(_TYPE_MASK | TRANSPOSE_INNER | TRANSPOSE_OUTER):
        raise InvalidArgumentError(f"{name}: unknown flags {flags & 0xFFFFFFFF:#x}")
    return dtype


def _in_matrix_order(storage: Array, flags: int) -> Array:
    """Tile row, tile column, row in the tile, column in the tile."""
    if flags & TRANSPOSE_OUTER:
        storage = storage.swapaxes(0, 1)
    return storage.swapaxes(2, 3) if flags & TRANSPOSE_INNER else storage


def _check_fit(name: str, tiles: Array, size0: int, size1: int) -> None:
    rows, columns, height, width = tiles.shape
    if size0 > rows * height or size1 > columns * width:
        raise InvalidArgumentError(
            f"{name}: a matrix of {size0} x {size1} and {rows} x {columns} tiles of {height} x {width}"
        )
