"""What conversion instructions mean: a function each. Its name is the mnemonic with underscores
for dots, without the widths where it is the same for all."""

from __future__ import annotations

from jitree.codegen.numbers import (
    INT64_MIN,
    TWO_POWER_63,
    TWO_POWER_64,
    f32,
    f32_from_integer,
    f64,
    f64_from_integer,
    i8,
    i16,
    i32,
    i64,
    integer,
    require_count,
    round_half_away,
    u32,
    u64,
)


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
