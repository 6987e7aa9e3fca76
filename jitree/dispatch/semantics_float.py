"""What floating-point instructions mean: a function each. Its name is the mnemonic with underscores
for dots, without the widths where it is the same for all.

Every operation rounds to nearest even in its own width. Where an argument or a result is an ``int`` it is the
bits of a float, so that signalling NaNs and NaN signs pass unchanged.
"""

from __future__ import annotations

from jitree.codegen.numbers import (
    divide,
    f32,
    i32,
    i64,
    integer,
    round_down,
    round_half_away,
    round_up,
    rounded_once,
    square_root,
    unfolded,
)


def add_f32(lhs: float, rhs: float) -> float:
    return f32(lhs + rhs)


def sub_f32(lhs: float, rhs: float) -> float:
    return f32(lhs - rhs)


def mul_f32(lhs: float, rhs: float) -> float:
    return f32(lhs * rhs)


def div_f32(lhs: float, rhs: float) -> float:
    return f32(divide(lhs, rhs))


def fma_f32(a: float, b: float, c: float) -> float:
    return f32(f32(a * b) + c)


def fma_f32_fused(a: float, b: float, c: float) -> float:
    return rounded_once(a, b, c)


def add_f64(lhs: float, rhs: float) -> float:
    return lhs + rhs


def sub_f64(lhs: float, rhs: float) -> float:
    return lhs - rhs


def mul_f64(lhs: float, rhs: float) -> float:
    return lhs * rhs


def div_f64(lhs: float, rhs: float) -> float:
    return divide(lhs, rhs)


def fma_f64(a: float, b: float, c: float) -> float:
    return a * b + c


def fpowi_f32(base: float, exponent: int) -> float:
    """A power by repeated squaring. Only the low 32 bits of the exponent count (seen in iree.runtime
    3.13)."""
    steps = abs(i64(i32(exponent)))
    power = unfolded(f32(1.0))
    while steps != 0:
        if steps & 1 == 1:
            power = f32(power * base)
        steps = steps >> 1
        if steps != 0:
            base = f32(base * base)
    return f32(divide(f32(1.0), power)) if i32(exponent) < 0 else power


def fpowi_f64(base: float, exponent: int) -> float:
    steps = abs(i64(i32(exponent)))
    power = unfolded(1.0)
    while steps != 0:
        if steps & 1 == 1:
            power = power * base
        steps = steps >> 1
        if steps != 0:
            base = base * base
    return divide(1.0, power) if i32(exponent) < 0 else power


def abs_f32(x: int) -> int:
    return x & 0x7FFFFFFF


def neg_f32(x: int) -> int:
    return i32(x ^ 0x80000000)


def abs_f64(x: int) -> int:
    return x & 0x7FFFFFFFFFFFFFFF


def neg_f64(x: int) -> int:
    return x ^ (-0x8000000000000000)


def ceil_f(x: float) -> float:
    return round_up(x)


def floor_f(x: float) -> float:
    return round_down(x)


def round_f(x: float) -> float:
    return round_half_away(x)


def _half_to_even(x: float, rounded: float) -> float:
    """Corrects a tie that was rounded away from zero to an odd value; so -0.5 becomes +0."""
    if abs(x - rounded) == 0.5 and integer(rounded) & 1 == 1:
        return rounded - 1.0 if rounded > 0.0 else rounded + 1.0
    return rounded


def round_f32_even(x: float) -> float:
    return f32(_half_to_even(x, round_half_away(x)))


def round_f64_even(x: float) -> float:
    return _half_to_even(x, round_half_away(x))


def sqrt_f32(x: float) -> float:
    return f32(square_root(x))


def rsqrt_f32(x: float) -> float:
    return f32(divide(f32(1.0), f32(square_root(x))))


def sqrt_f64(x: float) -> float:
    return square_root(x)


def rsqrt_f64(x: float) -> float:
    return divide(1.0, square_root(x))


def min_f(lhs: float, rhs: float) -> float:
    """Times 1, which changes a denormal number only, in kernels: the processor's instruction makes a zero of
    it, and so does the interpreter."""
    return (rhs if rhs < lhs else lhs) * 1.0


def max_f(lhs: float, rhs: float) -> float:
    return (rhs if lhs < rhs else lhs) * 1.0


def cmp_eq_f_o(lhs: float, rhs: float) -> int:
    return 1 if lhs == rhs else 0


def cmp_eq_f_u(lhs: float, rhs: float) -> int:
    return 0 if lhs < rhs or lhs > rhs else 1


def cmp_ne_f_o(lhs: float, rhs: float) -> int:
    return 1 if lhs != rhs else 0


def cmp_ne_f_u(lhs: float, rhs: float) -> int:
    return 1 if lhs != rhs else 0


def cmp_lt_f_o(lhs: float, rhs: float) -> int:
    return 1 if lhs < rhs else 0


def cmp_lt_f_u(lhs: float, rhs: float) -> int:
    return 0 if lhs >= rhs else 1


def cmp_lte_f_o(lhs: float, rhs: float) -> int:
    return 1 if lhs <= rhs else 0


def cmp_lte_f_u(lhs: float, rhs: float) -> int:
    return 0 if lhs > rhs else 1


def cmp_nan_f(x: float) -> int:
    return 1 if x != x else 0


def select_f(cond: int, if_true: int, if_false: int) -> int:
    return if_true if cond != 0 else if_false
