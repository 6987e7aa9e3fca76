"""Sums of products of bytes, four products of a lane in one instruction.

``vpdpbusd`` multiplies four unsigned bytes of each lane of 32 bits by four signed ones and adds the products
to the lane. Integers wrap, so their sums are the same in any order: the instruction gives the bits that the
program's loop gives. Where both factors are signed, or neither is, one of them is moved by 128 (its highest
bit is turned over), and what that adds to a sum, 128 times the sum of the other factor, is summed up beside
it and taken off.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from jitree.base.records import NamedTuple
from jitree.dispatch.native.nests import registers
from jitree.dispatch.native.nests.dependence import Dependence
from jitree.dispatch.native.nests.structure import ElementAccess, Level, Structure
from jitree.dispatch.native.ssa import Value

BYTES: Final = 4
"""Bytes of a word: iterations of the reduction that one instruction takes."""
LANES: Final = 16


class DotProduct(NamedTuple):
    """A nest that adds products to words of 32 bits, several in one instruction."""

    element: Value
    """The load that is the same for all lanes, and lies along the reduction."""
    row: Value
    """The load that differs from lane to lane."""
    along: Level
    """The reduction whose iterations are taken in groups."""
    group: int
    """Iterations that one instruction takes: bytes of a word, or pairs of bfloat16 numbers (``pairs.py``)."""
    element_signed: bool = False
    row_signed: bool = False

    @property
    def square(self) -> int:
        """Iterations in a square of words."""
        return self.group * LANES

    @property
    def turned(self) -> bool:
        """Elements are moved by 128, so that one factor is signed and the other is not."""
        return self.group == BYTES and self.element_signed == self.row_signed


class _Byte(NamedTuple):
    load: Value
    signed: bool


def find_dot(
    structure: Structure, dependence: Dependence, vector: Level, reductions: Sequence[Level]
) -> DotProduct | None:
    """The sum of products that a nest is; None if it is none, or the processor has no instruction for it."""
    (store, *others) = structure.stores
    if others or store.element != "i32" or not reductions or not registers.dot_lanes():
        return None
    factors = _factors(structure, store)
    if factors is None:
        return None
    for element, row in (factors, factors[::-1]):
        if vector.counter in dependence.place(structure.loads[element.load]):
            continue
        fitting = [level for level in reductions if _fits(structure, row.load, vector, level)]
        if fitting:
            along = max(fitting, key=lambda level: _worth(structure.loads[element.load], level))
            return DotProduct(element.load, row.load, along, BYTES, element.signed, row.signed)
    return None


def _factors(structure: Structure, store: ElementAccess) -> tuple[_Byte, _Byte] | None:
    """The bytes whose product is added to the element that is stored."""
    value, buffer = store.stored, store.buffer

    def is_sum(value: Value) -> bool:
        load = structure.loads.get(value)
        return load is not None and load.buffer is buffer and load.element == "i32"

    if value.operation == "fma.i32" and is_sum(value.operands[2]):
        product = value.operands[:2]
    elif value.operation == "add.i32" and sum(map(is_sum, value.operands)) == 1:
        (other,) = (operand for operand in value.operands if not is_sum(operand))
        if other.operation != "mul.i32":
            return None
        product = other.operands
    else:
        return None
    left, right = (_byte(structure, operand) for operand in product)
    return None if left is None or right is None else (left, right)


def _byte(structure: Structure, value: Value) -> _Byte | None:
    """A load of a byte, perhaps extended again: the last extension says what its highest bit is."""
    signed: bool | None = None
    while value.operation in ("ext.i8.i32.s", "ext.i8.i32.u"):
        signed = value.operation.endswith(".s") if signed is None else signed
        (value,) = value.operands
    load = structure.loads.get(value)
    if load is None or load.element != "i8" or load.predicate or load.computed:
        return None
    return _Byte(value, value.operation.endswith(".s") if signed is None else signed)


def _fits(structure: Structure, row: Value, vector: Level, along: Level) -> bool:
    """Whether there are groups, and the row's bytes lie along the lanes or along the reduction."""
    if along.extent is not None and along.extent < BYTES:
        return False
    index = structure.loads[row].index
    step = index.coefficient(vector.counter)
    return bool(step.terms) and (step.number == 1 or index.coefficient(along.counter).number == 1)


def _worth(element: ElementAccess, along: Level) -> tuple[int, bool]:
    """Most of a long reduction is in groups; and if four elements lie side by side, one load is a word."""
    groups = LANES if along.extent is None else along.extent // BYTES
    return min(groups, BYTES), element.index.coefficient(along.counter).number == 1
