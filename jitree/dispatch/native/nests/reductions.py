"""Finds reductions that run in another shape: contractions and extremes.

Contractions use instructions that add several products to a sum.

*Bytes*: ``vpdpbusd`` multiplies four unsigned bytes of each lane of 32 bits by four signed ones and adds the
products to the lane. Integers wrap, so their sums are the same in any order: the instruction gives the bits
that the program's loop gives. Where both factors are signed, or neither is, one of them is moved by 128: its
highest bit is turned over. That adds 128 times the sum of the other factor, which is summed up beside the
products and taken off. AArch64 has ``sdot`` and ``udot`` for equal signs, with the extension dotprod, and
``usdot`` for one of each, with i8mm. Where there is only ``pmaddwd`` (AVX2), bytes are widened to 16 bits: it
multiplies eight pairs of such numbers or more and adds each pair's two products, which is exact in 32 bits.
(``pmaddubsw`` saturates.) Signs are what they are, so nothing is moved.

*Pairs of bfloat16 numbers*: ``vdpbf16ps`` multiplies two pairs of each lane and adds the products to a sum of
binary32, first that of the upper halves, then that of the lower ones, each as one multiply-add that rounds to
the nearest even. So it is the program's loop, with the elements of each word in that order, but for three
things: it takes denormal numbers for zeros, makes zeros of denormal sums, and chooses among NaNs in its own
way. Products of bfloat16 numbers have 16 bits, and are exact: what ``arithmetic`` rounds, or not, is the
same. A look at all numbers in front of the loops (``products.py``) tells whether none of these can occur;
where one can, the nest runs as any other: in vectors of multiply-adds, one product a lane, which needs no row
here.

*The greatest or least element of a row* is taken in any order: lanes are iterations of the reduction.
``acc < x ? x : acc``, or the other way round, with ``acc`` where x is no number, finds the same whatever
comes first, but for zeros: of 0 and -0, and of denormals that comparisons take for zeros, the first stays. So
a zero is looked for once more: the first element that equals it. Both go four vectors at a time, then by the
vectors and, under a mask, by the lanes that are left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial, reduce
from math import prod
from typing import Final

from jitree.base.platform import processor
from jitree.base.records import NamedTuple
from jitree.codegen.ir_text import llvm_type
from jitree.dispatch.native.nests.operations import emit
from jitree.dispatch.native.nests.recognise import Dependence
from jitree.dispatch.native.nests.structure import ElementAccess, Level, Structure
from jitree.dispatch.native.nests.writer import Looks, Writer
from jitree.dispatch.native.ssa import Value, constant

LANES: Final = 16
NEON: Final = 4
"""Lanes of 32 bits of AArch64."""
LEAST_USES: Final = 8
"""Products that each number is to be part of, so that a look at it is little beside them."""
_UPPER_HALF: Final = "16"
"""Where a bfloat16 number lies in a binary32 number: bits, a constant."""


@cache
def dot_lanes() -> int:
    """Lanes of 32 bits to which instructions add four products of bytes each; 0: there are none."""
    flags = processor.words("flags")
    if {"avx512_vnni", "avx512vl"} <= flags:
        return 16
    if "dotprod" in processor.arm_features():
        return NEON
    return 8 if {"avx_vnni", "avx2"} & flags else 0


@cache
def widens() -> bool:
    """Whether bytes become numbers of 16 bits, since no instruction multiplies bytes."""
    flags = processor.words("flags")
    return "avx2" in flags and not ({"avx512_vnni", "avx512vl"} <= flags or "avx_vnni" in flags)


@cache
def pair_lanes() -> int:
    """Lanes to which one instruction adds two products of bfloat16 numbers each; 0: there is none."""
    return 16 if "avx512_bf16" in processor.words("flags") else 0


@cache
def row_lanes() -> int:
    """Lanes of rows that are loaded under a mask at once; 0: there are none."""
    return LANES if "avx2" in processor.words("flags") else 0


processor.kept.extend((dot_lanes, widens, pair_lanes, row_lanes))


def _add_bytes(writer: Writer, product: Product, value: str, elements: str, words: str) -> str:
    unsigned, signed = (elements, words) if product.row_signed else (words, elements)
    kind, width = llvm_type("i32", LANES), dot_lanes()
    part = factor = llvm_type("i32", width)
    name = f"@llvm.x86.avx512.vpdpbusd.{32 * width}"
    if width == NEON:
        signs = "".join(sorted({"us"[product.row_signed], "us"[product.element_signed]}, reverse=True))
        factor, name = f"<{4 * NEON} x i8>", f"@llvm.aarch64.neon.{signs}dot.v4i32.v16i8"

    def added(total: str, *factors: str) -> str:
        writer.context.declare(f"declare {part} {name}({part}, {factor}, {factor})")
        if factor != part:
            factors = tuple(writer.let(f"bitcast {part} {text} to {factor}") for text in factors)
        given = ", ".join(f"{factor} {text}" for text in factors)
        return writer.let(f"call {part} {name}({part} {total}, {given})")

    def added_in_twos(total: str, elements: str, words: str) -> str:
        pairs, name = llvm_type("i16", 2 * width), "@llvm.x86.avx2.pmadd.wd"
        writer.context.declare(f"declare {part} {name}({pairs}, {pairs})")
        left = _widened(writer, elements, pairs, product.element_signed)
        right = _widened(writer, words, pairs, product.row_signed)
        for one, other in zip(left, right, strict=True):
            both = writer.let(f"call {part} {name}({pairs} {one}, {pairs} {other})")
            total = writer.let(f"add {part} {total}, {both}")
        return total

    add: Callable[..., str] = added_in_twos if product.widens else added
    texts = (value, elements, words) if product.widens else (value, unsigned, signed)
    if width == LANES:
        return add(*texts)
    parts = [
        add(*(writer.shuffled(kind, range(first, first + width), text) for text in texts))
        for first in range(0, LANES, width)
    ]
    while len(parts) > 1:
        pairs, width = zip(parts[::2], parts[1::2], strict=True), 2 * width
        parts = [writer.shuffled(llvm_type("i32", width // 2), range(width), *pair) for pair in pairs]
    return parts[0]


def _widened(writer: Writer, words: str, kind: str, signed: bool) -> list[str]:
    """The even bytes of words as numbers of 16 bits, and the odd ones."""
    words = writer.let(f"bitcast {llvm_type('i32', dot_lanes())} {words} to {kind}")
    upper = writer.let(f"shl {kind} {words}, splat (i16 8)")
    shift = "ashr" if signed else "lshr"
    return [writer.let(f"{shift} {kind} {text}, splat (i16 8)") for text in (upper, words)]


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
    add: Callable[[Writer, Product, str, str, str], str] | None
    """(writer, product, sums, elements, words) → sums; None: as the program does, lane by lane."""
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

ROWS: Final = {
    operation: Contraction(
        "f32", "f32", 1, lambda: row_lanes(), None, (operation,), None,
        is_shifted=False, any_order=False, least_depth=1, has_look=False, upper_first=False,
    )
    for operation in ("fma.f32", "fma.f32.fused")
}  # fmt: skip
"""Single products, by instruction: what they add is put into rows first (``joining.py``)."""


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
    joined: tuple[Level, ...] = ()
    """The reductions, from the outermost, of which ``along`` is made (``joining.py``)."""

    @property
    def group(self) -> int:
        """Iterations that one instruction takes."""
        return self.contraction.products

    @property
    def square(self) -> int:
        """Iterations in a square of words."""
        return self.group * LANES

    @property
    def widens(self) -> bool:
        """Bytes become numbers of 16 bits, with their signs."""
        return self.contraction.any_order and widens()

    @property
    def turned(self) -> bool:
        """Moves elements by 128, so that one factor is signed, one unsigned."""
        equal = self.element_signed == self.row_signed
        return self.contraction.any_order and equal and dot_lanes() != NEON and not self.widens


def find_product(
    structure: Structure, dependence: Dependence, vector: Level, reductions: Sequence[Level]
) -> Product | None:
    """The sum of products that a nest is; None if it is none, or the processor has no instruction for it."""
    (store, *others) = structure.stores
    found = [row for row in CONTRACTIONS if row.total == store.element and row.lanes()]
    if others or not found or not reductions:
        return None
    (contraction,) = found
    factors = factors_of(contraction, structure, store)
    if factors is None:
        return None
    if dot_lanes() == NEON and factors[0][1] != factors[1][1] and "i8mm" not in processor.arm_features():
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


def factors_of(row: Contraction, structure: Structure, store: ElementAccess) -> tuple[Factor, Factor] | None:
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
        if shifted.operation != "shl.i32" or constant(shifted.operands[1]) != _UPPER_HALF:
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


LEAST_ROW: Final = 96
"""Iterations of a search for an extreme from which on it is worth it; squares of shorter rows take less."""
_KIND: Final = "f32"
_COMPARE, _NAN, _CHOOSE = f"cmp.lt.{_KIND}.u", f"cmp.nan.{_KIND}", f"select.{_KIND}"
_NOWHERE: Final = (1 << 62) - 1
"""Where a row has no zero."""


class Extreme(NamedTuple):
    """Says how two elements become one."""

    is_greatest: bool
    element: Value
    """What each iteration compares with what it has found so far."""

    def of(self, writer: Writer, lanes: int, known: str, other: str) -> str:
        """The instructions of the program: ``known`` stays where the other is the same or no number."""
        order = [known, other] if self.is_greatest else [other, known]
        other_is_further = emit(writer, _COMPARE, lanes, order)
        further = emit(writer, _CHOOSE, lanes, [other_is_further, other, known])
        is_no_number = emit(writer, _NAN, lanes, [other])
        return emit(writer, _CHOOSE, lanes, [is_no_number, known, further])

    def of_lanes(self, writer: Writer, lanes: int, known: str) -> str:
        """Of all lanes of a vector."""
        vector, distance = llvm_type(_KIND, lanes), lanes
        while distance > 1:
            distance //= 2
            order = [(lane + distance) % lanes for lane in range(lanes)]
            known = self.of(writer, lanes, known, writer.shuffled(vector, order, known))
        return writer.let(f"extractelement {vector} {known}, i64 0")


def is_zero(writer: Writer, lanes: int, value: str) -> str:
    zero = writer.splat(_KIND, "0.0", lanes)
    return writer.let(f"fcmp oeq {llvm_type(_KIND, lanes)} {value}, {zero}")


def extreme_of(
    structure: Structure, last: Level, accumulators: Mapping[Value, ElementAccess]
) -> Extreme | None:
    """Finds what a nest seeks in long rows along its last reduction."""
    if len(accumulators) != 1 or (last.extent or 0) < LEAST_ROW:
        return None
    ((accumulator, store),) = accumulators.items()
    along = 0
    for value, load in structure.loads.items():
        step = load.step(last)
        if load.computed or load.predicate or (step.terms and step.number != 1):
            return None
        along += value is not accumulator and step.number == 1
    return _extreme_of(accumulator, store) if along and store.element == _KIND else None


def _extreme_of(accumulator: Value, store: ElementAccess) -> Extreme | None:
    """What a nest's store makes of the element that it finds and another; None: something else."""
    is_no_number = _operands(store.stored, _CHOOSE)
    if is_no_number is None or is_no_number[1] is not accumulator:
        return None
    tested, further = _operands(is_no_number[0], _NAN), _operands(is_no_number[2], _CHOOSE)
    if tested is None or further is None or further[1:] != (tested[0], accumulator):
        return None
    compared = _operands(further[0], _COMPARE)
    if compared == (accumulator, tested[0]):
        return Extreme(True, tested[0])
    return Extreme(False, tested[0]) if compared == (tested[0], accumulator) else None


