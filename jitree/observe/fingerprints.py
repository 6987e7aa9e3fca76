"""Fingerprints the results of a call's dispatches, and pairs those of two programs.

Two compilations of one program compute many of the same tensors, in dispatches of other names and numbers.
Those are found by their values: by a hash where bits agree, by some of their elements where they are near.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from jitree.base.events import DISPATCH
from jitree.base.records import NamedTuple
from jitree.observe.export_names import parse
from jitree.observe.observation import Onlooker
from jitree.observe.regions import SCRATCH
from jitree.observe.tolerance import split

if TYPE_CHECKING:
    import numpy.typing as npt

    from jitree.observe.tensors import ObservedDispatch

_SAMPLES: Final = 64
_NEAR: Final = 0.02
"""The part of the samples' size within which two tensors are the same one."""
_SAME: Final = 1e-3
"""The part of their size by which figures differ that are the same but for rounding, from four bytes on."""
_ROUNDED: Final = 5 / 16
"""How near tensors are that differ by rounding: 10**-5 of the largest; 10**-2 where elements are short."""
_ROUNDED_SHORT: Final = 2 / 16
_FEWEST: Final = 8
_MOST: Final = 2 / 3
"""The part of the samples that are not zero, at least ``_FEWEST``, that agree where a part departs."""
_MOVED: Final = 1 / 8
"""The part of the samples: where more of the same elements lie elsewhere, the order is another one."""
_SHOWN: Final = 12
"""Dispatches that are suspected, in a message."""
_ENDS: Final = 8
_MADE: Final = re.compile(r"\(dispatch (\d+)\)$")
_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)
_WINDOW: Final = 64
"""Outputs that are looked at for a counterpart, where bits do not tell it."""

Array = Any


class TensorFingerprint(NamedTuple):
    """One output of a dispatch."""

    ordinal: int
    """The ordinal of the dispatch."""
    output: int
    name: str
    type: str
    size: int
    """How many elements it has."""
    digest: bytes
    samples: npt.NDArray[np.float64] | None
    """None where elements are unknown."""
    bag: int = 0
    """A hash of the elements that are not zero in any order: of a tensor in another layout, with padding."""
    figures: Figures | None = None
    """Figures of the same elements, where they are near; None for others than finite floats."""
    sources: tuple[int, ...] = ()
    """Ordinals of the dispatches that made what it is made of."""
    what: str = DISPATCH
    """The word before the ordinal: not all that is shown is a dispatch."""

    @property
    def label(self) -> str:
        """``main_dispatch_3_matmul_4x71x64_f32 (dispatch 3)``"""
        return f"{self.name} ({self.what} {self.ordinal})"

    @property
    def operation(self) -> str:
        return parse(self.name).operation

    def is_near(self, other: TensorFingerprint) -> bool:
        """Whether both seem to be the same tensor, perhaps computed in another order."""
        a, b = self.samples, other.samples
        if self.size != other.size or a is None or b is None or self.size < 2:
            return False
        finite = np.isfinite(a) & np.isfinite(b)
        if not finite.any():
            return False
        length = float(np.sqrt(np.square(a[finite]).sum() + np.square(b[finite]).sum()))
        return length > 0 and float(np.sqrt(np.square(a[finite] - b[finite]).sum())) <= _NEAR * length

    def agrees_mostly(self, other: TensorFingerprint) -> bool:
        """Whether most elements of both differ by rounding only: one tensor, of which a part departs."""
        a, b = self.samples, other.samples
        if self.size != other.size or self.type != other.type or a is None or b is None:
            return False
        with np.errstate(invalid="ignore"):
            same = np.count_nonzero((a != 0) & (abs(a - b) <= _SAME * abs(b)))
        return bool(same >= max(_FEWEST, np.count_nonzero((a != 0) | (b != 0)) * _MOST))

    def nearness(self, other: TensorFingerprint) -> float:
        """Measures nearness to a near one, in sixteenths up to a half: which of several it is."""
        a, b = self.samples, other.samples
        assert a is not None and b is not None
        finite = np.isfinite(a) & np.isfinite(b)
        apart = float(np.abs(a[finite] - b[finite]).max()) / (float(np.abs(b[finite]).max()) or 1.0)
        return min(8, int(-np.log10(max(apart, 1e-8)))) / 16 if apart < 1 else 0.0

    def is_same(self, other: TensorFingerprint) -> bool:
        """Whether one that is near differs by rounding only: what departs may come near again later."""
        is_wide = self.figures is None or self.figures.near == _SAME
        return self.digest == other.digest or self.nearness(other) >= (
            _ROUNDED if is_wide else _ROUNDED_SHORT
        )

    def has_elements_of(self, other: TensorFingerprint) -> bool:
        """Whether both hold the same elements, in any order, but for zeros."""
        return self.bag != 0 and self.bag == other.bag

    def is_shuffled(self, other: TensorFingerprint) -> bool:
        """Whether both hold the same elements, and not only a few at other places: near each other as many
        are alike."""
        a, b = self.samples, other.samples
        if a is None or b is None or self.size != other.size or not self.has_elements_of(other):
            return False
        return bool(np.count_nonzero(a != b) > _MOVED * a.size)

    def is_rearranged(self, other: TensorFingerprint) -> bool:
        """Tells whether both seem to hold the same elements, perhaps reordered and padded."""
        if self.has_elements_of(other):
            return True
        a, b = self.figures, other.figures
        return a is not None and b is not None and a.agree(b)


