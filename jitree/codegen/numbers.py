"""Primitive operations that the instruction semantics are written over, in plain Python.

Integers are Python ints in the signed range of their width, f32 values are Python floats that binary32
represents exactly. Numba and :mod:`jitree.codegen.vector_math.ir` make LLVM IR of functions over these,
so such a function may use nothing else.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Final, TypeVar

from jitree.errors import InvalidArgumentError, OutOfRangeError

Number = TypeVar("Number", int, float)
_I32, _I64, _F32, _F64 = Struct("=i"), Struct("=q"), Struct("=f"), Struct("=d")

INT32_MIN: Final = -(2**31)
INT64_MIN: Final = -(2**63)
TWO_POWER_63: Final = 2.0**63
TWO_POWER_64: Final = 2.0**64
PROCESSOR_NAN: Final = math.inf - math.inf
"""What the processor gives for an invalid operation; its sign differs between machines."""
INVALID_NAN: Final = -math.nan
"""What functions give for an invalid operand, on every machine: code for one is made on another, too."""


def i8(x: int) -> int:
    """The low 8 bits, sign extended."""
    return ((x + 0x80) & 0xFF) - 0x80


def i16(x: int) -> int:
    """The low 16 bits, sign extended."""
    return ((x + 0x8000) & 0xFFFF) - 0x8000


def i32(x: int) -> int:
    """Wraps to the signed 32-bit range."""
    return ((x + 0x80000000) & 0xFFFFFFFF) - 0x80000000


def i64(x: int) -> int:
    """Wraps to the signed 64-bit range."""
    return ((x + 0x8000000000000000) & 0xFFFFFFFFFFFFFFFF) - 0x8000000000000000


def u32(x: int) -> int:
    """The 32-bit pattern read as unsigned."""
    return x & 0xFFFFFFFF


def u64(x: int) -> int:
    """The 64-bit pattern read as unsigned."""
    return x & 0xFFFFFFFFFFFFFFFF


def f32(x: float) -> float:
    """Rounds a binary64 value to binary32, nearest even.

    For sums, differences, products, quotients and square roots of binary32 values this equals the binary32
    operation: binary64 has more than 2 * 24 + 2 digits, so rounding twice does no harm.
    """
    return ctypes.c_float(x).value


def f64(x: float) -> float:
    """A binary32 value as binary64, which is exact."""
    return x


def unfolded(x: float) -> float:
    """A constant of which a compiler knows nothing: a product with 1.0 is made, as it changes some NaNs."""
    return x


def flushed(x: float) -> float:
    """Times 1, which changes a denormal number only: where such count as zeros, in kernels, it is a zero.

    Of a choice between compared values, x86-64 makes an instruction that does the same."""
    return x * 1.0


def choose(condition: bool, if_true: Number, if_false: Number) -> Number:
    """Both values are computed before; so it is one instruction, for vectors too."""
    return if_true if condition else if_false


def multiply_add(x: float, y: float, z: float) -> float:
    """``x * y + z``, rounded once or twice: for values of which the last bits do not matter."""
    return x * y + z


def rounded_once(x: float, y: float, z: float) -> float:
    """``x * y + z`` of binary32 numbers, rounded once, to binary32.

    The product is exact in binary64. If the sum is not, its last digit is made odd, which says that more
    digits follow: then rounding it again gives what rounding all digits gives (Boldo and Melquiond, 2008).
    """
    product = x * y
    total = product + z
    part = total - product
    error = (product - (total - part)) + (z - part)
    bits = f64_to_bits(total)
    if bits & 1 == 0 and (error < 0.0 or error > 0.0):
        total = f64_of_bits(bits + (1 if (error > 0.0) == (total > 0.0) else -1))
    return f32(total)


def fused_multiply_add(x: float, y: float, z: float) -> float:
    """``x * y + z`` of binary32 numbers, as binary32; exact if that is such a number."""
    return f32(x * y + z)


def scaled(x: float, exponent: float) -> float:
    """A binary32 number times 2 to the power of another, which is rounded down."""
    return f32(math.ldexp(x, math.floor(exponent))) if exponent == exponent else exponent


def lookup(table: Callable[[], Sequence[float]], index: int) -> float:
    """An element of the constant table that a function makes."""
    return table()[index]


def row(table: Callable[[], Sequence[tuple[float, ...]]], index: int) -> tuple[float, ...]:
    """Loads a row of 16 or 32 by an index's low bits. Numbers are of binary32."""
    return table()[index & len(table()) - 1]


def pair(table: Callable[[], Sequence[tuple[float, float]]], first: int, index: int) -> tuple[float, float]:
    """Loads a row of two binary32 numbers; the table's first row has the index ``first``."""
    return table()[index - first]


def seldom(
    condition: bool, function: Callable[..., float], arguments: tuple[float, ...], value: float
) -> float:
    """As :func:`rarely`; but where the condition holds for some lanes, the function tells for all."""
    return function(*arguments) if condition else value


def rarely(
    condition: bool, function: Callable[..., float], arguments: tuple[float, ...], value: float
) -> float:
    """``value``, or what the function says; it runs only where the condition holds, for vectors too."""
    return function(*arguments) if condition else value


