"""tanh, erf and log10 of binary64, within 0.8 units of the last place; C libraries are off by up to two.

Each step rounds by itself, so all tiers have the same bits, like those of :mod:`functions`. The other
functions of binary64 are the C library's.
"""

from __future__ import annotations

from typing import Final

from jitree.codegen.numbers import choose, divide, f64_to_bits, lookup, rarely
from jitree.codegen.vector_math.exact import exact_product, exact_sum, log10_wide
from jitree.codegen.vector_math.polynomials import (
    INFINITY,
    LN2,
    LOG2_E,
    POSITIVE_NAN,
    ROUNDING_F64,
    bend_of_erf,
    defined_from,
    expm1_reduced_exactly,
    power_of_two,
)
from jitree.codegen.vector_math.tables import (
    ERF_MASK,
    ERF_STEP,
    TANH_MASK,
    TANH_STEP,
    erf_rests,
    erf_slopes,
    erf_values,
    tanh_rests,
    tanh_values,
)

TANH_TABLE_END: Final = 9.0
TANH_LIMIT: Final = 20.0
"""tanh of more rounds to 1."""
ERF_LIMIT: Final = 6.0
"""erf of more rounds to 1."""
SLOPE_REST: Final = float.fromhex("0x1.1ae3a914fed80p-56")
"""What the slope of erf at 0, 2 / sqrt(pi), lacks in the table."""
ERF_TINY: Final = 2.0**-900
ERF_SCALE: Final = 2.0**512
"""Below the first erf is a line; products of such numbers lose what they lack, scaled ones keep it."""


def tanh_f64(x: float) -> float:
    """tanh(c + h) by the theorem of addition, with the nearest c of a table; 1 - 2 / (exp(2x) + 1) beyond."""
    size = choose(x < 0.0, -x, x)
    limited = choose(size > TANH_TABLE_END, TANH_TABLE_END, size)
    shifted = limited * (1.0 / TANH_STEP) + ROUNDING_F64
    h = limited - (shifted - ROUNDING_F64) * TANH_STEP
    index = f64_to_bits(shifted) & TANH_MASK
    t, rest = lookup(tanh_values, index), lookup(tanh_rests, index)
    square = h * h
    lacking = h * (square * (square * (2.0 / 15.0 - square * (17.0 / 315.0)) - 1.0 / 3.0))
    of_h = h + lacking
    bend = divide(of_h * t * (t + of_h), 1.0 + t * of_h)
    high, low = exact_sum(t, h)
    inside = high + (((rest + lacking) - bend) + low)

    double = choose(size > TANH_LIMIT, TANH_LIMIT, size) * -2.0
    turns = double * LOG2_E[0] + ROUNDING_F64
    power = power_of_two(turns)
    decay = power + power * expm1_reduced_exactly(double - (turns - ROUNDING_F64) * LN2[0])
    beyond = 1.0 - divide(2.0 * decay, 1.0 + decay)
    result = choose(size > TANH_TABLE_END, beyond, inside)
    result = choose(x < 0.0, -result, result)
    return choose(x == 0.0, x, choose(x != x, x, result))


def erf_f64(x: float) -> float:
    """erf(c + h) with the nearest c of a table, by the derivatives: a second table times polynomials in c."""
    size = choose(x < 0.0, -x, x)
    scaled = choose(size < ERF_TINY, size * ERF_SCALE, size)
    limited = choose(scaled > ERF_LIMIT, ERF_LIMIT, scaled)
    shifted = limited * (1.0 / ERF_STEP) + ROUNDING_F64
    c = (shifted - ROUNDING_F64) * ERF_STEP
    h = limited - c
    index = f64_to_bits(shifted) & ERF_MASK
    step, lacking = exact_product(lookup(erf_slopes, index), h)
    lacking = lacking + choose(c == 0.0, h * SLOPE_REST, 0.0)
    high, low = exact_sum(lookup(erf_values, index), step)
    result = high + (((lookup(erf_rests, index) + step * bend_of_erf(c, h)) + lacking) + low)
    result = choose(size < ERF_TINY, result * (1.0 / ERF_SCALE), result)
    result = choose(x < 0.0, -result, result)
    return choose(x == 0.0, x, choose(x != x, x, result))


def log10_f64(x: float) -> float:
    result = rarely((x > 0.0) & (x < INFINITY), log10_wide, (x,), x)
    return defined_from(0.0, x, result, POSITIVE_NAN)
