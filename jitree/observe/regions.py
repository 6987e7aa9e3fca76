"""Knows what lies where in memory. Tensors are those that calls got as arguments and that dispatches made.

Compilers put many tensors into one allocation and bind all of it to each dispatch; where in it a kernel reads
and writes is in its machine code. So outputs are found by what changes, inputs by what was put there before.

Programs bind all of their constants to each dispatch, and say in a number of the dispatch, a push constant,
where in them the weights of a product of matrices begin. What else such numbers are for, other tensors tell.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import compress
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from jitree.base.records import NamedTuple
from jitree.observe.export_names import ExportName, TensorKind, fits, flat
from jitree.observe.tensors import (
    ARGUMENT,
    DECLARED,
    ELEMENTS_NAMED,
    GIVEN,
    LINE,
    NAMED,
    READ,
    UNKNOWN,
    ObservedTensor,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    from jitree.hal.stepwise import Extent
    from jitree.observe.origins import Argument
    from jitree.types import ElementType


_NOWHERE: Final = np.empty(0, np.int64)


class _Known:
    """The tensors and states that are known: what is equal is one object."""

    def __init__(self) -> None:
        self.tensors: dict[PlacedTensor, PlacedTensor] = {}
        self.states: dict[tuple[frozenset[Extent], tuple[int, ...]], Regions] = {}
        self.asked: dict[int, int] = {}
        """How many bytes programs have asked for last, by address."""
        self.size = 0

    def clear(self) -> None:
        """Forgets all. States that are in use stay what they are."""
        for state in self.states.values():
            state.after.clear()
        self.tensors, self.states, self.size = {}, {}, 0


class PlacedTensor(NamedTuple):
    """A tensor in memory."""

    extent: Extent
    kind: TensorKind | None
    source: str
    origin: str
    """What made the tensor."""


def end_of(extent: Extent) -> int:
    return extent[0] + extent[1]


def overlaps(one: Extent, other: Extent) -> bool:
    return one[0] < end_of(other) and other[0] < end_of(one)


def contains(outer: Extent, inner: Extent) -> bool:
    return outer[0] <= inner[0] and end_of(inner) <= end_of(outer)


_LARGEST_KNOWN: Final = 1 << 19
"""Tensors of all states that are known together; with more of them none is known."""
_WEIGHT: Final = 64
"""Of what followed once, in such tensors."""


class Regions:
    """The latest tensor at each place at one time, oldest first. What is written makes others: the same ones
    where the same was written before, so that what follows from them is found once."""

    __slots__ = ("_ends", "_known", "_regions", "_scratch", "_starts", "after")

    def __init__(
        self,
        regions: tuple[PlacedTensor, ...] = (),
        starts: npt.NDArray[np.int64] = _NOWHERE,
        ends: npt.NDArray[np.int64] = _NOWHERE,
        scratch: frozenset[Extent] = frozenset(),
        known: _Known | None = None,
    ) -> None:
        self._regions = regions
        self._starts, self._ends = starts, ends
        """Of all: where callers keep thousands of results, a loop in Python over them takes milliseconds."""
        self._scratch = scratch
        """What programs have asked for."""
        self._known = _Known() if known is None else known
        self.after: dict[Hashable, Any] = {}
        """What followed, by what was done."""

    def put(self, region: PlacedTensor) -> Regions:
        """A tensor has been written. An argument that it is a part of stays an argument."""
        apart = self._apart(region.extent)
        for place in np.flatnonzero(~apart):
            other = self._regions[place]
            apart[place] = other.source == DECLARED != region.source and contains(other.extent, region.extent)
        return self._state(apart, self._scratch, self._known.tensors.setdefault(region, region))

    def _apart(self, extent: Extent) -> npt.NDArray[np.bool_]:
        """Which tensors share no byte with a range."""
        return np.asarray((self._starts >= end_of(extent)) | (self._ends <= extent[0]))

    def forget(self, extent: Extent) -> Regions:
        """A program has asked for memory, which holds nothing any more."""
        found: Regions | None = self.after.get(extent)
        if found is None:
            lengths = self._known.asked
            scratch = self._scratch - {(extent[0], lengths.get(extent[0], 0))} | {extent}
            lengths[extent[0]] = extent[1]
            found = self.keep(extent, self._state(self._apart(extent), scratch))
        return found

    def declare(self, arguments: Mapping[int, Argument]) -> Regions:
        """A call has begun, with these arguments."""
        tensors = tuple([(number, value) for number, value in arguments.items() if isinstance(value, tuple)])
        found: Regions | None = self.after.get(tensors)
        if found is None:
            found = self
            for number, (extent, kind) in tensors:
                found = found.put(PlacedTensor(extent, kind, DECLARED, f"{ARGUMENT}{number}"))
            self.keep(tensors, found)
        return found

    def keep(self, key: Hashable, after: Any) -> Any:
        """Keeps what followed from something that was done."""
        known = self._known
        known.size += _WEIGHT
        if known.size > _LARGEST_KNOWN:
            known.clear()
        self.after[key] = after
        return after

    def _state(self, kept: npt.NDArray[np.bool_], scratch: frozenset[Extent], *new: PlacedTensor) -> Regions:
        known = self._known
        regions = *compress(self._regions, kept), *new
        key = scratch, tuple(map(id, regions))
        found = known.states.get(key)
        if found is None:
            starts = np.append(self._starts[kept], [region.extent[0] for region in new]).astype(np.int64)
            ends = np.append(self._ends[kept], [end_of(region.extent) for region in new]).astype(np.int64)
            found = known.states[key] = Regions(regions, starts, ends, scratch, known)
            known.size += len(regions) + 1
        return found

    @property
    def elements(self) -> set[ElementType]:
        """Types of the tensors whose types are known."""
        return {region.kind.element for region in self._regions if region.kind is not None}

    def is_scratch(self, extent: Extent) -> bool:
        """Whether a range lies in memory that a program has asked for: no constants do."""
        return any(overlaps(item, extent) for item in self._scratch)

    def at(self, extent: Extent) -> PlacedTensor | None:
        """The tensor that a range is, but for padding after it."""
        begun = self._latest(self._starts == extent[0])
        return next((region for region in begun if 0 <= extent[1] - region.extent[1] < LINE), None)

    def around(self, extent: Extent) -> PlacedTensor | None:
        """The tensor that a range is a part of."""
        return next(self._latest((self._starts <= extent[0]) & (self._ends >= end_of(extent))), None)

    def starts(self, first: int, last: int) -> list[int]:
        """Where tensors begin, of the addresses from the first to the last; latest first."""
        return [tensor.extent[0] for tensor in self._latest((self._starts >= first) & (self._starts <= last))]

    def inside(self, extent: Extent) -> Iterator[PlacedTensor]:
        """Tensors in a range, latest first."""
        return self._latest((self._starts >= extent[0]) & (self._ends <= end_of(extent)))

    def _latest(self, chosen: npt.NDArray[np.bool_]) -> Iterator[PlacedTensor]:
        """Chosen tensors, latest first."""
        return (self._regions[place] for place in np.flatnonzero(chosen)[::-1])


def joined(groups: Sequence[Sequence[Extent]], name: ExportName) -> list[Extent]:
    """The ranges that have been written. Changes near to each other are several if the name has a tensor for
    each, and none that is likelier for all of them together; else one."""
    found: list[Extent] = []
    for group in groups:
        start = group[0][0]
        whole = start, end_of(group[-1]) - start
        likeliest = _rank(whole[1], name)
        is_one = len(group) == 1 or any(not _likely(length, name) for _, length in group)
        is_one = is_one or likeliest < min(_rank(length, name) for _, length in group)
        found += [whole] if is_one else group
    return found


def _rank(length: int, name: ExportName) -> int:
    """Ranks a range's likeliest tensor among those that the name has, by its place."""
    likely = _likely(length, name)
    return name.outputs.index(likely[0]) if likely else len(name.outputs)


