"""Computes tables that fit into two registers of 16 binary32 numbers: what :mod:`registers` looks up.

tanh and erf are 32 polynomials of degree 6, each around a centre: Taylor's series, of which Chebyshev
polynomials take the higher powers away. The centres are chosen so that the value there and half the second
derivative are nearly binary32 numbers: 2**-36 of the result and less is lost by rounding them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Final

from jitree.codegen.numbers import f32, f32_of_bits, f32_to_bits
from jitree.codegen.vector_math.series import (
    BITS,
    ONE,
    error_function,
    exponential,
    slope_of_error_function,
)
from jitree.codegen.vector_math.tables import (
    ERF_LIMIT,
    ERF_OFFSET,
    ERF_SHIFT,
    TANH_LIMIT,
    TANH_OFFSET,
    TANH_SHIFT,
)

Row = tuple[float, ...]

PIECES: Final = 32
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


def tanh_pieces() -> tuple[Row, ...]:
    return _pieces(_tanh_series, TANH_CENTRES, TANH_OFFSET, TANH_SHIFT, TANH_LIMIT)


def erf_pieces() -> tuple[Row, ...]:
    return _pieces(_erf_series, ERF_CENTRES, ERF_OFFSET, ERF_SHIFT, ERF_LIMIT)


def powers_of_two() -> tuple[Row, ...]:
    """2**(n / 32), and what that lacks, in relation to it."""
    step = 2 * ONE
    for _ in range(PIECES.bit_length() - 1):
        step = math.isqrt(step << BITS)
    rows, power = [], ONE
    for _ in range(PIECES):
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
    rows: list[Row] = [()] * PIECES
    start = Fraction(0)
    for number, centre in enumerate(map(Fraction, centres), first):
        end = min(Fraction(f32_of_bits(number + 1 << shift)) - Fraction(offset), Fraction(limit))
        rows[number % PIECES] = _piece(series(centre), centre, start, end)
        start = end
    return tuple(rows)


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
