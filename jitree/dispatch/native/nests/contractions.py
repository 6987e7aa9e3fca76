"""Lists instructions that add several products to a sum, and finds their nests.

*Bytes*: ``vpdpbusd`` multiplies four unsigned bytes of each lane of 32 bits by four signed ones and adds the
products to the lane. Integers wrap, so their sums are the same in any order: the instruction gives the bits
that the program's loop gives. Where both factors are signed, or neither is, one of them is moved by 128 (its
highest bit is turned over), and what that adds to a sum, 128 times the sum of the other factor, is summed up
beside it and taken off.

*Pairs of bfloat16 numbers*: ``vdpbf16ps`` multiplies two pairs of each lane and adds the products to a sum of
binary32, first that of the upper halves, then that of the lower ones, each as one multiply-add that rounds to
the nearest even. So it is the program's loop, with the elements of each word in that order, but for three
things: it takes denormal numbers for zeros, makes zeros of denormal sums, and chooses among NaNs in its own
way. Products of bfloat16 numbers have 16 bits, and are exact: what ``arithmetic`` rounds, or not, is the
same. A look at all numbers in front of the loops (``products.py``) tells whether none of these can occur;
where one can, the nest runs as any other: in vectors of multiply-adds, one product a lane, which needs no row
here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import Final

from jitree.base import processor
from jitree.base.records import NamedTuple
from jitree.codegen.ir_text import llvm_type
from jitree.dispatch.native.nests.recognise import Dependence
from jitree.dispatch.native.nests.structure import ElementAccess, Level, Structure
from jitree.dispatch.native.nests.writer import Writer
from jitree.dispatch.native.ssa import Value

LANES: Final = 16
LEAST_USES: Final = 8
"""Products that each number is to be part of, so that a look at it is little beside them."""
_UPPER_HALF: Final = 16
"""Where a bfloat16 number lies in a binary32 number: bits."""


@cache
def dot_lanes() -> int:
    """Lanes of 32 bits to which one instruction adds four products of bytes each; 0: there is none."""
    flags = processor.words("flags")
    if "avx512_vnni" in flags and "avx512vl" in flags:
        return 16
    return 8 if "avx_vnni" in flags else 0


@cache
def pair_lanes() -> int:
    """Lanes to which one instruction adds two products of bfloat16 numbers each; 0: there is none."""
    return 16 if "avx512_bf16" in processor.words("flags") else 0


def _add_bytes(writer: Writer, product: Product, value: str, elements: str, words: str) -> str:
    unsigned, signed = (elements, words) if product.row_signed else (words, elements)
    kind, width = llvm_type("i32", LANES), dot_lanes()
    part, name = llvm_type("i32", width), f"@llvm.x86.avx512.vpdpbusd.{32 * width}"

    def added(operands: Sequence[str]) -> str:
        writer.context.declare(f"declare {part} {name}({part}, {part}, {part})")
        return writer.let(f"call {part} {name}({', '.join(f'{part} {text}' for text in operands)})")

    texts = (value, unsigned, signed)
    if width == LANES:
        return added(texts)
    halves = [
        added([writer.shuffled(kind, range(first, first + width), text) for text in texts])
        for first in range(0, LANES, width)
    ]
    return writer.shuffled(part, range(LANES), *halves)


def _add_pairs(writer: Writer, product: Product, value: str, elements: str, words: str) -> str:
    name, words_kind = "@llvm.x86.avx512bf16.dpbf16ps.512", llvm_type("i32", LANES)
    kind, pairs = llvm_type("f32", LANES), f"<{2 * LANES} x bfloat>"
    writer.context.declare(f"declare {kind} {name}({kind}, {pairs}, {pairs})")
    left, right = (writer.let(f"bitcast {words_kind} {text} to {pairs}") for text in (elements, words))
    return writer.let(f"call {kind} {name}({kind} {value}, {pairs} {left}, {pairs} {right})")


class Contraction(NamedTuple):
    """Describes an instruction and the sums that it may make."""

    factor: str
    """The element type of factors."""
    total: str
    """… of sums."""
    products: int
    """A lane's products in one instruction: iterations of the reduction."""
    lanes: Callable[[], int]
    """Of the processor's instruction; 0: it has none."""
    add: Callable[[Writer, Product, str, str, str], str]
    """(writer, product, sums, elements, words) → sums."""
    multiply_adds: tuple[str, ...]
    """The program's instructions, whose last operand is the sum."""
    separate: tuple[str, str] | None
    """… of an addition and a multiplication."""
    is_shifted: bool
    """A factor is the upper half of a number."""
    any_order: bool
    """Any reduction may be the innermost one, and one factor of equal signs is moved."""
    least_depth: int
    """Iterations that are worth it."""
    has_look: bool
    """Whether numbers fit is looked at in front of the loops."""
    upper_first: bool
    """The order of a word in panels: the first iteration's element is in the upper half."""


