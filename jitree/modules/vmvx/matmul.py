"""``vmvx.mmt4d``: products of matrices stored as tiles, the right one transposed."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from jitree.errors import InvalidArgumentError
from jitree.modules.vmvx.operands import Array, source, target

_TYPES: Final[dict[int, tuple[Any, Any, Any]]] = {
    1: (np.float32, np.float32, np.float32),
    # Products of bytes add up exactly in binary64, for which there are fast products of matrices.
    2: (np.int8, np.int32, np.float64),
}
"""Element types of the operands, of the result, and the one to compute in, by the low byte of the flags."""
_TYPE_MASK: Final = 0xFF
_ACCUMULATE: Final = 0x100
_KNOWN_FLAGS: Final = _TYPE_MASK | _ACCUMULATE | 0x200 | 0x400
"""The others allow a generic fallback and to skip rounding in between; both change nothing here."""


def mmt4d(
    lhs: object,
    lhs_offset: int,
    lhs_stride: int,
    rhs: object,
    rhs_offset: int,
    rhs_stride: int,
    out: object,
    out_offset: int,
    out_stride: int,
    m: int,
    n: int,
    k: int,
    tile_m: int,
    tile_n: int,
    tile_k: int,
    flags: int,
) -> None:
    """``out[i, j, a, b] (+)= sum over k, c of lhs[i, k, a, c] * rhs[j, k, b, c]``; strides are those of i and
    j in front. INVALID_ARGUMENT for unknown flags."""
    types = _TYPES.get(flags & _TYPE_MASK)
    if types is None or flags & ~_KNOWN_FLAGS:
        raise InvalidArgumentError(f"mmt4d: unknown flags {flags & 0xFFFFFFFF:#x}")
    element, result, computed = types
    left = source(lhs, element, lhs_offset, (lhs_stride, tile_m * tile_k, tile_k, 1), (m, k, tile_m, tile_k))
    right = source(rhs, element, rhs_offset, (rhs_stride, tile_n * tile_k, tile_k, 1), (n, k, tile_n, tile_k))
    tiles = target(out, result, out_offset, (out_stride, tile_m * tile_n, tile_n, 1), (m, n, tile_m, tile_n))
    product = _rows(left, computed) @ _rows(right, computed).T
    if result is np.int32:
        product = product.astype(np.int64).astype(np.int32)
    product = product.reshape(m, tile_m, n, tile_n).transpose(0, 2, 1, 3)
    if flags & _ACCUMULATE:
        tiles += product
    else:
        tiles[...] = product


def _rows(tiles: Array, dtype: Any) -> Array:
    """The matrix of which these are the tiles."""
    outer, inner, rows, columns = tiles.shape
    matrix: Array = tiles.transpose(0, 2, 1, 3).reshape(outer * rows, inner * columns)
    return matrix.astype(dtype, copy=False)
