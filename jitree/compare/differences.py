"""Compares two builds, devices or runtimes up to their first difference: ``jitree.diff``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from jitree.base.events import DISPATCH
from jitree.compare.lone_dispatch import LoneDispatch, require_folder, save_reproduction
from jitree.compare.peers import Peer
from jitree.compare.sides import (
    ProgramSide,
    Results,
    Side,
    SideLike,
    arguments_of,
    both,
    observed,
    require_apart,
    side_of,
)
from jitree.errors import FailedPreconditionError, InvalidArgumentError, folded
from jitree.observe.fingerprints import CallFingerprints, Pair, PerSide, align, related, suspects, used_by
from jitree.observe.first_difference import ELSEWHERE, Compared, Comparison, Departure, ReadTensor, table
from jitree.observe.lockstep import LockstepCall, Meeting, Numbers
from jitree.observe.observation import Dispatches, Makers
from jitree.observe.tolerance import FarElement, Tolerance, compare, tolerance
from jitree.types import element_type_of

if TYPE_CHECKING:
    import numpy as np

    from jitree.observe.tensors import ObservedDispatch

_NAMES: Final = "the first program (a)", "the second program (b)"
_LAST: Final = 1 << 30
"""Numbers of rows of results."""


class Difference:
    """What :func:`jitree.diff` has found. Made by it; print it, or ask :attr:`equal`.

    ``first`` is the first departure, ``rows`` has all tensors with shapes and errors.

    >>> found = jitree.diff(np.sin, lambda x: np.sin(x) + [0, 1e-3], inputs=[np.ones(2)])
    >>> found.equal, found.first.coordinate
    (False, (1,))
    """

    def __init__(
        self,
        sides: tuple[Side, Side],
        inputs: Sequence[Any],
        allowed: Tolerance,
        results: tuple[Results, Results],
    ) -> None:
        self.sides = sides
        """The two programs, or what stands for one."""
        self._inputs = inputs
        self.tolerance = allowed
        """How far elements may be from each other: ``atol``, ``rtol``, ``ulp``."""
        self.results = results
        """The results of both calls."""
        self.rows: list[Compared] = []
        """Tensors that both have made, with error statistics, and results."""
        self.first: Departure | None = None
        """The first departure; None if there is none beyond the tolerance."""
        self.counterpart: np.ndarray[Any, Any] | None = None
        """What another runtime has in place of the output of a dispatch that departs first."""
        self.alone: tuple[list[str], list[str]] = ([], [])
        """Dispatches that have no counterpart in the other call."""
        self.dispatches: Sequence[ObservedDispatch] = ()
        """All that the first program has done, if it is one."""

    @property
    def equal(self) -> bool:
        """Whether no dispatch and no result departs."""
        return self.first is None

    def table(self) -> str:
        """Error statistics by dispatch, as lines of text."""
        return table(self.rows)

    @folded
    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes a reproduction: the first dispatch that departs, and a script that runs it alone.

        ``folder``: a path, which gets the dispatch with its inputs, of both programs. Programs are called
        once more for it. FAILED_PRECONDITION where none departs, or no dispatch made what departs,
        UNAVAILABLE where the folder cannot be written.
        """
        require_folder(folder)
        if self.first is None or self.first.ordinals == (None, None):
            raise FailedPreconditionError(
                "save: no dispatch departs" if self.first is None else f"save: {self.first.reason}"
            )
        dispatches = []
        for side, ordinal in zip(self.sides, self.first.ordinals, strict=True):
            if not isinstance(side, Peer) and ordinal is not None:
                with side.open() as function:
                    dispatches.append(LoneDispatch.of_call(function, self._inputs, ordinal))
        if self.counterpart is not None and dispatches:
            dispatches[0].expect(self.counterpart, self.first.operand)
        save_reproduction(folder, dispatches, self.tolerance, str(self.first))

    def __str__(self) -> str:
        count = len(self.rows)
        if self.first is None:
            return f"equal ({self.tolerance}): {count} tensors compared"
        departing = sum(row.closeness.differing > 0 for row in self.rows)
        return f"{self.first}\n  {departing} of {count} tensors depart"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from jitree.base.page import notebook
        from jitree.observe.graph import dispatch_pieces

        return notebook("difference", dispatch_pieces(self.dispatches, found=self))


