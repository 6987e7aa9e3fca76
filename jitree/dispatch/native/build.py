"""Decoded code of a function → :class:`~jitree.dispatch.native.ssa.SsaFunction`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import count

from jitree.dispatch.native.ownership import Registers, Step
from jitree.dispatch.native.reading import ReadBlock, ReadInstruction, read_blocks
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
    find_loops,
    reverse_postorder,
    set_dominators,
    variable_of,
)
from jitree.dispatch.native.views import Refusal, block_views, check_views, liveness, sets_of

__all__ = ["Refusal", "build"]


def build(
    source: ModuleSource, ordinal: int, places: Sequence[int] = (), stops: Sequence[int] = ()
) -> SsaFunction:
    """The function from its beginning; or, with ``places`` (word indices of instructions), what can be
    reached from these, the registers being read from the frame. It leaves at ``stops``, beginnings of blocks.

    Raises :class:`Refusal` if a register is read as another type than was written.
    """
    return _Builder(source, source.functions[ordinal], places, stops).run()


def _successors(block: ReadBlock) -> list[int]:
    """Where native code goes on: it leaves at a ``yield``."""
    return [] if block.instructions[-1].mnemonic == "yield" else block.targets


class _Builder:
    def __init__(
        self, source: ModuleSource, function: FunctionSource, places: Sequence[int], stops: Sequence[int]
    ) -> None:
        self._function = function
        self._places = places
        self._read = read_blocks(source, function, (*places, *stops))
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
        self._parameters: dict[Value, Variable] = {}
        self._zeros: dict[str, Value] = {}
        self._arguments: list[Value] = []

    def run(self) -> SsaFunction:
        if not self._places:
            whole = reverse_postorder(ENTRY_PC, lambda pc: self._read[pc].targets)
            check_views(self._views, whole, self._function, self._sets)
        blocks = self._connect(reverse_postorder(ENTRY_PC, lambda pc: _successors(self._read[pc])))
        set_dominators(blocks)
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
            find_loops(blocks),
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
        registers: Registers = {}
        needed = self._needed(block.pc)
        columns = zip(*(map(given.__getitem__, needed) for given in known), strict=True)
        for variable, values in zip(needed, columns, strict=True):
            if is_complete and values.count(values[0]) == len(known):
                registers[variable] = values[0]
            else:
                registers[variable] = parameter = self._value(block, variable.type, PHI)
                block.parameters.append(parameter)
                self._parameters[parameter] = variable
        return registers

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
