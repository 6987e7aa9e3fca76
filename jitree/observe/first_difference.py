"""Compares two calls tensor by tensor, up to the first difference and its reason."""

from __future__ import annotations

from collections.abc import Sequence, Set
from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from jitree.base.records import NamedTuple
from jitree.observe.export_names import TensorKind
from jitree.observe.layouts import MANY, MOST, find, nearness
from jitree.observe.regions import overlaps
from jitree.observe.tensors import ARGUMENT, VALUE, elements_of, has_elements
from jitree.observe.tolerance import Closeness, FarElement, Tolerance, changes_of_bits, compare

if TYPE_CHECKING:
    import numpy.typing as npt

    from jitree.observe.lockstep import Arrival
    from jitree.observe.tensors import ObservedDispatch, ObservedTensor

ELSEWHERE: Final = "no dispatch (constants, parameters, copies or the host)"
"""What made a tensor, where no dispatch did."""
UNKNOWN_ORDER: Final = "order unknown"
_EXPLAINED: Final = {
    UNKNOWN_ORDER: "values do not tell whether both have their elements in one order, so the two that are "
    "shown may be no counterparts"
}
_MOST_MOVED: Final = 64
"""Elements of a constant that differ, of which it is found out whether a dispatch only moves them."""
_LONGEST: Final = 52
"""Characters of a name in a table."""


class Compared(NamedTuple):
    """One tensor that both calls have made."""

    number: int
    names: tuple[str, str]
    ordinals: tuple[int | None, int | None]
    """The ordinals of the dispatches."""
    operand: str
    """``output 0``"""
    type: str
    closeness: Closeness


class ReadTensor(NamedTuple):
    """What the first dispatch that departs has read."""

    number: int
    type: str
    origin: str
    """What made it in the first call."""
    first: FarElement | None
    """Where it departs; None where it does not."""
    is_known: bool
    """False where the two could not be compared."""

    def __str__(self) -> str:
        if not self.is_known:
            return f"input {self.number} ({self.type}) from {self.origin}: not compared"
        how = "agrees" if self.first is None else f"departs {self.first}"
        return f"input {self.number} ({self.type}) from {self.origin} {how}"


class Departure(NamedTuple):
    """The first tensor beyond the tolerance."""

    dispatch: str
    """The full name of the dispatch that made it in the first call; empty for a result that none made."""
    other: str
    """The full name of the dispatch that made it in the second call."""
    ordinals: tuple[int | None, int | None]
    operand: str
    """``output 0``, ``input 1`` or ``result 0``"""
    type: str
    place: FarElement
    inputs: tuple[ReadTensor, ...]
    reason: str
    location: str
    call_site: str

    @property
    def ordinal(self) -> int | None:
        return self.ordinals[0]

    @property
    def coordinate(self) -> tuple[int, ...]:
        return self.place.coordinate

    @property
    def values(self) -> tuple[Any, Any]:
        return self.place.values

    @property
    def bits(self) -> tuple[str, str]:
        return self.place.bits

    def __str__(self) -> str:
        names = dict.fromkeys(
            name if ordinal is None else f"{name} (dispatch {ordinal})"
            for name, ordinal in zip((self.dispatch, self.other), self.ordinals, strict=True)
            if name
        )
        made = f"{' and '.join(names)}: " if names else ""
        where = "".join(f"\n  {text}" for text in (self.location, self.call_site) if text)
        reads = "".join(f"\n  {read}" for read in self.inputs)
        return f"{made}{self.operand} ({self.type}) departs {self.place}\n  {self.reason}{reads}{where}"


