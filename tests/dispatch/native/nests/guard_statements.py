"""What the guard of a nest concludes, and what is concluded of its loops, as statements in exact integers.

A random nest is recognised, and its guard computed for numbers from outside, some of which wrap. Where the
nest may run, its iterations are counted one by one, with the program's arithmetic.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import NamedTuple

from jitree.dispatch.native import nests
from jitree.dispatch.native.nests.structure import ElementAccess
from jitree.dispatch.native.ssa import Value
from tests.dispatch.native.nests.evaluating import Memory, corners, guarded, value_of, wrap
from tests.dispatch.native.nests.programs import Bound, Level, Text, argument, program

BYTES = 4
Factors = tuple[int | str, ...]
"""Of the counters in an index, and what is added last: numbers, or registers of arguments."""


class Case(NamedTuple):
    """A nest that stores what it loads, of which the guard lets pass a call."""

    nest: nests.Nest
    counts: tuple[int, ...]
    """Of the program's loops."""
    stored: tuple[int, ...]
    loaded: tuple[int, ...]
    """Factors of indices."""
    memories: tuple[Memory, Memory]
    """What is stored to, and what is loaded from; the same where it is one reference."""
    values: dict[Value, int | Memory]

    def iterations(self) -> list[tuple[int, ...]]:
        return corners(self.counts)

    def element(self, factors: tuple[int, ...], at: tuple[int, ...]) -> int:
        """The program's number of an element."""
        return wrap(sum(map(int.__mul__, factors, at)) + factors[-1])

    def accesses(self) -> Iterator[tuple[ElementAccess, tuple[int, ...]]]:
        yield self.nest.structure.stores[0], self.stored
        yield from ((load, self.loaded) for load in self.nest.structure.loads.values())


_SMALL, _FACTORS = (1, 2, 3, 4, 5), (0, 0, 1, 1, 4, 5, 20, -1, 2**61, 2**62, 2**63 - 1, -(2**63), 2**31)
_GIVEN = (0, 1, 2, 2, 3, 3, 4, 4, 5, 5, 20, -1, 2**31 - 1, -(2**31), 2**61, 2**62)


def _factors(chance: random.Random, levels: list[Level]) -> Factors:
    """Those of rows that lie one after the other, or others."""
    found: list[int | str] = []
    factor = 1
    for level in reversed(levels):
        odd = chance.random()
        found.insert(0, chance.choice(_FACTORS) if odd < 0.2 else argument(2) if odd < 0.4 else factor)
        factor *= level.bound if isinstance(level.bound, int) else 5
    return (*found, chance.choice((0, 0, 7, argument(3), 2**61)))


def case(chance: random.Random) -> Case | None:
    """None where a nest is refused, or its guard."""
    bounds: list[Bound] = [chance.choice(_SMALL) for _ in range(chance.randint(1, 3))]
    for place in range(len(bounds)):
        if chance.random() < 0.25:
            bounds[place] = argument(place % 2)
    levels = [Level(bound) for bound in bounds]
    stored, loaded = (_factors(chance, levels) for _ in range(2))
    if chance.random() < 0.5:
        loaded = stored
    source = chance.choice((0, 1))

    def body(text: Text, at: list[str]) -> None:
        places = [
            text.index(factors[-1], *zip(at, factors[:-1], strict=True)) for factors in (stored, loaded)
        ]
        value = text.op("add.i32", text.load("i32", source, places[1]), text.constant(1, "i32"))
        text.store("i32", 0, places[0], value)

    function = program(levels, body)
    (found,) = nests.find(function)
    if not isinstance(found, nests.Nest) or found.structure.is_empty:
        return None
    given = [chance.choice(_GIVEN) for _ in range(4)]
    numbers = {argument(place): number for place, number in enumerate(given)}
    addresses = [1 << 20, (1 << 20) + chance.choice((0, 4, 16, -16, 64, 512, -512))]
    memories = [Memory(address, chance.choice((4, 64, 80, 100, 400, 2**33))) for address in addresses]
    values: dict[Value, int | Memory] = {}
    for kind, fitting in (("ref", [*memories, *memories]), ("i64", given)):
        values.update(zip((one for one in function.arguments if one.type == kind), fitting, strict=True))
    if not guarded(found, values).passes:
        return None
    counts, first, second = (
        tuple(one if isinstance(one, int) else numbers[str(one)] for one in each)
        for each in (bounds, stored, loaded)
    )
    return Case(found, counts, first, second, (memories[0], memories[source]), values)


