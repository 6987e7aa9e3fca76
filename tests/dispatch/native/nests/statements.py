"""What is concluded of nests, as statements in exact integers. Each looks for a case in which it does not
hold, among small numbers and among those near what some width does not hold, and raises ``AssertionError``.

The rows of the table in the README of ``jitree/dispatch/native/nests`` name them.
"""

from __future__ import annotations

import itertools
import random
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

from jitree.dispatch.native.nests import cutting, reading, rewrites, structure
from jitree.dispatch.native.nests.reading import BITS, BoundWriter, Extremes, PolynomialReader, is_bounded
from jitree.dispatch.native.nests.structure import (
    NARROW_BITS,
    SYMBOL_BITS,
    ZERO,
    ElementAccess,
    Level,
    Polynomial,
)
from jitree.dispatch.native.ssa import PHI, Value
from jitree.dispatch.semantics import SEMANTICS
from tests.dispatch.native.nests.evaluating import Evaluator, context_of, corners, value_of, wrap

LARGE: Final = [
    sign * (1 << bits) + near
    for bits in (31, 32, 60, 61, 62, 63)
    for sign in (1, -1)
    for near in (-2, -1, 0, 1)
]
SMALL: Final = [*range(-4, 9)]
INSIDE, OUTSIDE = object(), object()
"""The block of a nest's loops, and the one in front of them."""
_NUMBERS: Final = itertools.count(1)


def value(
    operation: str,
    operands: Sequence[Value] = (),
    literals: tuple[int, ...] = (),
    kind: str = "i64",
    block: object = INSIDE,
) -> Value:
    return Value(next(_NUMBERS), kind, operation, list(operands), literals, 0, block)  # type: ignore[arg-type]


def outside() -> Value:
    return value("argument", block=OUTSIDE)


def counter() -> Value:
    return value(PHI)


def pick(chance: random.Random) -> int:
    """A number of 64 bits, small ones as often as others."""
    return wrap(chance.choice(SMALL if chance.random() < 0.5 else LARGE))


class Loops:
    """Two loops, of which the second runs as often as only the call knows."""

    def __init__(self, chance: random.Random) -> None:
        self.sizes = [outside(), outside()]
        self.reader = PolynomialReader(SimpleNamespace(blocks={INSIDE}))  # type: ignore[arg-type]
        bounds = [Polynomial.constant(chance.choice((1, 2, 5, 1 << 20))), Polynomial.symbol(self.sizes[0])]
        self.levels = [Level(counter(), ZERO, bound, 1, False) for bound in bounds]
        for level in self.levels:
            self.reader.levels[level.counter] = level
        self.symbols = [*(level.counter for level in self.levels), *self.sizes]

    def polynomial(self, chance: random.Random) -> Polynomial:
        found = Polynomial.constant(pick(chance)) if chance.random() < 0.6 else ZERO
        for symbol in chance.sample(self.symbols, chance.randint(1, 2)):
            found = found + Polynomial.symbol(symbol) * Polynomial.constant(pick(chance) or 1)
        return found

    def read_as(self, polynomial: Polynomial) -> Value:
        """A value of the nest that is a polynomial."""
        made = value("made")
        self.reader._polynomials[made] = polynomial
        return made

    def passed(self, chance: random.Random) -> Iterator[Mapping[Value, int]]:
        """The counters and numbers from outside of calls that the guard lets pass."""
        for _ in range(4):
            given = {
                one: chance.choice((1, 2, 5, 0, -1, -3, 2**31 - 1, 2**31, -(2**31), 2**62))
                for one in self.sizes
            }
            reader, checked = self.reader, self.reader.not_negative | {self.sizes[0]}
            if any(not -(1 << SYMBOL_BITS) <= given[one] < 1 << SYMBOL_BITS for one in checked):
                continue
            if any(given[one] < 0 for one in reader.not_negative & set(given)):
                continue
            counts = [
                level.extent if level.extent is not None else given[self.sizes[0]] for level in self.levels
            ]
            found = [{**given, **dict(zip(self.symbols, at, strict=False))} for at in corners(counts)]
            if all(abs(value_of(one, at)) < 1 << NARROW_BITS for one in reader.proved for at in found):
                yield from found