def _likely(length: int, name: ExportName) -> list[TensorKind]:
    """What the name has for a range of which that many bytes have changed."""
    return [kind for kind in name.outputs if length <= kind.byte_length < length + LINE]


def completed(change: Extent, operands: Sequence[Extent], name: ExportName, regions: Regions) -> Extent:
    """What has been written where only a part has changed: the rest, such as a row of NaN, was the same.

    It is what a known tensor has left there, since memory without one has the pattern. So the rest is taken
    for written where a tensor of the name, in one binding, begins where another one, or a binding, did. Two
    patterns would tell more, but dispatches would read them."""
    start, end = change[0], end_of(change)
    longer = () if _likely(change[1], name) else [kind.byte_length for kind in name.outputs]
    for length in sorted({length for length in longer if length > change[1]}):
        starts = [first for first, _ in operands] + [_aligned(start)]
        for first in (*regions.starts(end - length, start), *starts):
            parts = (first, start - first), (end, first + length - end)
            if min(parts[0][1], parts[1][1]) < 0 or not any(contains(o, (first, length)) for o in operands):
                continue
            if all(not part[1] or regions.around(part) for part in parts):
                return first, length
    return change


Types = Mapping[int, TensorKind]
"""By number of the binding, as the user says."""


def outputs_of(
    operands: Sequence[Extent], changes: Sequence[Extent], name: ExportName, types: Types, regions: Regions
) -> list[ObservedTensor]:
    """The tensors that have been written, from what has changed: in the order of bindings, and of places in
    them, which is the same wherever memory lies."""
    found: list[ObservedTensor] = []
    expected = name.types[-len(changes) :] if len(changes) < len(name.types) else ()
    placed = sorted(
        (
            max((index for index, operand in enumerate(operands) if contains(operand, change)), default=-1),
            change,
        )
        for change in changes
    )
    for number, (binding, change) in enumerate(placed):
        if binding >= 0 and not any(overlaps(other.extent, change) for other in found):
            element = expected[number] if expected else None
            found.append(_output(binding, operands[binding], change, element, name, types, regions))
    return found