CONTRACTIONS: Final = (
    Contraction(
        "i8", "i32", 4, lambda: dot_lanes(), _add_bytes, ("fma.i32",), ("add.i32", "mul.i32"),
        is_shifted=False, any_order=True, least_depth=4, has_look=False, upper_first=False,
    ),
    Contraction(
        "i16", "f32", 2, lambda: pair_lanes(), _add_pairs, ("fma.f32", "fma.f32.fused"), None,
        is_shifted=True, any_order=False, least_depth=8, has_look=True, upper_first=True,
    ),
)  # fmt: skip


class Product(NamedTuple):
    """Names what a nest multiplies, and the instruction for it."""

    contraction: Contraction
    element: Value
    """The load that is the same for all lanes, and lies along the reduction."""
    row: Value
    """The load that differs from lane to lane."""
    along: Level
    """The reduction whose iterations are taken in groups."""
    element_signed: bool
    row_signed: bool

    @property
    def group(self) -> int:
        """Iterations that one instruction takes."""
        return self.contraction.products

    @property
    def square(self) -> int:
        """Iterations in a square of words."""
        return self.group * LANES

    @property
    def turned(self) -> bool:
        """Moves elements by 128, so that one factor is signed, one unsigned."""
        return self.contraction.any_order and self.element_signed == self.row_signed


def find_product(
    structure: Structure, dependence: Dependence, vector: Level, reductions: Sequence[Level]
) -> Product | None:
    """The sum of products that a nest is; None if it is none, or the processor has no instruction for it."""
    (store, *others) = structure.stores
    found = [row for row in CONTRACTIONS if row.total == store.element and row.lanes()]
    if others or not found or not reductions:
        return None
    (contraction,) = found
    factors = _factors(contraction, structure, store)
    if factors is None:
        return None
    for (element, element_signed), (row, row_signed) in (factors, factors[::-1]):
        one, many = structure.loads[element], structure.loads[row]
        step = many.step(vector)
        if vector.counter in dependence.place(one) or not step.terms:
            continue
        fitting = [
            level
            for level in (reductions if contraction.any_order else reductions[-1:])
            if level.count >= contraction.least_depth and (step.number == 1 or many.step(level).number == 1)
        ]
        if contraction.has_look and not all(_is_looked_at(structure, item) for item in (one, many, store)):
            continue
        if fitting:
            along = max(fitting, key=lambda level: _worth(one, level))
            return Product(contraction, element, row, along, element_signed, row_signed)
    return None


def _worth(element: ElementAccess, along: Level) -> tuple[int, bool]:
    """Most of a long reduction is in groups; and if four elements lie side by side, one load is a word."""
    groups = LANES if along.extent is None else along.extent // 4
    return min(groups, 4), element.step(along).number == 1


Factor = tuple[Value, bool]
"""A load, and whether its highest bit is a sign."""


def _factors(row: Contraction, structure: Structure, store: ElementAccess) -> tuple[Factor, Factor] | None:
    """The loads whose product is added to the element that is stored."""
    value = store.stored

    def is_sum(value: Value) -> bool:
        load = structure.loads.get(value)
        return load is not None and load.buffer is store.buffer and load.element == row.total

    if value.operation in row.multiply_adds and is_sum(value.operands[2]):
        product = value.operands[:2]
    elif row.separate and value.operation == row.separate[0] and sum(map(is_sum, value.operands)) == 1:
        (other,) = (operand for operand in value.operands if not is_sum(operand))
        product = other.operands if other.operation == row.separate[1] else []
    else:
        return None
    found = [factor for operand in product if (factor := _factor(row, structure, operand))]
    return (found[0], found[1]) if len(found) == 2 else None


def _factor(row: Contraction, structure: Structure, value: Value) -> Factor | None:
    """A load, perhaps extended again: the last extension says what its highest bit is."""
    if row.is_shifted:
        shifted = value.operands[0] if value.operation == "bitcast.i32.f32" else value
        if shifted.operation != "shl.i32" or shifted.operands[1].literals[:1] != (_UPPER_HALF,):
            return None
        value = shifted.operands[0]
    operation = ""
    while value.operation in (f"ext.{row.factor}.i32.s", f"ext.{row.factor}.i32.u"):
        operation = operation or value.operation
        (value,) = value.operands
    load = structure.loads.get(value)
    if load is None or load.element != row.factor or load.predicate or load.computed:
        return None
    return value, (operation or value.operation).endswith(".s")


def line(structure: Structure, access: ElementAccess) -> Level | None:
    """The loop whose iterations lie one after the other."""
    found = [level for level in structure.levels if access.step(level).number == 1]
    return max(found, key=lambda level: level.count, default=None)


def _is_looked_at(structure: Structure, access: ElementAccess) -> bool:
    """Whether a look at all elements is possible, and little work."""
    uses = prod(level.count for level in structure.levels if not access.step(level).terms)
    return line(structure, access) is not None and uses >= LEAST_USES