def _operands(value: Value, operation: str) -> tuple[Value, ...] | None:
    return tuple(value.operands) if value.operation == operation else None


Visit = Callable[[str, list[str], str | None, list[str]], list[str]]
"""(number of the first element, vectors of them, the lanes that exist or None for all, what is known before
them) → what is known after them."""


class RowExtreme:
    """Finds the extreme of one row of known length."""

    def __init__(
        self,
        writer: Writer,
        looks: Looks,
        extreme: Extreme,
        level: Level,
        shape: tuple[int, int],
        load: Callable[[str, int, str | None], list[str]],
    ) -> None:
        """``shape``: lanes, and vectors that are visited together; ``load`` gives so many vectors."""
        self._writer = writer
        self._looks = looks
        self._extreme = extreme
        self._level = level
        self._lanes, self._vectors = shape
        self._load = load

    def of(self, known: str) -> str:
        """Of the row and what is known already. Which zero it is, is open."""
        writer, lanes, extreme = self._writer, self._lanes, self._extreme
        vector, further = llvm_type(_KIND, lanes), partial(extreme.of, writer, lanes)

        def visit(first: str, elements: list[str], mask: str | None, values: list[str]) -> list[str]:
            found = list(map(further, values, elements))
            if mask is None:
                return found
            return [writer.let(f"select <{lanes} x i1> {mask}, {vector} {found[0]}, {vector} {values[0]}")]

        start = writer.splat(_KIND, known, lanes)
        (result,) = self._run(vector, start, self._vectors, visit, partial(reduce, further))
        return extreme.of_lanes(writer, lanes, result)

    def first_zero(self) -> str:
        """The place of the first element that equals zero; of the first element if there is none."""
        writer, lanes = self._writer, self._lanes

        def visit(first: str, elements: list[str], mask: str | None, values: list[str]) -> list[str]:
            bits = "0"
            for number, element in enumerate(elements):
                zeros = is_zero(writer, lanes, element)
                if mask is not None:
                    zeros = writer.let(f"and <{lanes} x i1> {zeros}, {mask}")
                word = writer.let(f"bitcast <{lanes} x i1> {zeros} to i{lanes}")
                wide = writer.let(f"zext i{lanes} {word} to i64")
                bits = writer.let(f"or i64 {bits}, {writer.let(f'shl i64 {wide}, {number * lanes}')}")
            place = writer.intrinsic("cttz", "i64", 1, [bits], ", i1 false")
            place = writer.let(f"add i64 {first}, {place}")
            is_here = writer.let(f"icmp ne i64 {bits}, 0")
            here = writer.let(f"select i1 {is_here}, i64 {place}, i64 {_NOWHERE}")
            return [writer.intrinsic("smin", "i64", 1, [values[0], here])]

        (found,) = self._run("i64", str(_NOWHERE), 1, visit, lambda values: values[0])
        is_there = writer.let(f"icmp ne i64 {found}, {_NOWHERE}")
        return writer.let(f"select i1 {is_there}, i64 {found}, i64 0")

    def _run(
        self, kind: str, start: str, count: int, visit: Visit, together: Callable[[list[str]], str]
    ) -> list[str]:
        """Visits the row; so many values are known while it is visited by tiles, and then one."""
        length, lanes, vectors, load = self._level.extent, self._lanes, self._vectors, self._load
        tile = lanes * vectors
        assert length is not None and length >= tile
        tiles_end, vectors_end = length // tile * tile, length // lanes * lanes
        with self._looks.loop(self._level, "0", str(tiles_end), tile, [(kind, start)] * count) as iteration:
            at = iteration.counter
            iteration.next = visit(at, load(at, vectors, None), None, iteration.values)
        values = [together(iteration.next)]
        for first in range(tiles_end, vectors_end, lanes):
            values = visit(str(first), load(str(first), 1, None), None, values)
        if vectors_end < length:
            at, mask = str(vectors_end), self._writer.first_lanes(length - vectors_end, lanes)
            values = visit(at, load(at, 1, mask), mask, values)
        return values