@folded
def diff(
    a: SideLike,
    b: SideLike,
    function: str | None = None,
    inputs: Sequence[Any] = (),
    *,
    atol: float | None = None,
    rtol: float | None = None,
    ulp: float | None = None,
    parameters: Iterable[Any] = (),
) -> Difference:
    """Calls two programs with the same arguments and finds the first number that differs.

    ``a``, ``b``: the path of a module, ``(path, device)``, ``(path, device, options of the session)``, a
    function of a session, the path of an ONNX model, a module of PyTorch, or anything that takes such
    arguments and gives arrays (a numpy function, iree.runtime). ``function``: which one of modules.
    ``inputs``: arguments of the call. ``parameters``: of both.

    One program on two devices or tiers is compared dispatch by dispatch, in lock step; two compilations where
    equal tensors appear in both, found by their values in a call before; with what is no program, results
    are, and where these depart what it shows of its computation, by values as well. An element is near
    another if one of ``atol`` (with ``rtol``, relative to ``b``) and ``ulp`` says so; without any, if bits
    agree.

    NOT_FOUND for a missing file, INVALID_ARGUMENT for what is no program; errors of the calls are raised.

    >>> found = jitree.diff(
    ...     "examples/digits/digits.vmvx.vmfb",
    ...     ("examples/digits/digits.vmvx.vmfb", "local-sync"),
    ...     inputs=[np.ones((8, 8), np.float32)],
    ... )
    >>> found.equal
    True
    """
    allowed, inputs = tolerance(atol, rtol, ulp), arguments_of(inputs)
    options = {"parameters": parameters} if parameters else {}
    sides = side_of("a", a, function, options), side_of("b", b, function, options)
    if isinstance(sides[0], Peer) or isinstance(sides[1], Peer):
        return _one_program(sides, inputs, allowed)
    return _two_programs(sides[0], sides[1], inputs, allowed)


# -- two programs ----------------------------------------------------------------------------------------


def _two_programs(
    one: ProgramSide, other: ProgramSide, inputs: Sequence[Any], allowed: Tolerance
) -> Difference:
    unread: set[tuple[int, int]] = set()
    while True:
        comparison = Comparison(allowed, True, unread)
        found = _in_lock_step((one, other), inputs, comparison, (None, None))
        if comparison.mismatch is not None or any(found.alone):
            break
        place = _unread(found, comparison, one, inputs)
        if place is None:
            _name_reader(found, comparison, one, inputs)
            return found
        unread.add(place)
    per_side = _fingerprints((one, other), inputs)
    return _aligned((one, other), inputs, allowed, per_side, *align(*per_side))


def _fingerprints(sides: tuple[Side, Side], inputs: Sequence[Any]) -> PerSide:
    """What both make, from a call of each."""
    per_side = CallFingerprints(), CallFingerprints()
    for side, recorder in zip(sides, per_side, strict=True):
        with side.open() as opened:
            observed(opened, (recorder,), inputs)
    return per_side[0].fingerprints, per_side[1].fingerprints


def _aligned(
    sides: tuple[Side, Side],
    inputs: Sequence[Any],
    allowed: Tolerance,
    per_side: PerSide,
    pairs: Sequence[Pair],
    rearranged: Sequence[Pair],
) -> Difference:
    """Compares pairs of outputs in lock step, rearranged where it can be told how."""
    sure = [(a, b) for a, b in rearranged if a.has_elements_of(b)]
    unsure = [(a, b) for a, b in rearranged if not a.has_elements_of(b)]
    pairs = sorted((*pairs, *unsure), key=lambda pair: (pair[0].ordinal, pair[0].output))
    numbers = tuple(
        {(pair[side].ordinal, pair[side].output): number for number, pair in enumerate(pairs)}
        for side in (0, 1)
    )
    comparison = Comparison(allowed, is_one_program=False)
    comparison.rearranged = {pairs.index(pair) for pair in unsure}
    found = _in_lock_step(sides, inputs, comparison, (numbers[0], numbers[1]))
    if found.first is not None and found.first.ordinals != (None, None):
        found.first = _pinned(found.first, found.rows, per_side, sure)
    for names, fingerprints, ordinals in zip(found.alone, per_side, numbers, strict=True):
        met = {ordinal for ordinal, _ in ordinals}
        others = {item.ordinal: item.label for item in fingerprints if item.ordinal not in met}
        names[:] = others.values()
    return found


def _unread(
    found: Difference, comparison: Comparison, one: ProgramSide, inputs: Sequence[Any]
) -> tuple[int, int] | None:
    """Finds a constant whose differing bytes nobody reads, where all that is made agrees: the dispatch that
    it is bound to first, and its binding there. None where that is not so."""
    first, where = found.first, comparison.constant_place
    if first is None or first is not comparison.constants or where is None or first.ordinal is None:
        return None
    from jitree.compare.lone_dispatch import is_unread

    with one.open() as function:
        is_so = is_unread(function, inputs, first.ordinal, where[0], comparison.constant_changes)
    return (first.ordinal, where[0]) if is_so else None


