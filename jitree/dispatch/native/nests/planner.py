"""Decides how a nest runs: parallel loops, lanes, tiles, registers.

A loop is *parallel* if the stored element depends on its counter, a *reduction* if not. When the stored index
is injective over the parallel loops and nothing else touches what is stored, any order of iterations is legal
that leaves the reductions in theirs: each element sees its operations in the original order, so results are
the same bit for bit. Other nests run as they stand, one element at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from math import prod
from typing import Final

from jitree.base.platform import processor
from jitree.dispatch.native.nests.ahead import with_requests
from jitree.dispatch.native.nests.folds import find_fold
from jitree.dispatch.native.nests.joining import are_rows_worth_it, find_rows, join_reductions
from jitree.dispatch.native.nests.memory import LARGEST_STRIDE
from jitree.dispatch.native.nests.plan import Order, Plan
from jitree.dispatch.native.nests.recognise import FUNCTION_WEIGHT, Dependence
from jitree.dispatch.native.nests.reductions import LANES, Product, extreme_of, find_product
from jitree.dispatch.native.nests.structure import ElementAccess, Level, Polynomial, Split, Structure
from jitree.dispatch.native.ssa import Value
from jitree.regs.layout import PACKED_ROWS

MAXIMUM_VECTORS: Final = 4
"""Vectors along the vector loop in one tile."""
MAXIMUM_COPIES: Final = 8
"""Iterations of the tiled loop in one tile."""
NOT_SHARED: Final = 2
"""Iterations of the tiled loop in one tile where none shares what it loads."""
LIGHT_BODY: Final = 12
HEAVY_BODY: Final = 30
"""Instructions of a body without reductions: up to the first it is written for four vectors, from the second
on for one."""
LARGEST_TILE: Final = 700
"""Instructions of a tile with reductions; compile time grows faster than it."""
LARGEST_WINDOW: Final = 1200
"""… of a tile whose reductions are written out."""
SHARED_BYTES: Final = 48 << 10
"""What tiles have in common is read for each of them, so it is to stay in the first-level cache."""
ROWS: Final = 2
"""Rows that are summed up together where each has its lanes along it."""
FULL_LANES: Final = 0.75
"""Of lanes that are rows with functions in their sums, so many are to be filled."""
NARROW: Final = 2
"""Iterations of a vector loop that is given up for one of at least WIDE."""
WIDE: Final = 16
MOST_ENDED: Final = 32
"""Vectors of a vector loop that one of half the lanes may end: beside more of them it saves little."""
_NO_LOADS: Final[tuple[Value, ...]] = ()
PACKED_DEPTH: Final = range(64, 1 << 20 | 1, PACKED_ROWS)
"""Iterations of a reduction along constants that are worth a copy (``../side_exits.py``)."""


@cache
def accumulators() -> int:
    """Counts binary32 vectors of 16 that a tile may carry. What it loads is not counted.

    16 of 32 registers with AVX-512. Elsewhere a vector takes two registers or four, and 6 of them do: 16
    made matrix products twice and convolutions four times as slow on AVX2. AArch64 has 32 of a quarter: 4
    are 16 registers; with 6 LLVM's order for ``generic`` keeps products beside them and spills 11.
    """
    if "avx512f" in processor.words("flags"):
        return 16
    return 4 if processor.machine() == "aarch64" else 6


@cache
def copies() -> int:
    """Iterations of a tile that share the vectors which they load; the rest of the tile lies along the lanes.

    A square of 4 by 4 loads least. Where 12 of 16 registers are accumulators, one vector (two registers) and
    one element for all lanes are what is left beside them: 6 by 1. With 2 or 3 vectors some were spilled.
    """
    return 6 if accumulators() == 6 else 4


processor.kept.extend((accumulators, copies))


def make_plan(structure: Structure, splits: Sequence[Split], dependence: Dependence) -> Plan:
    """The best plan known for a nest; there always is one. Of one that never runs it says nothing."""
    plan = None if structure.is_empty else _Planner(structure, splits, dependence).parallel()
    if plan is None:
        return Plan(structure.levels, in_order=True)
    return with_requests(structure, dependence, plan)


class _Planner:
    """Plans one nest."""

    def __init__(self, structure: Structure, splits: Sequence[Split], dependence: Dependence) -> None:
        self._structure = structure
        self._splits = splits
        self._dependence = dependence
        store = structure.stores[0]
        self._parallel = [level for level in structure.levels if store.step(level).terms]
        self._reductions = [level for level in structure.levels if level not in self._parallel]
        self._lanes = 8 if any(access.bytes == 8 for access in structure.accesses) else 16
        self._is_apart = False
        """Whether lanes of a load are picked out of several vectors, which takes as long as two loads."""

    def parallel(self) -> Plan | None:
        """None if the iterations have to stay in order."""
        accumulators = self._accumulators()
        if accumulators is None or not self._stores_agree():
            return None
        orders = {store: self._injective(store) for store in self._structure.stores}
        if None in orders.values():
            return None
        injective = {store: order for store, order in orders.items() if order}
        plan = Plan((), tuple(self._reductions), accumulators=accumulators, injective=injective)
        vector = self._vector()
        if vector is None:
            return self._along_rows(plan, None) or self._without_lanes(plan)
        structure = self._structure
        product = find_product(structure, self._dependence, vector, self._reductions)
        joined = self._of_joined(plan, product, vector)
        steps = [load.step(vector).number for load in structure.loads.values()]
        self._is_apart = any(step in range(2, LARGEST_STRIDE + 1) for step in steps)
        if joined is not None and structure.stores[0].element == "i32":
            return joined
        if product is not None and product.widens and not self._shares_words(product, vector):
            product = None
        if product is not None and not product.contraction.has_look:
            return self._of_products(plan, product, vector)
        transposed, along = self._transposed(vector)
        if along in self._reductions:
            rows = self._along_rows(plan, vector)
            if rows is not None:
                return rows
        made = self._in_lanes(plan, vector, transposed, along)
        if product is not None:
            return made._replace(alternative=self._of_products(plan, product, vector))
        if made.steps > 1 and len(made.transposed) == 1:
            return made._replace(alternative=self._prepacked(made, vector))
        is_worth_it = self._reductions or self._dependence.weight >= HEAVY_BODY
        if is_worth_it and not (made.transposed or made.packed or made.block or made.is_window):
            made = self._folded(made, vector)
        made, joined = self._ended(made), None if joined is None else self._ended(joined)
        is_better = joined is not None and are_rows_worth_it(structure, joined, made, vector)
        return joined if joined is not None and is_better else made

    def _ended(self, plan: Plan) -> Plan:
        """The plan that ends with a vector of half the lanes, if it may."""
        extent = None if plan.vector is None else plan.vector.extent
        if extent is None or plan.tiled is None or not plan.reductions or accumulators() < LANES:
            return plan
        is_other = plan.is_window or plan.steps > 1
        if plan.packed:
            is_other |= plan.product is None
        else:  # half of the lanes are picked out of rows in the time of all
            is_other |= self._is_apart
        rest, lanes = extent % LANES, range(LANES + 1, MOST_ENDED * LANES)
        if is_other or plan.lanes != LANES or extent not in lanes or rest not in range(1, LANES // 2 + 1):
            return plan
        return plan._replace(narrow=rest)

    def _outer(self, *others: Level | None) -> tuple[Level, ...]:
        return tuple(level for level in self._parallel if level not in others)

    def _without_lanes(self, plan: Plan) -> Plan:
        plan = plan._replace(outer=self._outer())
        if not self._reductions or self._dependence.weight < FUNCTION_WEIGHT:
            return plan
        ahead = plan._replace(vector=self._reductions[-1], lanes=self._lanes, accumulators={})
        return plan._replace(steps=self._lanes, ahead=ahead)

    def _in_lanes(
        self, plan: Plan, vector: Level, transposed: Mapping[Value, Level], along: Level | None
    ) -> Plan:
        """Lanes are iterations of a parallel loop."""
        lanes, packed = self._lanes, _NO_LOADS
        tiled = along if along in self._parallel else self._tiled(vector)
        if along in self._reductions and self._are_reused(transposed, vector, tiled):
            packed, transposed, along = tuple(transposed), {}, None
        steps, vectors = lanes if along in self._reductions else 1, 1
        if not transposed:
            count = vector.count // lanes
            if self._reductions and not packed and vector.extent is not None and count > 1:
                # A tile takes the rest as one of its vectors; there is no second tile for it.
                count = -(-vector.extent // lanes)
            vectors = self._vectors(vector, tiled, count)
        together = self._copies(tiled, vectors, steps)
        if along is not None and along is tiled:
            together = lanes
        elif steps > 1 and tiled is not None and not self._shared(tiled, vector):
            together = 1
        return plan._replace(
            outer=self._outer(vector, tiled),
            vector=vector,
            tiled=tiled,
            lanes=lanes,
            vectors=vectors,
            copies=together,
            steps=steps,
            transposed=transposed,
            packed=packed,
            block=0 if packed or steps > 1 else self._block(vector, tiled, vectors * lanes, together),
            is_window=len(self._reductions) > 1
            and not (packed or transposed)
            and self._is_window(vectors * together),
        )

    def _along_rows(self, plan: Plan, rows: Level | None) -> Plan | None:
        """Plans a reduction along rows that takes some rows at a time; None: it should not."""
        if not self._reductions:
            return None
        extreme = extreme_of(self._structure, self._reductions[-1], plan.accumulators)
        if extreme is not None and self._dependence.reads_stored(extreme.element):
            extreme = None
        if extreme is None and (rows is None or not self._leaves_lanes(rows)):
            return None
        tiled = None if extreme is not None else rows
        plan = plan._replace(
            outer=self._outer(tiled), tiled=tiled, copies=1 if tiled is None else ROWS, extreme=extreme
        )
        wide = plan._replace(vector=self._reductions[-1], lanes=self._lanes, accumulators={})
        if extreme is not None:
            return plan._replace(folded=wide._replace(vectors=MAXIMUM_VECTORS))
        return plan._replace(steps=self._lanes, ahead=wide)

    def _leaves_lanes(self, rows: Level) -> bool:
        """Whether functions would be computed for many lanes that are no rows."""
        if self._dependence.weight < FUNCTION_WEIGHT or rows.extent is None:
            return False
        return rows.extent <= FULL_LANES * self._lanes * -(-rows.extent // self._lanes)

    def _folded(self, plan: Plan, vector: Level) -> Plan:
        """The plan with lanes that run over rows, where that is better."""
        sums = {*self._structure.stores, *map(self._structure.loads.__getitem__, plan.accumulators)}
        fold = find_fold(self._structure, self._dependence, vector, plan.outer, sums)
        if fold is None:
            return plan
        vectors = self._vectors(vector, plan.tiled, -(-fold.level.count // plan.lanes))
        return plan._replace(
            outer=tuple(level for level in plan.outer if level is not fold.rows),
            vector=fold.level,
            vectors=vectors,
            copies=self._copies(plan.tiled, vectors, 1),
            fold=fold,
            merged=(fold.merged,),
        )

    def _shares_words(self, product: Product, vector: Level) -> bool:
        """Whether words that are made of several rows are part of several sums; else widened numbers of 32
        bits take less."""
        row, tiled = self._structure.loads[product.row], self._tiled(vector)
        is_shared = tiled is not None and tiled.counter not in self._dependence.place(row)
        return is_shared or row.step(vector).number != 1

    def _of_products(self, plan: Plan, product: Product, vector: Level) -> Plan:
        """The reduction that has groups is the innermost: sums of integers are the same in any order."""
        tiled = self._tiled(vector)
        vectors = self._vectors(vector, tiled, -(-vector.count // self._lanes))
        lies_along = self._structure.loads[product.row].step(vector).number != 1
        return plan._replace(
            outer=self._outer(vector, tiled),
            vector=vector,
            tiled=tiled,
            reductions=(*(level for level in self._reductions if level is not product.along), product.along),
            lanes=self._lanes,
            vectors=vectors,
            copies=self._copies(tiled, vectors, 1),
            steps=product.square if lies_along else product.group,
            packed=(product.row,) if self._are_reused((product.row,), vector, tiled) else (),
            product=product,
        )

    def _of_joined(self, plan: Plan, known: Product | None, vector: Level) -> Plan | None:
        """Lanes run over rows, too, where these lie one after the other. None if no reductions are one."""
        product = join_reductions(self._structure, self._dependence, vector, self._reductions, known)
        tiled, columns = self._tiled(vector), vector
        if product is None or not self._are_reused((product.row,), vector, tiled):
            return None
        outer = self._outer(vector, tiled)
        tile = self._lanes * self._vectors(columns, tiled, MAXIMUM_VECTORS)
        fold = find_rows(self._structure, product, vector, outer, tile)
        if fold is not None:
            vector, outer = fold.level, tuple(level for level in outer if level is not fold.rows)
        vectors = self._vectors(columns, tiled, -(-vector.count // self._lanes))
        return plan._replace(
            outer=outer,
            vector=vector,
            tiled=tiled,
            reductions=(*(level for level in self._reductions if level not in product.joined), product.along),
            lanes=self._lanes,
            vectors=vectors,
            copies=self._copies(tiled, vectors, 1),
            steps=product.group,
            packed=(product.row,),
            fold=fold,
            merged=(*(() if fold is None else (fold.merged,)), (product.along, product.joined)),
            product=product,
        )

    def _injective(self, store: ElementAccess) -> Order | None:
        """The order that a guard has to check; empty: the numbers show it, None: it is not so."""
        factors = self._factors(store.index)
        constant = [pair for pair in factors if pair[0].number is not None]
        order = sorted(constant, key=lambda pair: abs(pair[0].number or 0))
        order += [pair for pair in factors if pair[0].number is None]
        reach: int | None = 0
        for factor, level in order:
            number, count = factor.number, level.extent
            if number is None or reach is None:
                return tuple(order) if all((one.number or 1) > 0 for one, _ in order) else None
            if abs(number) <= reach:
                return None
            reach = None if count is None else reach + abs(number) * (count - 1)
        return ()

    def _factors(self, index: Polynomial) -> list[tuple[Polynomial, Level]]:
        """Of the parallel loops, from the innermost; a split one that is used as a whole counts as one."""
        found: list[tuple[Polynomial, Level]] = []
        merged: set[Level] = set()
        for level in reversed(self._parallel):
            if level.extent == 1 or level in merged:  # a counter that is 0
                continue
            factor, whole = index.coefficient(level.counter), level
            for split in self._splits:  # from the innermost of each loop
                outer = index.coefficient(split.outer.counter)
                if whole is split.inner and outer == factor * split.inner.bound:
                    whole = split.whole
                    merged.add(split.outer)
            found.append((factor, whole))
        return found

    def _accumulators(self) -> dict[Value, ElementAccess] | None:
        """None if a stored element is used in a way that lanes would change."""
        found: dict[Value, ElementAccess] = {}
        for store in self._structure.stores:
            own = [
                (value, load) for value, load in self._structure.loads.items() if load.buffer is store.buffer
            ]
            if any(not _same_element(load, store) or load.position > store.position for _, load in own):
                return None
            if not self._reductions:
                continue
            if not own or store.predicate or any(load.predicate for _, load in own):
                return None
            kinds = {load.instruction.mnemonic for _, load in own}
            if len(kinds) > 1 or own[0][1].element != store.element:
                return None  # there is one register for what all of them find
            found.update((value, store) for value, _ in own)
        return found

    def _stores_agree(self) -> bool:
        """All stores depend on the same loops and go to different buffers."""
        stores = self._structure.stores
        if len({store.buffer for store in stores}) < len(stores):
            return False
        return all(
            bool(store.step(level).terms) == (level in self._parallel)
            for store in stores
            for level in self._structure.levels
        )

    def _vector(self) -> Level | None:
        if all(level.extent == 1 for level in self._parallel):
            return None
        store = self._structure.stores[0]

        def nearness(level: Level) -> float:
            """How near elements of its iterations are to each other."""
            number = store.step(level).number
            return -abs(number) if number is not None else float("-inf")

        widest = max(self._parallel, key=lambda level: (level.count, nearness(level)))
        for level in self._parallel:
            if store.step(level).number == 1:
                return widest if level.count <= NARROW and widest.count >= WIDE else level
        return widest

    def _transposed(self, vector: Level) -> tuple[dict[Value, Level], Level | None]:
        """The loads that lie along one other loop, and that loop: the last reduction, or a parallel one."""
        candidates = self._reductions[-1:] or [level for level in self._parallel if level is not vector]
        candidates = [level for level in candidates if level.count >= self._lanes]
        apart = {  # loads whose lanes are
            value: load
            for value, load in self._structure.loads.items()
            if load.step(vector).terms and load.step(vector).number != 1
            if not (load.predicate or load.computed)
        }
        best: tuple[dict[Value, Level], Level | None] = ({}, None)
        for level in reversed(candidates):
            found = {value: level for value, load in apart.items() if load.step(level).number == 1}
            if len(found) > len(best[0]):
                best = found, level
        return best

    def _tiled(self, vector: Level) -> Level | None:
        """Where there are reductions, the parallel loop over which most vectors can be shared; or else most
        single elements, as of a filter that is laid over all rows of an image."""
        others = [level for level in self._parallel if level is not vector]
        if not self._reductions or not others:
            return None

        loads = self._structure.loads.values()
        shares = any(self._shared(level, vector) for level in others)

        def worth(level: Level) -> tuple[int, ...]:
            together = min(level.count, MAXIMUM_VECTORS)
            common = sum(level.counter not in self._dependence.place(load) for load in loads)
            if shares:
                return together, self._shared(level, vector), common
            return common if together > 1 else 0, together

        return max(reversed(others), key=worth)

    def _shared(self, level: Level, vector: Level) -> int:
        """The loads of vectors that all iterations of a loop have in common."""
        return sum(
            level.counter not in place and vector.counter in place
            for place in map(self._dependence.place, self._structure.loads.values())
        )

    def _are_reused(self, loads: Iterable[Value], vector: Level, tiled: Level | None) -> bool:
        """Whether several tiles need the same vectors of all these loads."""
        places = [self._dependence.place(self._structure.loads[value]) for value in loads]
        if tiled is None or any(tiled.counter in place for place in places):
            return False
        vectors = self._vectors(vector, tiled, vector.count // self._lanes)
        return tiled.count > self._copies(tiled, vectors, 1)

    def _prepacked(self, plan: Plan, vector: Level) -> Plan | None:
        """The plan where the transposed load is a constant with a copy: whole blocks of sixteen rows, one
        after the other."""
        (value,) = plan.transposed
        load, depth, rows = self._structure.loads[value], self._reductions[-1], vector.extent or 0
        if (
            plan.lanes != PACKED_ROWS
            or len(self._reductions) != 1
            or load.element != "f32"
            or depth.count not in PACKED_DEPTH
            or self._dependence.place(load) != {vector.counter, depth.counter}
            or load.step(vector).number != depth.count
            or rows < PACKED_ROWS
            or rows % PACKED_ROWS
        ):
            return None
        vectors = self._vectors(vector, plan.tiled, vector.count // plan.lanes)
        return plan._replace(
            transposed={},
            prepacked=(value,),
            steps=1,
            vectors=vectors,
            copies=self._copies(plan.tiled, vectors, 1),
        )

    def _block(self, vector: Level, tiled: Level | None, width: int, together: int) -> int:
        """Counts reduction iterations whose shared data fit the cache: 0 where all are no more, or nothing is
        shared."""
        counts = [level.count for level in self._reductions]
        if tiled is None or not counts or max(counts[:-1], default=1) > 1:
            return 0
        last = self._reductions[-1]
        places = {load: self._dependence.place(load) for load in self._structure.loads.values()}
        row = sum(
            width * load.bytes
            for load, place in places.items()
            if vector.counter in place and last.counter in place and tiled.counter not in place
        )
        blocks = -(-(last.extent or 0) * row // SHARED_BYTES)
        if blocks < 2 or tiled.count <= together or self._is_window(width * together):
            return 0
        return -(-counts[-1] // blocks)

    def _is_window(self, size: int) -> bool:
        """Whether a tile over several reductions is small enough to unroll. So many vectors of elements lie
        together."""
        counts = [level.count for level in self._reductions]
        if sum(count > 1 for count in counts) < 2:
            return False
        return prod(counts) * size * self._dependence.weight <= LARGEST_WINDOW

    def _vectors(self, vector: Level, tiled: Level | None, count: int) -> int:
        """Of one tile, where the vector loop has so many."""
        if self._reductions:
            sharing = tiled is not None and self._shared(tiled, vector) > 0
            registers = accumulators() // len(self._structure.stores)
            together = (MAXIMUM_COPIES if self._is_apart else copies()) if sharing else NOT_SHARED
            beside = min(together, tiled.count) if tiled is not None else 1
            most = min(registers // beside, LARGEST_TILE // self._dependence.weight)
        else:
            weight = self._dependence.weight
            most = 4 if weight <= LIGHT_BODY else 2 if weight <= HEAVY_BODY else 1
        return max(1, min(most, MAXIMUM_VECTORS, count))

    def _copies(self, tiled: Level | None, vectors: int, steps: int) -> int:
        if tiled is None:
            return 1
        registers = accumulators() // len(self._structure.stores) // vectors
        most = min(registers, LARGEST_TILE // (self._dependence.weight * steps * vectors))
        limit = MAXIMUM_COPIES if vectors == 1 or self._is_apart else MAXIMUM_VECTORS
        return max(1, min(most, limit, tiled.count))


def _same_element(load: ElementAccess, store: ElementAccess) -> bool:
    return load.index == store.index and load.bytes == store.bytes and not load.computed
