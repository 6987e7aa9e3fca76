"""The tables of vector math, computed by integers; ``python -m jitree.codegen.vector_math.computed`` writes
``tables.tsv`` of them."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import chain

from jitree.codegen.vector_math.pieces import erf_pieces, powers_of_two, tanh_pieces
from jitree.codegen.vector_math.series import BITS, ONE, error_function, exponential, pi, two_over_root_pi
from jitree.codegen.vector_math.tables import (
    ERF_MASK,
    ERF_STEP,
    FILE,
    FIRST_EXPONENT,
    FIRST_PIECE_BITS,
    PIECE_BITS,
    PIECES,
    TANH_MASK,
    TANH_STEP,
)

Pair = tuple[float, float]


def text() -> str:
    """What the file has: what binary64 numbers are in hexadecimal digits, and no other digits, are the same
    everywhere."""
    tables = {
        **_columns("tanh", tanh_pairs()),
        "erf_slopes": erf_slopes(),
        **_columns("erf", erf_pairs()),
        "exponential_rows": chain.from_iterable(exponential_rows()),
        "sine_rows": chain.from_iterable(sine_rows()),
        "cosine_rows": chain.from_iterable(cosine_rows()),
        "quarter_turns": quarter_turns(),
        "powers_of_two": chain.from_iterable(powers_of_two()),
        "tanh_pieces": chain.from_iterable(tanh_pieces()),
        "erf_pieces": chain.from_iterable(erf_pieces()),
    }
    return "".join(f"{name}\t{_digits(numbers)}\n" for name, numbers in tables.items())


def _columns(name: str, pairs: Iterable[Pair]) -> dict[str, Iterable[float]]:
    values, rests = zip(*pairs, strict=True)
    return {f"{name}_values": values, f"{name}_rests": rests}


def _digits(numbers: Iterable[float]) -> str:
    return b"".join(struct.pack(">d", number) for number in numbers).hex()


def tanh_pairs() -> Iterator[Pair]:
    """tanh of all multiples of the step, and what that lacks."""
    decay, power = exponential(-2 * Fraction(TANH_STEP)), ONE
    for _ in range(TANH_MASK + 1):
        yield _pair(ONE - power, ONE + power)
        power = power * decay >> BITS


def erf_slopes() -> Iterator[float]:
    """2 / sqrt(pi) * exp(-c**2) for all multiples c of the step."""
    quotient = exponential(-2 * Fraction(ERF_STEP) ** 2)
    factor, slope = exponential(-(Fraction(ERF_STEP) ** 2)), two_over_root_pi()
    for _ in range(ERF_MASK + 1):
        yield float(Fraction(slope, ONE))
        slope, factor = slope * factor >> BITS, factor * quotient >> BITS


def erf_pairs() -> Iterator[Pair]:
    """erf of all multiples of the step, and what that lacks."""
    return (_pair(error_function(n * Fraction(ERF_STEP)), ONE) for n in range(ERF_MASK + 1))


def exponential_rows() -> list[Pair]:
    """1 / n! from 24 to 1."""
    return [_pair(1, math.factorial(n)) for n in range(24, 0, -1)]


def sine_rows() -> list[Pair]:
    """Coefficients of sin(r) / r in r**2, the last first."""
    return [_pair((-1) ** n, math.factorial(2 * n + 1)) for n in range(15, -1, -1)]


def cosine_rows() -> list[Pair]:
    """Coefficients of cos(r) in r**2, the last first."""
    return [_pair((-1) ** n, math.factorial(2 * n)) for n in range(16, -1, -1)]


def quarter_turns() -> Iterator[float]:
    """2**(e - 150) * 2 / pi modulo 4, for exponents as binary32 counts them, in pieces of 28 bits each."""
    precision = 400
    for exponent in range(FIRST_EXPONENT, 255):
        scale = precision + exponent - 150
        turns = (2 << scale + precision) // pi(precision) % (4 << precision)
        place = precision
        for piece in range(PIECES):
            place -= PIECE_BITS if piece else FIRST_PIECE_BITS
            yield float(turns >> place) * 2.0 ** (place - precision)
            turns &= (1 << place) - 1


def _pair(numerator: int, denominator: int) -> Pair:
    """A quotient, and what that lacks: Python rounds both correctly."""
    high = numerator / denominator
    over, under = high.as_integer_ratio()
    return high, (numerator * under - over * denominator) / (denominator * under)


if __name__ == "__main__":
    with open(FILE, "w", encoding="ascii") as file:
        file.write(text())
