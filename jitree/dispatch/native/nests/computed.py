"""Bounds parts of indices that are computed for each element.

They are quotients and remainders where no loop can be split by the divisor, and positions in floating-point
numbers, as those of images that are made larger.

Such a part is a remainder, or falls nowhere: rounding, too, leaves numbers in their order. So what it is
where the counters are least and greatest bounds it, and the guard computes both, by the instructions
themselves.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from math import isfinite
from typing import TYPE_CHECKING, Final

from jitree.base.records import NamedTuple
from jitree.codegen.ir_text import llvm_type
from jitree.dispatch.native.nests.operations import emit
from jitree.dispatch.native.nests.polynomials import Polynomial
from jitree.dispatch.native.ssa import Value

if TYPE_CHECKING:
    from jitree.dispatch.native.nests.writer import Writer

DIVISIONS: Final = ("div.i64.s", "div.i64.u", "rem.i64.s", "rem.i64.u")
BITS: Final = 31
"""Magnitude of such a part, and of what is divided in it."""

_ROUNDED: Final = ("floor.f32", "ceil.f32", "round.f32", "round.f32.even")
_SHIFTED: Final = {"add.f32": (0, 1), "sub.f32": (0,)}
"""Operands that may change where the other is a constant."""
_SCALED: Final = {"mul.f32": (0, 1), "div.f32": (0,), "fma.f32": (0, 1), "fma.f32.fused": (0, 1)}
"""… where the other is a positive constant; what is added is a constant, too."""
_COMPARISONS: Final = (
    "cmp.lt.f32.o", "cmp.lt.f32.u", "cmp.lte.f32.o", "cmp.lte.f32.u", "cmp.lt.i64.s"
)  # fmt: skip
_EXTREMES: Final = ("min.f32", "max.f32", "min.i64.s", "max.i64.s")
_SELECTS: Final = ("select.f32", "select.i64")


def is_bounded(value: Value, is_linear: Callable[[Value], bool]) -> bool:
    """Whether a value is one that this knows to bound. ``is_linear`` tells the integers that are polynomials,
    such parts among their symbols."""

    def is_known(value: Value) -> bool:
        return is_linear(value) if value.type == "i64" else is_bounded(value, is_linear)

    operation, operands = value.operation, value.operands
    if operation in DIVISIONS:
        return _divisor(value) is not None and is_linear(operands[0])
    if operation == "cast.si64.f32":
        return is_linear(operands[0])
    if operation in _SELECTS:
        return _is_extreme(value) and all(map(is_known, operands[1:]))
    if operation in _EXTREMES:
        return all(map(is_known, operands))
    if operation == "cast.f32.si64" or operation in _ROUNDED:
        return is_bounded(operands[0], is_linear)
    if operation in _SHIFTED or operation in _SCALED:
        changing = _changing(value)
        return changing is not None and is_bounded(changing, is_linear)
    number = _number(value)
    return number is not None and isfinite(number)


def _divisor(value: Value) -> int | None:
    divisor = value.operands[1]
    number = divisor.literals[0] if divisor.operation == "const.i64" else 0
    return number if 0 < number < 1 << BITS else None


def _number(value: Value) -> float | None:
    """Of a constant f32."""
    if value.operation == "const.f32.zero":
        return 0.0
    if value.operation != "const.f32":
        return None
    return float(struct.unpack("<f", struct.pack("<I", value.literals[0] & 0xFFFFFFFF))[0])


def _changing(value: Value) -> Value | None:
    """The one operand that is no constant, if the value never falls where that rises."""
    numbers = [_number(operand) for operand in value.operands]
    if numbers.count(None) != 1 or not all(number is None or isfinite(number) for number in numbers):
        return None
    at, scales = numbers.index(None), value.operation in _SCALED
    if at not in (_SCALED if scales else _SHIFTED)[value.operation]:
        return None
    factor = numbers[1 - at] if scales else 1.0
    return value.operands[at] if factor is not None and factor > 0 else None


def _is_extreme(value: Value) -> bool:
    """Whether a choice is the smaller or the greater one of what is compared for it."""
    condition, *chosen = value.operands
    return condition.operation in _COMPARISONS and (
        condition.operands == chosen or condition.operands == chosen[::-1]
    )


def emit_part(w: Writer, mnemonic: str, n: int, operands: list[str]) -> str:
    """The result of an instruction that is a part of an index, in few bits: lanes of 64 have no division."""
    wide, narrow = llvm_type("i64", n), llvm_type("i32", n)
    if mnemonic == "cast.f32.si64":  # rounds halves away from zero
        rounded = w.intrinsic("round", "f32", n, operands)
        integer = w.let(f"fptosi {llvm_type('f32', n)} {rounded} to {narrow}")
        return w.let(f"sext {narrow} {integer} to {wide}")
    if mnemonic not in DIVISIONS:
        return emit(w, mnemonic, n, operands)
    left, right = (w.let(f"trunc {wide} {operand} to {narrow}") for operand in operands)
    operation = "udiv" if mnemonic.startswith("div") else "urem"
    result = w.let(f"{operation} {narrow} {left}, {right}")
    return w.let(f"zext {narrow} {result} to {wide}")


class Extremes(NamedTuple):
    """Holds the least and the greatest value: LLVM operands."""

    low: str
    high: str


class BoundWriter:
    """Writes bounds in front of a nest."""

    def __init__(
        self,
        writer: Writer,
        constant: Callable[[Value], str],
        linear: Callable[[Value], Extremes],
        require: Callable[[str], None],
    ) -> None:
        """``linear`` bounds integers that are polynomials; ``require`` adds a comparison of the guard."""
        self._writer = writer
        self._constant = constant
        self._linear = linear
        self._require = require
        self._known: dict[Value, Extremes] = {}

    def part(self, value: Value) -> Extremes:
        """Of a part of an index, which is small then."""
        known = self._known.get(value)
        if known is None:
            known = self._known[value] = self._of(value)
            self.require_small(known)
        return known

    def require_small(self, bounds: Extremes) -> None:
        """That numbers between these have few bits."""
        self._require_within(bounds, -(1 << BITS))

    def _require_within(self, bounds: Extremes, least: int) -> None:
        for bound in bounds:
            shifted = self._writer.let(f"sub i64 {bound}, {least}")
            self._require(f"icmp ult i64 {shifted}, {(1 << BITS) - least}")

    def _of(self, value: Value) -> Extremes:
        operation, operands = value.operation, value.operands
        if operation in DIVISIONS:
            return self._division(value)
        if operation in _SELECTS:
            return self._choice(value)
        if operation.startswith("const."):
            text = self._constant(value)
            return Extremes(text, text)
        bounds = [self._operand(operand) for operand in operands]
        low = emit(self._writer, operation, 1, [bound.low for bound in bounds])
        return Extremes(low, emit(self._writer, operation, 1, [bound.high for bound in bounds]))

    def _operand(self, value: Value) -> Extremes:
        return self._linear(value) if value.type == "i64" else self._of(value)

    def _division(self, value: Value) -> Extremes:
        """Of what is not negative and has few bits, as the lanes divide it."""
        bounds, divisor = self._linear(value.operands[0]), _divisor(value) or 1
        self._require_within(bounds, 0)
        if value.operation.startswith("rem"):
            return Extremes("0", self._writer.intrinsic("umin", "i64", 1, [bounds.high, str(divisor - 1)]))
        low, high = (self._writer.let(f"udiv i64 {bound}, {divisor}") for bound in bounds)
        return Extremes(low, high)

    def _choice(self, value: Value) -> Extremes:
        condition, *chosen = value.operands
        bounds = {operand: self._operand(operand) for operand in chosen}
        found = []
        for end in range(2):
            compared = [bounds[operand][end] for operand in condition.operands]
            bit = emit(self._writer, condition.operation, 1, compared)
            texts = [bounds[operand][end] for operand in chosen]
            found.append(emit(self._writer, value.operation, 1, [bit, *texts]))
        return Extremes(*found)


def separated(
    index: Polynomial, parts: set[Value]
) -> tuple[Polynomial, tuple[tuple[Value, int], ...]] | None:
    """An index without its computed parts, and these with their factors; None if a factor is no number."""
    found: list[tuple[Value, int]] = []
    for monomial, number in index.terms.items():
        if not parts.intersection(monomial):
            continue
        if len(monomial) != 1:
            return None
        found.append((monomial[0], number))
    return index.without(part for part, _ in found), tuple(found)
