"""Finds numbers that are divided by constants, rounded, clamped and cast to integers.

A compiled model quantises each element so: ``cast(clamp(round(x / scale) + zero point))``. A division takes
as long as ten additions, rounding and a cast to 64 bits several. Where both ends of the clamps are whole
numbers of at most ten bits it is, with the same integers for all ``x``:

* clamps of ``x`` itself, to the numbers that become the ends: all steps rise with ``x``, and what becomes of
  NaN stays the end that the innermost clamp has;
* ``x * high + x * low``, of which the first product is not rounded, for ``x / scale``: ``high`` is the
  reciprocal, rounded, and ``low`` what that lacks. Before it is rounded the sum is ``2**-47`` of itself away
  from the quotient at most;
* the sum with ``1.5 * 2**23``, whose last digit is the units: that rounds halves to even, and leaves the
  integer in the last bits.

The rounded sum is another one than the rounded quotient only where the quotient is nearly the middle ``m`` of
two neighbours, and that changes the integer only if one of the neighbours is a half. With significands of 24
bits ``X`` and ``C`` of number and scale, and ``M`` of 25 of the middle, ``N = X * 2**s - M * C`` is less than
4 then, so ``M`` is what few ``N`` say modulo ``2**s``. ``_is_exact`` finds out whether any is next to a half.
One scale in 2,500 has such an ``M``.
"""

from __future__ import annotations

from math import frexp
from typing import Final

from jitree.base.platform import processor
from jitree.base.records import NamedTuple
from jitree.codegen.ir_text import llvm_type
from jitree.codegen.numbers import f32, f32_to_bits
from jitree.dispatch.native.nests.clamps import Clamp, bounds, clamp_of
from jitree.dispatch.native.nests.reading import constant_f32
from jitree.dispatch.native.nests.writer import Writer
from jitree.dispatch.native.ssa import Value

_CASTS: Final = ("cast.f32.si32", "cast.f32.ui32")
_DIGITS: Final = 24
"""Of a significand."""
_MOST: Final = 1 << 10
"""Quotients are less: a half between them has 13 zeros at the end of its significand, or more."""
_NEXT_TO_HALF: Final = 1 << 14
"""Multiples of it are twice the significand of a half."""
_NEAR: Final = 4
"""What exceeds each ``N`` that is looked at."""
_SCALES: Final = (2.0**-60, 2.0**60)
"""Least and greatest: no product is denormal, but where the quotient is less than a half."""
_UNITS: Final = 1.5 * 2.0**23
"""Its last digit, and that of a number near it, is 1."""


class Quantised(NamedTuple):
    """Says which number becomes an integer, by which clamps, products and sums."""

    number: Value
    clamps: tuple[tuple[Clamp, float], ...]
    """From the innermost, with the constants that the number itself is clamped to."""
    high: float
    low: float
    offset: int
    """What is added to the rounded quotient."""

    def write(self, writer: Writer, lanes: int, number: str) -> str:
        """Writes the integer."""
        kind, integers = llvm_type("f32", lanes), llvm_type("i32", lanes)

        def constant(value: float) -> str:
            return writer.splat("f32", f"bitcast (i32 {f32_to_bits(value)} to float)", lanes)

        for clamp, bound in self.clamps:
            number = clamp.write(writer, lanes, number, constant(bound))
        if self.low:
            rest = writer.let(f"fmul {kind} {number}, {constant(self.low)}")
            number = writer.intrinsic("fma", "f32", lanes, [number, constant(self.high), rest])
        else:
            number = writer.let(f"fmul {kind} {number}, {constant(self.high)}")
        units = writer.let(f"fadd {kind} {number}, {constant(_UNITS)}")
        bits = writer.let(f"bitcast {kind} {units} to {integers}")
        zero = str(f32_to_bits(_UNITS) - self.offset)
        return writer.let(f"sub {integers} {bits}, {writer.splat('i32', zero, lanes)}")


def quantised_of(value: Value) -> Quantised | None:
    """The steps that a cast is the last one of; None if it is none of these, or not exact."""
    if value.operation not in _CASTS or not processor.fuses():
        return None
    (number,) = value.operands
    found: list[Clamp] = []
    while (clamp := clamp_of(number)) is not None:
        found.insert(0, clamp)
        number = clamp.number
    number, offset = _without_offset(number)
    if {clamp.is_lower for clamp in found} != {True, False} or number.operation != "round.f32.even":
        return None
    (quotient,) = number.operands
    scale = constant_f32(quotient.operands[1]) if quotient.operation == "div.f32" else None
    if scale is None or not _SCALES[0] <= scale <= _SCALES[1] or not _is_exact(scale):
        return None
    ends = [(constant_f32(clamp.bound) or 0.0) - offset for clamp in found]
    if not all(end.is_integer() and abs(end) < _MOST for end in ends):
        return None
    given, least = quotient.operands[0], bounds(quotient.operands[0])[0]
    clamps = [(clamp, f32(end * scale)) for clamp, end in zip(found, ends, strict=True)]
    if ends == sorted(ends) and found[0].is_lower and clamps[0][1] <= least:
        del clamps[0]  # a number that is at least so much already, and not NaN
    high = f32(1 / scale)
    low = f32((1 - scale * high) / scale)  # the product has 48 bits: it and the difference are exact
    return Quantised(given, tuple(clamps), high, low, int(offset))


def _without_offset(number: Value) -> tuple[Value, float]:
    """A number without the whole constant that is added to it, and that."""
    if number.operation == "add.f32":
        left, right = number.operands
        for one, other in ((left, right), (right, left)):
            constant = constant_f32(other)
            if constant is not None and abs(constant) < _MOST and constant.is_integer():
                return one, constant
    return number, 0.0


def _is_exact(scale: float) -> bool:
    """Whether no quotient near the middle of two neighbours is near a half, too."""
    divisor = int(frexp(scale)[0] * (1 << _DIGITS))
    zeros = (divisor & -divisor).bit_length() - 1
    for shift in (_DIGITS, _DIGITS + 1):  # quotients of significands from 1 on, and those below it
        size = 1 << shift - zeros
        inverse = pow(divisor >> zeros, -1, size)
        for rest in range(1 - _NEAR, _NEAR):
            if rest == 0 or rest % (1 << zeros):
                continue
            first = -(rest >> zeros) * inverse % size
            for middle in range(first, 2 << _DIGITS, size):
                if middle >= 1 << _DIGITS and (middle + 1) % _NEXT_TO_HALF in (0, 2):
                    return False
    return True
