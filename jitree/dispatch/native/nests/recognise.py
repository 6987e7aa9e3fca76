"""Finds perfectly nested counted loops around straight-line or predicated code.

The compiler's loops have one shape: a header that only compares its counter with a bound, a counter that is
stepped by a constant, one way out. Between the loops of a nest there is only arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from jitree.codegen.vector_math.ir import FUNCTIONS
from jitree.dispatch.native.nests.operations import LIBRARY, is_pure
from jitree.dispatch.native.nests.reading import PolynomialReader, separated
from jitree.dispatch.native.nests.rewrites import add_level
from jitree.dispatch.native.nests.structure import (
    ElementAccess,
    Level,
    Literal,
    NotANest,
    Polynomial,
    Predicate,
    Structure,
)
from jitree.dispatch.native.ssa import PHI, Block, SsaInstruction, SsaLoop, Value

if TYPE_CHECKING:
    from jitree.dispatch.native.ssa import SsaFunction


FUNCTION_WEIGHT: Final = 30
"""Instructions that a function of vector math counts as."""
LARGEST_BODY: Final = 400
"""Instructions; more are left to the scalar code."""


def recognise(loop: SsaLoop) -> tuple[Structure, PolynomialReader]:
    """The nest whose outermost loop this is. NotANest with the reason where it is none."""
    chain = [loop]
    while chain[-1].children:
        if len(chain[-1].children) > 1:
            raise NotANest("several loops inside one")
        chain.append(chain[-1].children[0])
    reader = PolynomialReader(loop)
    for inner, outer in zip((*chain[1:], None), chain, strict=True):
        level = _level(reader, outer)
        if outer is loop:
            outermost = level
        add_level(reader, outer, level)
        if inner is not None:
            _require_only_arithmetic(reader, outer, inner)
    body = _Body(reader, chain[-1])
    if not body.stores:
        raise NotANest("no store")
    stored = {store.buffer for store in body.stores}
    if any(load.operands[0] in stored for load in reader.hoisted):
        raise NotANest("an index out of a buffer that is stored to")
    levels, counters = tuple(reader.levels.values()), tuple(reader.levels)
    found = body.loads, tuple(body.stores), body.choices, body.conditions
    return Structure(loop, outermost, levels, *found, counters), reader


def _level(reader: PolynomialReader, loop: SsaLoop) -> Level:
    header = loop.header
    if any(block is not header for block, _ in loop.exits) or len(loop.exits) != 1:
        raise NotANest("several ways out of a loop")
    if len(loop.latches) != 1 or len(header.parameters) != 1:
        raise NotANest("a value other than the counter is carried from one iteration to the next")
    counter = header.parameters[0]
    condition = header.terminator.operands[0] if header.terminator.mnemonic == "cond_br" else None
    if (
        condition is None
        or condition.operation not in ("cmp.lt.i64.s", "cmp.lt.i64.u")
        or condition.operands[0] is not counter
        or header.successors[0] not in loop.blocks
    ):
        raise NotANest("a loop that does not count up to a bound")
    if any(not is_pure(instruction) for instruction in header.instructions[:-1]):
        raise NotANest("other statements in a loop's header")
    initial, stepped = _entering_and_stepped(loop, counter)
    steps = [operand for operand in stepped.operands if operand is not counter]
    is_step = stepped.operation == "add.i64" and len(steps) == 1
    number = reader.read(steps[0]).number if is_step else None
    if number is None or not 0 < number < 1 << 31:
        raise NotANest("a counter that is not stepped by a positive constant")
    bound = reader.read(condition.operands[1])
    unsigned = condition.operation == "cmp.lt.i64.u"
    level = Level(counter, reader.read(initial), bound, number, unsigned)
    if unsigned and min(level.initial.number or 0, bound.number or 0) < 0:
        raise NotANest("an unsigned comparison with a negative number")
    if (level.initial.symbols() | level.bound.symbols()) & (set(reader.levels) | reader.computed):
        raise NotANest("a loop's bounds depend on an outer loop")
    return level


def _entering_and_stepped(loop: SsaLoop, counter: Value) -> tuple[Value, Value]:
    pairs = list(zip(loop.header.predecessors, counter.operands, strict=True))
    entering = {value for block, value in pairs if block not in loop.blocks}
    stepped = [value for block, value in pairs if block in loop.blocks]
    if len(entering) != 1:
        raise NotANest("a loop that is entered with different counters")
    return entering.pop(), stepped[0]


def _require_only_arithmetic(reader: PolynomialReader, outer: SsaLoop, inner: SsaLoop) -> None:
    for block in outer.blocks - inner.blocks:
        if block.parameters and block is not outer.header:
            raise NotANest("branches between loops")
        for instruction in block.instructions:
            if not (
                is_pure(instruction)
                or _is_control(outer, block, instruction)
                or _is_settled_division(reader, instruction)
            ):
                raise NotANest(f"'{instruction.mnemonic}' between loops")


def _is_control(loop: SsaLoop, block: Block, instruction: SsaInstruction) -> bool:
    return instruction is block.terminator and (block is loop.header or len(block.successors) == 1)


def _is_settled_division(reader: PolynomialReader, instruction: SsaInstruction) -> bool:
    """Whether a division is known to succeed, as none is left."""
    if not instruction.mnemonic.startswith(("div.i64", "rem.i64")):
        return False
    (result,) = instruction.results
    return reader.try_read(result) is not None and not reader.is_invariant(result)


class _Body:
    """Reads the innermost loop's blocks in order; branches become predicates."""

    def __init__(self, reader: PolynomialReader, loop: SsaLoop) -> None:
        self._reader = reader
        self._loop = loop
        self.loads: dict[Value, ElementAccess] = {}
        self.stores: list[ElementAccess] = []
        self.choices: dict[Value, tuple[Literal, Value, Value]] = {}
        self.conditions: dict[Value, Polynomial] = {}
        self._predicates: dict[Block, Predicate] = {}
        for limit in reader.limits:
            self._read_condition(limit)
        header = loop.header
        for block in sorted(loop.blocks - {header}, key=lambda block: block.order):
            self._predicates[block] = self._predicate(block)
            for instruction in block.instructions:
                self._add(block, instruction)

    def _edge(self, source: Block, target: Block) -> Predicate:
        if source is self._loop.header:
            return frozenset((limit, True) for limit in self._reader.limits)
        predicate = self._predicates[source]
        if len(source.successors) == 1:
            return predicate
        if source.terminator.mnemonic != "cond_br" or source.successors[0] is source.successors[1]:
            raise NotANest(f"'{source.terminator.mnemonic}' inside a loop")
        condition = source.terminator.operands[0]
        self._read_condition(condition)
        return predicate | {(condition, source.successors[0] is target)}

    def _read_condition(self, condition: Value) -> None:
        for operand in condition.operands:
            if condition.operation == "and.i32":
                self._read_condition(operand)
            elif condition.operation.startswith("cmp.lt.i64"):
                polynomial = self._reader.try_read(operand)
                if polynomial is not None and not polynomial.symbols() & self._reader.computed:
                    self.conditions[operand] = polynomial

    def _predicate(self, block: Block) -> Predicate:
        edges = [self._edge(source, block) for source in block.predecessors]
        if len(edges) == 1:
            if block.parameters:
                raise NotANest("a parameter that is no choice")
            return edges[0]
        if len(edges) != 2:
            raise NotANest("more than two branches meet")
        only_first = list(edges[0] - edges[1])
        if len(only_first) != 1:
            raise NotANest("branches that do not meet in pairs")
        difference = only_first[0]
        if edges[1] - edges[0] != {(difference[0], not difference[1])}:
            raise NotANest("branches that do not meet in pairs")
        for parameter in block.parameters:
            if parameter.type == "ref":
                raise NotANest("a choice between buffers")
            first, second = parameter.operands
            self.choices[parameter] = (difference, first, second)
        return edges[0] & edges[1]

    def _add(self, block: Block, instruction: SsaInstruction) -> None:
        if is_pure(instruction) or instruction is block.terminator:
            return
        if _is_settled_division(self._reader, instruction):
            return
        mnemonic = instruction.mnemonic
        if not mnemonic.startswith(("buffer.load.", "buffer.store.")):
            raise NotANest(f"'{mnemonic}' inside the innermost loop")
        buffer = instruction.operands[0]
        if not self._reader.is_outside(buffer):
            raise NotANest("a buffer that is chosen inside the nest")
        parts = separated(self._reader.read(instruction.operands[1]), self._reader.computed)
        if parts is None or (parts[1] and not instruction.results):
            raise NotANest("a place to store to, or a factor, that is computed for each element")
        element, position = mnemonic.split(".")[2], len(self.loads) + len(self.stores)
        place = buffer, parts[0], self._predicates[block], position, parts[1]
        access = ElementAccess(instruction, element, *place)
        if instruction.results:
            self.loads[instruction.results[0]] = access
        else:
            self.stores.append(access)