class Comparison:
    """Compares what two calls bring to their meetings."""

    def __init__(
        self, allowed: Tolerance, is_one_program: bool, unread: Set[tuple[int, int]] = frozenset()
    ) -> None:
        """``is_one_program``: dispatches meet by their names and ordinals. ``unread``: ordinals and bindings
        of what differs where nobody reads it."""
        self.allowed = allowed
        self._is_one_program = is_one_program
        self.rows: list[Compared] = []
        self.first: Departure | None = None
        self.rearranged: Set[int] = frozenset()
        """Meetings of tensors whose elements seem to be in another order: they are compared where it can be
        told how."""
        self.mismatch: tuple[str, str] | None = None
        """Names of the first dispatches of one number that are not the same."""
        self._number = -1
        self._has_reader = False
        self._movers: set[str] = set()
        """Dispatches that have only moved the constants that depart, as long as ``first`` is one of them."""
        self._met: dict[str, FarElement | None] = {}
        """Labels of the dispatches that were compared, and where the first output departs."""
        self.counterpart: npt.NDArray[Any] | None = None
        """A copy of what another runtime has in place of the output that departs first."""
        self._constants: set[tuple[object, object]] = set()
        self.constants: Departure | None = None
        """The first departure in what no dispatch made, though what is made of it may agree."""
        self.constant_place: tuple[int, range] | None = None
        """… its binding, and the bytes of the element there."""
        self.constant_changes: Sequence[int] = ()
        """… all bytes there that differ."""
        self._unread = unread

    def meet(self, number: int, one: Arrival, other: Arrival) -> bool:
        """Both wait. As :data:`jitree.observe.lockstep.Compare`."""
        a, b = one.dispatch, other.dispatch
        if self._is_one_program and (a.name != b.name or len(one.tensors) != len(other.tensors)):
            self.mismatch = a.label, b.label
            return False
        for left, right in zip(one.tensors, other.tensors, strict=True):
            given = paired(left, right)
            if given is None:
                continue
            pair, closeness, order = self.counterparts(given)
            if order == UNKNOWN_ORDER and number in self.rearranged:
                continue
            operand, kind = f"output {a.outputs.index(left)}", _type(left, right)
            names, ordinals = (a.name, b.name), (a.ordinal, b.ordinal)
            shown = f"{kind}, {order}" if order else kind
            self.rows.append(Compared(number, names, ordinals, operand, shown, closeness))
            if closeness.first is not None and (self.first is None or number < self._number or self._movers):
                found = self._departure(a, b, operand, kind, closeness.first)
                if order:
                    found = found._replace(reason=f"{_EXPLAINED.get(order, order)}; {found.reason}")
                self._depart(number, found, closeness.differing <= _MOST_MOVED and self._moves(a, b, pair))
                if a.what != b.what:
                    self.counterpart = np.array(pair[a.what != VALUE]).reshape(pair[2])
            for dispatch in (a, b):
                self._met[dispatch.label] = self._met.get(dispatch.label) or closeness.first
        self._name_reader(a)
        if self._is_one_program and self.first is None and self.constants is None:
            self._compare_constants(a, b)
        return True

    def counterparts(self, given: Pairing) -> tuple[Pairing, Closeness, str]:
        """Pairs two tensors place by place, with how far they are apart. It says what was done for that, or
        that it is not known whether they are so: other builds may keep theirs in another layout."""
        closeness = compare(*given, self.allowed)
        left, right, shape = given
        if closeness.first is None or self._is_one_program:
            return given, closeness, ""
        near = nearness(left, right)
        if near >= MOST:
            return given, closeness, ""
        for side, plain, packed in (("b", left, right), ("a", right, left)):
            layout = find(plain, packed, shape)
            unpacked = None if layout is None else layout.unpacked(packed, shape)
            if unpacked is not None and nearness(plain, unpacked) > near:
                pair = (left, unpacked, shape) if side == "b" else (unpacked, right, shape)
                return pair, compare(*pair, self.allowed), f"unpacked: {side} has it {layout}"
        return given, closeness, "" if near >= MANY else UNKNOWN_ORDER

    def _depart(self, number: int, found: Departure, is_moved: bool) -> None:
        """Lets a constant depart at the dispatch that first computes with it, not moves."""
        if is_moved:
            found = found._replace(reason=f"{found.reason}; it only moves that, what is made of it agrees")
            self._movers.add(f"{found.dispatch} (dispatch {found.ordinal})")
            if self.first is not None and number > self._number:
                return
        elif self.first is not None and number > self._number:
            by = ", ".join(sorted(self._movers))
            found = found._replace(reason=f"{found.reason}; moved by {by}: {self.first.place}")
        if not is_moved:
            self._movers.clear()
        self.first, self._number = found, number

    def _name_reader(self, a: ObservedDispatch) -> None:
        """Which dispatch gets a moved constant, though what it makes may agree."""
        if self.first is None or self._has_reader or not self._movers or a.label in self._movers:
            return
        self._has_reader = any(tensor.origin in self._movers for tensor in a.bound())
        if self._has_reader:
            reason = f"{self.first.reason}; {a.label} is the first that may read it"
            self.first = self.first._replace(reason=reason)

    def _moves(self, a: ObservedDispatch, b: ObservedDispatch, made: Pairing) -> bool:
        """Tells whether all departures in a tensor are in what no dispatch has made."""
        if not self._is_one_program:
            return False
        read: set[tuple[bytes, bytes]] = set()
        for left, right in counterparts(a, b, True):
            is_constant = not left.origin or left.origin in self._movers
            if right is not None and is_constant and not is_overwritten(left, a):
                pair = paired(left, right)
                read |= changes_of_bits(*pair[:2], _MOST_MOVED) if pair else set()
        return changes_of_bits(*made[:2], _MOST_MOVED) <= read

    def _departure(
        self, a: ObservedDispatch, b: ObservedDispatch, operand: str, kind: str, place: FarElement
    ) -> Departure:
        reads = self._reads(a, b) if a.what == b.what else self._reads_of(b if a.what == VALUE else a)
        departing = [read for read in reads if read.first is not None]
        if departing:
            reason = "its inputs depart already: " + ", ".join(f"input {read.number}" for read in departing)
        elif all(read.is_known for read in reads) and reads:
            reason = "it is made here: its inputs agree"
        else:
            reason = "no input that could be compared departs"
        return Departure(
            a.name,
            b.name,
            (a.ordinal, b.ordinal),
            operand,
            kind,
            place,
            reads,
            reason,
            a.location or b.location,
            a.call_site or b.call_site,
        )

    def _reads_of(self, dispatch: ObservedDispatch) -> tuple[ReadTensor, ...]:
        """Tells inputs by the dispatch that made them. Of values that another runtime shows it is not known
        what they are made of."""
        reads = []
        for number, tensor in enumerate(dispatch.inputs):
            is_known = tensor.origin in self._met or tensor.origin.startswith(ARGUMENT)
            place = self._met.get(tensor.origin)
            reads.append(ReadTensor(number, tensor.type, tensor.origin or ELSEWHERE, place, is_known))
        return tuple(reads)

    def _reads(self, a: ObservedDispatch, b: ObservedDispatch) -> tuple[ReadTensor, ...]:
        reads = []
        for number, (left, right) in enumerate(counterparts(a, b, self._is_one_program)):
            pair = None if right is None or is_overwritten(left, a) else paired(left, right)
            _, closeness, order = (None, None, "") if pair is None else self.counterparts(pair)
            is_known = closeness is not None and order != UNKNOWN_ORDER
            place = closeness.first if closeness is not None and is_known else None
            reads.append(ReadTensor(number, left.type, left.origin or ELSEWHERE, place, is_known))
        return tuple(reads)

    def _compare_constants(self, a: ObservedDispatch, b: ObservedDispatch) -> None:
        for number, (left, right) in enumerate(counterparts(a, b, True)):
            if right is None or left.origin or right.origin or (left.extent, right.extent) in self._constants:
                continue
            self._constants.add((left.extent, right.extent))
            if (a.ordinal, left.binding) in self._unread:
                continue
            pair = None if is_overwritten(left, a) else paired(left, right)
            place = None if pair is None else compare(*pair, self.allowed).first
            if place is not None:
                self.constants = Departure(
                    a.name, b.name, (a.ordinal, b.ordinal), f"input {number}", left.type, place, (),
                    f"it comes from {ELSEWHERE}; what dispatches make agrees", a.location, a.call_site,
                )  # fmt: skip
                size = (len(place.bits[0]) - 2) // 2
                number = int(np.ravel_multi_index(place.coordinate, pair[2])) if pair and pair[2] else 0
                begin = (left.offset or 0) + number * size
                self.constant_place = left.binding, range(begin, begin + size)
                self.constant_changes = _changed_bytes(*pair[:2], left.offset or 0) if pair else ()
                return


