"""Runs two calls in lock step. Each waits until a tensor of both has been compared.

So nothing has to be kept. A call that comes to a tensor early, because its device executes in another order,
leaves a copy of it and goes on: what the other waits for must come before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from jitree.base.events import DISPATCH
from jitree.base.finalizers import ReentrantLock
from jitree.observe.observation import Onlooker

if TYPE_CHECKING:
    from jitree.observe.tensors import ObservedDispatch, ObservedTensor

Tensors = tuple["ObservedTensor", ...]
Compare = Callable[[int, "Arrival", "Arrival"], bool]
"""Is told the number of the meeting, and what both bring; False ends all meetings."""


class Arrival:
    """What a call brings to a meeting."""

    def __init__(self, dispatch: ObservedDispatch, tensors: Tensors) -> None:
        self.dispatch = dispatch
        self.tensors = tensors
        self.is_met = False

    def keep(self) -> Arrival:
        for tensor in self.tensors:
            tensor.keep()
        return self


class Meeting:
    """Has two calls meet. ``compare`` is called while both wait, one at a time."""

    def __init__(self, compare: Compare) -> None:
        self._compare = compare
        self._lock = ReentrantLock()  # taken itself: an interrupt in the block of a condition keeps it
        self._condition = threading.Condition(self._lock)
        self._waiting: tuple[dict[int, Arrival], dict[int, Arrival]] = ({}, {})
        self._kept: tuple[dict[int, Arrival], dict[int, Arrival]] = ({}, {})
        self._ended = [False, False]
        self.alone: tuple[dict[int, ObservedDispatch], dict[int, ObservedDispatch]] = ({}, {})
        """Those for whom the other call never came."""
        self.is_over = False
        """Whether both go on without meeting."""

    def arrive(self, side: int, number: int, arrival: Arrival) -> None:
        """Returns when the tensors have been compared, or the other call will not come."""
        with self._lock:
            if self.is_over or self._meet(side, number, arrival):
                return
            others = self._waiting[1 - side]
            if others and min(others) < number:
                self._kept[side][number] = arrival.keep()
                return
            for early, other in others.items():
                self._kept[1 - side][early] = other.keep()
                other.is_met = True
            others.clear()
            self._condition.notify_all()
            self._waiting[side][number] = arrival
            try:
                while not (arrival.is_met or self._ended[1 - side] or self.is_over):
                    self._condition.wait()
            finally:
                self._waiting[side].pop(number, None)
            if not arrival.is_met and not self.is_over:
                self.alone[side][number] = arrival.dispatch

    def _meet(self, side: int, number: int, arrival: Arrival) -> bool:
        other = self._kept[1 - side].pop(number, None) or self._waiting[1 - side].pop(number, None)
        if other is None:
            return False
        pair = (arrival, other) if side == 0 else (other, arrival)
        other.is_met = True
        try:
            self.is_over = not self._compare(number, *pair)
        finally:
            self._condition.notify_all()
        return True

    def end(self, side: int) -> None:
        """A call is over, however: the other one need not wait any more."""
        with self._lock:
            self._ended[side] = True
            if all(self._ended):
                for kept, alone in zip(self._kept, self.alone, strict=True):
                    alone |= {number: arrival.dispatch for number, arrival in kept.items()}
            self._condition.notify_all()


Numbers = Mapping[tuple[int, int], int]
"""(ordinal of a dispatch, its output) → number of the meeting."""


class LockstepCall(Onlooker):
    """Takes the tensors of one call to the meetings."""

    def __init__(self, meeting: Meeting, side: int, numbers: Numbers | None) -> None:
        """Without ``numbers`` each dispatch meets the one of its ordinal, with all outputs."""
        self._meeting = meeting
        self._side = side
        self._numbers = numbers

    def looks_at(self, dispatch: ObservedDispatch) -> None:
        if dispatch.kind != DISPATCH or dispatch.ordinal is None:
            return
        for number, tensors in self._brought(dispatch, dispatch.ordinal):
            self._meeting.arrive(self._side, number, Arrival(dispatch, tensors))

    def _brought(self, dispatch: ObservedDispatch, ordinal: int) -> Sequence[tuple[int, Tensors]]:
        if self._numbers is None:
            return [(ordinal, dispatch.outputs)]
        found = (
            (self._numbers.get((ordinal, index)), tensor) for index, tensor in enumerate(dispatch.outputs)
        )
        return [(number, (tensor,)) for number, tensor in found if number is not None]
