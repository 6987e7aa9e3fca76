"""Polynomials: sums and products modulo 2**64, and answers that are kept."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from jitree.dispatch.native.nests.structure import Polynomial, is_narrow
from jitree.dispatch.native.ssa import PHI, Block, Value
from tests.base.rows import each_row

BLOCK = Block(0, 0)
SYMBOLS = [Value(number, "i64", PHI, [], (), 0, BLOCK) for number in range(3)]
FACTORS = (0, 1, -1, 3, 1 << 31, (1 << 62) + 1, -(1 << 63), (1 << 63) - 1)
OPERATIONS: dict[str, tuple[Callable[[Polynomial, Polynomial], Polynomial], Callable[[int, int], int]]] = {
    "sum": (lambda a, b: a + b, lambda a, b: a + b),
    "difference": (lambda a, b: a - b, lambda a, b: a - b),
    "product": (lambda a, b: a * b, lambda a, b: a * b),
}


def polynomials(seed: int) -> tuple[Polynomial, Polynomial]:
    choose = random.Random(seed)

    def made() -> Polynomial:
        found = Polynomial.constant(choose.choice(FACTORS))
        for symbol in choose.choices(SYMBOLS, k=choose.randrange(4)):
            found = found + Polynomial.symbol(symbol) * Polynomial.constant(choose.choice(FACTORS))
        return found

    return made(), made()


def value(polynomial: Polynomial, numbers: dict[Value, int]) -> int:
    total = 0
    for monomial, factor in polynomial.terms.items():
        for symbol in monomial:
            factor *= numbers[symbol]
        total += factor
    return total % (1 << 64)


@pytest.mark.parametrize("name", OPERATIONS)
def test_arithmetic_is_that_of_64_bits(name: str) -> None:
    of_polynomials, of_numbers = OPERATIONS[name]

    def check(seed: int) -> None:
        left, right = polynomials(seed)
        made = of_polynomials(left, right)
        assert all(-(1 << 63) <= factor < 1 << 63 and factor for factor in made.terms.values())
        for numbers in ((3, 5, 7), (-1, 1 << 40, (1 << 63) - 1)):
            given = dict(zip(SYMBOLS, numbers, strict=True))
            wanted = of_numbers(value(left, given), value(right, given))
            assert value(made, given) == wanted % (1 << 64)

    each_row(range(40), check)


@pytest.mark.parametrize("seed", range(40))
def test_answers_that_are_kept_are_those_of_the_terms(seed: int) -> None:
    for polynomial in polynomials(seed):
        same = Polynomial(dict(polynomial.terms))
        for symbol in SYMBOLS:
            known = polynomial.coefficient(symbol)
            assert polynomial.coefficient(symbol) is known == same.coefficient(symbol)
            rest = polynomial - known * Polynomial.symbol(symbol)
            assert symbol not in rest.symbols()
        assert polynomial.symbols() is polynomial.symbols()
        assert polynomial.symbols() == {symbol for monomial in same.terms for symbol in monomial}
        for bits in (31, 40, 31):  # the cache keeps an answer for each width
            assert polynomial.bits(bits) == Polynomial(dict(polynomial.terms)).bits(bits)
        assert polynomial.number == (
            None if polynomial.symbols() else value(polynomial, {}) - (value(polynomial, {}) >> 63 << 64)
        )


def test_a_factor_that_has_wrapped_proves_nothing() -> None:
    """Unbounded sums of what is known do not wrap either."""
    large = Polynomial.symbol(SYMBOLS[0]) * Polynomial.constant(1 << 62)
    assert (large + large).bits(31) == 95 and not is_narrow(large + large)
    assert large.sum(large).coefficient(SYMBOLS[0]).terms == {(): 1 << 63}
    assert (large + large).coefficient(SYMBOLS[0]).terms == {(): -(1 << 63)}
