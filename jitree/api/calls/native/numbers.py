"""Converts Python numbers, and nested lists of them, to registers and tensors. Machine code.

Only numbers that every element type has a plain way for: others, and what does not fit, are left to Python.
"""

from __future__ import annotations

from jitree.api.calls.native.arrays import BY_SCALAR_TYPE, dtype_row
from jitree.api.calls.native.copies import SCATTERED, new_copy
from jitree.api.calls.native.layout import (
    FLOAT_AT,
    MAXIMUM_RANK,
    NO_NUMBERS,
    PASS_BF16,
    PASS_BITS,
    PASS_F16,
    PASS_F32,
    PASS_F64,
    PASS_I32,
    PASS_I64,
    Argument,
    CallRecord,
    Python,
)
from jitree.api.calls.native.python import type_of
from jitree.api.calls.native.views import fits, has_stream, pass_uploaded, refuse
from jitree.codegen.primitives import (
    bit_length,
    call,
    load32,
    load64,
    narrow,
    quotient,
    stack,
    store8,
    store32,
    store64,
    widen,
)
from jitree.codegen.record import place_of

_MAGNITUDE = (1 << 63) - 1
_FRACTION = (1 << 52) - 1
_LARGEST_F32 = 0x47EFFFFFE0000000
"""Bits, as f64."""
_INFINITE_F16 = 0x7C00
_INFINITE_BF16 = 0x7F80
_LEAST_NORMAL_F16 = 1023 - 14
"""Exponents of f64: of the least f16 that is not subnormal, and of half the least f16."""
_LEAST_F16 = 1023 - 25

_MOST_UPLOADED = 1024
"""Bytes of numbers that go to the memory of another device; more are left to Python."""


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


def pass_numbers(python: Python, record: CallRecord, argument: Argument, value: int) -> bool:
    """Whether it was a number or a nested list that fits, and has been copied."""
    if argument.numbers == NO_NUMBERS:
        return False
    dimensions = stack(8 * MAXIMUM_RANK)
    count = 1
    item = value
    for axis in range(argument.rank):
        size = length_of(python, item)
        if size <= 0:
            return False
        store64(dimensions + 8 * axis, size)
        count *= size
        item = item_of(python, item, 0)
    if has_stream(record):
        elements = stack(_MOST_UPLOADED)
        return (
            count * argument.item_size <= _MOST_UPLOADED
            and fits(argument, argument.rank, dimensions)
            and store_numbers(python, argument, value, dimensions, count, elements)
            and pass_uploaded(python, record, argument, dimensions, elements)
        )
    view = new_copy(python, record, argument, argument.rank, dimensions, SCATTERED)
    if not view:
        return False
    if not store_numbers(python, argument, value, dimensions, count, view.address):
        return refuse(record, view)
    store64(argument.place, place_of(view))
    return True


def store_numbers(
    python: Python, argument: Argument, value: int, dimensions: int, count: int, place: int
) -> bool:
    """Whether all elements of a nested list were numbers that fit."""
    for index in range(count):
        number = number_at(python, argument, value, dimensions, index, count)
        if number == 0 or not store_number(python, argument, number, place + index * argument.item_size):
            return False
    return True


def length_of(python: Python, value: int) -> int:
    """The length of a list or tuple; -1 for anything else."""
    cls = type_of(value)
    return call(python.length, value) if cls == python.list_type or cls == python.tuple_type else -1


def item_of(python: Python, value: int, index: int) -> int:
    """A borrowed reference."""
    get_item = python.list_item if type_of(value) == python.list_type else python.get_item
    return call(get_item, value, index)


def number_at(python: Python, argument: Argument, value: int, dimensions: int, index: int, count: int) -> int:
    """The element of a nested list, 0 where lists have other lengths than the first ones."""
    for axis in range(argument.rank):
        size = load64(dimensions + 8 * axis)
        if length_of(python, value) != size:
            return 0
        count = quotient(count, size)
        place = quotient(index, count)
        index -= place * count
        value = item_of(python, value, place)
    return value


def store_number(python: Python, argument: Argument, value: int, place: int) -> bool:
    """Whether it was a number of the element type, or one that becomes such without loss."""
    cls = type_of(value)
    if cls == argument.scalar_type:
        call(python.take_scalar, value, place)
        return True
    if cls == python.float_type:
        return store_rounded(argument, load64(value + FLOAT_AT), place)
    if cls == type_of(python.true):
        return store_integer(argument, value == python.true, place)
    if cls != python.int_type:
        return store_scalar(python, argument, value, place)
    overflow = stack(4)
    number = call(python.long_value, value, overflow)
    return load32(overflow) == 0 and store_integer(argument, number, place)


def store_scalar(python: Python, argument: Argument, value: int, place: int) -> bool:
    """Whether it was a scalar of numpy of another type, whose number fits. Of integers of the declared size
    Python makes an array that keeps their sign."""
    row = dtype_row(python, BY_SCALAR_TYPE, type_of(value))
    if not row or row.numbers == NO_NUMBERS:
        return False
    given = stack(8)
    store64(given, 0)
    call(python.take_scalar, value, given)
    bits = load64(given)
    if row.numbers != PASS_I64:
        return store_rounded(argument, bits if row.numbers == PASS_F64 else widened(row.numbers, bits), place)
    if argument.numbers == PASS_I64 and argument.rank == 0 and argument.item_size == row.item_size:
        return False
    sign = row.high + 1
    number = bits if row.low == 0 else (bits ^ sign) - sign
    return number <= row.high and number >= row.low and store_integer(argument, number, place)


def store_integer(argument: Argument, number: int, place: int) -> bool:
    kind = argument.numbers
    if not argument.low <= number <= argument.high:
        return False
    store_bits(argument, place, number if kind == PASS_I64 else rounded(kind, float_of(number)))
    return True


def store_rounded(argument: Argument, bits: int, place: int) -> bool:
    kind = argument.numbers
    if kind == PASS_I64:
        return False
    number = rounded(kind, bits)
    if number == -1 and kind != PASS_F64:
        return False
    store_bits(argument, place, number)
    return True


def store_bits(argument: Argument, place: int, bits: int) -> None:
    for index in range(argument.item_size):
        store8(place + index, bits >> 8 * index & 255)
