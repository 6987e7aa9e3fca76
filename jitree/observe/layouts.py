"""Finds in which order another build packs a matrix, by both values.

Data tiling keeps matrices in tiles, with the last ones padded; others are kept transposed. Elements of two
such tensors are counterparts only when one of the two has been unpacked.
"""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from jitree.base.records import NamedTuple

_SAMPLES: Final = 2048
_FEWEST: Final = 16
_STEP: Final = 0x9E3779B1
"""A prime, so that samples are in no row of tiles."""
_TILES: Final = (1, 2, 3, 4, 6, 7, 8, 12, 14, 16, 24, 32, 64, 128)
_NEAR: Final = 1e-3
MANY: Final = 0.5
"""The part of the samples that are not zero which is near where they are counterparts."""
MOST: Final = 0.9
"""… and so many only there: layouts that are alike have some elements in one place."""
_ALIKE: Final = 0.98
"""A correlation that only counterparts have."""

Array = npt.NDArray[Any]
Shape = tuple[int, ...]


class MatrixLayout(NamedTuple):
    """The layout of the last two dimensions of a tensor."""

    tile: tuple[int, int]
    is_transposed: bool
    """Tiles lie column by column."""
    has_columns: bool
    """Whether elements of a tile lie column by column."""

    def __str__(self) -> str:
        if self.tile == (1, 1):
            return "transposed"
        orders = ((self.is_transposed, "tiles"), (self.has_columns, "elements"))
        by_column = " and ".join(name for is_so, name in orders if is_so)
        tile = "in tiles of {}x{}".format(*self.tile)
        return f"{tile}, {by_column} by column" if by_column else tile

    def counts(self, shape: Shape) -> tuple[int, int]:
        """Tiles in each dimension."""
        return -(-shape[-2] // self.tile[0]), -(-shape[-1] // self.tile[1])

    def size(self, shape: Shape) -> int:
        """Elements, with padding."""
        return prod(shape[:-2]) * prod(self.counts(shape)) * prod(self.tile)

    def places(self, numbers: Array, shape: Shape) -> Array:
        """Where elements lie, by their numbers in the order of rows."""
        (rows, columns), (height, width) = self.counts(shape), self.tile
        matrix, number = np.divmod(numbers, shape[-2] * shape[-1])
        (row, y), (column, x) = (
            np.divmod(place, size)
            for place, size in zip(np.divmod(number, shape[-1]), self.tile, strict=True)
        )
        tile = column * rows + row if self.is_transposed else row * columns + column
        inside = x * height + y if self.has_columns else y * width + x
        return np.asarray((matrix * rows * columns + tile) * height * width + inside)

    def unpacked(self, packed: Array, shape: Shape) -> Array:
        """The elements in the order of rows, without padding."""
        (rows, columns), (height, width) = self.counts(shape), self.tile
        tiles = (columns, rows) if self.is_transposed else (rows, columns)
        inside = (width, height) if self.has_columns else (height, width)
        axes = (2, 1) if self.is_transposed else (1, 2)
        within = (4, 3) if self.has_columns else (3, 4)
        parts = packed.reshape(-1, *tiles, *inside).transpose(0, axes[0], within[0], axes[1], within[1])
        whole = parts.reshape(-1, rows * height, columns * width)
        return whole[:, : shape[-2], : shape[-1]].reshape(shape)


def nearness(one: Array, other: Array) -> float:
    """Measures which part of as many elements are counterparts, as far as values tell. Too few, or all alike,
    are taken for such."""
    samples = _samples(one.size)
    left, right = (_numbers(array.reshape(-1)[samples]) for array in (one, other))
    near, together = _likeness(left, right)
    return 1.0 if len(np.unique(left)) < _FEWEST or together >= _ALIKE else near


def find(plain: Array, packed: Array, shape: Shape) -> MatrixLayout | None:
    """Finds the layout in which a tensor holds another one's elements of a shape. That one has them in the
    order of rows. None if there is none in which values show it."""
    if len(shape) < 2 or prod(shape) != plain.size:
        return None
    samples = _samples(plain.size)
    left, elements = _numbers(plain.reshape(-1)[samples]), packed.reshape(-1)
    candidates = map(MatrixLayout._make, product(product(_TILES, _TILES), (False, True), (False, True)))
    rated = (
        (_likeness(left, _numbers(elements[candidate.places(samples, shape)])), candidate)
        for candidate in candidates
        if candidate.size(shape) == packed.size
    )
    likeness, best = max(rated, key=lambda each: each[0], default=((0.0, 0.0), None))
    return best if likeness[0] >= MOST or likeness[1] >= _ALIKE else None


def _samples(size: int) -> Array:
    return np.asarray((np.arange(min(size, _SAMPLES), dtype=np.int64) * _STEP) % size)


def _numbers(samples: Array) -> npt.NDArray[np.float64]:
    with np.errstate(invalid="ignore"):
        return np.asarray((samples.real if samples.dtype.kind == "c" else samples).astype(np.float64))


def _likeness(left: npt.NDArray[np.float64], right: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Which part of them is near, and how they go together."""
    known = np.isfinite(left) & np.isfinite(right) & ((left != 0) | (right != 0))
    a, b = left[known], right[known]
    if len(a) < _FEWEST:
        return 0.0, 0.0
    low, high = np.quantile(a, (0.01, 0.99))
    near = abs(a - b) <= _NEAR * (abs(a) + float(np.median(abs(a))))
    a, b = a.clip(low, high), b.clip(low, high)
    together = float(np.corrcoef(a, b)[0, 1]) if a.std() > 0 < b.std() else 0.0
    return float(near.mean()), together
