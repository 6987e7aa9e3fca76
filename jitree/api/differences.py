"""``jitree.diff``: two builds, devices or runtimes side by side, and where they first depart."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from jitree.api.lone_dispatch import LoneDispatch, require_folder, save_reproduction
from jitree.api.sides import (
    FunctionSide,
    ModuleSide,
    Side,
    SideLike,
    arguments_of,
    arrays_of,
    extents_of,
    require_apart,
    side_of,
)  # fmt: skip
from jitree.errors import FailedPreconditionError, InvalidArgumentError, StatusError, folded
from jitree.observe.closeness import FarElement, Tolerance, compare, tolerance
from jitree.observe.departures import ELSEWHERE, Compared, Comparison, Departure, ReadTensor, table
from jitree.observe.lockstep import Meeting, Numbers, Walker
from jitree.observe.makers import Makers
from jitree.observe.observation import Onlooker
from jitree.observe.outlines import Outline, Sketch, align, suspects
from jitree.types import element_type_of

if TYPE_CHECKING:
    from jitree.api.function import Function
    from jitree.observe.tensors import ObservedDispatch

Results = list[np.ndarray[Any, Any]]

_LAST: Final = 1 << 30
"""Numbers of rows of results."""


class Difference:
    """What :func:`diff` has found."""

    def __init__(
        self,
        sides: tuple[Side, Side],
        inputs: Sequence[Any],
        allowed: Tolerance,
        results: tuple[Results, Results],
    ) -> None:
        self._sides = sides
        self._inputs = inputs
        self.tolerance = allowed
        self.results = results
        """Those of both calls."""
        self.rows: list[Compared] = []
        """Tensors that both have made, with error statistics, and results."""
        self.first: Departure | None = None
        """The first departure; None if there is none beyond the tolerance."""
        self.alone: tuple[list[str], list[str]] = ([], [])
        """Dispatches that have no counterpart in the other call."""

    @property
    def equal(self) -> bool:
        return self.first is None

    def table(self) -> str:
        """Error statistics by dispatch."""
        return table(self.rows)

    @folded
    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes a reproduction: the first dispatch that departs with its inputs, of both programs, and a
        script that runs it alone. Programs are called once more for it. FAILED_PRECONDITION where none
        departs, or no dispatch made what departs."""
        require_folder(folder)
        if self.first is None or not self.first.dispatch:
            raise FailedPreconditionError(
                "save: no dispatch departs" if self.first is None else f"save: {self.first.reason}"
            )
        dispatches = []
        for side, ordinal in zip(self._sides, self.first.ordinals, strict=True):
            if isinstance(side, (ModuleSide, FunctionSide)) and ordinal is not None:
                with side.open() as function:
                    dispatches.append(LoneDispatch.of_call(function, self._inputs, ordinal))
        save_reproduction(folder, dispatches, self.tolerance, str(self.first))

    def __str__(self) -> str:
        count = len(self.rows)
        if self.first is None:
            return f"equal ({self.tolerance}): {count} tensors compared"
        departing = sum(row.closeness.differing > 0 for row in self.rows)
        return f"{self.first}\n  {departing} of {count} tensors depart"

    __repr__ = __str__


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
    """Calls two programs with the same arguments and finds the first number in which they depart.

    ``a``, ``b``: the path of a module, ``(path, device)``, ``(path, device, options of the session)``, a
    function of a session, or anything that takes numpy arrays and gives arrays (a numpy function,
    iree.runtime, PyTorch, onnxruntime). ``function``: which one of modules. ``parameters``: of both.

    One program on two devices or tiers is compared dispatch by dispatch, in lock step; two compilations where
    equal tensors appear in both, found by their values in a call before; with what is no program, results
    are. An element is near another if one of ``atol`` (with ``rtol``, relative to ``b``) and ``ulp`` says so;
    without any, if its bits agree. Errors of the calls are raised.
    """
    allowed, inputs = tolerance(atol, rtol, ulp), arguments_of(inputs)
    options = {"parameters": parameters} if parameters else {}
    sides = side_of("a", a, function, options), side_of("b", b, function, options)
    if isinstance(sides[0], (ModuleSide, FunctionSide)) and isinstance(sides[1], (ModuleSide, FunctionSide)):
        return _two_programs(sides[0], sides[1], inputs, allowed)
    return _one_program(sides, inputs, allowed)


# -- two programs ----------------------------------------------------------------------------------------


def _two_programs(
    one: ModuleSide | FunctionSide,
    other: ModuleSide | FunctionSide,
    inputs: Sequence[Any],
    allowed: Tolerance,
) -> Difference:
    comparison = Comparison(allowed, is_one_program=True)
    found = _in_lock_step(one, other, inputs, comparison, (None, None))
    if comparison.mismatch is None and not any(found.alone):
        _name_reader(found, comparison, one, inputs)
        return found
    outlines = Outline(), Outline()
    for side, outline in zip((one, other), outlines, strict=True):
        with side.open() as function:
            _observed(function, (outline,), inputs)
    sketches = outlines[0].sketches, outlines[1].sketches
    pairs, rearranged = align(*sketches)
    numbers = tuple(
        {(pair[side].ordinal, pair[side].output): number for number, pair in enumerate(pairs)}
        for side in (0, 1)
    )
    comparison = Comparison(allowed, is_one_program=False)
    found = _in_lock_step(one, other, inputs, comparison, (numbers[0], numbers[1]))
    if found.first is not None and found.first.dispatch:
        found.first = _pinned(found.first, found.rows, sketches, rearranged)
    for names, outline, ordinals in zip(found.alone, outlines, numbers, strict=True):
        met = {ordinal for ordinal, _ in ordinals}
        others = {sketch.ordinal: sketch.name for sketch in outline.sketches if sketch.ordinal not in met}
        names[:] = [f"{name} (dispatch {ordinal})" for ordinal, name in others.items()]
    return found


