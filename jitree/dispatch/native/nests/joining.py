"""Joins reductions along which what all lanes share lies in memory.

The filter of a convolution over planes has its channels, rows and columns side by side, so four bytes of it
are a word as they lie in memory, whichever loops they belong to. Sums of integers are the same in any order:
those loops are one, in the order of the filter. What the lanes multiply with, elements of the image, is put
into a panel of words (``tiles.py``), a block of that loop at a time: a table holds where the element of each
iteration lies, from the lane's own place. Lanes come row by row, so they may be rows of the result that lie
one after the other: no lane is empty. Elements of the image that lie two to four apart, as of a convolution
with strides, are side by side in the panel.

What is left of a word at the end are zeros in the panel.

Sums of binary32 numbers keep their order. Where the filter has its elements in the order of the program's
loops, these are one all the same, and the panel has rows of single elements: an im2col of a block of
iterations and a tile of lanes. That is worth it where lanes would be empty, as of rows of 40 columns, or two
to four apart, and enough sums share a row. Convolutions of 3 by 3 with a stride of 2 take 0.55 to 0.75 of
the time, with 40 columns 0.9, with AVX2 alone 0.8: tiles of one vector gain from one long loop, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import lcm, prod
from typing import Final

from jitree.codegen.ir_text import llvm_type
from jitree.dispatch.native.nests import folds, tiles
from jitree.dispatch.native.nests.folds import Fold
from jitree.dispatch.native.nests.memory import LARGEST_STRIDE, NestRegion, Panel
from jitree.dispatch.native.nests.plan import Plan
from jitree.dispatch.native.nests.products import Products
from jitree.dispatch.native.nests.recognise import Dependence
from jitree.dispatch.native.nests.reductions import (
    CONTRACTIONS,
    LANES,
    ROWS,
    Contraction,
    Product,
    factors_of,
    row_lanes,
)
from jitree.dispatch.native.nests.structure import (
    ELEMENT_LLVM,
    ElementAccess,
    Level,
    Polynomial,
    Structure,
    new_level,
)
from jitree.dispatch.native.nests.tiles import DepthBlock
from jitree.dispatch.native.nests.writer import Writer

LEAST_DEPTH: Final = 8
"""Iterations of joined reductions that are worth it."""
LONGEST_PERIOD: Final = 64
"""Words of iterations whose places do not follow from those of others: a panel has room for them."""
_SPREAD: Final = 1.2
"""Times that a reduction takes which picks each of its vectors out of two rows or more."""
_FAR: Final = 1.2
_FAR_BYTES: Final = 256 << 10
"""… whose tiles of one vector find each element in another page, if so much lies between first and last."""
_SHORT: Final = 0.3
"""Iterations of a tile of one vector that a loop around them takes."""
_MAKING: Final = {False: 3, True: 8}
"""Multiply-adds that making a vector of a row takes, by whether it is picked out of several."""
_MASKING: Final = 3
"""… and its mask, where no register is for masks; twice that where rows are shorter than it."""
_LONG: Final = 16
"""Iterations of one reduction in words that need no others."""
_WORDS: Final = llvm_type("i32", LANES)


def join_reductions(
    structure: Structure, dependence: Dependence, vector: Level, summed: Sequence[Level],
    known: Product | None,
) -> Product | None:  # fmt: skip
    """Finds the sum of products along several reductions; None if ``known`` is better."""
    (store, *others) = structure.stores
    contraction = _contraction(store)
    if others or contraction is None:
        return None
    factors = factors_of(contraction, structure, store)
    if factors is None or (known is not None and _is_in_memory(structure, known)):
        return None
    for (element, element_signed), (row, row_signed) in (factors, factors[::-1]):
        one, many = structure.loads[element], structure.loads[row]
        if vector.counter in dependence.place(one) or many.step(vector).number not in range(
            1, LARGEST_STRIDE + 1
        ):
            continue
        joined = _chain(one, many, summed)
        if not (contraction.any_order or list(joined) == [level for level in summed if level.count > 1]):
            continue
        counts, group = [level.count for level in joined], contraction.products
        if prod(counts) < LEAST_DEPTH or period_of(counts, group) > LONGEST_PERIOD * group:
            continue
        along = new_level(_fresh(structure, 1), vector.counter, Polynomial.constant(prod(counts)))
        return Product(contraction, element, row, along, element_signed, row_signed, joined)
    return None


def _contraction(store: ElementAccess) -> Contraction | None:
    """Finds what adds the products, if the processor can make their rows."""
    if store.element == "f32":
        row = ROWS.get(store.stored.operation)
        return row if row is not None and row.lanes() == LANES else None
    row = next(row for row in CONTRACTIONS if row.any_order)
    return row if row.total == store.element and row.lanes() and row_lanes() else None


def _fresh(structure: Structure, number: int) -> int:
    """The number of a counter that no function has."""
    return min(0, *(counter.number for counter in structure.counters)) - number


def _is_in_memory(structure: Structure, product: Product) -> bool:
    """Whether nearly all words that lanes share lie in memory."""
    return structure.loads[product.element].step(product.along).number == 1 and product.along.count >= _LONG


def _chain(element: ElementAccess, row: ElementAccess, summed: Sequence[Level]) -> tuple[Level, ...]:
    """The reductions whose iterations lie one after the other, from the outermost."""
    chain: list[Level] = []
    steps = {level: element.step(level).number for level in summed}
    while True:
        distance = prod(level.count for level in chain)
        following = [
            level
            for level, step in steps.items()
            if step == distance and level not in chain and level.extent is not None
            if level.extent > 1 and row.step(level).number is not None
        ]
        if not following:
            return tuple(reversed(chain))
        chain.append(following[0])


def period_of(counts: Sequence[int], group: int) -> int:
    """Iterations after which places in the image repeat themselves, further on by a constant."""
    return lcm(prod(counts[1:]), group)


def table_of(counts: Sequence[int], steps: Sequence[int], group: int) -> tuple[list[int], int]:
    """Finds elements to those of a period's iterations, and from period to period.

    ``counts`` and ``steps`` are those of the loops, from the outermost.
    """
    period, inner = period_of(counts, group), prod(counts[1:])

    def distance(number: int) -> int:
        found = 0
        for count, step in zip(counts[:0:-1], steps[:0:-1], strict=True):
            number, digit = divmod(number, count)
            found += digit * step
        return found + number * steps[0]

    return list(map(distance, range(period))), period // inner * steps[0]


def find_rows(
    structure: Structure, product: Product, vector: Level, candidates: Sequence[Level], tile: int
) -> Fold | None:
    """Finds the loop that continues a vector loop which does not fill tiles."""
    (store,), width = structure.stores, vector.extent
    if width is None or width % tile == 0:
        return None
    element, row = (structure.loads[load] for load in (product.element, product.row))
    for rows in candidates:
        if rows.extent is None or rows.extent < 2 or store.step(vector).number != 1:
            continue
        if store.step(rows).number == width and row.step(rows).number and not element.step(rows).terms:
            lanes = Polynomial.constant(rows.extent * width)
            level = new_level(_fresh(structure, 2), vector.counter, lanes)
            return Fold(level, rows, vector, width, width, {})
    return None


def are_rows_worth_it(structure: Structure, joined: Plan, direct: Plan, columns: Level) -> bool:
    """Whether rows that are made first take less than rows in memory.

    It is estimated in vectors of lanes for an iteration of the tiled loop.
    """
    if direct.is_window or direct.tiled is None or joined.product is None:
        return False
    row, summed = structure.loads[joined.product.row], joined.product.joined
    is_spread = row.step(columns).number != 1
    time = _vectors_of(direct) * (_SPREAD if is_spread else 1)
    if joined.vectors == 1:
        is_far = abs(row.step(summed[-1]).number or 0) * row.bytes * summed[-1].count > _FAR_BYTES
        time *= (_FAR if is_far else 1) if len(summed) == 1 else 1 + _SHORT / summed[-1].count
    rows = 1 if joined.fold is None else joined.fold.rows.count
    made = prod(level.count for level in joined.outer) * rows * -(-columns.count // joined.lanes)
    masking = 0 if folds.has_masks() else _MASKING * (1 if columns.count >= joined.lanes else 2)
    return time > _vectors_of(joined) + made * (_MAKING[is_spread] + masking) / direct.tiled.count


def _vectors_of(plan: Plan) -> float:
    return prod(level.count for level in plan.outer) * max(plan.filled, 1)


class JoinedPanels:
    """Writes the panel of words of joined reductions of one nest."""

    def __init__(self, writer: Writer, products: Products, plan: Plan, product: Product) -> None:
        self._writer = writer
        self._products = products
        self._product = product
        self._plan = plan
        self._access = access = products.access
        self._stores_lanes = product.group == 1 and folds.has_masks()
        """Whether lanes that do not exist are not written."""
        spare = plan.fold is not None and not self._stores_lanes
        self._lanes = (plan.vectors + spare) * LANES + (plan.narrow > 0) * LANES // 2
        """Of a row. Words that are written to one of several rows may end after what is stored."""
        counts = [level.count for level in product.joined]
        steps = [access.step(level).number or 0 for level in product.joined]
        group = product.group
        self._entries, self._step = table_of(counts, steps, group)
        period = len(self._entries)
        most = max(tiles.WORD_PANEL_BYTES * group // (4 * self._lanes) // period, 1)
        self.block = min(most, -(-product.along.count // period)) * period
        """Iterations that the panel has room for."""
        self._memory, self._table, self._sums, self._copy = "", "", "", ""

    def begin(self) -> None:
        """Takes memory from the stack: words, sums, the table."""
        writer, period = self._writer, len(self._entries)
        words = self.block // self._product.group * self._lanes
        self._memory = writer.let(f"alloca [{words} x i32], align 64")
        self._sums = writer.let(f"alloca [{self._lanes} x i32], align 64")
        self._table = writer.let(f"alloca [{self.block} x i64], align 64")
        self._copy = writer.let(f"alloca [{self._span} x i8], align 64")
        with writer.loop("0", str(self.block // period), 1, []) as iteration:
            further = writer.let(f"mul i64 {iteration.counter}, {self._step}")
            first = writer.at("i64", self._table, writer.let(f"mul i64 {iteration.counter}, {period}"))
            for number, entry in enumerate(self._entries):
                place = writer.let(f"add i64 {further}, {entry}")
                writer.do(f"store i64 {place}, ptr {writer.at('i64', first, number)}, align 8")

    def write(
        self, counters: dict[Level, str], start: str, end: str, firsts: Sequence[int], left: str | None
    ) -> DepthBlock:
        """Fills the tile for whole periods of iterations, or up to the last one. There are no more than
        ``left`` lanes, if that is given."""
        writer, plan, product = self._writer, self._plan, self._product
        assert plan.vector is not None
        count = str(firsts[-1] + LANES)
        if left is not None:
            count = writer.intrinsic("smin", "i64", 1, [left, count])
        origin = writer.at(
            "i32", self._memory, writer.let(f"mul i64 {start}, {-self._lanes // product.group}")
        )
        region = NestRegion({**counters, plan.vector: "0", product.along: "0"})
        periods = writer.let(f"udiv i64 {start}, {len(self._entries)}")
        base = writer.at(
            ELEMENT_LLVM[self._access.element],
            self._products.memory.pointer(region, self._access, {}),
            writer.let(f"mul i64 {periods}, {self._step}"),
        )
        self._rows(base, counters[plan.vector], count, lambda *piece: self._words(origin, start, end, *piece))
        return DepthBlock(start, end, {self._access: Panel(origin, self._lanes, self._sums)})

    def _rows(self, base: str, first: str, count: str, write: Callable[[str, str, str], None]) -> None:
        """Writes lanes from the first one on, by rows and vectors."""
        writer, fold, kind = self._writer, self._plan.fold, ELEMENT_LLVM[self._access.element]
        if fold is None:
            end = writer.let(f"add i64 {first}, {count}")
            self._row(base, writer.let(f"sub i64 0, {first}"), first, end, write)
            return
        last = writer.let(f"add i64 {writer.let(f'add i64 {first}, {count}')}, -1")
        rows, last = (writer.let(f"udiv i64 {lane}, {fold.width}") for lane in (first, last))
        with writer.loop(rows, writer.let(f"add i64 {last}, 1"), 1, []) as row:
            begin = writer.let(f"sub i64 {writer.let(f'mul i64 {row.counter}, {fold.width}')}, {first}")
            start = writer.intrinsic("smax", "i64", 1, ["0", writer.let(f"sub i64 0, {begin}")])
            end = writer.let(f"sub i64 {count}, {begin}")
            end = writer.intrinsic("smin", "i64", 1, [str(fold.width), end])
            step = self._access.step(fold.rows).number
            place = writer.at(kind, base, writer.let(f"mul i64 {row.counter}, {step}"))
            self._row(place, begin, start, end, write)

    def _row(
        self, place: str, begin: str, start: str, end: str, write: Callable[[str, str, str], None]
    ) -> None:
        """Writes a row's columns from start to end; column 0 has lane ``begin``, which may not exist."""
        writer, stride = self._writer, self._stride
        with writer.loop(start, end, LANES, []) as piece:
            left = writer.let(f"sub i64 {end}, {piece.counter}")
            column = writer.let(f"mul i64 {piece.counter}, {stride}")
            column = writer.at(ELEMENT_LLVM[self._access.element], place, column)
            write(column, writer.let(f"add i64 {begin}, {piece.counter}"), left)

    @property
    def _stride(self) -> int:
        """Elements from lane to lane."""
        fold, vector = self._plan.fold, self._plan.vector
        columns = vector if fold is None else fold.columns
        assert columns is not None
        return self._access.step(columns).number or 1

    def _words(self, origin: str, start: str, end: str, place: str, lane: str, left: str) -> None:
        """Writes the words of a vector of lanes, and their sums. What follows the lanes is overwritten by the
        next ones."""
        writer, group = self._writer, self._product.group
        sums = ["zeroinitializer"] if self._product.turned else []
        whole, _ = writer.whole(start, end, group)
        panel = writer.at("i32", origin, lane)

        def word(at: str, count: int, sums: list[str]) -> list[str]:
            table = writer.at("i64", self._table, writer.let(f"sub i64 {at}, {start}"))
            rows = [self._load(writer.at("i64", table, number), place, left) for number in range(count)]
            words = self._products.interleaved(rows + ["zeroinitializer"] * (group - count))
            row = writer.let(f"mul i64 {at}, {self._lanes // group}")
            self._store(words, writer.at("i32", panel, row))
            return [self._products.moved(text, words) for text in sums]

        carried = [(_WORDS, text) for text in sums]
        with writer.loop_if_any(start, whole, group, carried) as iteration:
            iteration.next = word(iteration.counter, group, iteration.values)
        sums, rest = iteration.result, self._product.along.count % group
        if rest:
            carried = [(_WORDS, text) for text in sums]
            with writer.maybe(writer.let(f"icmp slt i64 {whole}, {end}"), carried) as branch:
                branch.next = word(whole, rest, sums)
            sums = branch.result
        for text in sums:
            self._store(text, writer.at("i32", self._sums, lane))

    @property
    def _span(self) -> int:
        """Bytes from the first lane of a vector to the last one."""
        return self._stride * (LANES - 1) + 1

    def _load(self, entry: str, place: str, left: str) -> str:
        """Loads a row of the image for an entry of the table: ``left`` lanes exist."""
        writer, mask = self._writer, None
        distance = writer.let(f"load i64, ptr {entry}, align 8")
        place = writer.at(ELEMENT_LLVM[self._access.element], place, distance)
        if folds.has_masks():
            mask = writer.lanes_before(left, LANES)
        else:
            place = self._inside(place, left)
        return self._products.memory.load_apart(self._access, place, self._stride, mask)

    def _inside(self, place: str, left: str) -> str:
        """The place of a vector: itself if that lies in the buffer, else a copy of the lanes that exist."""
        writer, buffer = self._writer, self._writer.context.buffer(self._access.buffer)
        end = writer.let(f"ptrtoint ptr {writer.at('i8', buffer.address, buffer.length)} to i64")
        room = writer.let(f"sub i64 {end}, {writer.let(f'ptrtoint ptr {place} to i64')}")
        is_out = writer.let(f"icmp slt i64 {room}, {self._span}")
        with writer.maybe(is_out, [("ptr", place)]) as branch:
            size = writer.let(f"mul i64 {writer.let(f'sub i64 {left}, 1')}, {self._stride}")
            with writer.loop("0", writer.let(f"add i64 {size}, 1"), 1, []) as byte:
                text = writer.load("i8", writer.at("i8", place, byte.counter))
                writer.do(f"store i8 {text}, ptr {writer.at('i8', self._copy, byte.counter)}, align 1")
            branch.next = [self._copy]
        (place,) = branch.result
        return place

    def _store(self, text: str, place: str) -> None:
        self._writer.do(f"store {_WORDS} {text}, ptr {place}, align 4")


