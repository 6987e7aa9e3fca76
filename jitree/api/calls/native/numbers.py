"""Numbers of calls: Python objects to bits in registers, and back. Machine code."""

from __future__ import annotations

from jitree.api.calls.native.layout import (
    FLOAT_AT,
    PASS_BF16,
    PASS_BITS,
    PASS_F16,
    PASS_F32,
    PASS_F64,
    PASS_I32,
)
from jitree.api.calls.native.python import type_of
from jitree.api.calls.native.records import Argument, Python
from jitree.codegen.primitives import bit_length, call, load32, load64, narrow, stack, store32, store64, widen

_MAGNITUDE = (1 << 63) - 1
_FRACTION = (1 << 52) - 1
_LARGEST_F32 = 0x47EFFFFFE0000000
"""Bits, as f64."""
_INFINITE_F16 = 0x7C00
_INFINITE_BF16 = 0x7F80
_LEAST_NORMAL_F16 = 1023 - 14
"""Exponents of f64: of the least f16 that is not subnormal, and of half the least f16."""
_LEAST_F16 = 1023 - 25


def pass_number(python: Python, argument: Argument, value: int) -> bool:
    """Whether it was a number of the exact type and in range."""
    kind = argument.kind
    if kind == PASS_BITS:
        return False
    if kind >= PASS_F32:
        return type_of(value) == python.float_type and pass_float(argument, load64(value + FLOAT_AT))
    return type_of(value) == python.int_type and pass_integer(python, argument, value)


def pass_integer(python: Python, argument: Argument, value: int) -> bool:
    overflow = stack(4)
    number = call(python.long_value, value, overflow)
    if load32(overflow) != 0 or not argument.low <= number <= argument.high:
        return False
    if argument.kind == PASS_I32:
        store32(argument.place, number)
    else:
        store64(argument.place, number)
    return True


def pass_bits(python: Python, argument: Argument, value: int) -> bool:
    """An integer with the bits of a float below 32 bits."""
    overflow = stack(4)
    store32(argument.place, call(python.long_value, value, overflow))
    return True


def pass_float(argument: Argument, bits: int) -> bool:
    kind = argument.kind
    number = rounded(kind, bits)
    if kind == PASS_F64:
        store64(argument.place, number)
        return True
    if number == -1:
        return False
    store32(argument.place, number)
    return True


def rounded(kind: int, bits: int) -> int:
    """The bits of an f64 as those of a narrower float; -1 for what is infinite or not a number there."""
    if kind == PASS_F64:
        return bits
    if bits & _MAGNITUDE > _LARGEST_F32:
        return -1
    number = narrow(bits)
    if kind == PASS_F16:
        return half_of(bits)
    return brain_of(number) if kind == PASS_BF16 else number


def float_of(number: int) -> int:
    """The bits of an f64 with the value of an integer below 2**53."""
    if number == 0:
        return 0
    sign, magnitude = (-1 << 63, -number) if number < 0 else (0, number)
    length = bit_length(magnitude)
    return sign | 1022 + length << 52 | magnitude << 53 - length & _FRACTION


def half_of(bits: int) -> int:
    """The bits of an f64 as those of an f16, rounded to the nearest, even of two; -1 if that is infinite."""
    magnitude = bits & _MAGNITUDE
    exponent = magnitude >> 52
    sign = bits >> 48 & 0x8000
    if exponent < _LEAST_F16:
        return sign
    if exponent < _LEAST_NORMAL_F16:
        return sign | rounded_shift(magnitude & _FRACTION | 1 << 52, 1051 - exponent)
    rounded = rounded_shift(magnitude - (1023 - 15 << 52), 42)
    return -1 if rounded >= _INFINITE_F16 else sign | rounded


def brain_of(bits: int) -> int:
    """The bits of an f32 as those of a bf16, as :func:`half_of`."""
    rounded = rounded_shift(bits & 0x7FFFFFFF, 16)
    return -1 if rounded >= _INFINITE_BF16 else bits >> 16 & 0x8000 | rounded


def rounded_shift(value: int, count: int) -> int:
    """A number without its lowest bits, rounded to the nearest, even of two."""
    return value + (1 << count - 1) - 1 + (value >> count & 1) >> count


def widened(kind: int, bits: int) -> int:
    """The bits of an f64 with the value of an f32, an f16 or a bf16."""
    if kind == PASS_BF16:
        return widen((bits & 0xFFFF) << 16)
    if kind != PASS_F16:
        return widen(bits)
    sign = (bits & 0x8000) << 48
    exponent, fraction = bits >> 10 & 31, bits & 1023
    if exponent == 0:
        if fraction == 0:
            return sign
        length = bit_length(fraction)
        return sign | 1023 - 25 + length << 52 | fraction << 53 - length & _FRACTION
    wide = 2047 if exponent == 31 else exponent + 1023 - 15
    return sign | wide << 52 | fraction << 42