def ranges(made: Case) -> None:
    """Each access of each iteration lies in its buffer."""
    for at in made.iterations():
        for factors, memory in zip((made.stored, made.loaded), made.memories, strict=True):
            assert 0 <= made.element(factors, at) < memory.length // BYTES


def apart(made: Case) -> None:
    """What is stored is apart from what other iterations touch, where these run in another order."""
    if made.nest.plan.in_order:
        return
    stored, loaded = (
        {at: memory.address + BYTES * made.element(factors, at) for at in made.iterations()}
        for factors, memory in zip((made.stored, made.loaded), made.memories, strict=True)
    )
    is_sum = made.memories[0] is made.memories[1] and bool(made.nest.plan.reductions)
    for (at, store), (other, load) in itertools.product(stored.items(), loaded.items()):
        assert at == other or abs(store - load) >= BYTES or (is_sum and store == load)


def injective(made: Case) -> None:
    """Iterations of parallel loops store to elements of their own."""
    if made.nest.plan.in_order:
        return
    is_reduction = [
        factor == 0 or count == 1 for factor, count in zip(made.stored, made.counts, strict=False)
    ]
    owners: dict[int, tuple[int, ...]] = {}
    for at in made.iterations():
        own = tuple(number for number, leaves in zip(at, is_reduction, strict=True) if not leaves)
        assert owners.setdefault(made.element(made.stored, at), own) == own


def one_loop(made: Case) -> None:
    """Loops that are one, or parted, touch the elements of the program's loops, each as often."""
    if max(made.counts) > 8:
        return
    structure = made.nest.structure
    numbers = {symbol: number for symbol, number in made.values.items() if isinstance(number, int)}
    counts = [
        level.extent if level.extent is not None else value_of(level.distance, numbers)
        for level in structure.levels
    ]
    for access, factors in made.accesses():
        found = sorted(
            wrap(value_of(access.index, {**numbers, **dict(zip(structure.counters, at, strict=True))}))
            for at in itertools.product(*map(range, counts))
        )
        assert found == sorted(made.element(factors, at) for at in made.iterations())


def same_element(made: Case) -> None:
    """Accesses of equal indices touch the same element in each iteration."""
    (store, *_), (load, *_) = made.nest.structure.stores, made.nest.structure.loads.values()
    if store.index == load.index:
        assert all(made.element(made.stored, at) == made.element(made.loaded, at) for at in made.iterations())


def in_front(chance: random.Random) -> None:
    """An element that is loaded in front of the loops lies in its buffer, whatever its index is."""
    place = chance.choice((0, 3, 8, -1, 2**61, 2**63 - 1, argument(0)))

    def body(text: Text, at: list[str]) -> None:
        row = text.load("i64", 1, text.index(place))
        text.store("i32", 0, text.index(0, (row, 8), (at[0], 1)), text.constant(7, "i32"))

    function = program([Level(5)], body)
    (nest,) = nests.find(function)
    assert isinstance(nest, nests.Nest), nest
    given, length = (
        chance.choice((0, 7, 8, -1, -(2**63), 2**61, 2**62 + 1)),
        chance.choice((0, 7, 8, 64, 2**40)),
    )
    refs = iter((Memory(1 << 20, 4096), Memory(1 << 22, length)))
    values = {one: given if one.type == "i64" else next(refs, Memory(0, 0)) for one in function.arguments}
    loads = guarded(nest, values, chance.choice((0, 1, -1, 2**61))).loads
    assert loads
    for index, is_read in loads:
        assert not is_read or 0 <= index < length // 8