class RowPanels(JoinedPanels):
    """Writes the panel of single products. It has rows as they lie, a period at a time."""

    def begin(self) -> None:
        writer, count = self._writer, self.block * self._lanes
        self._memory = writer.let(f"alloca [{-(-count // LANES) * LANES} x i32], align 64")
        if self._plan.narrow:  # sums of what is no lane are no denormal numbers, which take long
            with writer.loop("0", str(count), LANES, []) as words:
                self._store("zeroinitializer", writer.at("i32", self._memory, words.counter))

    def _words(self, origin: str, start: str, end: str, place: str, lane: str, left: str) -> None:
        """Writes the rows of a vector of lanes."""
        writer, kind, period = self._writer, ELEMENT_LLVM[self._access.element], len(self._entries)
        count = writer.let(f"udiv i64 {writer.let(f'sub i64 {end}, {start}')}, {period}")
        panel, mask = writer.at(kind, self._memory, lane), writer.lanes_before(left, LANES)
        with writer.loop("0", count, 1, []) as part:
            source = writer.at(kind, place, writer.let(f"mul i64 {part.counter}, {self._step}"))
            row = writer.let(f"mul i64 {part.counter}, {period * self._lanes}")
            row = writer.at(kind, panel, row)
            for number, entry in enumerate(self._entries):
                first = writer.at(kind, source, entry) if entry else source
                text = self._products.memory.load_apart(self._access, first, self._stride, mask)
                at = writer.at(kind, row, number * self._lanes) if number else row
                if self._stores_lanes:
                    writer.masked_store(kind, "f32", LANES, text, at, mask)
                else:
                    writer.do(f"store <{LANES} x {kind}> {text}, ptr {at}, align 4")
