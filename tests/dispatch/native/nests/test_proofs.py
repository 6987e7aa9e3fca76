"""Each conclusion of the README's table has a statement that holds, and that finds a fault in its code."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from jitree.dispatch.native.nests import (
    cutting,
    folds,
    guard,
    joining,
    products,
    reading,
    rewrites,
    structure,
)
from jitree.dispatch.native.nests.guard import Guard
from jitree.dispatch.native.nests.memory import Memory
from jitree.dispatch.native.nests.structure import ElementAccess, Interval, Level, Polynomial
from jitree.vmfb import sizes
from tests.dispatch.native.nests import guard_statements, lane_statements, statements

README: Final = Path(structure.__file__).with_name("README.md")
OF_NUMBERS: Final[dict[str, Callable[[random.Random], None]]] = {
    one.__name__: one
    for one in (
        statements.congruence, statements.order, statements.division, statements.known, statements.iterations,
        statements.digits, statements.narrowing, statements.computed, statements.cuts, statements.elements,
        lane_statements.rows, lane_statements.joined, lane_statements.bytes_in_fours,
        lane_statements.exponents, lane_statements.upper_halves, lane_statements.masks,
        guard_statements.in_front,
    )
}  # fmt: skip
OF_GUARDS: Final[dict[str, Callable[[guard_statements.Case], None]]] = {
    one.__name__: one
    for one in (
        guard_statements.ranges, guard_statements.apart, guard_statements.injective,
        guard_statements.one_loop, guard_statements.same_element,
    )
}  # fmt: skip
CASES: Final = 150
MOST: Final = 3000
"""Cases until a fault is found."""


class Fault(NamedTuple):
    """A line that is wrong."""

    where: Any
    name: str
    instead: Any
    first: int = 0
    """A case not long before the one that finds it: not all do."""


def _extent(level: Level, *arguments: Any) -> None:
    _make_level(level, *arguments)
    distance = level.distance.number
    level.extent = None if distance is None else distance // level.step


def _load_in_front(memory: Memory, access: ElementAccess, index: str) -> str:
    writer = memory._writer
    buffer = writer.context.buffer(access.buffer)
    elements = writer.let(f"lshr i64 {buffer.length}, {access.bytes.bit_length() - 1}")
    inside = writer.let(f"icmp sgt i64 {elements}, {index}")
    return writer.masked_load("i64", "i64", 1, writer.at("i64", buffer.address, index), inside)


_make_level = Level.__init__
_always: Callable[..., bool] = lambda *arguments: True  # noqa: E731
FAULTS: Final = {
    "congruence": Fault(structure, "_wrap", lambda number: max(min(number, 2**63 - 1), -(2**63))),
    "order": Fault(Interval, "is_signed", True),
    "division": Fault(reading.PolynomialReader, "_is_rest", _always),
    "known": Fault(Interval, "is_signed", True),
    "iterations": Fault(Level, "__init__", _extent),
    "digits": Fault(rewrites, "_digits", lambda bound, divisors: divisors[:1]),
    "narrowing": Fault(rewrites, "is_narrow", _always),
    "computed": Fault(reading, "BITS", 40),
    "cuts": Fault(cutting, "_extent", lambda level: Polynomial.constant(max(level.extent - 1, 1))),
    "elements": Fault(cutting, "_in_a_row", lambda found: (found[0], found[1]) if len(found) > 1 else None),
    "rows": Fault(folds.Fold, "pieces", 1),
    "joined": Fault(joining, "lcm", max),
    "bytes_in_fours": Fault(products, "_TURNED", -0x7F7F7F00),
    "exponents": Fault(products, "LEAST_OF_BOTH", 141),
    "upper_halves": Fault(sizes, "_HALVES", {opcode: half - 1 for opcode, half in sizes._HALVES.items()}),
    "masks": Fault(sizes._Flow, "_is_mask", lambda *arguments: False),
    "ranges": Fault(Guard, "_kind", lambda *arguments: "i64", 80),
    "apart": Fault(guard, "are_apart", lambda *arguments: "true"),
    "injective": Fault(Guard, "_require_injective", lambda *arguments: None, 450),
    "one_loop": Fault(
        rewrites, "_is_one", lambda nest, outer, inner, used: bool(outer.extent and inner.extent)
    ),
    "same_element": Fault(
        Polynomial, "__eq__", lambda one, other: one.terms.keys() == other.terms.keys(), 230
    ),
    "in_front": Fault(Memory, "load_in_front", _load_in_front),
}


def _seeds(count: int, first: int = 0) -> Iterator[random.Random]:
    return (random.Random(str(number)) for number in range(first, first + count))


@pytest.fixture(scope="module")
def cases() -> list[guard_statements.Case]:
    """Nests whose guards pass."""
    return [made for chance in _seeds(CASES) if (made := guard_statements.case(chance)) is not None]


@pytest.mark.parametrize("name", OF_NUMBERS)
def test_a_conclusion_of_numbers_holds(name: str) -> None:
    for chance in _seeds(CASES):
        OF_NUMBERS[name](chance)


@pytest.mark.parametrize("name", OF_GUARDS)
def test_a_conclusion_of_a_guard_holds(name: str, cases: list[guard_statements.Case]) -> None:
    assert len(cases) > CASES // 8
    for made in cases:
        OF_GUARDS[name](made)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = FAULTS[name]
    monkeypatch.setattr(fault.where, fault.name, fault.instead)
    with pytest.raises(AssertionError):
        for chance in _seeds(MOST, fault.first):
            if name in OF_NUMBERS:
                OF_NUMBERS[name](chance)
            elif (made := guard_statements.case(chance)) is not None:
                OF_GUARDS[name](made)


def test_the_list_of_conclusions_names_them() -> None:
    table = README.read_text().partition("These are all conclusions:")[2].partition("\n\n`python")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row[-1])]
    assert all(len(row) == 4 and re.search(r"`\w+`", row[-1]) for row in rows), "each row names a statement"
    assert sorted(named) == sorted({**OF_NUMBERS, **OF_GUARDS}) == sorted(FAULTS)
