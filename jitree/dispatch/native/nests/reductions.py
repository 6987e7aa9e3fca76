"""Finds reductions that run in another shape: extremes along rows, folded rows.

*The greatest or least element of a row* is taken in any order: lanes are iterations of the reduction.
``acc < x ? x : acc``, or the other way round, with ``acc`` where x is no number, finds the same whatever
comes first, but for zeros: of 0 and -0, and of denormals that comparisons take for zeros, the first stays. So
a zero is looked for once more: the first element that equals it. Both go four vectors at a time, then by the
vectors and, under a mask, by the lanes that are left.

*Rows of an image that do not fill vectors*: lanes run on in the next row. Two parallel loops, of which the
stored index makes one, while what is loaded lies in longer rows (those of a padded image, of which a filter
meets some columns), become the vector loop together. A vector of what is loaded is in two pieces then: all
its lanes from the place of the first one on, and over that, under a mask, those that lie in the next row.
Rows are no shorter than what is stored of them, so no lane of the first piece lies after that lane's own
place. Convolutions of 3 by 3 with 18 columns take 0.6 of the time, with 24 three quarters. Rows of 10 to 14
columns would need a third piece, and take as long as under one mask or longer. Of rows of more than 32
columns, tiles leave fewer lanes empty: 0.95 of the time with 34, 1.09 with 40.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial, reduce
from typing import Final

from jitree.base import processor
from jitree.base.records import NamedTuple
from jitree.codegen.ir_text import llvm_type
from jitree.dispatch.native.nests.operations import emit
from jitree.dispatch.native.nests.polynomials import Polynomial
from jitree.dispatch.native.nests.recognise import Dependence
from jitree.dispatch.native.nests.structure import ElementAccess, Level, Structure, new_level
from jitree.dispatch.native.nests.writer import Looks, Writer
from jitree.dispatch.native.ssa import Value

LEAST_ROW: Final = 96
"""Iterations of a search for an extreme from which on it is worth it; squares of shorter rows take less."""
_KIND: Final = "f32"
_COMPARE, _NAN, _CHOOSE = f"cmp.lt.{_KIND}.u", f"cmp.nan.{_KIND}", f"select.{_KIND}"
_NOWHERE: Final = (1 << 62) - 1
"""Where a row has no zero."""
_WIDTHS: Final = range(17, 32)
"""Iterations of a loop over columns: two rows, not three, share a vector of 16 lanes."""
_ELEMENTS: Final = ("f32", "i32", "i16")
"""What vectors of 16 lanes load under a mask in one instruction."""


@cache
def has_masks() -> bool:
    """Whether masked loads are as fast and keep the other lanes."""
    return "avx512f" in processor.words("flags")


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


class Fold(NamedTuple):
    """Names two loops that are one to the vectors."""

    level: Level
    """The level that is written in place of both."""
    rows: Level
    columns: Level
    width: int
    """Iterations of the loop over columns."""
    gaps: dict[ElementAccess, int]
    """Loads whose rows do not follow each other, and the elements between two of them."""

    def in_place_of(self, level: Level) -> bool:
        return level is self.rows or level is self.columns


def find_fold(
    structure: Structure, dependence: Dependence, vector: Level, candidates: Sequence[Level]
) -> Fold | None:
    """Finds the loop that continues the vector loop, and its row loads."""
    width = vector.extent
    fits = all(access.element in _ELEMENTS for access in structure.accesses)
    if width is None or width not in _WIDTHS or not has_masks() or not fits:
        return None
    read = dependence.counters_as_data()
    for rows in candidates:
        if rows.extent is None or rows.extent < 2 or {rows.counter, vector.counter} & read:
            continue
        gaps = _gaps(structure, rows, vector, width)
        if gaps:
            number = min(0, *(counter.number for counter in structure.counters)) - 1
            level = new_level(number, vector.counter, Polynomial.constant(width * rows.extent))
            return Fold(level, rows, vector, width, gaps)
    return None


def _gaps(structure: Structure, rows: Level, columns: Level, width: int) -> dict[ElementAccess, int] | None:
    """None if an access does not fit."""
    gaps: dict[ElementAccess, int] = {}
    for access in structure.accesses:
        along, down = access.step(columns), access.step(rows)
        if not (along.terms or down.terms or access.predicate or access.computed):
            continue
        if access.predicate or access.computed or along.number != 1 or down.number is None:
            return None
        if down.number < width or (access in structure.stores and down.number > width):
            return None
        if down.number > width:
            gaps[access] = down.number - width
    return gaps
