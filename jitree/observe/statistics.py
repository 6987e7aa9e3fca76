"""Statistics of a tensor, computed piece by piece."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from jitree.base.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import numpy.typing as npt

    Parts = Callable[[], Iterator[npt.NDArray[Any]]]
    """The elements of a tensor in order, each time that it is called."""

_PIECE: Final = 1 << 15
"""Elements that are converted at a time."""
BINS: Final = 16


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
    zeros = nans = infinities = count = 0
    total = squares = 0.0
    least, most = np.inf, -np.inf
    signs = set[float]()
    for piece in _numbers(parts):
        finite, missing = piece, 0
        if not np.isfinite(piece).all():
            finite, missing = piece[np.isfinite(piece)], int(np.isnan(piece).sum())
            signs.update(np.unique(piece[np.isinf(piece)]).tolist())
        nans, infinities = nans + missing, infinities + len(piece) - len(finite) - missing
        zeros += len(piece) - int(np.count_nonzero(piece))
        if len(finite):
            least, most = min(least, float(finite.min())), max(most, float(finite.max()))
            with np.errstate(over="ignore"):
                total += float(finite.sum())
                squares += float(np.square(finite).sum())
            count += len(finite)
    if not count:
        nothing = float("nan")
        ends = (min(signs), max(signs)) if signs else (nothing, nothing)
        empty = *ends, nothing, abs(ends[0]), nothing
        return Statistics(shape, kind, *empty, zeros, nans, infinities, ())
    return Statistics(
        shape,
        kind,
        least,
        most,
        total / count,
        max(abs(least), abs(most)),
        (squares / count) ** 0.5,
        zeros,
        nans,
        infinities,
        _histogram(parts, least, most),
    )


def _numbers(parts: Parts) -> Iterator[npt.NDArray[np.float64]]:
    for piece in split(parts()):
        numbers = piece.view(piece.real.dtype) if piece.dtype.kind == "c" else piece
        with np.errstate(invalid="ignore"):
            yield numbers.astype(np.float64)


def _histogram(parts: Parts, least: float, most: float) -> tuple[int, ...]:
    scale = BINS / (most - least) if most > least else 0.0
    counts = np.zeros(BINS, np.int64)
    if not np.isfinite(scale):
        return ()
    for piece in _numbers(parts):
        finite = piece if np.isfinite(piece).all() else piece[np.isfinite(piece)]
        places = np.minimum((finite - least) * scale, BINS - 1).astype(np.int64)
        counts += np.bincount(places, minlength=BINS)
    return tuple(map(int, counts))
