"""Analyses which register views are current, and which are still needed.

It is dataflow over variables.

Sets of variables are integers; :class:`Sets` numbers them as
:meth:`jitree.dispatch.native.ssa.SsaFunction.bit`. What the instructions of a block read and write is found
once (:func:`block_views`), for both questions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache, reduce
from operator import or_
from typing import Final

from jitree.base.records import NamedTuple
from jitree.dispatch.native.reading import Move, ReadBlock, ReadInstruction, copies
from jitree.dispatch.native.source import FunctionSource
from jitree.dispatch.native.ssa import ENTRY_PC, REF, VALUE_TYPES, Variable, variable_of


class Refusal(Exception):
    """A function that is not lowered; the text says why."""


class Sets(dict[Variable, int]):
    """The set of each value variable of a function; a reference has none."""

    def __init__(self, value_count: int) -> None:
        self._count = value_count
        self.overlapping = _Overlapping(self)

    def __missing__(self, variable: Variable) -> int:
        kind, slot = variable
        bits = 0 if kind == REF else 1 << VALUE_TYPES.index(kind) * self._count + slot
        self[variable] = bits
        return bits

    def of_all(self, variables: Iterable[Variable]) -> int:
        return reduce(or_, map(self.__getitem__, variables), 0)


class _Overlapping(dict[Variable, int]):
    """Every view of the slots of each variable; a reference has none."""

    def __init__(self, sets: Sets) -> None:
        self._sets = sets

    def __missing__(self, variable: Variable) -> int:
        kind, slot = variable
        bits = 0
        if kind != REF:
            low = slot & ~1
            slots = (low, low + 1) if kind.endswith("64") else (slot,)
            views = [variable_of(kind, slot) for kind in ("i32", "f32") for slot in slots]
            bits = self._sets.of_all((*views, variable_of("i64", low), variable_of("f64", low)))
        self[variable] = bits
        return bits


sets_of: Final = cache(Sets)
"""The sets of functions with so many value slots."""

_StepViews = tuple[ReadInstruction, int, int, int, int]
"""An instruction, and as sets: what it reads and writes, every view of the slots that it writes, and the
views that hold what it has written."""


class BlockViews(NamedTuple):
    """What a block does to views."""

    steps: list[_StepViews]
    lost: int
    """As of a step, of all of them one after the other."""
    made: int
    moves: _Moves | None
    targets: list[int]


def block_views(blocks: Mapping[int, ReadBlock], sets: Sets) -> dict[int, BlockViews]:
    return {pc: _views_of(block, sets) for pc, block in blocks.items()}


def _views_of(block: ReadBlock, sets: Sets) -> BlockViews:
    steps = []
    all_lost = all_made = 0
    for read in block.instructions:
        inputs = reduce(or_, map(sets.__getitem__, read.inputs), 0)
        outputs = lost = made = 0
        for variable in read.outputs:
            overlapping, one = sets.overlapping[variable], sets[variable]
            outputs |= one
            lost |= overlapping
            made = made & ~overlapping | one
        all_lost |= lost
        all_made = all_made & ~lost | made
        steps.append((read, inputs, outputs, lost, made))
    moved = block.instructions[-1].moves
    moves = _Moves.of(moved, sets) if moved else None
    return BlockViews(steps, all_lost, all_made, moves, block.targets)


def check_views(
    blocks: Mapping[int, BlockViews], order: Sequence[int], function: FunctionSource, sets: Sets
) -> None:
    """Proves that every read sees the view that was written last. Raises :class:`Refusal`.

    ``order`` is a reverse postorder of the reachable blocks. Registers that no instruction has written are
    zero in every view.
    """
    everything = (1 << len(VALUE_TYPES) * function.value_count) - 1
    at_entry = everything
    for argument in function.arguments:
        variable = variable_of(*argument)
        at_entry = at_entry & ~sets.overlapping[variable] | sets[variable]
    valid = {pc: everything for pc in order}
    valid[ENTRY_PC] = at_entry
    changed = True
    while changed:
        changed = False
        for pc in order:
            _, lost, made, moves, targets = blocks[pc]
            leaving = valid[pc] & ~lost | made
            if moves is not None:
                leaving = moves.after(leaving)
            for target in targets:
                if target in valid and valid[target] & ~leaving:
                    valid[target] &= leaving
                    changed = True
    for pc in order:
        now = valid[pc]
        for read, inputs, _, lost, made in blocks[pc].steps:
            if inputs & ~now:
                raise Refusal(
                    f"{read.mnemonic} at word {read.pc - function.start} reads a register as another type "
                    "than was written"
                )
            now = now & ~lost | made


class _Moves(NamedTuple):
    """What a branch copies between variables, all read before any is written."""

    overwritten: int
    """Every view of the slots that are written."""
    written: int
    pairs: list[tuple[int, int]]
    """Destination and source."""

    @staticmethod
    def of(moved: Sequence[Move], sets: Sets) -> _Moves:
        views = copies(moved)
        overwritten = reduce(or_, map(sets.overlapping.__getitem__, views), 0)
        pairs = [(sets[destination], sets[source]) for destination, source in views.items()]
        return _Moves(overwritten, sets.of_all(views), pairs)

    def after(self, valid: int) -> int:
        """What is valid then."""
        result = valid & ~self.overwritten
        for destination, source in self.pairs:
            if valid & source:
                result |= destination
        return result

    def before(self, live: int) -> int:
        """What is needed for what is needed then."""
        result = live & ~self.written
        for destination, source in self.pairs:
            if live & destination:
                result |= source
        return result


def liveness(blocks: Mapping[int, BlockViews]) -> dict[int, int]:
    """Word index of each instruction → the variables whose values are needed from there on. A branch that was
    put between two blocks has the word index of the second one, which says the same."""
    at_start, at_end = dict.fromkeys(blocks, 0), dict.fromkeys(blocks, 0)
    order = sorted(blocks, reverse=True)
    written, needed = dict.fromkeys(blocks, 0), dict.fromkeys(blocks, 0)
    for pc in order:
        for _, inputs, outputs, _, _ in reversed(blocks[pc].steps):
            written[pc] |= outputs
            needed[pc] = needed[pc] & ~outputs | inputs
    changed = True
    while changed:
        changed = False
        for pc in order:
            live = 0
            for target in blocks[pc].targets:
                live |= at_start[target]
            moves = blocks[pc].moves
            at_end[pc] = live = live if moves is None else moves.before(live)
            live = live & ~written[pc] | needed[pc]
            if live != at_start[pc]:
                at_start[pc] = live
                changed = True
    found: dict[int, int] = {}
    for pc in order:
        live = at_end[pc]
        for read, inputs, outputs, _, _ in reversed(blocks[pc].steps):
            found[read.pc] = live = live & ~outputs | inputs
    return found