# -- numbers -------------------------------------------------------------------------------------------------


def congruence(chance: random.Random) -> None:
    """A polynomial and its number are the same modulo 2**64; so are numbers whose difference is constant."""
    names = [outside() for _ in range(3)]
    given = {name: pick(chance) for name in names}

    def made(depth: int) -> tuple[Polynomial, int]:
        if not depth:
            name, number = chance.choice(names), pick(chance)
            return chance.choice(
                ((Polynomial.symbol(name), given[name]), (Polynomial.constant(number), number))
            )
        (left, one), (right, other) = made(depth - 1), made(depth - 1)
        return chance.choice(
            ((left + right, one + other), (left - right, one - other), (left * right, one * other))
        )

    polynomial, number = made(3)
    assert wrap(value_of(polynomial, given)) == wrap(number)
    loops = Loops(chance)
    operands = [loops.read_as(polynomial), loops.read_as(polynomial + Polynomial.constant(pick(chance)))]
    if chance.random() < 0.3:
        operands.reverse()
    for operation, means in (("cmp.eq.i64", True), ("cmp.ne.i64", False)):
        truth = loops.reader._truth(value(operation, operands))
        seen = [wrap(value_of(loops.reader.read(one), given)) for one in operands]
        assert truth is not None and truth == ((seen[0] == seen[1]) == means)


def order(chance: random.Random) -> None:
    """A signed comparison that is settled holds always, or never."""
    loops = Loops(chance)
    less, than = (loops.polynomial(chance) for _ in range(2))
    condition = value("cmp.lt.i64.s", [loops.read_as(one) for one in (less, than)])
    truth = loops.reader._truth(condition)
    for at in loops.passed(chance) if truth is not None else ():
        assert (wrap(value_of(less, at)) < wrap(value_of(than, at))) == truth


def division(chance: random.Random) -> None:
    """Quotient and rest that are polynomials are those of the program, with a sign and without."""
    loops = Loops(chance)
    divisor = Polynomial.constant(chance.choice((2, 3, 4, 8, 2**20, 2**31, 2**61, 2**62, 2**63 - 1)))
    if chance.random() < 0.3:
        divisor = Polynomial.symbol(loops.sizes[0]) * Polynomial.constant(chance.choice((1, 4)))
    times = Polynomial.symbol(chance.choice(loops.symbols)) * Polynomial.constant(
        chance.choice((1, 1, 2, 2**31))
    )
    dividend = times * divisor + loops.polynomial(chance)
    if chance.random() < 0.7:
        rest = Polynomial.symbol(loops.levels[divisor.number is None].counter)
        dividend = times * divisor + rest * Polynomial.constant(chance.choice((1, 1, 4, -1)))
    for operation in reading.DIVISIONS:
        found = loops.reader._division(operation, dividend, divisor)
        for at in loops.passed(chance) if found is not None else ():
            left, right = (wrap(value_of(one, at)) for one in (dividend, divisor))
            if operation.endswith("u"):
                left, right = left % 2**64, right % 2**64
            assert right, "a division by zero is left away"
            quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
            expected = quotient if operation.startswith("div") else left - quotient * right
            assert found is not None and wrap(value_of(found, at)) == wrap(expected)


def known(chance: random.Random) -> None:
    """What is known of a number without a guard holds whatever comes from outside."""

    def made(depth: int) -> tuple[Value, int]:
        shape = chance.random()
        if not depth or shape < 0.2:
            number = pick(chance)
            if shape < 0.4:
                return value("const.i64", (), (number,)), number
            if shape < 0.6:
                return value("argument"), number
            sign = chance.choice("su")
            return value(f"ext.i32.i64.{sign}"), wrap(number, 32) if sign == "s" else number % 2**32
        operation = chance.choice([*_COUNTED])
        operands = [made(depth - 1) for _ in range(3 if operation in ("fma.i64", "select.i64") else 2)]
        return value(operation, [one for one, _ in operands]), wrap(
            _COUNTED[operation](*(n for _, n in operands))
        )

    one, number = made(chance.randint(0, 3))
    factor = pick(chance)
    interval = structure.known_interval(Polynomial.symbol(one) * Polynomial.constant(factor))
    assert interval.low <= factor * number <= interval.high