class Figures(NamedTuple):
    """What is the same of elements in any order, and does not count zeros."""

    near: float
    size: float
    """The root of the sum of squares."""
    mean: float
    absmean: float
    ends: npt.NDArray[np.float64]
    """The least and the greatest elements: other tensors of the same distribution have other ones."""

    def agree(self, other: Figures) -> bool:
        near = max(self.near, other.near)
        if len(self.ends) != len(other.ends) or abs(self.size - other.size) > near * self.size:
            return False
        means = max(abs(self.mean - other.mean), abs(self.absmean - other.absmean))
        ends = float(np.abs(self.ends - other.ends).max())
        return means <= near * self.absmean and ends <= near * float(np.abs(self.ends).max())


PerSide = tuple[list[TensorFingerprint], list[TensorFingerprint]]
"""Fingerprints of the two calls that are compared."""


class CallFingerprints(Onlooker):
    """Records fingerprints of what its dispatches make in a call, in their order."""

    def __init__(self) -> None:
        self._fingerprints: dict[tuple[int, int], TensorFingerprint] = {}

    def looks_at(self, dispatch: ObservedDispatch) -> None:
        if dispatch.kind != DISPATCH or dispatch.ordinal is None:
            return
        sources = _sources(dispatch, dispatch.ordinal)
        for number, tensor in enumerate(dispatch.outputs):
            array = tensor.array
            assert array is not None
            samples = None if tensor.kind is None or array.dtype.kind == "c" else _samples(array)
            self._fingerprints[dispatch.ordinal, number] = TensorFingerprint(
                dispatch.ordinal,
                number,
                dispatch.name,
                tensor.type,
                array.size,
                digest(array),
                samples,
                _bag(array),
                None if samples is None else _figures(array),
                sources,
                dispatch.what,
            )

    @property
    def fingerprints(self) -> list[TensorFingerprint]:
        return [self._fingerprints[key] for key in sorted(self._fingerprints)]


def _sources(dispatch: ObservedDispatch, ordinal: int) -> tuple[int, ...]:
    """What made the inputs; of memory of the call whose tensors are not known, the dispatch before."""
    origins = [tensor.origin for tensor in dispatch.inputs]
    made = (int(found[1]) for found in map(_MADE.search, origins) if found)
    return (*made, *([ordinal - 1] if SCRATCH in origins and ordinal else []))


def digest(array: Array) -> bytes:
    """A digest of the elements, whatever their type."""
    state = blake2b(digest_size=16)
    for piece in split((array.reshape(-1),)):
        state.update(np.ascontiguousarray(piece).view(np.uint8).data)
    return state.digest()


def _bag(array: Array) -> int:
    size = array.dtype.itemsize
    if size not in (1, 2, 4, 8):
        return 0
    total, values = 0, set[int]()
    for piece in split((array.reshape(-1),)):
        bits = np.ascontiguousarray(piece).view(f"u{size}").astype(np.uint64)
        bits = bits[bits != 0]
        if bits.size and len(values) < 2:
            values |= {int(bits.min()), int(bits.max())}
        mixed = (bits + np.uint64(1)) * _FACTOR
        mixed = (mixed ^ (mixed >> np.uint64(29))) * _FACTOR
        total += int((mixed ^ (mixed >> np.uint64(32))).sum())
    return total % (1 << 64) if len(values) >= 2 else 0


