"""Defines what floating-point instructions and conversions mean: a function each.

Its name is the mnemonic with underscores for dots, without the widths where it is the same for all. Every
operation rounds to nearest even in its own width. Where an argument or a result is an ``int`` it is the bits
of a float, so that signalling NaNs and NaN signs pass unchanged.
"""

from __future__ import annotations

from jitree.codegen.numbers import (
    INT64_MIN,
    TWO_POWER_63,
    TWO_POWER_64,
    divide,
    f32,
    f32_from_integer,
    f64,
    f64_from_integer,
    flushed,
    i8,
    i16,
    i32,
    i64,
    integer,
    require_count,
    round_down,
    round_half_away,
    round_up,
    rounded_once,
    square_root,
    u32,
    u64,
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
    return flushed(rhs if rhs < lhs else lhs)


def max_f(lhs: float, rhs: float) -> float:
    return flushed(rhs if lhs < rhs else lhs)


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


def trunc_i32_i8(x: int) -> int:
    return x & 0xFF


def trunc_i32_i16(x: int) -> int:
    return x & 0xFFFF


def trunc_i64_i32(x: int) -> int:
    return i32(x)


def trunc_i64_i32_exact(x: int) -> int:
    require_count(x)
    return i32(x)


def ext_i8_i32_s(x: int) -> int:
    return i8(x)


def ext_i8_i32_u(x: int) -> int:
    return x & 0xFF


def ext_i16_i32_s(x: int) -> int:
    return i16(x)


def ext_i16_i32_u(x: int) -> int:
    return x & 0xFFFF


def ext_i32_i64_s(x: int) -> int:
    return i64(x)


def ext_i32_i64_u(x: int) -> int:
    return i64(u32(x))


def _rounded_integer(rounded: float) -> int:
    """The integer of an integral value; NaN, infinities and what does not fit become INT64_MIN, as x86-64
    converts."""
    if rounded >= -TWO_POWER_63 and rounded < TWO_POWER_63:
        return integer(rounded)
    return INT64_MIN


def cast_si32_f32(x: int) -> float:
    return f32_from_integer(x)


def cast_ui32_f32(x: int) -> float:
    return f32_from_integer(u32(x))


def cast_si64_f32(x: int) -> float:
    return f32_from_integer(x)


def cast_ui64_f32(x: int) -> float:
    return f32_from_integer(u64(x))


def cast_f32_si32(x: float) -> int:
    return i32(_rounded_integer(round_half_away(x)))


def cast_f32_ui32(x: float) -> int:
    return i32(_rounded_integer(round_half_away(x)))


def cast_f32_si64(x: float) -> int:
    return _rounded_integer(round_half_away(x))


def cast_f32_ui64(x: float) -> int:
    """Right up to 2**64; negative values wrap, everything else gives 2**63."""
    rounded = round_half_away(x)
    if rounded >= TWO_POWER_63 and rounded < TWO_POWER_64:
        return integer(rounded - TWO_POWER_63) + INT64_MIN
    return _rounded_integer(rounded)


def trunc_f64_f32(x: float) -> float:
    return f32(x)


def ext_f32_f64(x: float) -> float:
    return f64(x)


# No compiler emits the casts between f64 and 32-bit integers; the reference runtime goes through binary32.


def cast_si32_f64(x: int) -> float:
    return f64(f32_from_integer(x))


def cast_ui32_f64(x: int) -> float:
    return f64(f32_from_integer(u32(x)))


def cast_f64_si32(x: float) -> int:
    return i32(_rounded_integer(round_half_away(f32(x))))


def cast_f64_ui32(x: float) -> int:
    return i32(_rounded_integer(round_half_away(f32(x))))


def cast_si64_f64(x: int) -> float:
    return f64_from_integer(x)


def cast_ui64_f64(x: int) -> float:
    return f64_from_integer(u64(x))


def cast_f64_si64(x: float) -> int:
    return _rounded_integer(round_half_away(x))


def cast_f64_ui64(x: float) -> int:
    """Through a signed rounding: from 2**63 on it gives 2**63."""
    return _rounded_integer(round_half_away(x))


def bitcast_i_f(x: int) -> int:
    return x


def bitcast_f_i(x: int) -> int:
    return x