_COUNTED: Final[dict[str, Callable[..., int]]] = {
    "add.i64": lambda a, b: a + b, "sub.i64": lambda a, b: a - b, "mul.i64": lambda a, b: a * b,
    "fma.i64": lambda a, b, c: a * b + c, "min.i64.s": min, "max.i64.s": max,
    "and.i64": lambda a, b: a & b, "select.i64": lambda a, b, c: b if a else c,
    "div.i64.s": lambda a, b: (abs(a) // abs(b) if b else 0) * (1 if (a < 0) == (b < 0) else -1),
    "rem.i64.s": lambda a, b: (abs(a) % abs(b) if b else 0) * (-1 if a < 0 else 1),
}  # fmt: skip


# -- loops ---------------------------------------------------------------------------------------------------


def iterations(chance: random.Random) -> None:
    """A loop between constant ends runs as often as its extent says."""
    start = chance.choice((0, 1, -3, 2**31, -(2**31), 2**60 - 40, -(2**60)))
    distance, step = chance.randint(-3, 30), chance.choice((1, 1, 2, 3, 7))
    first, last = (Polynomial.constant(number) for number in (start, start + distance))
    extent = structure.Level(counter(), first, last, step, False).extent
    assert extent is not None and max(extent, 0) == len(range(start, start + distance, step))
    most, number = chance.choice((1, 5, 64, -2, 2**31)), pick(chance)
    bound = value("min.i64.s", [value("const.i64", (), (most,)), value("argument")])
    level = structure.Level(counter(), first, Polynomial.symbol(bound), step, False)
    count = len(range(start, min(most, number), step))
    assert max(abs(start), abs(number), count) > 2**31 or count <= level.most, "the guard checks magnitudes"
    word, factor = chance.randrange(2**32), chance.choice((1, -1)) << chance.randrange(64)
    wide = value("ext.i32.i64.u")
    level = structure.Level(counter(), ZERO, Polynomial.symbol(wide) * Polynomial.constant(factor), 1, False)
    assert level.interval.low <= wrap(word * factor) <= level.interval.high


def digits(chance: random.Random) -> None:
    """The counters of loops that stand for one have each of its numbers once."""
    divisors = [chance.choice((2, 3, 4, 5, 6, 8, 12)) for _ in range(chance.randint(1, 3))]
    bound = chance.choice((6, 24, 36, 48, 60, 7))
    loops, variable = Loops(chance), counter()
    size = Polynomial.symbol(loops.sizes[0]) if chance.random() < 0.3 else Polynomial.constant(1)
    whole = Level(variable, ZERO, Polynomial.constant(bound) * size, 1, False)
    parts = [Polynomial.constant(number) * size for number in divisors if number < bound]
    exact = list(rewrites._digits(whole.bound, parts))
    bounds = [
        *(one.divided(other)[0] for one, other in itertools.pairwise((whole.bound, *exact))),
        *exact[-1:],
    ]
    levels = [structure.new_level(-at - 1, variable, one) for at, one in enumerate(bounds)]
    if not exact:
        return
    loops.reader.add_split(variable, whole, levels)
    position = loops.reader.read(variable)
    for number in (1, 3) if size.number is None else (1,):
        given = {loops.sizes[0]: number}
        counts = [range(value_of(one.bound, given)) for one in levels]
        found = sorted(
            value_of(position, {**given, **dict(zip((one.counter for one in levels), at, strict=True))})
            for at in itertools.product(*counts)
        )
        assert found == list(range(bound * number))


# -- indices -------------------------------------------------------------------------------------------------


def _access(index: Polynomial, predicate: Any = frozenset(), buffer: Value | None = None) -> ElementAccess:
    instruction: Any = SimpleNamespace(results=(), operands=())
    return ElementAccess(instruction, "i32", buffer or outside(), index, predicate, 0, ())


def narrowing(chance: random.Random) -> None:
    """What passes ``f < n`` lies from 0 to ``n - 1``, and so do its multiples in an index."""
    loops, sign = Loops(chance), chance.choice("su")
    part, limit = Polynomial.symbol(loops.symbols[0]), Polynomial.constant(pick(chance))
    if chance.random() < 0.3:
        limit = Polynomial.symbol(loops.sizes[1])
    if chance.random() < 0.6:
        part = part * Polynomial.constant(chance.choice((1, 3, -1, 2**30, 2**62)))
    if chance.random() < 0.6:
        part = part + Polynomial.constant(chance.choice((-3, 5, 2**59, -(2**62))))
    index = part * Polynomial.constant(chance.choice((1, 4, -4, 2**31, 2**61)))
    index = index + Polynomial.symbol(loops.symbols[1]) * Polynomial.constant(4) + Polynomial.constant(7)
    condition = value(f"cmp.lt.i64.{sign}", [value("made"), value("made")])
    nest: Any = SimpleNamespace(
        conditions=dict(zip(condition.operands, (part, limit), strict=True)),
        counters=tuple(loops.symbols[:2]),
    )
    found = rewrites.narrowed(_access(index, frozenset({(condition, True)})), nest)
    for number in (0, 1, 5, 2**31 - 1, -1):
        at = {**dict.fromkeys(loops.symbols, 3), loops.sizes[1]: number}
        if any(value_of(one, at) < 0 for one in found.limits):
            continue
        for count in (0, 1, 2, 3, 4, 7, 2**30, 2**31 - 1):
            at[loops.symbols[0]] = count
            numbers = [wrap(value_of(one, at)) for one in (part, limit)]
            if sign == "u":
                numbers = [one % 2**64 for one in numbers]
            if numbers[0] < numbers[1]:
                inside = wrap(value_of(index, at) - value_of(found.rest, at))
                assert 0 <= inside <= value_of(found.highest, at)


def computed(chance: random.Random) -> None:
    """Parts of indices that are computed for each element lie between what their ends are."""
    base, low = counter(), chance.choice((0, 0, 3, -5, 2**30))
    high = low + chance.choice((0, 1, 6, 9))
    part = _part(chance, base, chance.randint(1, 3))
    if not is_bounded(part, lambda one: one is base):
        return
    conditions: list[int] = []
    writer = Evaluator(context_of({}))
    ends = Extremes(str(low), str(high))

    def require(text: str) -> None:
        conditions.append(writer.number(writer.let(text)))

    bounds = BoundWriter(writer, lambda one: str(_literal(one)), lambda one: ends, require)

    def with_semantics(_: object, name: str, lanes: int, texts: Sequence[str]) -> str:
        return writer.name(_meant(name, [writer.number(text) for text in texts]))

    with patch.object(reading, "emit", with_semantics):
        found = bounds.part(part)
    if all(conditions):
        for number in range(low, high + 1):
            seen = _evaluated(part, {base: number})
            assert (
                writer.number(found.low) <= seen <= writer.number(found.high)
                and -(1 << BITS) <= seen < 1 << BITS
            )


def _part(chance: random.Random, base: Value, depth: int) -> Value:
    def constant(*numbers: int) -> Value:
        return value("const.i64", (), (chance.choice(numbers),))

    shape = chance.random()
    if shape < 0.3:
        real = value("cast.si64.f32", [base], kind="f32")
        for _ in range(depth):
            real = value(
                chance.choice(("mul.f32", "add.f32", "sub.f32", "max.f32")), [real, _real(chance)], kind="f32"
            )
        return value("cast.f32.si64", [value(chance.choice(reading._ROUNDED), [real], kind="f32")])
    if shape < 0.7:
        return value(chance.choice(reading.DIVISIONS), [base, constant(1, 2, 3, 7, 2**31 - 1, 2**31, -3, 0)])
    other = base if depth <= 1 else _part(chance, base, depth - 1)
    return value(chance.choice(("min.i64.s", "max.i64.s")), [other, constant(0, 4, -1, 2**31, 2**40)])


def _real(chance: random.Random) -> Value:
    number = chance.choice((0.5, 0.333, 1.5, 7.0, -0.5, 0.0, 3e9))
    return value("const.f32", (), struct.unpack("<i", struct.pack("<f", number)), "f32")


def _literal(one: Value) -> float:
    if one.type == "f32":
        return float(struct.unpack("<f", struct.pack("<i", one.literals[0]))[0])
    return one.literals[0]


def _meant(name: str, numbers: Sequence[Any]) -> Any:
    return SEMANTICS[name].function(*numbers)


def _evaluated(part: Value, numbers: Mapping[Value, int]) -> Any:
    if part in numbers:
        return numbers[part]
    if part.operation.startswith("const."):
        return _literal(part)
    return _meant(part.operation, [_evaluated(one, numbers) for one in part.operands])


# -- parts of a workgroup ------------------------------------------------------------------------------------


def _nest(chance: random.Random) -> tuple[list[Level], Polynomial]:
    """Loops of constant numbers of iterations, and an index."""
    counts = [chance.choice((1, 2, 3, 4)) for _ in range(chance.randint(1, 3))]
    levels = [
        structure.new_level(-at - 1, outside(), Polynomial.constant(one)) for at, one in enumerate(counts)
    ]
    index, factor = Polynomial.constant(chance.choice((0, 5))), chance.choice((1, 1, 2, 2**57))
    for level in reversed(levels):
        index = index + Polynomial.symbol(level.counter) * Polynomial.constant(factor)
        factor = chance.choice((factor * (level.extent or 1), factor * 4, factor, 8, 2, 2**31))
    return levels, index


def _touched(levels: Sequence[Level], index: Polynomial) -> Iterator[tuple[int, Mapping[Value, int]]]:
    for at in itertools.product(*(range(level.extent or 0) for level in levels)):
        numbers = dict(zip((level.counter for level in levels), at, strict=True))
        yield wrap(value_of(index, numbers)), numbers


def _structure(levels: Sequence[Level]) -> Any:
    return SimpleNamespace(levels=tuple(levels), counters=tuple(level.counter for level in levels))


def cuts(chance: random.Random) -> None:
    """An element belongs to one iteration of the loop that is cut: its counter is a digit of the index."""
    levels, index = _nest(chance)
    level = chance.choice(levels)
    found = cutting._read_digit(_structure(levels), _access(index), level)
    if found is None:
        return
    owners: dict[int, int] = {}
    for element, numbers in _touched(levels, index):
        owner = numbers[level.counter]
        assert owners.setdefault(element, owner) == owner
        base, factor, extent = (value_of(one, {}) for one in found.digit[2:])
        assert (element - base) // factor % extent == owner or (element - base) // factor >= extent


def elements(chance: random.Random) -> None:
    """Accesses of the same first element and strides touch the same elements."""
    buffer = outside()
    nests = [_nest(chance) for _ in range(2)]
    if chance.random() < 0.7:  # the same loops, of which one is parted, or in another order
        levels, index = nests[0]
        at = chance.randrange(len(levels))
        inner = chance.choice((1, 2, 3))
        outer = -(-(levels[at].extent or 1) // inner)
        made = [
            structure.new_level(-10 - n, outside(), Polynomial.constant(c))
            for n, c in enumerate((outer, inner))
        ]
        factor = index.coefficient(levels[at].counter)
        whole = Polynomial.symbol(made[0].counter) * Polynomial.constant(inner) + Polynomial.symbol(
            made[1].counter
        )
        nests[1] = (
            [*levels[:at], *made, *levels[at + 1 :]],
            index.without([levels[at].counter]) + factor * whole,
        )
    known = [cutting._elements(_structure(levels), _access(index, buffer=buffer)) for levels, index in nests]
    if known[0] is not None and known[0] == known[1]:
        first, second = ({element for element, _ in _touched(*one)} for one in nests)
        assert first == second
