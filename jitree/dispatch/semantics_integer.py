"""Defines what integer instructions mean: a function each.

Its name is the mnemonic with underscores for dots, without the widths where it is the same for all.
Arithmetic wraps. Operands and results are in the signed range of their width.
"""

from __future__ import annotations

from jitree.codegen.numbers import (
    INT32_MIN,
    INT64_MIN,
    i32,
    i64,
    leading_zeros_32,
    leading_zeros_64,
    require_exact,
    require_exact_32,
    require_signed_division,
    require_unsigned_division,
    shift_right_logical,
    signed_quotient,
    signed_remainder,
    u32,
    u64,
    unsigned_quotient,
    unsigned_remainder,
)


def add_i32(lhs: int, rhs: int) -> int:
    return i32(lhs + rhs)


def sub_i32(lhs: int, rhs: int) -> int:
    return i32(lhs - rhs)


def mul_i32(lhs: int, rhs: int) -> int:
    return i32(lhs * rhs)


def div_i32_s(lhs: int, rhs: int) -> int:
    require_signed_division(lhs, rhs, INT32_MIN)
    return signed_quotient(lhs, rhs)


def div_i32_u(lhs: int, rhs: int) -> int:
    require_unsigned_division(rhs)
    return i32(unsigned_quotient(u32(lhs), u32(rhs)))


def rem_i32_s(lhs: int, rhs: int) -> int:
    require_signed_division(lhs, rhs, INT32_MIN)
    return signed_remainder(lhs, rhs)


def rem_i32_u(lhs: int, rhs: int) -> int:
    require_unsigned_division(rhs)
    return i32(unsigned_remainder(u32(lhs), u32(rhs)))


def fma_i32(a: int, b: int, c: int) -> int:
    return i32(a * b + c)


def add_i64(lhs: int, rhs: int) -> int:
    return i64(lhs + rhs)


def sub_i64(lhs: int, rhs: int) -> int:
    return i64(lhs - rhs)


def mul_i64(lhs: int, rhs: int) -> int:
    return i64(lhs * rhs)


def div_i64_s(lhs: int, rhs: int) -> int:
    require_signed_division(lhs, rhs, INT64_MIN)
    return signed_quotient(lhs, rhs)


def div_i64_u(lhs: int, rhs: int) -> int:
    require_unsigned_division(rhs)
    return i64(unsigned_quotient(u64(lhs), u64(rhs)))


def rem_i64_s(lhs: int, rhs: int) -> int:
    require_signed_division(lhs, rhs, INT64_MIN)
    return signed_remainder(lhs, rhs)


def rem_i64_u(lhs: int, rhs: int) -> int:
    require_unsigned_division(rhs)
    return i64(unsigned_remainder(u64(lhs), u64(rhs)))


def fma_i64(a: int, b: int, c: int) -> int:
    return i64(a * b + c)


def add_i32_exact(lhs: int, rhs: int) -> int:
    require_exact_32(lhs + rhs, lhs, rhs)
    return i32(lhs + rhs)


def sub_i32_exact(lhs: int, rhs: int) -> int:
    require_exact_32(lhs - rhs, lhs, rhs)
    return i32(lhs - rhs)


def mul_i32_exact(lhs: int, rhs: int) -> int:
    require_exact_32(lhs * rhs, lhs, rhs)
    return i32(lhs * rhs)


def fma_i32_exact(a: int, b: int, c: int) -> int:
    require_exact_32(a * b + c, a, b, c)
    return i32(a * b + c)


def shl_i32_exact(x: int, amount: int) -> int:
    require_exact_32(x << (amount & 31), x, amount)
    return i32(x << (amount & 31))


def add_i64_exact(lhs: int, rhs: int) -> int:
    require_exact(lhs + rhs, lhs, rhs)
    return i64(lhs + rhs)


def sub_i64_exact(lhs: int, rhs: int) -> int:
    require_exact(lhs - rhs, lhs, rhs)
    return i64(lhs - rhs)


def mul_i64_exact(lhs: int, rhs: int) -> int:
    require_exact(lhs * rhs, lhs, rhs)
    return i64(lhs * rhs)


def fma_i64_exact(a: int, b: int, c: int) -> int:
    require_exact(a * b + c, a, b, c)
    return i64(a * b + c)


def not_i(x: int) -> int:
    return ~x


def and_i(lhs: int, rhs: int) -> int:
    return lhs & rhs


def or_i(lhs: int, rhs: int) -> int:
    return lhs | rhs


def xor_i(lhs: int, rhs: int) -> int:
    return lhs ^ rhs


def shl_i32(x: int, amount: int) -> int:
    return i32(x << (amount & 31))


def shr_i32_s(x: int, amount: int) -> int:
    return x >> (amount & 31)


def shr_i32_u(x: int, amount: int) -> int:
    return i32(shift_right_logical(u32(x), u32(amount & 31)))


def shl_i64(x: int, amount: int) -> int:
    return i64(x << (amount & 63))


def shl_i64_exact(x: int, amount: int) -> int:
    require_exact(x << (amount & 63), x, amount)
    return i64(x << (amount & 63))


def shr_i64_s(x: int, amount: int) -> int:
    return x >> (amount & 63)


def shr_i64_u(x: int, amount: int) -> int:
    return i64(shift_right_logical(u64(x), u64(amount & 63)))


def ctlz_i32(x: int) -> int:
    return leading_zeros_32(x)


def ctlz_i64(x: int) -> int:
    return leading_zeros_64(x)


def abs_i32(x: int) -> int:
    return i32(-x) if x < 0 else x


def abs_i64(x: int) -> int:
    return i64(-x) if x < 0 else x


def min_i_s(lhs: int, rhs: int) -> int:
    return rhs if rhs < lhs else lhs


def min_i32_u(lhs: int, rhs: int) -> int:
    return rhs if u32(rhs) < u32(lhs) else lhs


def max_i_s(lhs: int, rhs: int) -> int:
    return rhs if lhs < rhs else lhs


def max_i32_u(lhs: int, rhs: int) -> int:
    return rhs if u32(lhs) < u32(rhs) else lhs


def min_i64_u(lhs: int, rhs: int) -> int:
    return rhs if u64(rhs) < u64(lhs) else lhs


def max_i64_u(lhs: int, rhs: int) -> int:
    return rhs if u64(lhs) < u64(rhs) else lhs


def cmp_eq_i(lhs: int, rhs: int) -> int:
    return 1 if lhs == rhs else 0


def cmp_ne_i(lhs: int, rhs: int) -> int:
    return 1 if lhs != rhs else 0


def cmp_lt_i_s(lhs: int, rhs: int) -> int:
    return 1 if lhs < rhs else 0


def cmp_lt_i32_u(lhs: int, rhs: int) -> int:
    return 1 if u32(lhs) < u32(rhs) else 0


def cmp_nz_i(x: int) -> int:
    return 1 if x != 0 else 0


def cmp_lt_i64_u(lhs: int, rhs: int) -> int:
    return 1 if u64(lhs) < u64(rhs) else 0


def select_i(cond: int, if_true: int, if_false: int) -> int:
    return if_true if cond != 0 else if_false
