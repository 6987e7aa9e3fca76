"""On which counters the values of a nest's body depend, and how much work the body is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from jitree.codegen.vector_math.ir import FUNCTIONS
from jitree.dispatch.native.nests.operations import LIBRARY, is_pure
from jitree.dispatch.native.nests.reading import PolynomialReader
from jitree.dispatch.native.nests.structure import ElementAccess, NotANest, Predicate, Structure
from jitree.dispatch.native.ssa import PHI, Value

FUNCTION_WEIGHT: Final = 30
"""Instructions that a function of vector math counts as."""
LARGEST_BODY: Final = 400
"""Instructions; more are left to the scalar code."""


class Dependence:
    """Answers for one nest; NotANest if the body holds what cannot be computed in it."""

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
        polynomials = [access.index for access in (*structure.loads.values(), *structure.stores)]
        for level in (structure.outermost, *reader.levels.values()):
            polynomials += [level.initial, level.bound]
        for polynomial in polynomials:
            symbols = polynomial.symbols() - set(structure.counters)
            self.invariants.update(dict.fromkeys(sorted(symbols, key=lambda value: value.number)))
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
            symbols = self._reader.variables[value].symbols() - set(self._structure.counters)
            self.invariants.update(dict.fromkeys(sorted(symbols, key=lambda symbol: symbol.number)))
            return
        if self._reader.is_invariant(value):
            if not value.operation.startswith("const."):
                self.invariants[value] = None
            return
        function = value.operation in FUNCTIONS or value.operation in LIBRARY
        self.weight += FUNCTION_WEIGHT if function else 1


def conditions(predicate: Predicate) -> list[Value]:
    """What a predicate compares, in a stable order."""
    return sorted((condition for condition, _ in predicate), key=lambda value: value.number)
