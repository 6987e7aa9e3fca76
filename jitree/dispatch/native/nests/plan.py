"""Describes how a nest runs: what the planner decides and the emitter writes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from jitree.base.records import NamedTuple
from jitree.dispatch.native.nests.folds import Fold
from jitree.dispatch.native.nests.reading import PolynomialReader
from jitree.dispatch.native.nests.recognise import Dependence
from jitree.dispatch.native.nests.reductions import Extreme, Product
from jitree.dispatch.native.nests.structure import ElementAccess, Level, Polynomial, Structure
from jitree.dispatch.native.ssa import SsaLoop, Value

Order = tuple[tuple[Polynomial, Level], ...]
"""Parallel loops and their factors in an index, smallest first."""
_NONE: Final[Mapping[Any, Any]] = MappingProxyType({})


class Plan(NamedTuple):
    """Says how a nest runs."""

    outer: tuple[Level, ...]
    """Loops around everything else, in their order."""
    reductions: tuple[Level, ...] = ()
    vector: Level | None = None
    """Its iterations are lanes; None: one element at a time."""
    tiled: Level | None = None
    """A parallel loop of which ``copies`` iterations run together."""
    lanes: int = 1
    vectors: int = 1
    copies: int = 1
    narrow: int = 0
    """Lanes of a vector of half as many that ends the vector loop; 0: there is none."""
    steps: int = 1
    """Iterations of the last reduction that are written out."""
    accumulators: Mapping[Value, ElementAccess] = _NONE
    """Loads that find what the iteration before has stored, and its store: kept in registers."""
    injective: Mapping[ElementAccess, Order] = _NONE
    """Stores for which a guard has to check that each factor exceeds what the smaller ones reach."""
    transposed: Mapping[Value, Level] = _NONE
    """Loads of rows along this loop that become columns in registers."""
    packed: tuple[Value, ...] = ()
    """Loads along the last reduction that become rows of panels in memory (``tiles.py``)."""
    prepacked: tuple[Value, ...] = ()
    """Loads of constants that are read from copies (``../side_exits.py``)."""
    streamed: tuple[Value, ...] = ()
    """Loads of pieces of long rows that come from memory once: those of later iterations are asked for."""
    pieces: tuple[Value, ...] = ()
    """Loads of pieces of long rows that few tiles share: a later piece is asked for."""
    filters: tuple[Value, ...] = ()
    """Loads that lanes share, of rows along the last reduction: those of the next tile are asked for."""
    block: int = 0
    """Iterations of the last reduction that run for all tiles along the tiled loop before the next ones do,
    while what they share is in the first-level cache; 0: all, or as many as panels have room for."""
    ahead: Plan | None = None
    """Of a nest without lanes: how values that do not need the accumulators are computed, whose lanes are
    iterations of the last reduction."""
    folded: Plan | None = None
    """Of a nest without lanes that looks for the ``extreme`` of each row: how elements are computed, with the
    iterations of the last reduction as lanes."""
    extreme: Extreme | None = None
    is_window: bool = False
    """The reductions have few iterations, which are all written out (``tiles.py``)."""
    alternative: Plan | None = None
    """How it runs where loads that this one transposes are constants with copies, or where all numbers are
    such that an instruction for pairs gives the same bits."""
    fold: Fold | None = None
    """Two loops that the vector loop stands for."""
    merged: tuple[tuple[Level, tuple[Level, ...]], ...] = ()
    """Levels that are written in place of others, and those."""
    product: Product | None = None
    """The sum of products that it is, if there is an instruction for that."""
    in_order: bool = False
    """Each access happens as the program has it, so nothing need be known about overlaps."""

    @property
    def ending(self) -> Plan:
        """How the vector that ends the vector loop runs."""
        return self._replace(lanes=self.lanes // 2)

    @property
    def filled(self) -> float:
        """Counts vectors along the vector loop, as far as they are known."""
        count = 0 if self.vector is None else self.vector.count
        whole = -(-count // self.lanes)
        return whole - 0.5 if self.narrow else whole

    @property
    def forwards(self) -> bool:
        """Loads may find the very element that the same iteration stores, through another reference."""
        return not self.reductions

    @property
    def loads_sums_once(self) -> bool:
        """In front of its reductions, which have iterations."""
        return (
            not (self.in_order or self.block or self.packed)
            and bool(self.accumulators)
            and all(level.extent for level in self.reductions)
            and (self.alternative is None or self.alternative.loads_sums_once)
        )


class PlannedNest(NamedTuple):
    """Holds what is known of a nest."""

    loop: SsaLoop
    """The outermost loop of the nest."""
    structure: Structure
    reader: PolynomialReader
    dependence: Dependence
    plan: Plan