def _output(
    binding: int,
    operand: Extent,
    change: Extent,
    element: ElementType | None,
    name: ExportName,
    types: Types,
    regions: Regions,
) -> ObservedTensor:
    """``element``: what it has if results lie as the name lists them."""
    given = types.get(binding)
    if given is not None:
        start = operand[0] if fits(given, operand[1]) else _aligned(change[0])
        if start + given.byte_length <= end_of(operand):
            return ObservedTensor(binding, (start, given.byte_length), given, GIVEN, "")
    whole = [kind for kind in name.outputs if fits(kind, operand[1])]
    if whole:
        kind = next((kind for kind in whole if kind.element is element), whole[0])
        extent = operand[0], kind.byte_length
        if contains(extent, change):
            return ObservedTensor(binding, extent, kind, NAMED, "")
    start = max(_aligned(change[0]), operand[0])
    length = end_of(change) - start
    likely = _likely(length, name)
    if likely:
        kind = min(likely, key=lambda kind: (kind.byte_length, kind.element is not element))
        if start + kind.byte_length <= end_of(operand):
            return ObservedTensor(binding, (start, kind.byte_length), kind, NAMED, "")
    around = regions.around(change)
    if around is not None and around.source == DECLARED:
        return ObservedTensor(binding, around.extent, around.kind, DECLARED, "")
    flat_kind = name.flat_output((start, length), end_of(operand))
    return _in_a_row(binding, (start, flat_kind.byte_length if flat_kind else length), flat_kind)


def _in_a_row(binding: int, extent: Extent, kind: TensorKind | None) -> ObservedTensor:
    return ObservedTensor(binding, extent, kind, UNKNOWN if kind is None else ELEMENTS_NAMED, "")


SCRATCH: Final = "memory of the call, written by something else than what is known"
"""What made a tensor in memory of the call that no known work has written."""


def inputs_of(
    operands: Sequence[Extent],
    outputs: Sequence[ObservedTensor],
    name: ExportName,
    types: Types,
    regions: Regions,
) -> list[ObservedTensor]:
    """The tensors that may have been read: before what was written is put into ``regions``."""
    written = {output.binding for output in outputs}
    found = []
    for binding, operand in enumerate(operands):
        if binding not in written:
            tensor = _input(binding, operand, outputs, name, types, regions)
            if not tensor.origin and regions.is_scratch(tensor.extent):
                tensor.origin = SCRATCH
            found.append(tensor)
    return found


