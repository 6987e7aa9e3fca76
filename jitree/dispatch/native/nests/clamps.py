"""Finds numbers that are clamped to constants, and casts of such numbers to integers.

A compiler writes the greater of a number and a constant as two selections, of which one takes the constant
where the number is NaN. With a constant that is a number this is one ordered comparison and one selection,
for which processors have an instruction: ``number > constant ? number : constant``. In kernels that takes
denormal numbers for zeros, which selections leave as they are: the number has to come from arithmetic, which
makes none, or be compared with zero, as which it counts.

A cast to an integer rounds, and looks whether the result has 63 bits. What is whole already and clamped to
less than 31 bits needs neither: a vector of 32 bits is cast at once. Quantised models do so for each element.
An extension of what fits its bits already is nothing. Integers that are cast and scaled are never NaN or -0:
one selection is a clamp of them, as that of ``relu``.
"""

from __future__ import annotations

from math import copysign, inf, isnan
from typing import Final

from jitree.base.records import NamedTuple
from jitree.codegen.ir_text import llvm_type
from jitree.dispatch.native.nests.reading import constant_f32
from jitree.dispatch.native.nests.writer import Writer
from jitree.dispatch.native.ssa import Value, constant

_LIMIT: Final = float(1 << 30)
"""What clamped numbers do not reach, nor whole constants: far from where 32 bits end."""
_MADE_WHOLE: Final = (
    "ceil.f32", "floor.f32", "round.f32", "round.f32.even", "cast.si32.f32", "cast.ui32.f32",
)  # fmt: skip
_STAYS_WHOLE: Final = ("add.f32", "sub.f32", "mul.f32", "neg.f32", "abs.f32", "min.f32", "max.f32")
"""Of whole numbers these make whole ones, also where they round, or infinities and NaN."""
_COMPUTED: Final = (
    *_MADE_WHOLE, "add.f32", "sub.f32", "mul.f32", "div.f32", "fma.f32", "fma.f32.fused", "sqrt.f32",
    "cast.si64.f32", "cast.ui64.f32",
)  # fmt: skip
"""Results are zeros where they would be denormal numbers."""
_LEAST: Final = 2.0**-126
"""The least normal number."""
_EXTENDED: Final = {"ext.i8.i32.s": 1 << 7, "ext.i16.i32.s": 1 << 15}
"""By extension, what is less as it is after it."""
_INTEGERS: Final = ("cast.si32.f32", "cast.ui32.f32")
_FACTORS: Final = (2.0**-60, 2.0**60)
"""The least and the greatest number by which products of integers neither vanish nor end."""
_DEEPEST: Final = 16
"""Clamps around each other that are looked through."""
_MOST: Final = 64
"""Values that are looked at: a value may be an operand of many others, and of one twice."""


class Clamp(NamedTuple):
    """Says which number is clamped to which constant."""

    number: Value
    bound: Value
    is_lower: bool
    """The result is not less than the constant."""

    def write(self, writer: Writer, lanes: int, number: str, bound: str) -> str:
        """Writes the result, which is the constant where the number is NaN."""
        kind, condition = llvm_type("f32", lanes), "ogt" if self.is_lower else "olt"
        bits = writer.let(f"fcmp {condition} {kind} {number}, {bound}")
        return writer.let(f"select {llvm_type('i1', lanes)} {bits}, {kind} {number}, {kind} {bound}")


def clamp_of(value: Value, depth: int = _DEEPEST) -> Clamp | None:
    """The clamp that a selection is; None if it is another one, or the constant is NaN, or if denormal
    numbers may come of it."""
    if value.operation != "select.f32" or depth <= 0:
        return None
    if value.operands[0].operation == "cmp.lt.f32.u":
        return _plain_clamp(value, depth)
    if value.operands[0].operation != "cmp.nan.f32":
        return None
    is_nan, bound, other = value.operands
    (number,) = is_nan.operands
    constant = constant_f32(bound)
    if constant is None or isnan(constant) or 0 < abs(constant) < _LEAST or other.operation != "select.f32":
        return None
    if constant != 0 and not _is_normal(number, depth):
        return None
    compared = other.operands[0]
    if compared.operation != "cmp.lt.f32.u" or other.operands[1:] != [number, bound]:
        return None
    if compared.operands == [bound, number]:
        return Clamp(number, bound, True)
    return Clamp(number, bound, False) if compared.operands == [number, bound] else None


