"""Writes how the greatest or least element of a row is found: vectors along it, then their lanes.

Four vectors at a time, the vectors that are left, and the lanes that are left, under a mask.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from jitree.base.records import NamedTuple
from jitree.codegen.ir_text import llvm_type
from jitree.dispatch.native.nests.body import Body
from jitree.dispatch.native.nests.folding import Extreme, is_zero
from jitree.dispatch.native.nests.looks import Looks
from jitree.dispatch.native.nests.memory import NestRegion, Offsets
from jitree.dispatch.native.nests.plan import Plan
from jitree.dispatch.native.nests.structure import Level
from jitree.dispatch.native.nests.writer import Writer

_NOWHERE: Final = (1 << 62) - 1
"""Where a row has no zero."""


class NestRow(NamedTuple):
    """A row of known length: a reduction, for given counters of the loops around it."""

    level: Level
    counters: dict[Level, str]
    offsets: Offsets


class _Elements(NamedTuple):
    """Neighbours in a row."""

    first: str
    vectors: list[str]
    mask: str | None
    """The lanes that exist; None: all."""


Visit = Callable[[_Elements, list[str]], list[str]]
"""(elements, what is known before them) → what is known after them."""


class RowExtreme:
    """Finds that of one row."""

    def __init__(
        self, writer: Writer, looks: Looks, plan: Plan, body: Body, extreme: Extreme, row: NestRow
    ) -> None:
        """``plan`` and ``body`` are those whose lanes lie along the row."""
        self._writer = writer
        self._looks = looks
        self._plan = plan
        self._body = body
        self._extreme = extreme
        self._row = row
        self._kind = extreme.element.type

    def of(self, known: str) -> str:
        """Of the row and what is known already. Which zero it is, is open."""
        writer, lanes, extreme = self._writer, self._plan.lanes, self._extreme
        vector = llvm_type(self._kind, lanes)
        start = writer.splat(self._kind, known, lanes)

        def visit(elements: _Elements, values: list[str]) -> list[str]:
            found = [
                extreme.of(writer, lanes, value, element)
                for value, element in zip(values, elements.vectors, strict=True)
            ]
            if elements.mask is None:
                return found
            chosen = f"select <{lanes} x i1> {elements.mask}, {vector} {found[0]}, {vector} {values[0]}"
            return [writer.let(chosen)]

        def together(values: list[str]) -> str:
            result, *others = values
            for other in others:
                result = extreme.of(writer, lanes, result, other)
            return result

        (result,) = self._run(vector, start, self._plan.vectors, visit, together)
        return extreme.of_lanes(writer, lanes, result)

    def first_zero(self) -> str:
        """The place of the first element that equals zero; of the first element if there is none."""
        writer, lanes = self._writer, self._plan.lanes

        def visit(elements: _Elements, values: list[str]) -> list[str]:
            bits = "0"
            for number, element in enumerate(elements.vectors):
                zeros = is_zero(writer, lanes, element)
                if elements.mask is not None:
                    zeros = writer.let(f"and <{lanes} x i1> {zeros}, {elements.mask}")
                word = writer.let(f"bitcast <{lanes} x i1> {zeros} to i{lanes}")
                wide = writer.let(f"zext i{lanes} {word} to i64")
                bits = writer.let(f"or i64 {bits}, {writer.let(f'shl i64 {wide}, {number * lanes}')}")
            place = writer.intrinsic("cttz", "i64", 1, [bits], ", i1 false")
            place = writer.let(f"add i64 {elements.first}, {place}")
            here = writer.let(
                f"select i1 {writer.let(f'icmp ne i64 {bits}, 0')}, i64 {place}, i64 {_NOWHERE}"
            )
            return [writer.intrinsic("smin", "i64", 1, [values[0], here])]

        (found,) = self._run("i64", str(_NOWHERE), 1, visit, lambda values: values[0])
        is_there = writer.let(f"icmp ne i64 {found}, {_NOWHERE}")
        return writer.let(f"select i1 {is_there}, i64 {found}, i64 0")

    def _run(
        self, kind: str, start: str, count: int, visit: Visit, together: Callable[[list[str]], str]
    ) -> list[str]:
        """Visits the row; so many values are known while it is visited by tiles, and then one."""
        level, lanes = self._row.level, self._plan.lanes
        length, tile = level.extent, lanes * self._plan.vectors
        assert length is not None and length >= tile
        tiles_end, vectors_end = length // tile * tile, length // lanes * lanes
        carried = [(kind, start)] * count
        with self._looks.loop(level, "0", str(tiles_end), tile, carried) as iteration:
            elements = self._elements(iteration.counter, self._plan.vectors, None)
            iteration.next = visit(elements, iteration.values)
        values = [together(iteration.next)]
        for first in range(tiles_end, vectors_end, lanes):
            values = visit(self._elements(str(first), 1, None), values)
        if vectors_end < length:
            bits = ", ".join(
                f"i1 {'true' if lane < length - vectors_end else 'false'}" for lane in range(lanes)
            )
            values = visit(self._elements(str(vectors_end), 1, f"<{bits}>"), values)
        return values

    def _elements(self, first: str, vectors: int, mask: str | None) -> _Elements:
        row, lanes = self._row, self._plan.lanes
        masks = None if mask is None else (mask,)
        region = NestRegion({**row.counters, row.level: first}, masks, squares=False)
        found = []
        for number in range(vectors):
            place = {**row.offsets, row.level: number * lanes}
            operand = self._body.value(region, self._extreme.element, place)
            found.append(self._body.widened(operand, self._kind, lanes))
        return _Elements(first, found, mask)
