"""Dataflow over variables: which views of registers hold what was written last, and which are still needed.

Sets of variables are integers; :class:`Bits` numbers them as
:meth:`jitree.dispatch.native.ssa.SsaFunction.bit`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jitree.base.records import NamedTuple
from jitree.dispatch.native.reading import ReadBlock, ReadInstruction, copies
from jitree.dispatch.native.source import FunctionSource
from jitree.dispatch.native.ssa import ENTRY_PC, REF, VALUE_TYPES, Variable


class Refusal(Exception):
    """A function that is not lowered; the text says why."""


class Bits:
    """The numbering of the value variables of one function."""

    def __init__(self, value_count: int) -> None:
        self._count = value_count
        self._single: dict[Variable, int] = {}
        self._conflicts: dict[Variable, int] = {}

    def of(self, variable: Variable) -> int:
        """The set of one variable; a reference has none."""
        bits = self._single.get(variable)
        if bits is None:
            kind, slot = variable
            bits = 0 if kind == REF else 1 << VALUE_TYPES.index(kind) * self._count + slot
            self._single[variable] = bits
        return bits

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
    lost, made = dict.fromkeys(order, 0), dict.fromkeys(order, 0)
    for pc in order:
        for read in blocks[pc].instructions:
            for variable in read.outputs:
                if variable.type != REF:
                    lost[pc] |= bits.overlapping(variable)
                    made[pc] = _written(made[pc], variable, bits)
    moves = {pc: _Moves.of(blocks[pc].instructions[-1], bits) for pc in order}
    changed = True
    while changed:
        changed = False
        for pc in order:
            leaving = moves[pc].after(valid[pc] & ~lost[pc] | made[pc])
            for target in blocks[pc].targets:
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


class _Moves(NamedTuple):
    """What a branch copies between variables, all read before any is written."""

    overwritten: int
    """Every view of the slots that are written."""
    written: int
    pairs: list[tuple[int, int]]
    """Destination and source."""

    @staticmethod
    def of(read: ReadInstruction, bits: Bits) -> _Moves:
        views = copies(read.moves)
        overwritten = 0
        for destination in views:
            overwritten |= bits.overlapping(destination)
        pairs = [(bits.of(destination), bits.of(source)) for destination, source in views.items()]
        return _Moves(overwritten, bits.of_all(views), pairs)

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


def liveness(blocks: dict[int, ReadBlock], bits: Bits) -> dict[int, int]:
    """Word index of each instruction → the variables whose values are needed from there on. A branch that was
    put between two blocks has the word index of the second one, which says the same."""
    at_start, at_end = dict.fromkeys(blocks, 0), dict.fromkeys(blocks, 0)
    order = sorted(blocks, reverse=True)
    steps = {
        pc: [
            (read.pc, bits.of_all(read.outputs), bits.of_all(read.inputs))
            for read in reversed(block.instructions)
        ]
        for pc, block in blocks.items()
    }
    written, needed = dict.fromkeys(blocks, 0), dict.fromkeys(blocks, 0)
    for pc in order:
        for _, outputs, inputs in steps[pc]:
            written[pc] |= outputs
            needed[pc] = needed[pc] & ~outputs | inputs
    moves = {pc: _Moves.of(block.instructions[-1], bits) for pc, block in blocks.items()}
    changed = True
    while changed:
        changed = False
        for pc in order:
            live = 0
            for target in blocks[pc].targets:
                live |= at_start[target]
            at_end[pc] = live = moves[pc].before(live)
            live = live & ~written[pc] | needed[pc]
            if live != at_start[pc]:
                at_start[pc] = live
                changed = True
    found: dict[int, int] = {}
    for pc in order:
        live = at_end[pc]
        for step, outputs, inputs in steps[pc]:
            found[step] = live = live & ~outputs | inputs
    return found
