"""Converts numbers to registers and tensors. Machine code.

Of lists, and of numbers for tensors, numpy makes arrays, whose elements become those of the declared type
here. Only numbers that every element type has a plain way for: others, and what does not fit, are left to
Python.
"""

from __future__ import annotations

from jitree.api.calls.native.arrays import BY_DTYPE, dtype_row
from jitree.api.calls.native.copies import SCATTERED, new_copy
from jitree.api.calls.native.layout import (
    FLOAT_AT,
    MAXIMUM_RANK,
    NDARRAY_CONTIGUOUS,
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
    Dtype,
    Ndarray,
    Python,
)
from jitree.api.calls.native.python import drop, invoke_with, type_of
from jitree.api.calls.native.views import fits, has_timeline, pass_uploaded, refuse, view_size
from jitree.codegen.primitives import (
    bit_length,
    call,
    load8,
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

_WORD = 8
_HALF_WORD = 4
_MOST_NUMBERS = 1 << 16
"""Of a list that becomes an array while the context's lock is held; longer ones are left to Python."""
_MOST_UPLOADED = 1024
"""Bytes of numbers that go to the memory of another device by machine code; Python sends more."""


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


def pass_packed_number(python: Python, argument: Argument, value: int) -> bool:
    """A number as Python packs it for a register: floats below 32 bits as integers with their bits."""
    kind = argument.kind
    if PASS_F32 <= kind <= PASS_F64:
        return pass_number(python, argument, value)
    number = call(python.long_value, value, stack(4))
    if kind == PASS_I64:
        store64(argument.place, number)
    else:
        store32(argument.place, number)
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
    """Rounds an f64's bits to an f16's, to nearest even; -1 if that is infinite."""
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
    """Widens bits of an f32, f16 or bf16 to an f64's."""
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


def pass_as_array(python: Python, record: CallRecord, argument: Argument, value: int) -> bool:
    """Whether numpy has made an array of fitting numbers."""
    if not 0 <= count_numbers(python, value, MAXIMUM_RANK) <= _MOST_NUMBERS:
        return False
    made = Ndarray(invoke_with(python, python.as_array, value))
    if not made:
        return False
    is_passed = pass_numbers(python, record, argument, made)
    drop(python, place_of(made))
    return is_passed


def count_numbers(python: Python, value: int, depth: int) -> int:
    """Counts numbers in nested lists down to a depth; -1 if there is anything else. No code of others
    runs."""
    cls = type_of(value)
    is_list = cls == python.list_type
    if not is_list and cls != python.tuple_type:
        return 1 if is_number(python, cls) else -1
    count = 0
    for index in range(call(python.length, value)):
        item = call(python.list_item if is_list else python.get_item, value, index)
        found = count_numbers(python, item, depth - 1) if depth != 0 else -1
        if found < 0:
            return -1
        count += found
    return count


def is_number(python: Python, cls: int) -> bool:
    if cls == python.float_type or cls == python.int_type or cls == type_of(python.true):
        return True
    return call(python.is_subtype, cls, python.generic_type) & 1 != 0


def pass_numbers(python: Python, record: CallRecord, argument: Argument, value: Ndarray) -> bool:
    """Whether an array's numbers have been copied as the declared type. Nothing is lost but that floats are
    rounded. An exception may be set if not."""
    row = dtype_row(python, BY_DTYPE, value.dtype)
    if not row or row.numbers == NO_NUMBERS or argument.numbers == NO_NUMBERS:
        return False
    if not fits(argument, value.rank, value.dimensions) or value.flags & NDARRAY_CONTIGUOUS == 0:
        return False
    if has_timeline(record):
        elements = stack(_MOST_UPLOADED)
        size = view_size(argument, value.dimensions, _MOST_UPLOADED)
        return (
            size >= 0
            and store_numbers(argument, row, value.data, elements, size)
            and pass_uploaded(python, record, argument, value.dimensions, elements)
        )
    view = new_copy(python, record, argument, value.rank, value.dimensions, SCATTERED)
    if not view:
        return False
    if not store_numbers(argument, row, value.data, view.address, view.length):
        return refuse(record, view)
    store64(argument.place, place_of(view))
    return True


def store_numbers(argument: Argument, row: Dtype, source: int, place: int, size: int) -> bool:
    """Whether all numbers fit. ``size``: bytes of the elements that they become."""
    for _ in range(quotient(size, argument.item_size)):
        if not store_number(argument, row, source, place):
            return False
        source += row.item_size
        place += argument.item_size
    return True


def store_number(argument: Argument, row: Dtype, source: int, place: int) -> bool:
    """Whether a numpy number fits the element type without loss."""
    bits = bits_at(source, row.item_size)
    if row.numbers != PASS_I64:
        return store_rounded(argument, bits if row.numbers == PASS_F64 else widened(row.numbers, bits), place)
    sign = row.high + 1
    number = bits if row.low == 0 else (bits ^ sign) - sign
    return number <= row.high and number >= row.low and store_integer(argument, number, place)


def bits_at(source: int, size: int) -> int:
    """The bits of an element; the usual sizes are read whole."""
    if size == _WORD:
        return load64(source)
    if size == _HALF_WORD:
        return load32(source) & 0xFFFFFFFF
    bits = 0
    for index in range(size):
        bits |= load8(source + index) << 8 * index
    return bits


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
    size = argument.item_size
    if size == _WORD:
        store64(place, bits)
    elif size == _HALF_WORD:
        store32(place, bits)
    else:
        for index in range(size):
            store8(place + index, bits >> 8 * index & 255)