def _input(
    binding: int,
    operand: Extent,
    outputs: Sequence[ObservedTensor],
    name: ExportName,
    types: Types,
    regions: Regions,
) -> ObservedTensor:
    given = types.get(binding)
    if given is not None and given.byte_length <= operand[1]:
        return ObservedTensor(binding, (operand[0], given.byte_length), given, GIVEN, "")
    region = regions.at(operand)
    if region is None or region.kind is None:
        parts = [each for each in regions.inside(operand) if each.kind is not None]
        named = [
            kind
            for kind in name.inputs
            if fits(kind, operand[1]) and not _is_cut((operand[0], kind.byte_length), (*outputs, *parts))
        ]
        origin = "" if region is None else region.origin
        if named:
            return ObservedTensor(binding, (operand[0], named[0].byte_length), named[0], NAMED, origin)
        if region is None:
            region = _part(operand, outputs, name, regions)
    if region is None:
        around = regions.around(operand)
        if around is None or around.kind is None:
            count = outputs[0].kind.size if outputs and outputs[0].kind is not None else 0
            return _in_a_row(binding, operand, name.flat_input(operand[1], count))
        kind = flat(around.kind.element, operand[1])
        return ObservedTensor(binding, operand, kind, around.source if kind else UNKNOWN, around.origin)
    return ObservedTensor(binding, region.extent, region.kind, region.source, region.origin)


def _is_cut(extent: Extent, tensors: Sequence[ObservedTensor | PlacedTensor]) -> bool:
    """Whether one of these lies in a part of it: then it is a block of several tensors."""
    return any(overlaps(extent, tensor.extent) and extent != tensor.extent for tensor in tensors)


def _part(
    operand: Extent, outputs: Sequence[ObservedTensor], name: ExportName, regions: Regions
) -> PlacedTensor | None:
    """Finds the latest tensor of a shared allocation that is as long as named; or the only one."""
    inside = [
        region
        for region in regions.inside(operand)
        if not any(overlaps(region.extent, output.extent) for output in outputs)
    ]
    lengths = {kind.byte_length for kind in name.inputs}
    fitting = [region for region in inside if region.extent[1] in lengths]
    return fitting[0] if fitting else inside[0] if len(inside) == 1 else None


def _aligned(address: int) -> int:
    return address & -LINE


_ALIGNMENT: Final = 64
"""Tensors in a block begin at multiples of it."""


def place_factors(
    inputs: Sequence[ObservedTensor],
    outputs: Sequence[ObservedTensor],
    operands: Sequence[Extent],
    name: ExportName,
    constants: Sequence[int],
) -> None:
    """Gives inputs, whole blocks of constants, the part that the dispatch's name says. Its constants say it
    too. That is so where there is one way only: as many blocks as places and operands that nothing else
    explains."""
    blocks = [tensor for tensor in inputs if _is_block(tensor, operands)]
    others = [tensor for tensor in (*inputs, *outputs) if tensor not in blocks]
    places = list(constants)
    for tensor in others:
        offset = tensor.extent[0] - operands[tensor.binding][0]
        if offset in places:
            places.remove(offset)
    kinds = _unread(name, [tensor for tensor in others if tensor not in outputs])
    if not blocks or not len(blocks) == len(places) == len(kinds):
        return
    parts = list(zip(blocks, places, kinds, strict=True))
    if all(_fits(tensor, place, kind) for tensor, place, kind in parts):
        for tensor, place, kind in parts:
            tensor.extent = tensor.extent[0] + place, kind.byte_length
            tensor.kind, tensor.source, tensor.offset = kind, NAMED, place


def _is_block(tensor: ObservedTensor, operands: Sequence[Extent]) -> bool:
    is_whole = tensor.extent == operands[tensor.binding]
    return is_whole and tensor.source in (ELEMENTS_NAMED, UNKNOWN) and tensor.origin in ("", READ)


def _unread(name: ExportName, known: Sequence[ObservedTensor]) -> list[TensorKind]:
    """Operands of the product that are none of the known inputs."""
    kinds = list(name.factors)
    for tensor in known:
        found = next((kind for kind in kinds if kind.byte_length == tensor.extent[1]), None)
        if found is not None:
            kinds.remove(found)
    return kinds


def _fits(tensor: ObservedTensor, place: int, kind: TensorKind) -> bool:
    return 0 <= place <= tensor.extent[1] - kind.byte_length and place % _ALIGNMENT == 0