def _changed_bytes(one: npt.NDArray[Any], other: npt.NDArray[Any], start: int) -> Sequence[int]:
    """Places of bytes that differ, counted from a start on."""
    left, right = (np.ascontiguousarray(each).reshape(-1).view(np.uint8) for each in (one, other))
    return (np.flatnonzero(left != right) + start).tolist() if left.size == right.size else ()


def counterparts(
    a: ObservedDispatch, b: ObservedDispatch, is_one_program: bool
) -> Sequence[tuple[ObservedTensor, ObservedTensor | None]]:
    """Inputs of two dispatches that are the same: by number of the binding, else by their types (another
    build may keep its tensors in another layout)."""
    if is_one_program:
        by_binding = {tensor.binding: tensor for tensor in b.inputs}
        return [(tensor, by_binding.get(tensor.binding)) for tensor in a.inputs]
    left = [tensor for tensor in b.inputs if tensor.kind is not None]
    found: list[tuple[ObservedTensor, ObservedTensor | None]] = []
    for tensor in a.inputs:
        same = next((one for one in left if one.kind == tensor.kind), None)
        if same is not None:
            left.remove(same)
        found.append((tensor, same))
    return found


def is_overwritten(tensor: ObservedTensor, dispatch: ObservedDispatch) -> bool:
    """Whether the dispatch has written to what it read: several bindings may be one allocation."""
    return any(overlaps(tensor.extent, output.extent) for output in dispatch.outputs)


