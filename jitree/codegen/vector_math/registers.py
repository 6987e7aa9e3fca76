"""States functions of binary32 for processors that look numbers up in registers. AVX-512 looks up 16 lanes in
32 numbers.

A first computation in pairs of binary32 numbers, a sum and what it lacks, is good for some 35 bits, with all
16 lanes at a time. Where that does not decide how a result of the vector is rounded, once in 40 to 150
vectors, the functions of :mod:`functions` give all its results.

Pairs come from :func:`fused_multiply_add`: ``total = a * b + c`` lacks ``a * b + (c - total)``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Final

from jitree.codegen.numbers import (
    choose,
    f32,
    f32_to_bits,
    fused_multiply_add,
    i32,
    row,
    scaled,
    seldom,
)
from jitree.codegen.vector_math.functions import (
    EXP_HIGHEST,
    EXP_LOWEST,
    MAGNITUDE,
    ROUNDING_F32,
    erf_f32,
    exp_f32,
    magnitude,
    tanh_f32,
    with_sign_of,
)
from jitree.codegen.vector_math.tables import (
    ERF_LIMIT,
    ERF_OFFSET,
    ERF_SHIFT,
    TANH_LIMIT,
    TANH_OFFSET,
    TANH_SHIFT,
    clamp,
    erf_pieces,
    powers_of_two,
    tanh_pieces,
)

LANES: Final = 16

PIECES: Final = 32
"""Of each power of two."""
ROUNDING_TO_PIECES: Final = ROUNDING_F32 / PIECES
PIECE_HIGH: Final = PIECES * float.fromhex("0x1.62e430p-6")
PIECE_LOW: Final = PIECES * float.fromhex("-0x1.05c610p-34")
"""log(2), in two parts; of the first a piece's has 20 bits."""
EXPONENT: Final = f32(1.0 / (PIECE_HIGH + PIECE_LOW))
"""What it lacks moves a piece's ends."""
SIXTH, TWENTY_FOURTH = f32(1.0 / 6.0), f32(1.0 / 24.0)
EXP_DOUBT: Final = 1.5 * 2.0**-36
"""See :func:`exp_lanes`."""
SUBNORMAL: Final = 0x7FFFFF
"""The largest bits of a subnormal number."""
ERF_OF_PAIRS: Final = 2.0**-80
"""What a product lacks in erf of less may be no binary32 number."""


def exp_lanes(x: float) -> float:
    """Computes 2**n times 2**(k / 32) times exp(r). exp(r) is 1 + r and a rest.

    r is below 0.01084 and exact: it ends at 2**-30 or before, or is x. The rest is below 2**-13.98; five
    steps round it, and it lacks r**5 / 120: 2**-35.9 in all, in relation to the power. A number that is too
    large or too small stands for those beyond it. Where subnormal numbers are zeros, scaling makes them;
    elsewhere it has rounded twice.
    """
    limited = clamp(x, EXP_LOWEST, EXP_HIGHEST)
    shifted = fused_multiply_add(limited, EXPONENT, ROUNDING_TO_PIECES)
    exponent = f32(shifted - ROUNDING_TO_PIECES)
    r = fused_multiply_add(exponent, -PIECE_HIGH, limited)
    power, rest = row(powers_below, f32_to_bits(shifted))
    rest = fused_multiply_add(exponent, -PIECE_LOW, rest)
    whole = f32(r + rest)
    tail = fused_multiply_add(whole, fused_multiply_add(whole, TWENTY_FOURTH, SIXTH), 0.5)
    rest = fused_multiply_add(f32(whole * whole), tail, rest)
    total = fused_multiply_add(power, r, power)
    lacking = fused_multiply_add(power, r, f32(power - total))
    rest = fused_multiply_add(power, rest, lacking)
    low, high = f32(total + rest), f32(total + fused_multiply_add(power, 2.0 * EXP_DOUBT, rest))
    value = scaled(low, exponent)
    subnormal = i32(f32_to_bits(value) + MAGNITUDE) < SUBNORMAL - MAGNITUDE - 1
    return seldom((low != high) | subnormal, exp_f32, (x,), value)


@cache
def powers_below() -> tuple[tuple[float, float], ...]:
    """Gives powers of two, and what they lack, less the doubt."""
    return tuple((power, f32(rest - EXP_DOUBT)) for power, rest in powers_of_two())


def tanh_lanes(x: float) -> float:
    low, high = _by_pieces(*_place(x, TANH_LIMIT, TANH_OFFSET, TANH_SHIFT), tanh_pieces)
    return seldom(low != high, tanh_f32, (x,), with_sign_of(x, low))


def erf_lanes(x: float) -> float:
    low, high = _by_pieces(*_place(x, ERF_LIMIT, ERF_OFFSET, ERF_SHIFT), erf_pieces)
    small = (magnitude(x) < ERF_OF_PAIRS) & (x != 0.0)
    return seldom((low != high) | small, erf_f32, (x,), with_sign_of(x, low))


FUNCTIONS: Final[dict[str, Callable[..., float]]] = {
    "exp.f32": exp_lanes, "tanh.f32": tanh_lanes, "erf.f32": erf_lanes,
}  # fmt: skip


def _place(x: float, limit: float, offset: float, shift: int) -> tuple[float, int]:
    """The magnitude up to a limit, and its piece."""
    size = magnitude(x)
    limited = choose(size > limit, limit, size)
    return limited, f32_to_bits(f32(limited + offset)) >> shift


def _by_pieces(
    x: float, index: int, pieces: Callable[[], tuple[tuple[float, ...], ...]]
) -> tuple[float, float]:
    """The polynomial of a piece: two steps in pairs, the others below 2**-10. Less what it may be off by, and
    more: the result where they are the same, which NaN is not."""
    centre, value, slope, slope_rest, second, *further, doubt = row(pieces, index)
    h = f32(x - centre)
    steep = fused_multiply_add(h, second, slope)
    steep_rest = fused_multiply_add(h, second, f32(slope - steep))
    total = fused_multiply_add(h, steep, value)
    rest = fused_multiply_add(h, steep, f32(value - total))
    tail = further[-1]
    for coefficient in further[-2::-1]:
        tail = fused_multiply_add(h, tail, coefficient)
    tail = fused_multiply_add(f32(h * h), tail, f32(slope_rest + steep_rest))
    rest = fused_multiply_add(h, tail, rest)
    return f32(total + fused_multiply_add(x, -doubt, rest)), f32(total + fused_multiply_add(x, doubt, rest))
