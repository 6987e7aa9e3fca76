"""Dataflow over variables: which views of registers hold what was written last, and which are still needed.

Sets of variables are integers; :class:`Bits` numbers them as
:meth:`jitree.dispatch.native.ssa.SsaFunction.bit`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jitree.dispatch.native.reading import ReadBlock, ReadInstruction, copies
from jitree.dispatch.native.source import FunctionSource
from jitree.dispatch.native.ssa import ENTRY_PC, REF, VALUE_TYPES, Variable


class Refusal(Exception):
    """A function that is not lowered; the text says why."""


class Bits:
    """The numbering of the value variables of one function."""

    def __init__(self, value_count: int) -> None:
        self._count = value_count
        self._conflicts: dict[Variable, int] = {}

    def of(self, variable: Variable) -> int:
        """The set of one variable; a reference has none."""
        if variable.type == REF:
            return 0
        return 1 << VALUE_TYPES.index(variable.type) * self._count + variable.slot

    def of_all(self, variables: Iterable[Variable]) -> int:
        bits = 0
        for variable in variables:
            bits |= self.of(variable)
        return bits

    def overlapping(self, variable: Variable) -> int:
        """Every view of the slots of a variable."""
        bits = self._conflicts.get(variable)
        if bits is None:
            low = variable.slot & ~1
            slots = (low, low + 1) if variable.type.endswith("64") else (variable.slot,)
            bits = self.of_all(Variable(kind, slot) for kind in ("i32", "f32") for slot in slots)
            bits |= self.of_all((Variable("i64", low), Variable("f64", low)))
            self._conflicts[variable] = bits
        return bits


def check_views(
    blocks: dict[int, ReadBlock], order: Sequence[int], function: FunctionSource, bits: Bits
) -> None:
    """Proves that every read sees the view that was written last. Raises :class:`Refusal`.

    ``order`` is a reverse postorder of the reachable blocks. Registers that no instruction has written are
    zero in every view.
    """
    everything = (1 << len(VALUE_TYPES) * function.value_count) - 1
    at_entry = everything
    for kind, register in function.arguments:
        if kind != REF:
            at_entry = _written(at_entry, Variable(kind, register), bits)
    valid = {pc: everything for pc in order}
    valid[ENTRY_PC] = at_entry
    changed = True
    while changed:
        changed = False
        for pc in order:
            block = blocks[pc]
            leaving = valid[pc]
            for read in block.instructions:
                for variable in read.outputs:
                    leaving = _written(leaving, variable, bits)
            leaving = _after_moves(leaving, block.instructions[-1], bits)
            for target in block.targets:
                if target in valid and valid[target] & ~leaving:
                    valid[target] &= leaving
                    changed = True
    for pc in order:
        now = valid[pc]
        for read in blocks[pc].instructions:
            missing = bits.of_all(read.inputs) & ~now
            if missing:
                raise Refusal(
                    f"{read.mnemonic} at word {read.pc - function.start} reads a register as another type "
                    "than was written"
                )
            for variable in read.outputs:
                now = _written(now, variable, bits)


def _written(valid: int, variable: Variable, bits: Bits) -> int:
    if variable.type == REF:
        return valid
    return valid & ~bits.overlapping(variable) | bits.of(variable)


def _after_moves(valid: int, read: ReadInstruction, bits: Bits) -> int:
    views = copies(read.moves)
    result = valid
    for destination in views:
        result &= ~bits.overlapping(destination)
    for destination, source in views.items():
        if valid & bits.of(source):
            result |= bits.of(destination)
    return result


def liveness(blocks: dict[int, ReadBlock], bits: Bits) -> dict[int, int]:
    """Word index of each instruction → the variables whose values are needed from there on. A branch that was
    put between two blocks has the word index of the second one, which says the same."""
    at_start = dict.fromkeys(blocks, 0)
    found: dict[int, int] = {}
    order = sorted(blocks, reverse=True)
    changed = True
    while changed:
        changed = False
        for pc in order:
            block = blocks[pc]
            live = 0
            for target in block.targets:
                live |= at_start[target]
            live = _before_moves(live, block.instructions[-1], bits)
            for read in reversed(block.instructions):
                live = live & ~bits.of_all(read.outputs) | bits.of_all(read.inputs)
                found[read.pc] = live
            if live != at_start[pc]:
                at_start[pc] = live
                changed = True
    return found


def _before_moves(live: int, read: ReadInstruction, bits: Bits) -> int:
    views = copies(read.moves)
    result = live & ~bits.of_all(views)
    for destination, source in views.items():
        if live & bits.of(destination):
            result |= bits.of(source)
    return result