def _name_reader(found: Difference, comparison: Comparison, one: ProgramSide, inputs: Sequence[Any]) -> None:
    """Where a constant departs and all that is made agrees: which dispatch reads the element."""
    first, where = found.first, comparison.constant_place
    if first is None or first is not comparison.constants or where is None or first.ordinal is None:
        return
    from jitree.compare.lone_dispatch import first_reader

    with one.open() as function:
        reader = first_reader(function, inputs, first.ordinal, *where)
    if reader is None:
        found.first = first._replace(reason=f"{first.reason}; it is bound here; its reader is not known")
        return
    dispatch = reader.dispatch
    found.first = first._replace(
        dispatch=dispatch.name,
        other=dispatch.name,
        ordinals=(dispatch.ordinal, dispatch.ordinal),
        reason=f"{first.reason}; this dispatch reads it",
        location=dispatch.location,
    )
    if reader.operand:
        place = first.place._replace(coordinate=reader.coordinate)
        found.first = found.first._replace(operand=reader.operand, type=reader.type, place=place)


def _pinned(
    first: Departure, rows: Sequence[Compared], per_side: PerSide, rearranged: Sequence[Pair]
) -> Departure:
    """The difference with the dispatches that may have made it."""
    number = next(row.number for row in rows if row.ordinals == first.ordinals)
    earlier = [row for row in rows if row.number < number]
    agreeing = [max(earlier, key=lambda row: row.number).ordinals] if earlier else []
    pairs = [(a.ordinal, b.ordinal) for a, b in rearranged]
    agreeing += [(a, b) for a, b in pairs if a < (first.ordinals[0] or 0) and b < (first.ordinals[1] or 0)]
    since = max(agreeing, default=(None, None), key=lambda pair: (pair[0] or 0) + (pair[1] or 0))
    text = _place(since, per_side) if agreeing else "the beginning"
    reason = f"{first.reason}; what both make before agrees, so it is made after {text}"
    return first._replace(reason=f"{reason}: {suspects(per_side, since, first.ordinals)}")


def _place(ordinals: tuple[int | None, int | None], per_side: PerSide) -> str:
    words = [next((item.what for item in fingerprints), DISPATCH) for fingerprints in per_side]
    if words[0] == words[1] == DISPATCH:
        return "dispatches {} and {}".format(*ordinals)
    return " and ".join(f"{word} {ordinal}" for word, ordinal in zip(words, ordinals, strict=True))


def _in_lock_step(
    sides: tuple[Side, Side],
    inputs: Sequence[Any],
    comparison: Comparison,
    numbers: tuple[Numbers | None, Numbers | None],
) -> Difference:
    meeting = Meeting(comparison.meet)
    lockstep = LockstepCall(meeting, 0, numbers[0]), LockstepCall(meeting, 1, numbers[1])
    makers, shown = (Makers(), Makers()), Dispatches()
    onlookers = (lockstep[0], makers[0], shown), (lockstep[1], makers[1])
    with sides[0].open() as left, sides[1].open() as right:
        require_apart(left, right)
        calls = (
            (
                _NAMES[0],
                lambda: observed(left, onlookers[0], inputs, lambda: meeting.end(0)),
            ),
            (_NAMES[1], lambda: observed(right, onlookers[1], inputs, lambda: meeting.end(1))),
        )
        if isinstance(left, Peer):  # the stack of a program's thread tells who calls
            results = both(calls[1], calls[0])[::-1]
        else:
            results = both(*calls)
    found = Difference(sides, inputs, comparison.allowed, results)
    found.rows, found.first = comparison.rows, comparison.first or comparison.constants
    found.counterpart, found.dispatches = comparison.counterpart, shown.done
    for names, alone in zip(found.alone, meeting.alone, strict=True):
        names += [alone[number].label for number in sorted(alone)]
    _compare_results(found, makers)
    return found


# -- results -----------------------------------------------------------------------------------------------


def _one_program(sides: tuple[Side, Side], inputs: Sequence[Any], allowed: Tolerance) -> Difference:
    """At least one is no program: results are compared, with the dispatches that made them. Where they
    depart, what both show is compared."""
    makers, results = (Makers(), Makers()), []
    for side, maker in zip(sides, makers, strict=True):
        with side.open() as opened:
            results.append(observed(opened, (maker,), inputs))
    found = Difference(sides, inputs, allowed, (results[0], results[1]))
    _compare_results(found, makers)
    return found if found.first is None else _narrowed(found, found.first, inputs)


