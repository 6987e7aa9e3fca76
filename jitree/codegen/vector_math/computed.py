"""Computes the tables of vector math by integers.

``python -m jitree.codegen.vector_math.computed`` writes ``tables.tsv`` of them. Series have 160 bits after
the point. Some tables fit into two registers of 16 binary32 numbers, which :mod:`registers` looks up: tanh
and erf are 32 polynomials of degree 6, each around a centre: Taylor's series, of which Chebyshev polynomials
take the higher powers away. The centres are chosen so that the value there and half the second derivative are
nearly binary32 numbers: 2**-36 of the result and less is lost by rounding them.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import chain
from typing import Final

from jitree.codegen.numbers import f32, f32_of_bits, f32_to_bits
from jitree.codegen.vector_math.tables import (
    ERF_LIMIT,
    ERF_MASK,
    ERF_OFFSET,
    ERF_SHIFT,
    ERF_STEP,
    FILE,
    FIRST_EXPONENT,
    FIRST_PIECE_BITS,
    PIECE_BITS,
    PIECES,
    TANH_LIMIT,
    TANH_MASK,
    TANH_OFFSET,
    TANH_SHIFT,
    TANH_STEP,
    tanh_centres,
)

BITS: Final = 160
"""Bits after the point of the integers here."""
ONE: Final = 1 << BITS

Row = tuple[float, ...]

CENTRES: Final = 32
DEGREE: Final = 6
TERMS: Final = 15
"""How many terms of Taylor's series are summed; the next one is below 2**-60."""
UNIT: Final = Fraction(1, 2**24)
"""What rounding to binary32 changes at most, in relation to the number."""

TANH_CENTRES: Final = (
    0.0, 0.05110441520810127, 0.11516528576612473, 0.181882843375206, 0.24379967153072357,
    0.30870234966278076, 0.3974650502204895, 0.5183728933334351, 0.6472687721252441, 0.7788578867912292,
    0.8967630863189697, 1.0236999988555908, 1.1541329622268677, 1.2790237665176392, 1.4729350805282593,
    1.7138330936431885, 1.9702082872390747, 2.207442283630371, 2.461353302001953, 2.712907075881958,
    2.962534189224243, 3.2150349617004395, 3.589508056640625, 4.073121547698975, 4.583600044250488,
    5.0831217765808105, 5.584784984588623, 6.087691307067871, 6.584897041320801, 7.096592426300049,
    7.859620571136475, 8.664340019226074,
)  # fmt: skip
ERF_CENTRES: Final = (
    0.0, 0.05212448909878731, 0.12022405117750168, 0.1801631897687912, 0.2468239665031433,
    0.30672672390937805, 0.3717808723449707, 0.4358114004135132, 0.4956335723400116, 0.5567968487739563,
    0.6493711471557617, 0.778570830821991, 0.8964942693710327, 1.0272117853164673, 1.1568981409072876,
    1.2738052606582642, 1.3966875076293945, 1.5217238664627075, 1.6473006010055542, 1.7759512662887573,
    1.8994373083114624, 2.028960943222046, 2.152477979660034, 2.2733757495880127, 2.4031474590301514,
    2.5258660316467285, 2.714632987976074, 2.963123321533203, 3.21406888961792, 3.4655051231384277,
    3.6911773681640625, 3.8325068950653076,
)  # fmt: skip

Pair = tuple[float, float]


def error_function(x: Fraction) -> int:
    """erf by Taylor's series."""
    power = int(ONE * x)
    square, total, n = power * power >> BITS, 0, 0
    while power:
        total += power // (2 * n + 1)
        n += 1
        power = -(power * square >> BITS) // n
    return total * two_over_root_pi() >> BITS


def slope_of_error_function(x: Fraction) -> int:
    return exponential(-x * x) * two_over_root_pi() >> BITS


def exponential(x: Fraction) -> int:
    """exp of a small number."""
    argument, term, total, n = int(x * ONE), ONE, 0, 0
    while abs(term) > 1:
        total += term
        n += 1
        term = (term * argument >> BITS) // n
    return total


