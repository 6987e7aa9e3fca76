"""Computes statistics of a tensor and distances of two, piece by piece."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from jitree.base.records import NamedTuple
from jitree.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import numpy.typing as npt

    Parts = Callable[[], Iterator[npt.NDArray[Any]]]
    """The elements of a tensor in order, each time that it is called."""
    Array = npt.NDArray[Any]

_PIECE: Final = 1 << 15
"""Elements that are converted at a time."""
BINS: Final = 16

_FLOAT_SIZES: Final = (1, 2, 4, 8)


class Statistics(NamedTuple):
    """Statistics of the finite elements, but for what counts the others. Without any finite element ``min``,
    ``max`` and ``absmax`` are of the infinite ones; numbers without any element are nan."""

    shape: tuple[int, ...]
    type: str
    min: float
    max: float
    mean: float
    absmax: float
    rms: float
    zeros: int
    nans: int
    infinities: int
    histogram: tuple[int, ...]
    """Elements in equal parts of the range from ``min`` to ``max``; empty where there is none."""

    def __str__(self) -> str:
        return (
            f"{self.type} min {self.min:.6g} max {self.max:.6g} mean {self.mean:.6g} rms {self.rms:.6g} "
            f"zeros {self.zeros} nan {self.nans} inf {self.infinities}"
        )


def split(parts: Iterable[npt.NDArray[Any]]) -> Iterator[npt.NDArray[Any]]:
    """Parts of a tensor in order, as smaller ones."""
    for part in parts:
        for first in range(0, part.size, _PIECE):
            yield part[first : first + _PIECE]


def statistics(parts: Parts, shape: tuple[int, ...], kind: str) -> Statistics:
    """Those of a tensor; of complex ones of both parts together. ``kind`` is its type, as it is shown."""
    zeros = nans = infinities = count = seen = 0
    total = squares = 0.0
    least, most = np.inf, -np.inf
    signs = set[float]()
    finite = np.empty(0)
    with np.errstate(over="ignore", invalid="ignore"):
        for piece in _numbers(parts):
            seen, finite, missing = seen + 1, piece, 0
            added = float(_sum(piece))
            if not math.isfinite(added):
                finite, missing = piece[np.isfinite(piece)], int(np.isnan(piece).sum())
                signs.update(np.unique(piece[np.isinf(piece)]).tolist())
                added = float(_sum(finite))
            nans, infinities = nans + missing, infinities + len(piece) - len(finite) - missing
            zeros += len(piece) - int(np.count_nonzero(piece))
            if len(finite):
                least, most = min(least, float(_least(finite))), max(most, float(_most(finite)))
                total += added
                squares += float(_sum(np.square(finite)))
                count += len(finite)
        if not count:
            nothing = float("nan")
            ends = (min(signs), max(signs)) if signs else (nothing, nothing)
            empty = *ends, nothing, abs(ends[0]), nothing
            return Statistics(shape, kind, *empty, zeros, nans, infinities, ())
        histogram = _histogram((finite,) if seen == 1 else _numbers(parts), least, most)
    absmax, rms = max(abs(least), abs(most)), (squares / count) ** 0.5
    return Statistics(
        shape, kind, least, most, total / count, absmax, rms, zeros, nans, infinities, histogram
    )


_sum, _least, _most = np.add.reduce, np.minimum.reduce, np.maximum.reduce


def _numbers(parts: Parts) -> Iterator[npt.NDArray[np.float64]]:
    for piece in split(parts()):
        numbers = piece.view(piece.real.dtype) if piece.dtype.kind == "c" else piece
        yield numbers.astype(np.float64)


def _histogram(pieces: Iterable[npt.NDArray[np.float64]], least: float, most: float) -> tuple[int, ...]:
    scale = BINS / (most - least) if most > least else 0.0
    if not math.isfinite(scale) or not math.isfinite(most - least):
        return ()
    counts = np.zeros(BINS, np.int64)
    for piece in pieces:
        finite = piece if math.isfinite(_sum(piece)) else piece[np.isfinite(piece)]
        places = np.minimum((finite - least) * scale, BINS - 1).astype(np.int64)
        counts += np.bincount(places, minlength=BINS)
    return tuple(counts.tolist())


class Tolerance(NamedTuple):
    """Allows an element to be near another. One rule is enough; without any, if bits agree."""

    atol: float | None = None
    rtol: float | None = None
    ulp: float | None = None
    """Representable numbers between the two; of integers, the difference."""

    @property
    def is_exact(self) -> bool:
        return self == (None, None, None)

    def __str__(self) -> str:
        given = (
            f"{name} {value:g}" for name, value in zip(self._fields, self, strict=True) if value is not None
        )
        return ", ".join(given) or "exact"


EXACT: Final = Tolerance()


def tolerance(atol: float | None, rtol: float | None, ulp: float | None) -> Tolerance:
    """INVALID_ARGUMENT for what is no number from 0 on."""
    for name, value in (("atol", atol), ("rtol", rtol), ("ulp", ulp)):
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
            raise InvalidArgumentError(f"{name}: expected a number from 0 on but got {value!r}")
    return Tolerance(atol, rtol, ulp)


class FarElement(NamedTuple):
    """An element that is not near."""

    coordinate: tuple[int, ...]
    values: tuple[Any, Any]
    bits: tuple[str, str]
    """``0x7fc00000``"""

    def __str__(self) -> str:
        values = " and ".join(f"{value!r}" for value in self.values)
        return f"at {self.coordinate}: {values} (bits {self.bits[0]} and {self.bits[1]})"


class Closeness(NamedTuple):
    """How near two tensors are."""

    size: int
    """Elements."""
    differing: int
    """How many elements are not near."""
    max_abs: float
    max_rel: float
    """Relative to the second one."""
    max_ulp: float
    rms: float
    """The root mean square of all differences."""
    first: FarElement | None
    """The first element that is not near."""


def compare(one: Array, other: Array, shape: tuple[int, ...], allowed: Tolerance) -> Closeness:
    """Of tensors with as many elements; ``shape`` is that of coordinates. Of different types, values are
    compared as they are in the larger one."""
    differing, first, start = 0, None, 0
    largest, squares = [0.0, 0.0, 0.0], 0.0
    for left, right in zip(split((one.reshape(-1),)), split((other.reshape(-1),)), strict=True):
        if left.dtype != right.dtype or _bits(left).tobytes() != _bits(right).tobytes():
            distances = _distances(left, right)
            far = _far(left, right, distances, allowed)
            largest = [max(old, float(new.max())) for old, new in zip(largest, distances, strict=True)]
            finite = distances[0][np.isfinite(distances[0])]
            squares += float(np.square(finite).sum())
            differing += int(np.count_nonzero(far))
            if first is None and far.any():
                first = _place(left, right, int(far.argmax()), start, shape)
        start += len(left)
    rms = math.sqrt(squares / start) if start else 0.0
    absolute, relative, steps = largest
    return Closeness(start, differing, absolute, relative, steps, rms, first)


def changes_of_bits(one: Array, other: Array, limit: int) -> set[tuple[bytes, bytes]]:
    """What the elements that differ are in both, as they lie in memory; some more than ``limit`` at most."""
    found: set[tuple[bytes, bytes]] = set()
    for left, right in zip(split((one.reshape(-1),)), split((other.reshape(-1),)), strict=True):
        size = left.dtype.itemsize
        rows = _bits(left).reshape(-1, size), _bits(right).reshape(-1, size)
        differing = (rows[0] != rows[1]).any(axis=1)
        changed = (row[differing][: limit + 1] for row in rows)
        found |= {(a.tobytes(), b.tobytes()) for a, b in zip(*changed, strict=True)}
        if len(found) > limit:
            break
    return found


def _bits(piece: Array) -> Array:
    return np.ascontiguousarray(piece).view(np.uint8)


def _wide(piece: Array) -> Array:
    with np.errstate(invalid="ignore", over="ignore"):
        return piece.astype(np.complex128 if piece.dtype.kind == "c" else np.float64)


def _distances(left: Array, right: Array) -> tuple[Array, Array, Array]:
    """Absolute, relative, in representable numbers. Infinite where one is no number and the other is."""
    a, b = _wide(left), _wide(right)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(all="ignore"):
        absolute = abs(a - b)
        absolute = np.where(same, 0.0, np.where(np.isfinite(absolute), absolute, np.inf))
        relative = np.where(absolute == 0, 0.0, absolute / abs(b))
    return absolute, relative, _steps(left, right, absolute)


def _steps(left: Array, right: Array, absolute: Array) -> Array:
    size = left.dtype.itemsize
    if left.dtype.kind in "iu" and right.dtype.kind in "iu":
        return absolute
    if left.dtype != right.dtype or left.dtype.kind in "bc" or size not in _FLOAT_SIZES:
        return np.where(absolute == 0, 0.0, np.inf)
    steps = abs(_order(left) - _order(right)) if size < 8 else _wide_steps(left, right)
    return np.where(np.isinf(absolute) | (absolute == 0), absolute, steps.astype(np.float64))


def _order(piece: Array) -> npt.NDArray[np.int64]:
    """Numbers in the order of the values, one apart for neighbours; zero for both zeros."""
    size = piece.dtype.itemsize
    bits = np.ascontiguousarray(piece).view(f"i{size}").astype(np.int64)
    return np.where(bits < 0, -(bits & ((1 << (8 * size - 1)) - 1)), bits)


def _wide_steps(left: Array, right: Array) -> npt.NDArray[np.uint64]:
    a, b = _order(left), _order(right)
    return np.maximum(a, b).view(np.uint64) - np.minimum(a, b).view(np.uint64)


def _far(left: Array, right: Array, distances: tuple[Array, Array, Array], allowed: Tolerance) -> Array:
    absolute, _, steps = distances
    if allowed.is_exact:
        if left.dtype != right.dtype:
            return np.not_equal(absolute, 0)
        size = left.dtype.itemsize
        different = np.not_equal(_bits(left).reshape(-1, size), _bits(right).reshape(-1, size))
        return np.asarray(different.any(axis=1))
    near = absolute == 0
    if allowed.atol is not None or allowed.rtol is not None:
        with np.errstate(invalid="ignore"):
            bound = (allowed.atol or 0.0) + (allowed.rtol or 0.0) * abs(_wide(right))
        near |= np.isfinite(absolute) & (absolute <= bound)
    if allowed.ulp is not None:
        near |= np.isfinite(steps) & (steps <= allowed.ulp)
    return np.asarray(np.logical_not(near))


def _place(left: Array, right: Array, index: int, start: int, shape: tuple[int, ...]) -> FarElement:
    coordinate = tuple(map(int, np.unravel_index(start + index, shape))) if shape else ()
    one, other = left[index : index + 1], right[index : index + 1]
    return FarElement(coordinate, (_number(one), _number(other)), (bits_text(one), bits_text(other)))


def _number(element: Array) -> Any:
    kind = element.dtype.kind
    if kind in "iub":
        return int(element[0])
    return complex(element[0]) if kind == "c" else float(element[0])


def bits_text(element: Array) -> str:
    """One element as it lies in memory: ``0x7fc00000``."""
    return f"0x{int.from_bytes(element.tobytes(), 'little'):0{element.itemsize * 2}x}"
