"""States functions of binary32 for processors with AVX2 alone.

Registers have 8 numbers there to look up in. As in :mod:`registers` a first computation in pairs of binary32
numbers decides nearly all results, with all lanes at a time; where it leaves one open, the functions of
:mod:`functions` give all of the vector's. Powers of two are 16 rows, two registers a column. Those of tanh
are in memory, since many rows make a short polynomial; a row is two numbers, which one load of each lane
brings.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Final

from jitree.codegen.numbers import (
    choose,
    f32,
    f32_of_bits,
    f32_to_bits,
    fused_multiply_add,
    i32,
    pair,
    row,
    seldom,
)
from jitree.codegen.vector_math.functions import (
    EXP_HIGHEST,
    EXP_LOWEST,
    MAGNITUDE,
    ROUNDING_F32,
    exp_f32,
    magnitude,
    tanh_f32,
    with_sign_of,
)
from jitree.codegen.vector_math.registers import (
    EXPONENT,
    PIECE_HIGH,
    PIECE_LOW,
    SIXTH,
    SUBNORMAL,
    TWENTY_FOURTH,
)
from jitree.codegen.vector_math.tables import TANH_LIMIT, clamp, powers_of_two, tanh_centres

POWERS: Final = 16
"""Of each power of two."""
SHIFT: Final = POWERS.bit_length() - 1
ROUNDING_TO_POWERS: Final = ROUNDING_F32 / POWERS
HUNDRED_TWENTIETH: Final = f32(1.0 / 120.0)
EXP_DOUBT: Final = 2.0**-34
"""See :func:`exp_pairs`."""
FAR: Final = 64
"""Powers beyond those of binary32 are two factors; one has this exponent."""
AFTER_SMALL, AFTER_LARGE = (127 + FAR) << 23, (127 - FAR) << 23

TANH_OFFSET: Final = 0.5
TANH_SHIFT: Final = 15
TANH_FIRST: Final = f32_to_bits(TANH_OFFSET) >> TANH_SHIFT
TANH_LAST: Final = f32_to_bits(f32(TANH_LIMIT + TANH_OFFSET)) >> TANH_SHIFT
"""Bits of a number plus the offset that begin at the shift count the pieces of :func:`tanh_centres`."""
TWO_THIRDS: Final = f32(2.0 / 3.0)
TANH_DOUBT: Final = 1.5 * 2.0**-34
"""See :func:`tanh_pairs`."""


def exp_pairs(x: float) -> float:
    """Computes 2**n times 2**(k / 16) times exp(r). exp(r) is 1 + r and a rest.

    r is below 0.02167 and exact: it ends at 2**-28 or before, or is x. The rest is below 2**-12. Four steps
    round it, by a unit in 2**-36 each, and it lacks r**6 / 720: 2**-34 in all, in relation to the power.
    Numbers beyond limits and subnormal results are as in :func:`registers.exp_lanes`.
    """
    limited = clamp(x, EXP_LOWEST, EXP_HIGHEST)
    shifted = fused_multiply_add(limited, EXPONENT, ROUNDING_TO_POWERS)
    exponent = f32(shifted - ROUNDING_TO_POWERS)
    r = fused_multiply_add(exponent, -PIECE_HIGH, limited)
    bits = f32_to_bits(shifted)
    power, rest = row(powers_below, bits)
    rest = fused_multiply_add(exponent, -PIECE_LOW, rest)
    whole = f32(r + rest)
    tail = fused_multiply_add(whole, HUNDRED_TWENTIETH, TWENTY_FOURTH)
    tail = fused_multiply_add(whole, fused_multiply_add(whole, tail, SIXTH), 0.5)
    rest = fused_multiply_add(f32(whole * whole), tail, rest)
    total = fused_multiply_add(power, r, power)
    rest = fused_multiply_add(power, rest, fused_multiply_add(power, r, f32(power - total)))
    low, high = f32(total + rest), f32(total + fused_multiply_add(power, 2.0 * EXP_DOUBT, rest))
    small = f32_to_bits(x) < 0
    scale = f32_of_bits(i32(i32((bits >> SHIFT) << 23) + choose(small, i32(AFTER_SMALL), i32(AFTER_LARGE))))
    value = f32(f32(low * scale) * choose(small, f32(2.0**-FAR), f32(2.0**FAR)))
    subnormal = i32(f32_to_bits(value) + MAGNITUDE) < SUBNORMAL - MAGNITUDE - 1
    return seldom((low != high) | subnormal, exp_f32, (x,), value)


@cache
def powers_below() -> tuple[tuple[float, float], ...]:
    """Gives powers of two, and what they lack, less the doubt."""
    rows = powers_of_two()
    return tuple((power, f32(rest - EXP_DOUBT)) for power, rest in rows[:: len(rows) // POWERS])


def tanh_pairs(x: float) -> float:
    """tanh(c + h) by three derivatives in c: they are polynomials in tanh(c).

    tanh(c) and the slope in c are nearly binary32 numbers: so c is chosen, and what they and the polynomial
    lack is below the doubt, in relation to x. Beyond 8.9 c is further away, and the doubt decides nothing
    but near the one number there that is half-way between two results, where it is right.
    """
    size = magnitude(x)
    limited = choose(size > TANH_LIMIT, TANH_LIMIT, size)
    place = f32_to_bits(f32(limited + TANH_OFFSET)) >> TANH_SHIFT
    centre, value = pair(tanh_centres, TANH_FIRST, choose(place > TANH_LAST, TANH_LAST, place))
    h = f32(limited - centre)
    slope = fused_multiply_add(-value, value, 1.0)
    total = fused_multiply_add(h, slope, value)
    rest = fused_multiply_add(h, slope, f32(value - total))
    tail = fused_multiply_add(h, f32(TWO_THIRDS - slope), -value)
    rest = fused_multiply_add(f32(f32(h * slope) * h), tail, rest)
    low = f32(total + fused_multiply_add(limited, -TANH_DOUBT, rest))
    high = f32(total + fused_multiply_add(limited, TANH_DOUBT, rest))
    return seldom(low != high, tanh_f32, (x,), with_sign_of(x, low))


FUNCTIONS: Final[dict[str, Callable[..., float]]] = {"exp.f32": exp_pairs, "tanh.f32": tanh_pairs}