def _figures(array: Array) -> Figures | None:
    if array.dtype.kind in "biu":
        return None
    count, total, absolute, squares, ends = 0, 0.0, 0.0, 0.0, np.zeros(0)
    with np.errstate(all="ignore"):
        for piece in split((array.reshape(-1),)):
            numbers = piece.astype(np.float64)
            numbers = numbers[numbers != 0]
            count, total = count + numbers.size, total + float(numbers.sum())
            absolute, squares = (
                absolute + float(np.abs(numbers).sum()),
                squares + float(np.square(numbers).sum()),
            )
            if ends.size == 2 * _ENDS:
                numbers = numbers[(numbers < ends[_ENDS - 1]) | (numbers > ends[_ENDS])]
            ends = np.sort(np.concatenate((ends, numbers)))
            if ends.size > 2 * _ENDS:
                ends = np.concatenate((ends[:_ENDS], ends[-_ENDS:]))
    if not np.isfinite(squares) or not count or ends[0] == ends[-1]:
        return None
    near = _SAME if array.dtype.itemsize >= 4 else 10 * _SAME
    return Figures(near, float(np.sqrt(squares)), total / count, absolute / count, ends)


def suspects(
    per_side: PerSide, since: tuple[int | None, int | None], until: tuple[int | None, int | None]
) -> str:
    """Lists dispatches between two places that agree, but for those that only move data. These lay out in
    another way what the other side has as well."""
    texts = []
    for side, fingerprints in enumerate(per_side):
        first, last = since[side], until[side]
        others = _Rearranged(per_side[1 - side])
        names = {
            item.ordinal: item.label
            for item in fingerprints
            if (first is None or item.ordinal > first)
            and (last is None or item.ordinal <= last)
            and (item.ordinal == last or not others.have(item))
        }
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        if names:
            texts.append(f"by {', '.join(list(names.values())[:_SHOWN])}{more} in {'ab'[side]}")
    return ", ".join(texts)


class _Rearranged:
    """What one program makes, to find what has the same elements in any order."""

    def __init__(self, fingerprints: list[TensorFingerprint]) -> None:
        self._bags = {item.bag for item in fingerprints} - {0}
        self._figures = sorted(
            (item.figures for item in fingerprints if item.figures is not None), key=_greatest
        )
        self._near = max((figures.near for figures in self._figures), default=0.0)

    def have(self, fingerprint: TensorFingerprint) -> bool:
        """As :meth:`TensorFingerprint.is_rearranged` of any of them."""
        if fingerprint.bag in self._bags:
            return True
        figures = fingerprint.figures
        if figures is None:
            return False
        apart = max(self._near, figures.near) * float(np.abs(figures.ends).max())
        first = bisect_left(self._figures, _greatest(figures) - apart, key=_greatest)
        last = bisect_right(self._figures, _greatest(figures) + apart, key=_greatest)
        return any(map(figures.agree, self._figures[first:last]))


def _greatest(figures: Figures) -> float:
    return float(figures.ends[-1])


def _samples(array: Array) -> npt.NDArray[np.float64]:
    flat = array.reshape(-1)
    places = np.unique(np.linspace(0, flat.size - 1, min(_SAMPLES, flat.size)).astype(np.int64))
    with np.errstate(invalid="ignore"):
        return np.asarray(flat[places].astype(np.float64))


Pair = tuple[TensorFingerprint, TensorFingerprint]


def related(one: list[TensorFingerprint], other: list[TensorFingerprint]) -> list[TensorFingerprint]:
    """Finds those of one side that may be the other side's tensor, by values."""
    digests = {item.digest for item in other}
    rearranged = _Rearranged(other)
    lengths: dict[int, list[tuple[float, TensorFingerprint]]] = {}
    for item in other:
        lengths.setdefault(item.size, []).append((_finite_length(item), item))
    for row in lengths.values():
        row.sort(key=lambda pair: pair[0])

    def is_near_any(item: TensorFingerprint) -> bool:
        length, row = _finite_length(item), lengths.get(item.size, [])
        apart = 3 * _NEAR * length
        first = bisect_left(row, length - apart, key=lambda pair: pair[0])
        last = bisect_right(row, length + apart, key=lambda pair: pair[0])
        return any(item.is_near(each) for _, each in row[first:last])

    return [item for item in one if item.digest in digests or is_near_any(item) or rearranged.have(item)]


def align(one: list[TensorFingerprint], other: list[TensorFingerprint]) -> tuple[list[Pair], list[Pair]]:
    """Outputs that are the same tensor in both, in the order of both; and those whose elements are the same
    in another order, which cannot be compared one by one."""
    pairs: list[Pair] = []
    places = _equal(one, other)
    for (a, b), (next_a, next_b) in zip([(-1, -1), *places], [*places, (len(one), len(other))], strict=True):
        if a >= 0:
            pairs.append((one[a], other[b]))
        pairs += _gap(one[a + 1 : next_a], other[b + 1 : next_b])
    alike = [a.digest == b.digest or (a.is_near(b) and not a.is_shuffled(b)) for a, b in pairs]
    agreeing = [pair for pair, is_alike in zip(pairs, alike, strict=True) if is_alike]
    others = [pair for pair, is_alike in zip(pairs, alike, strict=True) if not is_alike]
    rearranged = [(a, b) for a, b in others if a.is_rearranged(b)]
    sure = [(a, b) for a, b in agreeing if a.is_same(b)]
    sure += [(a, b) for a, b in rearranged if a.has_elements_of(b)]
    return _unrefuted(pairs, agreeing, rearranged, sure, one, other), rearranged