Pairing = tuple["npt.NDArray[Any]", "npt.NDArray[Any]", tuple[int, ...]]


def paired(one: ObservedTensor, other: ObservedTensor) -> Pairing | None:
    """Elements of two tensors and the shape of coordinates, if they have as many. Where only one type is
    known both have it; where bytes are all that is known, those that both have are compared."""
    left, right = one.array, other.array
    if left is None or right is None:
        return None
    if one.kind is None and other.kind is None:
        length = min(left.size, right.size)
        return left[:length], right[:length], (length,)
    if one.kind is None:
        left = _as_type(left, other.kind)
    if other.kind is None:
        right = _as_type(right, one.kind)
    if left is None or right is None or left.size != right.size:
        return None
    shapes = sorted((left.shape, right.shape), key=len)
    return left, right, shapes[-1] if prod(shapes[-1]) == left.size else (left.size,)


def _as_type(data: npt.NDArray[Any], kind: TensorKind | None) -> npt.NDArray[Any] | None:
    if kind is None or not has_elements(kind.element) or kind.byte_length > data.nbytes:
        return None
    return elements_of(data.reshape(-1)[: kind.byte_length], kind.element, kind.size).reshape(kind.shape)


def _type(one: ObservedTensor, other: ObservedTensor) -> str:
    return one.type if one.kind is not None or other.kind is None else other.type


def table_lines(rows: Sequence[Compared]) -> list[tuple[str, ...]]:
    """A header and a line each."""
    head = ("#", "dispatch", "tensor", "differing", "max abs", "max rel", "max ulp", "rms")
    return [head, *(_line(row) for row in sorted(rows, key=lambda row: row.number))]


def table(rows: Sequence[Compared]) -> str:
    """Error statistics, a line each."""
    lines = table_lines(rows)
    head = lines[0]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _line(row: Compared) -> tuple[str, ...]:
    name, other = row.names
    ordinal, second = row.ordinals
    numbered = (ordinal, second) if ordinal != second else (ordinal,)
    number = "|".join("-" if one is None else str(one) for one in numbered)
    if other != name:
        name = f"{name[: _LONGEST // 2]}|{other[: _LONGEST // 2]}"
    of = row.closeness
    numbers = (f"{value:.3g}" for value in (of.max_abs, of.max_rel, of.max_ulp, of.rms))
    differing = f"{of.differing} of {of.size}"
    return (number, name[:_LONGEST], f"{row.operand} {row.type}", differing, *numbers)
