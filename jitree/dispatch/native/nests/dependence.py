"""On which counters the values of a nest's body depend, and how much work the body is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from jitree.dispatch import vector_math_ir
from jitree.dispatch.native.nests.operations import is_pure, uses_library
from jitree.dispatch.native.nests.reading import FormReader, NotANest
from jitree.dispatch.native.nests.recognise import Predicate, Structure
from jitree.dispatch.native.ssa import PHI, Value

FUNCTION_WEIGHT: Final = 30
"""Instructions that a function of vector math counts as."""
LARGEST_BODY: Final = 400
"""Instructions; more are left to the scalar code."""


class Dependence:
    """Answers for one nest; NotANest if the body holds what cannot be computed in it."""

    def __init__(self, structure: Structure, reader: FormReader) -> None:
        self._structure = structure
        self._reader = reader
        self._counters: dict[Value, frozenset[Value]] = {}
        self.invariants: dict[Value, None] = {}
        """Values from outside and the largest expressions over them, in the order of need."""
        self.weight = 0
        for store in structure.stores:
            self.of(store.stored)
            self._of_predicate(store.predicate)
        for access in (*structure.loads.values(), *structure.stores):
            for symbol in access.index.symbols() - set(structure.counters):
                self.invariants[symbol] = None
        for level in (structure.outermost, *structure.levels):
            for symbol in level.initial.symbols() | level.bound.symbols():
                self.invariants[symbol] = None
        if self.weight > LARGEST_BODY:
            raise NotANest("a body of more than 400 instructions")

    def of(self, value: Value) -> frozenset[Value]:
        """The counters whose change may change the value."""
        known = self._counters.get(value)
        if known is None:
            known = self._counters[value] = frozenset(self._find(value))
        return known

    def _find(self, value: Value) -> Iterator[Value]:
        if value in self._reader.variables:
            yield from self._reader.variables[value].symbols() & set(self._structure.counters)
        elif self._reader.is_invariant(value):
            if not value.operation.startswith("const."):
                self.invariants[value] = None
        elif value in self._structure.loads:
            load = self._structure.loads[value]
            yield from (c for c in self._structure.counters if c in load.index.symbols())
            yield from self._of_predicate(load.predicate)
            if any(load.buffer is store.buffer for store in self._structure.stores):
                yield from self._structure.counters
            self.weight += 1
        elif value in self._structure.choices:
            (condition, _), *branches = self._structure.choices[value]
            for operand in (condition, *branches):
                yield from self.of(operand)
            self.weight += 1
        else:
            if value.operation == PHI:
                raise NotANest("a value is carried through the nest")
            if not is_pure(value):
                raise NotANest(f"'{value.operation}' that can fail")
            own = value.operation in vector_math_ir.MNEMONICS or uses_library(value)
            self.weight += FUNCTION_WEIGHT if own else 1
            for operand in value.operands:
                yield from self.of(operand)

    def _of_predicate(self, predicate: Predicate) -> Iterator[Value]:
        for condition, _ in predicate:
            yield from self.of(condition)