def _unrefuted(
    pairs: list[Pair],
    agreeing: list[Pair],
    rearranged: list[Pair],
    sure: list[Pair],
    one: list[TensorFingerprint],
    other: list[TensorFingerprint],
) -> list[Pair]:
    """Drops pairs alike by name alone, where both make something that agrees for sure: they are of another
    layout, or fused with other operations."""
    used = [
        used_by({pair[number].ordinal for pair in sure}, side) for number, side in enumerate((one, other))
    ]
    known = {(a.ordinal, a.output) for a, _ in agreeing}
    apart = {(a.ordinal, a.output) for a, _ in rearranged}
    return [
        (a, b)
        for a, b in pairs
        if (place := (a.ordinal, a.output)) in known
        or (place not in apart and a.ordinal not in used[0] and b.ordinal not in used[1])
    ]


def used_by(ordinals: set[int], fingerprints: list[TensorFingerprint]) -> set[int]:
    """Dispatches of which one of these is made, at once or by others."""
    used = set[int]()
    for item in reversed(fingerprints):
        if item.ordinal in ordinals or item.ordinal in used:
            used.update(item.sources)
    return used


def _equal(one: list[TensorFingerprint], other: list[TensorFingerprint]) -> list[tuple[int, int]]:
    """Places of those whose bits agree: the longest such row that is in the order of both."""
    from difflib import SequenceMatcher

    keys = [[(item.size, item.digest) for item in side] for side in (one, other)]
    blocks = SequenceMatcher(None, keys[0], keys[1], autojunk=False).get_matching_blocks()
    return [(block.a + step, block.b + step) for block in blocks for step in range(block.size)]


def _gap(one: list[TensorFingerprint], other: list[TensorFingerprint]) -> list[Pair]:
    """Between two places where bits agree: the best row of those that are near, or of one operation."""
    if not one or not other:
        return []
    rating = _Rating(one, other)
    best = np.zeros((len(one) + 1, len(other) + 1), np.float32)
    for i in reversed(range(len(one))):
        first, last = (min(max(0, i + step), len(other)) for step in (-_WINDOW, _WINDOW + 1))
        row, below = best[i], best[i + 1]
        row[last:] = below[last:]
        for j in reversed(range(first, last)):
            row[j] = max(below[j], row[j + 1], below[j + 1] + rating.of(i, j))
        row[:first] = np.maximum(below[:first], row[first])
    pairs, i, j = list[Pair](), 0, 0
    while i < len(one) and j < len(other):
        likeness = rating.of(i, j)
        if likeness and best[i, j] == best[i + 1, j + 1] + likeness:
            pairs.append((one[i], other[j]))
            i, j = i + 1, j + 1
        elif best[i, j] == best[i + 1, j]:
            i += 1
        else:
            j += 1
    return pairs


class _Rating:
    """How much outputs of two programs are alike, by their places; 0 outside of the window."""

    def __init__(self, one: list[TensorFingerprint], other: list[TensorFingerprint]) -> None:
        self._one, self._other = one, other
        self._lengths = [_length(item) for item in one], [_length(item) for item in other]
        self._found: dict[tuple[int, int], float] = {}

    def of(self, i: int, j: int) -> float:
        if abs(i - j) > _WINDOW:
            return 0.0
        found = self._found.get((i, j))
        if found is None:
            found = self._found[i, j] = self._rate(i, j)
        return found

    def _rate(self, i: int, j: int) -> float:
        a, b, one, other = self._one[i], self._other[j], self._lengths[0][i], self._lengths[1][j]
        if not abs(one - other) > _NEAR * (one + other) and a.is_near(b):  # also where one is no number
            return 2.0 + a.nearness(b)
        if a.is_rearranged(b):
            return 1.5
        if a.agrees_mostly(b):
            return 1.25
        return 1.0 if a.size == b.size and a.type == b.type and a.operation == b.operation != "" else 0.0


def _finite_length(fingerprint: TensorFingerprint) -> float:
    if fingerprint.samples is None:
        return 0.0
    return float(np.sqrt(np.square(fingerprint.samples[np.isfinite(fingerprint.samples)]).sum()))


def _length(fingerprint: TensorFingerprint) -> float:
    """The length of the samples as a vector: of two that are near, nearly the same."""
    samples = fingerprint.samples
    return float("nan") if samples is None else float(np.sqrt(np.square(samples).sum()))