def accumulate(
    step: Callable[..., tuple[float, float]],
    rows: Callable[[], Sequence[tuple[float, float]]],
    state: tuple[float, float],
    argument: tuple[float, float],
) -> tuple[float, float]:
    """Applies a step to a state for each row of a constant table."""
    for row in rows():
        state = step(state, row, argument)
    return state


def f32_to_bits(x: float) -> int:
    """The bits of a binary32 value as a signed integer."""
    return _I32.unpack(_F32.pack(x))[0]  # type: ignore[no-any-return]


def f32_of_bits(x: int) -> float:
    """The binary32 value with the bits of a signed integer."""
    return _F32.unpack(_I32.pack(x))[0]  # type: ignore[no-any-return]


def f64_to_bits(x: float) -> int:
    """The bits of a binary64 value as a signed integer."""
    return _I64.unpack(_F64.pack(x))[0]  # type: ignore[no-any-return]


def f64_of_bits(x: int) -> float:
    """The binary64 value with the bits of a signed integer."""
    return _F64.unpack(_I64.pack(x))[0]  # type: ignore[no-any-return]


def f32_from_integer(x: int) -> float:
    """The nearest binary32 value of an integer below 2**64 in magnitude, rounded once."""
    if -(2**53) <= x <= 2**53:
        return f32(float(x))
    # 52 leading bits and whether anything follows them: exact in binary64, and decides ties as x does.
    return f32(float((x >> 12) | (x & 0xFFF != 0))) * 4096.0


def f64_from_integer(x: int) -> float:
    """The nearest binary64 value of an integer below 2**64 in magnitude."""
    return float(x)


def integer(x: float) -> int:
    """The 64-bit integer of an integral float inside the signed range."""
    return int(x)


def require_signed_division(lhs: int, rhs: int, minimum: int) -> None:
    """Refuses a division by zero and the one quotient that does not fit."""
    if rhs == 0:
        raise InvalidArgumentError("integer division by zero")
    if rhs == -1 and lhs == minimum:
        raise InvalidArgumentError(f"integer division overflow: {lhs} / -1")


def require_unsigned_division(rhs: int) -> None:
    """Refuses a division by zero."""
    if rhs == 0:
        raise InvalidArgumentError("integer division by zero")


def require_exact(value: int, *operands: int) -> None:
    """Refuses what does not fit in 64 bits."""
    if i64(value) != value:
        raise _inexact(64, value, operands)


def require_exact_32(value: int, *operands: int) -> None:
    """Refuses what does not fit in 32 bits."""
    if i32(value) != value:
        raise _inexact(32, value, operands)


def _inexact(bits: int, value: int, operands: tuple[int, ...]) -> OutOfRangeError:
    return OutOfRangeError(
        f"the size that the program computes of {' and '.join(map(str, operands))} does not fit in {bits} "
        f"bits: {value}"
    )


def require_count(x: int) -> None:
    """Refuses what is no number of workgroups."""
    if u32(x) != x:
        raise OutOfRangeError(f"the program dispatches {x} workgroups; there are 0 to {2**32 - 1}")


def signed_quotient(lhs: int, rhs: int) -> int:
    """Truncates toward zero; ``rhs`` is not zero."""
    quotient = abs(lhs) // abs(rhs)
    return quotient if (lhs < 0) == (rhs < 0) else -quotient


def signed_remainder(lhs: int, rhs: int) -> int:
    """Has the sign of ``lhs``; ``rhs`` is not zero."""
    remainder = abs(lhs) % abs(rhs)
    return -remainder if lhs < 0 else remainder


def unsigned_quotient(lhs: int, rhs: int) -> int:
    """The quotient of values made by :func:`u32` or :func:`u64`."""
    return lhs // rhs


def unsigned_remainder(lhs: int, rhs: int) -> int:
    """The remainder of values made by :func:`u32` or :func:`u64`."""
    return lhs % rhs


def shift_right_logical(x: int, amount: int) -> int:
    """Shifts a value made by :func:`u32` or :func:`u64`."""
    return x >> amount


def leading_zeros_32(x: int) -> int:
    return 32 - (x & 0xFFFFFFFF).bit_length()


def leading_zeros_64(x: int) -> int:
    return 64 - (x & 0xFFFFFFFFFFFFFFFF).bit_length()


def divide(lhs: float, rhs: float) -> float:
    """IEEE division: zero divisors give infinities or NaN."""
    if rhs != 0.0:
        return lhs / rhs
    if lhs == 0.0:
        return PROCESSOR_NAN
    if lhs != lhs:
        return lhs
    return math.copysign(math.inf, lhs) * math.copysign(1.0, rhs)


def square_root(x: float) -> float:
    return math.sqrt(x) if x >= 0.0 else (x if x != x else PROCESSOR_NAN)


def round_down(x: float) -> float:
    if not -(2.0**52) < x < 2.0**52:
        return x
    return math.copysign(float(math.floor(x)), x)


def round_up(x: float) -> float:
    if not -(2.0**52) < x < 2.0**52:
        return x
    return math.copysign(float(math.ceil(x)), x)


def round_half_away(x: float) -> float:
    """The nearest integral value, halves away from zero, keeping the sign of zero."""
    if not -(2.0**52) < x < 2.0**52:
        return x
    magnitude = float(int(abs(x)))
    if abs(x) - magnitude >= 0.5:
        magnitude += 1.0
    return math.copysign(magnitude, x)