Uses = dict[Block, list[tuple[Value, Block]]]
"""By block: the values of it that other blocks use, and these."""


def uses(function: SsaFunction) -> Uses:
    found: Uses = {block: [] for block in function.blocks}
    for block in function.blocks:
        users: list[SsaInstruction | Value] = [*block.instructions, *block.parameters]
        for user in users:
            for operand in user.operands:
                if operand.block is not block:
                    found[operand.block].append((operand, block))
    return found


def values_used_after(uses: Uses, loop: SsaLoop) -> set[Value]:
    """Values of a loop that are used outside it."""
    return {value for block in loop.blocks for value, user in uses[block] if user not in loop.blocks}


class Dependence:
    """Says on which counters values depend, and weighs them.

    NotANest if the body holds what cannot be computed in it.
    """

    def __init__(self, structure: Structure, reader: PolynomialReader) -> None:
        self._structure = structure
        self._reader = reader
        self._stored = {store.buffer for store in structure.stores}
        self._counters: dict[Value, frozenset[Value]] = {}
        self._reading: dict[Value, bool] = {}
        self.invariants: dict[Value, None] = {}
        """Values from outside and the largest expressions over them, in the order of need."""
        self.weight = 0
        for store in structure.stores:
            for value in (store.stored, *conditions(store.predicate)):
                self.of(value)
        for load in structure.loads:  # those that no store needs are in the guard, too
            for value in self._inputs(load):
                self.of(value)
        polynomials = [access.index for access in structure.accesses]
        for level in (structure.outermost, *reader.levels.values()):
            polynomials += [level.initial, level.bound]
        self._need(*polynomials)
        if self.weight > LARGEST_BODY:
            raise NotANest("a body of more than 400 instructions")

    def of(self, value: Value) -> frozenset[Value]:
        """The counters whose change may change the value."""
        known = self._counters.get(value)
        if known is None:
            inputs = self._inputs(value)
            known = frozenset(self._own_counters(value)).union(*map(self.of, inputs))
            self._counters[value] = known
            self._weigh(value)
        return known

    def place(self, access: ElementAccess) -> frozenset[Value]:
        """The counters on which it depends which element an access touches."""
        own = access.index.symbols() & set(self._structure.counters)
        return own.union(*(self.of(part) for part, _ in access.computed))

    def counters_as_data(self) -> set[Value]:
        """Those that a value is computed from other than through an index."""
        variables = (value for value in self._counters if value in self._reader.variables)
        return {counter for value in variables for counter in self._own_counters(value)}

    def reads_stored(self, value: Value) -> bool:
        """Depends on what the nest stores."""
        known = self._reading.get(value)
        if known is None:
            load = self._structure.loads.get(value)
            known = load is not None and load.buffer in self._stored
            known = known or any(map(self.reads_stored, self._inputs(value)))
            self._reading[value] = known
        return known

    def _inputs(self, value: Value) -> tuple[Value, ...]:
        """The values in the body that it is computed from."""
        if value in self._reader.variables or self._reader.is_invariant(value):
            return ()
        if value in self._structure.loads:
            load = self._structure.loads[value]
            return (*conditions(load.predicate), *(part for part, _ in load.computed))
        if value in self._structure.choices:
            (condition, _), *branches = self._structure.choices[value]
            return (condition, *branches)
        if value.operation == PHI:
            raise NotANest("a value is carried through the nest")
        if not is_pure(value):
            raise NotANest(f"'{value.operation}' that can fail")
        return tuple(value.operands)

    def _own_counters(self, value: Value) -> Iterator[Value]:
        if value in self._reader.variables:
            yield from self._reader.variables[value].symbols() & set(self._structure.counters)
        elif value in self._structure.loads:
            load = self._structure.loads[value]
            changing = load.buffer in self._stored
            yield from (c for c in self._structure.counters if changing or c in load.index.symbols())

    def _weigh(self, value: Value) -> None:
        if value in self._reader.variables:
            self._need(self._reader.variables[value])
        elif not self._reader.is_invariant(value):
            is_function = value.operation in FUNCTIONS or value.operation in LIBRARY
            self.weight += FUNCTION_WEIGHT if is_function else 1
        elif not value.operation.startswith("const."):
            self.invariants[value] = None

    def _need(self, *polynomials: Polynomial) -> None:
        for polynomial in polynomials:
            symbols = polynomial.symbols() - set(self._structure.counters)
            self.invariants.update(dict.fromkeys(sorted(symbols, key=lambda value: value.number)))


def conditions(predicate: Predicate) -> list[Value]:
    """What a predicate compares, in a stable order."""
    return sorted((condition for condition, _ in predicate), key=lambda value: value.number)