@functools.cache
def two_over_root_pi() -> int:
    return math.isqrt((4 << 3 * BITS) // pi(BITS))


@functools.cache
def pi(precision: int) -> int:
    """Pi by Machin's formula."""
    guard = 16
    one = 1 << precision + guard
    return 4 * (4 * _inverse_tangent(5, one) - _inverse_tangent(239, one)) >> guard


def _inverse_tangent(inverse: int, one: int) -> int:
    """atan(1 / inverse)."""
    term, total, n = one // inverse, 0, 0
    while term:
        total += term // (2 * n + 1) * (-1) ** n
        term //= inverse * inverse
        n += 1
    return total


def tanh_pieces() -> tuple[Row, ...]:
    return _pieces(_tanh_series, TANH_CENTRES, TANH_OFFSET, TANH_SHIFT, TANH_LIMIT)


def erf_pieces() -> tuple[Row, ...]:
    return _pieces(_erf_series, ERF_CENTRES, ERF_OFFSET, ERF_SHIFT, ERF_LIMIT)


def powers_of_two() -> tuple[Row, ...]:
    """2**(n / 32), and what that lacks, in relation to it."""
    step = 2 * ONE
    for _ in range(CENTRES.bit_length() - 1):
        step = math.isqrt(step << BITS)
    rows, power = [], ONE
    for _ in range(CENTRES):
        rounded = _single(Fraction(power, ONE))
        rows.append((rounded, _single(Fraction(power, ONE) / Fraction(rounded) - 1)))
        power = power * step >> BITS
    return tuple(rows)


def _pieces(
    series: Callable[[Fraction], list[int]],
    centres: Sequence[float],
    offset: float,
    shift: int,
    limit: float,
) -> tuple[Row, ...]:
    """A row for each piece: centre, value, slope and what that lacks, the further coefficients, and how far
    a result may be from the exact value, in relation to x. Where bits of ``x + offset`` that begin at
    ``shift`` say n, modulo the number of rows, row n holds x."""
    first = f32_to_bits(offset) >> shift
    rows: list[Row] = [()] * CENTRES
    start = Fraction(0)
    for number, centre in enumerate(map(Fraction, centres), first):
        end = min(Fraction(f32_of_bits(number + 1 << shift)) - Fraction(offset), Fraction(limit))
        rows[number % CENTRES] = _piece(series(centre), centre, start, end)
        start = end
    return tuple(rows)


def tanh_of_centres() -> Iterator[Pair]:
    """The centres are the file's. A search among all numbers in and around each piece has found them: with
    each the polynomial of :mod:`pairs` is within its doubt, or the doubt decides nothing."""
    for centre, _ in tanh_centres():
        decay = exponential(-2 * Fraction(centre))
        yield centre, _single(Fraction(ONE - decay, ONE + decay))


def _piece(series: list[int], centre: Fraction, start: Fraction, end: Fraction) -> Row:
    reach = max(abs(end - centre), abs(centre - start))
    exact, changed = _economised([Fraction(term, ONE) for term in series], reach)
    slope = _single(exact[1])
    rounded = [_single(exact[0]), slope, _single(exact[1] - Fraction(slope)), *map(_single, exact[2:])]
    coefficients = (*rounded[:2], *rounded[3:])
    errors = [abs(value - Fraction(number)) for value, number in zip(exact, coefficients, strict=True)]
    errors[1] *= UNIT
    # From the third power on these round: the polynomial's sums, the square, two products, the doubt's sum.
    for power in range(3, DEGREE + 1):
        errors[power] += UNIT * min(power + 2, DEGREE + 1) * abs(exact[power])
    pairs = 16 * UNIT**2 * (abs(exact[0]) + abs(exact[1]) * reach)
    # Around 0 all errors shrink with x; a Chebyshev polynomial of an odd degree is at most that times x.
    changed *= 1 if start else TERMS
    doubt = max(
        (changed + pairs + sum(error * abs(x - centre) ** power for power, error in enumerate(errors))) / x
        for x in (start or end, end)
    )
    return _single(centre), *rounded, _single(doubt * Fraction(1001, 1000))


def _economised(terms: list[Fraction], reach: Fraction) -> tuple[list[Fraction], Fraction]:
    """A polynomial without its higher powers, and what that changes at most: a power is replaced by what
    it differs by from the Chebyshev polynomial that begins with it."""
    scaled = [term * reach**power for power, term in enumerate(terms)]
    changed = Fraction(0)
    for degree in range(len(terms) - 1, DEGREE, -1):
        share = scaled.pop() / 2 ** (degree - 1)
        chebyshev = _chebyshev(degree)
        scaled = [term - share * chebyshev[power] for power, term in enumerate(scaled)]
        changed += abs(share)
    return [term / reach**power for power, term in enumerate(scaled)], changed


@functools.cache
def _chebyshev(degree: int) -> list[int]:
    """Coefficients of Chebyshev's polynomial, the constant first."""
    if degree < 2:
        return [1] if degree == 0 else [0, 1]
    last = [0, *(2 * coefficient for coefficient in _chebyshev(degree - 1))]
    before = [*_chebyshev(degree - 2), 0, 0]
    return [a - b for a, b in zip(last, before, strict=True)]


def _tanh_series(centre: Fraction) -> list[int]:
    """The series of tanh, by y' = 1 - y**2."""
    decay = exponential(-2 * centre)
    terms = [(ONE - decay << BITS) // (ONE + decay)]
    for n in range(TERMS - 1):
        square = sum(terms[i] * terms[n - i] for i in range(n + 1)) >> BITS
        terms.append(((0 if n else ONE) - square) // (n + 1))
    return terms


def _erf_series(centre: Fraction) -> list[int]:
    """The series of erf, by y'' = -2 * x * y'."""
    before, slope = 0, slope_of_error_function(centre)
    terms = [error_function(centre)]
    for n in range(TERMS - 1):
        terms.append(slope // (n + 1))
        before, slope = slope, int(-2 * (centre * slope + before)) // (n + 1)
    return terms


def _single(value: Fraction) -> float:
    """The nearest binary32 number, for all that is written here."""
    return f32(float(value))


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
        "tanh_centres": chain.from_iterable(tanh_of_centres()),
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
    """Tabulates 2**(e - 150) * 2 / pi modulo 4 in pieces. Exponents are counted as binary32 does; a piece has
    28 bits."""
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