def _plain_clamp(value: Value, depth: int) -> Clamp | None:
    """The clamp that one selection is: of a plain number, by a plain constant."""
    compared, chosen, other = value.operands
    if compared.operands not in ([chosen, other], [other, chosen]):
        return None
    is_lower = compared.operands == [other, chosen]  # the greater one is chosen
    for number, bound in ((chosen, other), (other, chosen)):
        if constant_f32(bound) is not None and _is_plain(bound, depth) and _is_plain(number, depth):
            return Clamp(number, bound, is_lower)
    return None


def _is_plain(value: Value, depth: int) -> bool:
    """Whether a value is neither NaN nor -0 nor denormal."""
    known = constant_f32(value)
    if known is not None:
        return known >= _LEAST or known <= -_LEAST or (known == 0 and copysign(1, known) > 0)
    if value.operation == "mul.f32":
        factors = [constant_f32(operand) or 0.0 for operand in value.operands]
        is_scaled = any(_FACTORS[0] <= factor <= _FACTORS[1] for factor in factors)
        return is_scaled and any(operand.operation in _INTEGERS for operand in value.operands)
    if value.operation == "select.f32" and value.operands[0].operation == "cmp.lt.f32.u":
        return clamp_of(value, depth - 1) is not None
    return value.operation in _INTEGERS


def _is_normal(value: Value, depth: int) -> bool:
    """Whether a value is no denormal number in a kernel."""
    return value.operation in _COMPUTED or (depth > 0 and clamp_of(value, depth - 1) is not None)


def fits(value: Value) -> bool:
    """Whether a cast takes whole numbers that fit an i32."""
    if value.operation not in ("cast.f32.si32", "cast.f32.ui32"):
        return False
    (number,) = value.operands
    least, greatest = bounds(number)
    return -_LIMIT <= least <= greatest <= _LIMIT and is_whole(number)


def bounds(value: Value, depth: int = _DEEPEST) -> tuple[float, float]:
    """The least and the greatest number that a clamped one can be; infinities for others.

    Between finite ones it is not NaN.
    """
    clamp = clamp_of(value, depth) if depth else None
    constant = None if clamp is None else constant_f32(clamp.bound)
    if clamp is None or constant is None:
        return -inf, inf
    least, greatest = bounds(clamp.number, depth - 1)
    return (constant, max(greatest, constant)) if clamp.is_lower else (min(least, constant), constant)


def integer_bounds(value: Value, depth: int = _DEEPEST) -> tuple[float, float]:
    """As `bounds`, of an i32."""
    limit = _EXTENDED.get(value.operation)
    if depth == 0 or fits(value):
        return bounds(value.operands[0]) if depth else (-inf, inf)
    if limit is not None:
        least, greatest = integer_bounds(value.operands[0], depth - 1)
        return (least, greatest) if -limit <= least <= greatest < limit else (-limit, limit - 1)
    other = constant(value.operands[1]) if value.operation in ("add.i32", "sub.i32") else None
    if other is None:
        return -inf, inf
    distance = int(other) if value.operation == "add.i32" else -int(other)
    least, greatest = (end + distance for end in integer_bounds(value.operands[0], depth - 1))
    return (least, greatest) if -_LIMIT <= least <= greatest <= _LIMIT else (-inf, inf)


def is_extended(value: Value) -> bool:
    """Whether a value is an extension of what fits its bits already."""
    limit = _EXTENDED.get(value.operation)
    if limit is None:
        return False
    least, greatest = integer_bounds(value.operands[0])
    return -limit <= least <= greatest < limit


def is_whole(value: Value) -> bool:
    """Whether a value is whole wherever it is a finite number."""
    waiting, seen = [value], set[Value]()
    while waiting and len(seen) < _MOST:
        one = waiting.pop()
        constant = constant_f32(one)
        if one in seen or one.operation in _MADE_WHOLE:
            continue
        seen.add(one)
        if constant is not None:
            if abs(constant) > _LIMIT or not constant.is_integer():
                return False
        elif one.operation == "select.f32":
            waiting += one.operands[1:]
        elif one.operation in _STAYS_WHOLE:
            waiting += one.operands
        else:
            return False
    return not waiting


def write_cast(writer: Writer, lanes: int, number: str) -> str:
    """The integer of a number that fits."""
    return writer.let(f"fptosi {llvm_type('f32', lanes)} {number} to {llvm_type('i32', lanes)}")