def _name_reader(
    found: Difference, comparison: Comparison, one: ModuleSide | FunctionSide, inputs: Sequence[Any]
) -> None:
    """Where a constant departs and all that is made agrees: which dispatch reads the element."""
    first, place = found.first, comparison.constant_place
    if first is None or first is not comparison.constants or place is None or first.ordinal is None:
        return
    from jitree.api.constant_readers import first_reader

    with one.open() as function:
        reader = first_reader(function, inputs, first.ordinal, *place)
    if reader is None:
        found.first = first._replace(reason=f"{first.reason}; it is bound here, who reads it is not known")
        return
    found.first = first._replace(
        dispatch=reader.name,
        other=reader.name,
        ordinals=(reader.ordinal, reader.ordinal),
        reason=f"{first.reason}; this dispatch reads it",
        location=reader.location,
    )


def _pinned(
    first: Departure,
    rows: Sequence[Compared],
    outlines: tuple[list[Sketch], list[Sketch]],
    rearranged: Sequence[tuple[Sketch, Sketch]],
) -> Departure:
    """With the dispatches that may have made it."""
    number = next(row.number for row in rows if row.ordinals == first.ordinals)
    earlier = [row for row in rows if row.number < number]
    agreeing = [max(earlier, key=lambda row: row.number).ordinals] if earlier else []
    pairs = [(a.ordinal, b.ordinal) for a, b in rearranged]
    agreeing += [(a, b) for a, b in pairs if a < (first.ordinals[0] or 0) and b < (first.ordinals[1] or 0)]
    since = max(agreeing, default=(None, None), key=lambda pair: (pair[0] or 0) + (pair[1] or 0))
    text = "dispatches {} and {}".format(*since) if agreeing else "the beginning"
    reason = f"{first.reason}; what both make before agrees, so it is made after {text}"
    return first._replace(reason=f"{reason}: {suspects(outlines, since, first.ordinals)}")


def _in_lock_step(
    one: ModuleSide | FunctionSide,
    other: ModuleSide | FunctionSide,
    inputs: Sequence[Any],
    comparison: Comparison,
    numbers: tuple[Numbers | None, Numbers | None],
) -> Difference:
    meeting = Meeting(comparison.meet)
    walkers = Walker(meeting, 0, numbers[0]), Walker(meeting, 1, numbers[1])
    makers = Makers(), Makers()
    with one.open() as left, other.open() as right:
        require_apart(left, right)
        results = _both([
            lambda: _observed(left, (walkers[0], makers[0]), inputs, lambda: meeting.end(0)),
            lambda: _observed(right, (walkers[1], makers[1]), inputs, lambda: meeting.end(1)),
        ])  # fmt: skip
    found = Difference((one, other), inputs, comparison.allowed, results)
    found.rows, found.first = comparison.rows, comparison.first or comparison.constants
    for names, alone in zip(found.alone, meeting.alone, strict=True):
        names += [alone[number].label for number in sorted(alone)]
    _compare_results(found, makers)
    return found


def _observed(
    function: Function,
    onlookers: Sequence[Onlooker],
    inputs: Sequence[Any],
    after: Callable[[], object] | None = None,
) -> Results:
    """Results of a call that onlookers look at."""
    try:
        with function.session.looked_at(*onlookers):
            given = function(*inputs)
            results = arrays_of(given)
        for onlooker in onlookers:
            if isinstance(onlooker, Makers):
                onlooker.results = [extent and onlooker.of(extent) for extent in extents_of(given)]
        return results
    finally:
        if after is not None:
            after()


def _both(calls: Sequence[Callable[[], Results]]) -> tuple[Results, Results]:
    """Makes two calls at the same time. What the first fails with comes first."""
    outcome: list[Results | BaseException] = []

    def work() -> None:
        try:
            outcome.append(calls[1]())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=copy_context().run, args=(work,), name="jitree-diff")
    thread.start()
    try:
        first = calls[0]()
    except StatusError as error:
        raise error.with_context("of the first program (a)") from error.__cause__
    finally:
        thread.join()
    second = outcome[0]
    if isinstance(second, StatusError):
        raise second.with_context("of the second program (b)")
    if isinstance(second, BaseException):
        raise second
    return first, second


# -- results -----------------------------------------------------------------------------------------------


def _one_program(sides: tuple[Side, Side], inputs: Sequence[Any], allowed: Tolerance) -> Difference:
    """At least one is no program: results are compared, with the dispatches that made them."""
    makers, results = (Makers(), Makers()), []
    for side, maker in zip(sides, makers, strict=True):
        if isinstance(side, (ModuleSide, FunctionSide)):
            with side.open() as function:
                results.append(_observed(function, (maker,), inputs))
        else:
            results.append(arrays_of(side(*inputs)))
    found = Difference(sides, inputs, allowed, (results[0], results[1]))
    _compare_results(found, makers)
    return found


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
        closeness = compare(left, right, left.shape, found.tolerance)
        names = made[0].name if made[0] else "", made[1].name if made[1] else ""
        ordinals = made[0].ordinal if made[0] else None, made[1].ordinal if made[1] else None
        row = element_type_of(left.dtype)
        kind = "x".join([*map(str, left.shape), row.name if row else left.dtype.name])
        found.rows.append(Compared(_LAST + number, names, ordinals, f"result {number}", kind, closeness))
        if closeness.first is not None:
            departures.append(_departing(made, names, ordinals, f"result {number}", kind, closeness.first))
    if found.first is None and departures:
        found.first = min(departures, key=_time_made)


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
