"""Makes decoded code of a function an :class:`~jitree.dispatch.native.ssa.SsaFunction`.

Dataflow over variables says which register views are current, and which are still needed. Sets of variables
are integers; :class:`Sets` numbers them as :meth:`jitree.dispatch.native.ssa.SsaFunction.bit`. What the
instructions of a block read and write is found once (:func:`block_views`), for both questions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial, reduce
from itertools import compress, count
from operator import or_
from typing import Final

from jitree.base.records import NamedTuple
from jitree.dispatch.native.reading import (
    Move,
    ReadBlock,
    ReadInstruction,
    Registers,
    Step,
    copies,
    read_blocks,
)
from jitree.dispatch.native.source import FunctionSource, ModuleSource
from jitree.dispatch.native.ssa import (
    ARGUMENT,
    ENTRY_PC,
    PHI,
    REF,
    RESUME,
    RESUMED,
    VALUE_TYPES,
    ZERO,
    Block,
    SsaFunction,
    SsaInstruction,
    Value,
    Variable,
    are_deep,
    find_loops,
    reverse_postorder,
    set_dominators,
    variable_of,
    with_inner,
)
from jitree.vmfb.words import TAG_VALUE32, TAG_VALUE64

__all__ = ["Refusal", "build"]

_MOST_AROUND: Final = 64
"""Loops around a block, on an average."""


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
    """Maps instructions to the variables whose values are needed from there. A branch that was put between
    two blocks has the word index of the second one, which says the same."""
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


def build(
    source: ModuleSource,
    ordinal: int,
    places: Sequence[int] = (),
    stops: Sequence[int] = (),
    read: dict[int, ReadBlock] | None = None,
) -> SsaFunction:
    """The function from its beginning; or, with ``places`` (word indices of instructions), what can be
    reached from these, the registers being read from the frame. It leaves at ``stops``, beginnings of blocks.
    ``read``: its blocks, if it is from its beginning and they have been read.

    Raises :class:`Refusal` if a register is read as another type than was written.
    """
    function = source.functions[ordinal]
    blocks = read_blocks(source, function, (*places, *stops)) if read is None else read
    return _Builder(blocks, function, places, stops).run()


class _Written(NamedTuple):
    """Says which registers blocks may change."""

    views: int
    references: frozenset[Variable]

    def may_change(self, variable: Variable, sets: Sets) -> bool:
        return variable in self.references or bool(self.views & sets[variable])


def _written_in(blocks: Iterable[tuple[ReadBlock, BlockViews]]) -> _Written:
    bits, references = 0, set[Variable]()
    for block, views in blocks:
        bits |= views.lost | (views.moves.overwritten if views.moves is not None else 0)
        for read in block.instructions:
            references.update(variable for variable in read.outputs if variable.type == REF)
            references.update(compress(read.inputs, read.moved))
            for move in read.moves:
                if move.tag not in (TAG_VALUE32, TAG_VALUE64):
                    references |= {variable_of(REF, move.source), variable_of(REF, move.destination)}
    return _Written(bits, frozenset(references))


def _successors(block: ReadBlock) -> list[int]:
    """Where native code goes on: it leaves at a ``yield``."""
    return [] if block.instructions[-1].mnemonic == "yield" else block.targets


class _Builder:
    def __init__(
        self,
        read: dict[int, ReadBlock],
        function: FunctionSource,
        places: Sequence[int],
        stops: Sequence[int],
    ) -> None:
        self._function = function
        self._places = places
        self._read = read
        self._sets = sets_of(function.value_count)
        self._views = block_views(self._read, self._sets)
        self._live = liveness(self._views)
        if stops:  # whatever is after them has had its say about what is live
            entry = ReadInstruction(ENTRY_PC, RESUME, places, places)
            self._read[ENTRY_PC] = ReadBlock(ENTRY_PC, [entry])
            self._read |= {pc: ReadBlock(pc, [ReadInstruction(pc, "yield")]) for pc in stops}
        self._numbers = count()
        """Of values."""
        self._variables: dict[int, list[Variable]] = {}
        """The members of sets."""
        self._blocks: dict[int, Block] = {}
        self._exit_registers: dict[Block, Registers] = {}
        self._changed: dict[Block, tuple[_Written, set[Block]]] = {}
        """What loops may change, by header, and their blocks."""
        self._parameters: dict[Value, Variable] = {}
        self._zeros: dict[str, Value] = {}
        self._arguments: list[Value] = []

    def run(self) -> SsaFunction:
        if not self._places:
            whole = reverse_postorder(ENTRY_PC, lambda pc: self._read[pc].targets)
            check_views(self._views, whole, self._function, self._sets)
        blocks = self._connect(reverse_postorder(ENTRY_PC, lambda pc: _successors(self._read[pc])))
        if are_deep(blocks, _MOST_AROUND):
            raise Refusal(
                "too many loops inside one another: what they change takes the square of the blocks"
            )
        set_dominators(blocks)
        loops = find_loops(blocks)
        for loop in with_inner(loops):
            inside = ((self._read[block.pc], self._views[block.pc]) for block in loop.blocks)
            self._changed[loop.header] = _written_in(inside), loop.blocks
        for block in blocks:
            self._fill(block)
        for parameter, variable in self._parameters.items():
            parameter.operands = [self._exit_registers[p][variable] for p in parameter.block.predecessors]
        _Simplifier(blocks).run()
        function = self._function
        return SsaFunction(
            function.ordinal,
            function.value_count,
            function.ref_count,
            tuple(self._arguments),
            function.results,
            blocks,
            loops,
            function.record,
        )

    def _connect(self, order: Sequence[int]) -> list[Block]:
        blocks = [Block(pc, number) for number, pc in enumerate(order)]
        self._blocks = {block.pc: block for block in blocks}
        for block in blocks:
            for target in _successors(self._read[block.pc]):
                block.successors.append(self._blocks[target])
                self._blocks[target].predecessors.append(block)
        return blocks

    def _value(
        self,
        block: Block,
        kind: str,
        operation: str,
        literals: tuple[int, ...] = (),
    ) -> Value:
        return Value(next(self._numbers), kind, operation, [], literals, block.pc, block)

    def _zero(self, kind: str) -> Value:
        value = self._zeros.get(kind)
        if value is None:
            value = self._zeros[kind] = self._value(self._blocks[ENTRY_PC], kind, ZERO)
        return value

    # -- registers at the beginning of blocks ----------------------------------------------------------

    def _needed(self, pc: int) -> list[Variable]:
        """The variables that the block at a place needs: the live ones and all references."""
        bits = live = self._live[pc]
        found = self._variables.get(live)
        if found is None:
            found = []
            while bits:
                low = bits & -bits
                kind, slot = divmod(low.bit_length() - 1, self._function.value_count)
                found.append(variable_of(VALUE_TYPES[kind], slot))
                bits ^= low
            found += [variable_of(REF, slot) for slot in range(self._function.ref_count)]
            self._variables[live] = found
        return found

    def _at_entry(self, block: Block) -> Registers:
        if self._places:
            needed = dict.fromkeys(v for place in self._places for v in self._needed(place))
            return {v: self._value(block, v.type, RESUMED, literals=(v.slot,)) for v in needed}
        registers: Registers = {}
        for number, (kind, slot) in enumerate(self._function.arguments):
            value = self._value(block, kind, ARGUMENT, literals=(number,))
            self._arguments.append(value)
            registers[variable_of(kind, slot)] = value
        for variable in self._needed(self._function.start):
            registers.setdefault(variable, self._zero(variable.type))
        return registers

    def _joined(self, block: Block) -> Registers:
        known = [self._exit_registers[p] for p in block.predecessors if p in self._exit_registers]
        is_complete = len(known) == len(block.predecessors)
        written = None if is_complete else self._written_around(block)
        registers: Registers = {}
        needed = self._needed(block.pc)
        columns = zip(*(map(given.__getitem__, needed) for given in known), strict=True)
        for variable, values in zip(needed, columns, strict=True):
            is_kept = is_complete or (written is not None and not written.may_change(variable, self._sets))
            if is_kept and values.count(values[0]) == len(known):
                registers[variable] = values[0]
            else:
                registers[variable] = parameter = self._value(block, variable.type, PHI)
                block.parameters.append(parameter)
                self._parameters[parameter] = variable
        return registers

    def _written_around(self, block: Block) -> _Written | None:
        """What the loop that begins with a block may change; None: anything, for edges from elsewhere."""
        written, inside = self._changed.get(block, (None, set()))
        is_known = all(p in self._exit_registers or p in inside for p in block.predecessors)
        return written if is_known else None

    # -- instructions ----------------------------------------------------------------------------------

    def _fill(self, block: Block) -> None:
        registers = self._at_entry(block) if block.pc == ENTRY_PC else self._joined(block)
        block.entry = dict(registers)
        for read in self._read[block.pc].instructions:
            block.instructions.append(self._instruction(block, read, registers))
        self._exit_registers[block] = registers

    def _instruction(self, block: Block, read: ReadInstruction, registers: Registers) -> SsaInstruction:
        literals = tuple(read.literals)

        def new_result(kind: str, operands: list[Value]) -> Value:
            number = next(self._numbers)
            return Value(number, kind, read.mnemonic, list(operands), literals, read.pc, block)

        step = Step(read, registers, new_result, partial(self._zero, REF))
        step.run()
        return SsaInstruction(
            read.pc,
            read.mnemonic,
            tuple(step.operands),
            literals,
            tuple(step.results),
            tuple(step.retained),
            tuple(step.dropped),
            tuple(step.changes.items()),
            tuple(read.inputs),
            tuple(read.outputs),
            self._live[read.pc],
        )


class _Simplifier:
    """Removes block parameters that are always the same value."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self._blocks = blocks
        self._replaced: dict[Value, Value] = {}
        """What stands in the place of each parameter that is removed: none of these."""
        self._standing: dict[Value, list[Value]] = {}
        """In whose places a value stands."""

    def run(self) -> None:
        find = self._replaced.get
        changed = True
        while changed:
            changed = False
            for block in self._blocks:
                kept = []
                for parameter in block.parameters:
                    operands = parameter.operands
                    others = set(map(find, operands, operands))
                    others.discard(parameter)
                    if len(others) == 1:
                        self._replace(parameter, others.pop())
                        changed = True
                    else:
                        kept.append(parameter)
                block.parameters = kept
        if self._replaced:
            for block in self._blocks:
                self._rewrite(block)

    def _replace(self, parameter: Value, value: Value) -> None:
        removed = [parameter, *self._standing.pop(parameter, ())]
        self._replaced.update(dict.fromkeys(removed, value))
        self._standing.setdefault(value, []).extend(removed)

    def _rewrite(self, block: Block) -> None:
        find = self._replaced.get
        for parameter in block.parameters:
            parameter.operands = list(map(find, parameter.operands, parameter.operands))
        held = block.entry.values()
        block.entry = dict(zip(block.entry, map(find, held, held), strict=True))
        for instruction in block.instructions:
            given, retained, dropped = instruction.operands, instruction.retained, instruction.dropped
            instruction.operands = tuple(map(find, given, given))
            instruction.retained = tuple(map(find, retained, retained))
            instruction.dropped = tuple(map(find, dropped, dropped))
            if instruction.changes:
                variables, values = zip(*instruction.changes, strict=True)
                instruction.changes = tuple(zip(variables, map(find, values, values), strict=True))
            for result in instruction.results:
                result.operands = list(map(find, result.operands, result.operands))