def _narrowed(found: Difference, first: Departure, inputs: Sequence[Any]) -> Difference:
    sides, per_side = found.sides, _fingerprints(found.sides, inputs)
    for name, side, fingerprints in zip("ab", sides, per_side, strict=True):
        if not fingerprints:
            if isinstance(side, Peer) and not all(isinstance(one, Peer) for one in sides):
                why = f"{name} shows nothing between arguments and results: {side.nothing_shown}"
                found.first = first._replace(reason=f"{first.reason}; {why}")
            return found
    pairs, rearranged = align(related(*per_side), related(*per_side[::-1]))
    narrowed = _aligned(sides, inputs, found.tolerance, per_side, pairs, rearranged)
    kept = _unrefuted(pairs, narrowed.rows, per_side)
    if len(kept) < len(pairs):
        narrowed = _aligned(sides, inputs, found.tolerance, per_side, kept, rearranged)
    _forget_numbers(narrowed)
    return narrowed


def _unrefuted(pairs: Sequence[Pair], rows: Sequence[Compared], per_side: PerSide) -> Sequence[Pair]:
    """Without tensors that depart though what is made of them agrees: they are not the same one, or the
    difference does not matter."""
    agreeing = [pairs[row.number] for row in rows if row.number < len(pairs) and not row.closeness.differing]
    used = [
        used_by({pair[side].ordinal for pair in agreeing}, fingerprints)
        for side, fingerprints in enumerate(per_side)
    ]
    departing = {row.number for row in rows if row.closeness.differing}
    return [
        (a, b)
        for number, (a, b) in enumerate(pairs)
        if not (number in departing and (a.ordinal in used[0] or b.ordinal in used[1]))
    ]


def _forget_numbers(found: Difference) -> None:
    """Only dispatches have ordinals."""

    def of_dispatches(ordinals: tuple[int | None, int | None]) -> tuple[int | None, int | None]:
        one, other = (
            None if isinstance(side, Peer) else number
            for side, number in zip(found.sides, ordinals, strict=True)
        )
        return one, other

    found.rows = [row._replace(ordinals=of_dispatches(row.ordinals)) for row in found.rows]
    if found.first is not None:
        found.first = found.first._replace(ordinals=of_dispatches(found.first.ordinals))


def _compare_results(found: Difference, makers: tuple[Makers, Makers]) -> None:
    """Results come last: they are the first departure only where no dispatch is, and then the one among them
    that was made first."""
    departures = list[Departure]()
    one, other = found.results
    if len(one) != len(other):
        raise InvalidArgumentError(f"a gives {len(one)} results and b {len(other)}: they cannot be compared")
    for number, (left, right) in enumerate(zip(one, other, strict=True)):
        if _without_ones(left.shape) != _without_ones(right.shape):
            raise InvalidArgumentError(
                f"result {number} has the shape {left.shape} in a and {right.shape} in b: no two to compare"
            )
        made = [maker.results[number] if maker.results else None for maker in makers]
        if all(isinstance(side, Peer) and side.is_memory for side in found.sides):
            comparison = Comparison(found.tolerance, is_one_program=False)
            _, closeness, order = comparison.counterparts((left, right, left.shape))
        else:
            closeness, order = compare(left, right, left.shape, found.tolerance), ""
        names = made[0].name if made[0] else "", made[1].name if made[1] else ""
        ordinals = made[0].ordinal if made[0] else None, made[1].ordinal if made[1] else None
        row = element_type_of(left.dtype)
        kind = "x".join([*map(str, left.shape), row.name if row else left.dtype.name])
        kind += f", {order}" if order else ""
        found.rows.append(Compared(_LAST + number, names, ordinals, f"result {number}", kind, closeness))
        if closeness.first is not None:
            departures.append(_departing(made, names, ordinals, f"result {number}", kind, closeness.first))
    if found.first is None and departures:
        found.first = min(departures, key=_time_made)
        number = int(found.first.operand.rpartition(" ")[2])
        peers = [n for n, side in enumerate(found.sides) if isinstance(side, Peer)]
        found.counterpart = found.results[peers[0]][number] if peers else None
        if len(peers) == len(found.sides):
            found.first = found.first._replace(reason="neither of the two is a program")


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Dimensions of 1 move no element."""
    return tuple(size for size in shape if size != 1)


def _time_made(departure: Departure) -> int:
    return next((ordinal for ordinal in departure.ordinals if ordinal is not None), _LAST)


def _departing(
    made: Sequence[ObservedDispatch | None],
    names: tuple[str, str],
    ordinals: tuple[int | None, int | None],
    operand: str,
    kind: str,
    place: FarElement,
) -> Departure:
    maker = made[0] or made[1]
    if maker is None:
        return Departure(*names, ordinals, operand, kind, place, (), f"it comes from {ELSEWHERE}", "", "")
    reads = tuple(
        ReadTensor(number, tensor.type, tensor.origin or ELSEWHERE, None, False)
        for number, tensor in enumerate(maker.inputs)
    )
    reason = "the dispatch that made the result; nothing that was compared before it departs"
    return Departure(*names, ordinals, operand, kind, place, reads, reason, maker.location, maker.call_site)
