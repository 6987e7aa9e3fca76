"""Tiles of 8 x 8 sums of products, which stay in registers: as machine code eight vectors.

LLVM makes no such vectors of loops (:mod:`jitree.codegen.typed` says what these become).
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

import numpy as np
import numpy.typing as npt

SIDE: Final = 8
DEPTH: Final = 2
"""Products of bytes are added in pairs: processors have an instruction for that."""
Tile = npt.NDArray[Any]


def _memory(address: int, kind: Any, count: int) -> Tile:
    return np.frombuffer((ctypes.c_char * (count * np.dtype(kind).itemsize)).from_address(address), kind)


def float_tile(address: int) -> Tile:
    """64 of binary32 in memory, row by row."""
    return _memory(address, np.float32, SIDE * SIDE).reshape(SIDE, SIDE)


def integer_tile(address: int) -> Tile:
    """64 integers of 32 bits in memory."""
    return _memory(address, np.int32, SIDE * SIDE).reshape(SIDE, SIDE)


def float_zeros() -> Tile:
    return np.zeros((SIDE, SIDE), np.float32)


def integer_zeros() -> Tile:
    return np.zeros((SIDE, SIDE), np.int32)


def add_floats(tile: Tile, lhs: int, rhs: int) -> Tile:
    """Adds the products of each of 8 numbers and each of 8 others, rounded once or twice."""
    with np.errstate(all="ignore"):
        products: Tile = np.outer(_memory(lhs, np.float32, SIDE), _memory(rhs, np.float32, SIDE))
        return tile + products


def add_bytes(tile: Tile, lhs: int, rhs: int) -> Tile:
    """Adds the products of each of 8 pairs of bytes and each of 8 others."""
    left, right = (
        _memory(place, np.int8, SIDE * DEPTH).reshape(SIDE, DEPTH).astype(np.int32) for place in (lhs, rhs)
    )
    products: Tile = left @ right.T
    return tile + products


def store_tile(address: int, tile: Tile) -> None:
    _memory(address, tile.dtype, SIDE * SIDE).reshape(SIDE, SIDE)[...] = tile
