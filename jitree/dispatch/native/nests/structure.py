"""Describes a nest: its loops, accesses with polynomial indices, predicates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from jitree.base.records import NamedTuple
from jitree.dispatch.native.nests.polynomials import ZERO, Polynomial
from jitree.dispatch.native.ssa import PHI, SsaInstruction, SsaLoop, Value

ELEMENT_LLVM: Final = {"i8": "i8", "i16": "i16", "i32": "i32", "i64": "i64", "f32": "float", "f64": "double"}
_BYTES: Final = {"i8": 1, "i16": 2, "i32": 4, "f32": 4, "i64": 8, "f64": 8}
_UNKNOWN: Final = 1 << 30

Literal = tuple[Value, bool]
"""A condition and whether it has to hold."""
Predicate = frozenset[Literal]
"""All of them have to hold; empty where the code runs in each iteration."""


class NotANest(Exception):
    """Says why a loop is not taken, to people who read the tier report."""


class Level:
    """Describes a loop, whose counter runs from 0 in steps of 1.

    The program's variable is ``initial + step * counter``.
    """

    __slots__ = ("bound", "count", "counter", "distance", "extent", "initial", "step", "unsigned")

    def __init__(
        self, counter: Value, initial: Polynomial, bound: Polynomial, step: int, unsigned: bool
    ) -> None:
        self.counter = counter
        """What stands for the counter in polynomials: the parameter of the loop's header, or a new value."""
        self.initial = initial
        self.bound = bound
        self.distance = bound - initial
        self.step = step
        self.unsigned = unsigned
        """Whether the counter is compared with the bound as an unsigned number."""
        distance = self.distance.number
        self.extent = None if distance is None else -(-distance // step)
        """The number of iterations, if it is constant."""
        self.count = _UNKNOWN if self.extent is None else self.extent
        """The same, a large one where it is not known."""


def new_level(number: int, like: Value, bound: Polynomial, step: int = 1, unsigned: bool = False) -> Level:
    """Makes a loop from 0 whose counter, of a negative number, no function has."""
    counter = Value(number, "i64", PHI, [], (), like.pc, like.block)
    return Level(counter, ZERO, bound, step, unsigned)


class Split(NamedTuple):
    """Names a loop that became two; the inner one may be split again."""

    whole: Level
    outer: Level
    inner: Level


class ElementAccess:
    """Describes a load or store."""

    __slots__ = ("buffer", "bytes", "computed", "element", "index", "instruction", "position", "predicate")

    def __init__(
        self, instruction: SsaInstruction, element: str, buffer: Value, index: Polynomial,
        predicate: Predicate, position: int, computed: tuple[tuple[Value, int], ...],
    ) -> None:  # fmt: skip
        self.instruction = instruction
        self.element = element
        """``i8 i16 i32 f32 i64 f64``"""
        self.bytes = _BYTES[element]
        self.buffer = buffer
        self.index = index
        """The index of the element, over counters and values from outside."""
        self.predicate = predicate
        self.position = position
        """The position in the body."""
        self.computed = computed
        """What is added to the index for each element, and its factors (``reading.py``); of loads alone."""

    def at(self, index: Polynomial) -> ElementAccess:
        """The same one with another index."""
        place = self.buffer, index, self.predicate, self.position, self.computed
        return ElementAccess(self.instruction, self.element, *place)

    @property
    def stored(self) -> Value:
        return self.instruction.operands[2]

    def step(self, level: Level) -> Polynomial:
        """How many elements it is from one iteration of a loop to the next."""
        return self.index.coefficient(level.counter)


class Structure(NamedTuple):
    """Describes a recognised nest."""

    loop: SsaLoop
    outermost: Level
    """The whole outermost loop, also where it is split."""
    levels: tuple[Level, ...]
    """Levels from the outermost to the innermost."""
    loads: dict[Value, ElementAccess]
    """What is read, by the value that it gives."""
    stores: tuple[ElementAccess, ...]
    choices: dict[Value, tuple[Literal, Value, Value]]
    """By parameter where two branches meet: the condition, its value if that holds, and if not."""
    conditions: dict[Value, Polynomial]
    """What is compared in predicates, where it is a polynomial."""
    counters: tuple[Value, ...]

    @property
    def accesses(self) -> tuple[ElementAccess, ...]:
        return (*self.loads.values(), *self.stores)

    def over(self, levels: tuple[Level, ...], index: Callable[[Polynomial], Polynomial]) -> Structure:
        """Puts the nest over other levels; ``index`` says what becomes of indices."""
        return self._replace(
            levels=levels,
            loads={value: load.at(index(load.index)) for value, load in self.loads.items()},
            stores=tuple(store.at(index(store.index)) for store in self.stores),
            counters=tuple(level.counter for level in levels),
        )

    @property
    def is_empty(self) -> bool:
        """Whether a loop is known to have no iterations."""
        return any(level.extent is not None and level.extent < 1 for level in self.levels)
