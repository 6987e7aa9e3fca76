"""Finds the dispatch that reads an element of a constant.

Programs bind all of their constants to each dispatch. Each one that binds the element is run alone, with
other bits there. The first that then makes something else reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from jitree.base.events import DISPATCH
from jitree.base.records import NamedTuple
from jitree.compare.lone_dispatch import CapturedDispatch
from jitree.observe.observation import Onlooker

if TYPE_CHECKING:
    from jitree.api.function import Function
    from jitree.hal.stepwise import DeviceStep
    from jitree.observe.tensors import ObservedDispatch

_LARGEST: Final = 64 << 20
"""Bytes of memory of a dispatch that is run alone."""


class ConstantReader(NamedTuple):
    """The dispatch that reads an element."""

    dispatch: ObservedDispatch
    operand: str
    """The element's place among what it reads: ``input 1``; empty if that is not known."""
    type: str
    coordinate: tuple[int, ...]


def first_reader(
    function: Function, inputs: Sequence[Any], ordinal: int, binding: int, place: range
) -> ConstantReader | None:
    """The first dispatch, from that of a number on, that reads bytes at a ``place`` of what is bound to that
    one as ``binding``. None if it is not found: none does, or more memory is bound than is copied."""
    return _searched(function, inputs, ordinal, binding, place).found


def is_unread(
    function: Function, inputs: Sequence[Any], ordinal: int, binding: int, places: Sequence[int]
) -> bool:
    """Whether it is known that no dispatch, from that of a number on, reads any of the bytes: an allocation
    that values share has bytes between them that nobody writes either."""
    if not places:
        return False
    reader = _searched(function, inputs, ordinal, binding, places)
    return reader.found is None and reader.is_complete


def _searched(
    function: Function, inputs: Sequence[Any], ordinal: int, binding: int, places: Sequence[int]
) -> _ConstantReader:
    reader = _ConstantReader(function, ordinal, binding, places)
    with function.session.looked_at(reader):
        function(*inputs)
    return reader


class _ConstantReader(Onlooker):
    def __init__(self, function: Function, ordinal: int, binding: int, places: Sequence[int]) -> None:
        self._function = function
        self._first = ordinal
        self._binding = binding
        self._places = np.array(places)
        self.is_complete = True
        """Whether each dispatch that may read the bytes has been run with others."""
        self._address = 0
        self._number: int | None = None
        self.found: ConstantReader | None = None

    def is_about(self, step: DeviceStep, ordinal: int | None) -> None:
        if step.kind != DISPATCH or ordinal is None or ordinal < self._first or self._number is not None:
            return
        if ordinal == self._first:
            self._address = step.operands[self._binding][0] + int(self._places[0])
        end = self._address + int(self._places[-1] - self._places[0]) + 1
        if not any(start < end and self._address < start + length for start, length in step.operands):
            return
        whole = any(start <= self._address and end <= start + length for start, length in step.operands)
        if not whole or sum(length for _, length in step.operands) > _LARGEST:
            self.is_complete = False
        elif self._reads(step, ordinal):
            self._number = ordinal

    def _reads(self, step: DeviceStep, ordinal: int) -> bool:
        captured = CapturedDispatch(ordinal)
        captured.is_about(step, ordinal)
        dispatch = captured.dispatch(self._function)
        block, start = captured.span_of(self._address)
        changed = self._places - self._places[0] + start
        expected = dispatch.run_whole()
        return any(
            _differ(expected, dispatch.with_bytes(block, changed, other).run_whole(), block, changed)
            for other in (np.full(changed.size, 0xFF, np.uint8), ~dispatch.bytes_at(block, changed))
        )

    def looks_at(self, dispatch: ObservedDispatch) -> None:
        if self._number is not None and dispatch.ordinal == self._number:
            self.found = self.found or self._reader(dispatch)

    def _reader(self, dispatch: ObservedDispatch) -> ConstantReader:
        for number, tensor in enumerate(dispatch.inputs):
            place, kind = self._address - tensor.extent[0], tensor.kind
            if kind is not None and not tensor.origin and 0 <= place < kind.byte_length:
                element = place * 8 // kind.element.bits
                coordinate = tuple(map(int, np.unravel_index(element, kind.shape)))
                return ConstantReader(dispatch, f"input {number}", tensor.type, coordinate)
        return ConstantReader(dispatch, "", "", ())


def _differ(expected: Sequence[Any], found: Sequence[Any], block: int, changed: Any) -> bool:
    """Whether two runs have left other memory, but for the bytes that were changed before."""
    found[block][changed] = expected[block][changed]
    return any((one != other).any() for one, other in zip(expected, found, strict=True))
