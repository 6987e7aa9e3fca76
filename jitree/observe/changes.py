"""Detects changed bytes of memory without a copy of it.

Memory up to 4 MiB is copied. Of more, each line of 64 bytes leaves a number of 16 bits: one change in 65536
is not seen, and those next to it are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from jitree.hal.stepwise import Extent, Look

LINE: Final = 64
_COPIED: Final = 4 << 20
_PIECE: Final = 8 << 20
"""Bytes that are looked at together."""
_GAP: Final = 4096
"""Unchanged bytes between what counts as two changes."""
_FACTORS: Final = np.arange(1, LINE // 4, 2, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
_KEPT_BITS: Final = np.uint64(48)


def pieces(extent: Extent, look: Look, size: int) -> Iterator[npt.NDArray[np.uint8]]:
    """The bytes of a range, so many at a time."""
    address, length = extent
    return (look((address + first, min(size, length - first))) for first in range(0, length, size))


class Digest:
    """What a range of memory held when this was made."""

    def __init__(self, extent: Extent, look: Look) -> None:
        self.extent = extent
        self._look = look
        self._unit = 1 if extent[1] <= _COPIED else LINE
        self._before = [self._seen(piece) for piece in self._pieces()]

    def changes(self) -> list[list[Extent]]:
        """Ranges that have changed since, to the byte or the line, those near to each other together. A gap
        is left where a tensor may begin after it."""
        found: list[list[Extent]] = []
        for run in self._runs():
            gap = run[0] - sum(found[-1][-1]) if found else _GAP
            if gap >= _GAP:
                found.append([run])
            elif gap and not run[0] % LINE:
                found[-1].append(run)
            else:
                start = found[-1][-1][0]
                found[-1][-1] = start, sum(run) - start
        return found

    def _runs(self) -> Iterator[Extent]:
        """What is changed, without gaps that end at a line."""
        address = self.extent[0]
        for before, piece in zip(self._before, self._pieces(), strict=True):
            different = np.flatnonzero(before != self._seen(piece))
            if len(different) == 0:
                address += len(piece)
                continue
            first, last = int(different[0]) * self._unit, (int(different[-1]) + 1) * self._unit
            if (address + first) // LINE == (address + last - 1) // LINE:  # as most small tensors
                yield address + first, min(last, len(piece)) - first
            else:
                places = address + different[1:] * self._unit
                gaps = np.diff(different)
                ends = np.flatnonzero((gaps > 1) & ((places % LINE == 0) | (gaps > _GAP)))
                firsts = different[np.concatenate(([0], ends + 1))] * self._unit
                lasts = (different[np.concatenate((ends, [len(different) - 1]))] + 1) * self._unit
                for first, last in zip(firsts, np.minimum(lasts, len(piece)), strict=True):
                    yield address + int(first), int(last - first)
            address += len(piece)

    def _pieces(self) -> Iterator[npt.NDArray[np.uint8]]:
        return pieces(self.extent, self._look, _PIECE)

    def _seen(self, piece: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        if self._unit == 1:
            return piece.copy()
        rest = -len(piece) % LINE
        whole = np.append(piece, np.zeros(rest, np.uint8)) if rest else piece
        words = whole.view(np.uint64).reshape(-1, LINE // 8)
        return ((words @ _FACTORS) >> _KEPT_BITS).astype(np.uint16)
