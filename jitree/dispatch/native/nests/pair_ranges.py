"""Looks at all numbers that a nest multiplies and adds (``pairs.py``): whether none of them, no product and
no sum can be denormal, and no product infinite or NaN.

A bfloat16 number with exponent ``e`` (as its bits have it) is a multiple of ``2**(e - 134)``. Where the least
exponents of both factors add up to 142 or more, all products are multiples of ``2**-126``, the least normal
number, and so are sums of them, rounded or not, that begin with such a multiple: they are zero or normal.
A binary32 number is one from exponent 24 on. Products are finite where the greatest exponents add up to
379 at the most.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from jitree.base.records import NamedTuple
from jitree.codegen.ir_text import llvm_type
from jitree.dispatch.native.nests.dots import DotProduct
from jitree.dispatch.native.nests.memory import Memory, NestRegion
from jitree.dispatch.native.nests.pairs import line
from jitree.dispatch.native.nests.structure import ElementAccess, Level, Structure
from jitree.dispatch.native.nests.writer import Writer

LEAST_OF_BOTH: Final = 142
GREATEST_OF_BOTH: Final = 379
LEAST_OF_SUM: Final = 24
GREATEST: Final = 254
"""Exponents: that of the greatest finite numbers is the last one."""
REGISTER: Final = 64
"""Bytes of a vector register."""

Bounds = Callable[[Level], tuple[str, str]]
"""The iterations of a loop that run."""


class Magnitudes(NamedTuple):
    """The least and the greatest exponent of some numbers that are not zero, as i32."""

    least: str
    greatest: str


class PairRanges:
    """Writes the look for one nest."""

    def __init__(
        self, writer: Writer, structure: Structure, memory: Memory, dot: DotProduct, bounds: Bounds
    ) -> None:
        self._writer = writer
        self._structure = structure
        self._memory = memory
        self._dot = dot
        self._bounds = bounds

    def are_normal(self) -> str:
        """Whether the instruction gives the bits that the program's loop gives."""
        writer, loads = self._writer, self._structure.loads
        left, right = (self._magnitudes(loads[load]) for load in (self._dot.element, self._dot.row))
        total = self._magnitudes(self._structure.stores[0])
        least = writer.let(f"add i32 {left.least}, {right.least}")
        greatest = writer.let(f"add i32 {left.greatest}, {right.greatest}")
        conditions = [
            f"sge i32 {least}, {LEAST_OF_BOTH}",
            f"sle i32 {greatest}, {GREATEST_OF_BOTH}",
            f"sge i32 {total.least}, {LEAST_OF_SUM}",
            f"sle i32 {total.greatest}, {GREATEST}",
        ]
        for factor in (left, right):
            conditions += [f"sge i32 {factor.least}, 1", f"sle i32 {factor.greatest}, {GREATEST}"]
        result = "true"
        for condition in conditions:
            result = writer.let(f"and i1 {result}, {writer.let(f'icmp {condition}')}")
        return result

    def _magnitudes(self, access: ElementAccess) -> Magnitudes:
        """Of all elements that an access touches. Bits without the sign are compared, the least ones less 1,
        so that a zero is the greatest of them."""
        writer, kind, bits = self._writer, f"i{8 * access.bytes}", 7 if access.bytes == 2 else 23
        lanes = REGISTER // access.bytes
        row, levels = line(self._structure, access), self._levels(access)
        assert row is not None
        vector = llvm_type(kind, lanes)
        sums = self._along(access, [level for level in levels if level is not row], row, {}, lanes)
        least, greatest = (
            writer.let(f"call {kind} @llvm.vector.reduce.{name}.v{lanes}{kind}({vector} {text})")
            for name, text in zip(("umin", "umax"), sums, strict=True)
        )
        for name in ("umin", "umax"):
            writer.context.declare(f"declare {kind} @llvm.vector.reduce.{name}.v{lanes}{kind}({vector})")
        wide = writer.let(f"zext {kind} {least} to i64")
        one_more = writer.let(f"add i64 {wide}, 1")
        first = writer.let(f"trunc i64 {writer.let(f'lshr i64 {one_more}, {bits}')} to i32")
        last = writer.let(f"zext {kind} {greatest} to i64")
        return Magnitudes(first, writer.let(f"trunc i64 {writer.let(f'lshr i64 {last}, {bits}')} to i32"))

    def _levels(self, access: ElementAccess) -> list[Level]:
        levels = self._structure.levels
        return [level for level in levels if access.index.coefficient(level.counter).terms]

    def _along(
        self, access: ElementAccess, levels: list[Level], row: Level, counters: dict[Level, str], lanes: int
    ) -> list[str]:
        """The least and the greatest of each lane, in loops over all levels but the row's around it."""
        kind = llvm_type(f"i{8 * access.bytes}", lanes)

        def inside(levels: list[Level], counters: dict[Level, str], found: list[str]) -> list[str]:
            if not levels:
                return self._row(access, row, counters, lanes, found)
            start, end = self._bounds(levels[0])
            carried = [(kind, text) for text in found]
            with self._writer.loop(start, end, 1, carried) as iteration:
                iteration.next = inside(
                    levels[1:], {**counters, levels[0]: iteration.counter}, iteration.values
                )
            return iteration.next

        return inside(levels, counters, [f"splat (i{8 * access.bytes} -1)", "zeroinitializer"])

    def _row(
        self, access: ElementAccess, row: Level, counters: dict[Level, str], lanes: int, found: list[str]
    ) -> list[str]:
        """Whole vectors, and what is left of the row under a mask."""
        writer, kind = self._writer, llvm_type(f"i{8 * access.bytes}", lanes)
        start, end = self._bounds(row)
        rest = writer.let(f"urem i64 {writer.let(f'sub i64 {end}, {start}')}, {lanes}")
        whole = writer.let(f"sub i64 {end}, {rest}")

        def place(counter: str) -> str:
            region = NestRegion({**counters, row: counter}, None, squares=False)
            return self._memory.pointer(region, access, {})

        carried = [(kind, text) for text in found]
        with (
            writer.maybe(writer.let(f"icmp slt i64 {start}, {whole}"), carried) as branch,
            writer.loop(start, whole, lanes, carried) as iteration,
        ):
            text = writer.let(f"load {kind}, ptr {place(iteration.counter)}, align 1{writer.context.access}")
            iteration.next = branch.next = self._compared(access, iteration.values, text, lanes)
        carried = [(kind, text) for text in branch.result]
        with writer.maybe(writer.let(f"icmp slt i64 {whole}, {end}"), carried) as branch:
            bound = writer.splat("i32", writer.let(f"trunc i64 {rest} to i32"), lanes)
            numbers = ", ".join(f"i32 {lane}" for lane in range(lanes))
            mask = writer.let(f"icmp slt <{lanes} x i32> <{numbers}>, {bound}")
            name, element = f"@llvm.masked.load.v{lanes}i{8 * access.bytes}.p0", f"<{lanes} x i1>"
            writer.context.declare(f"declare {kind} {name}(ptr, i32, {element}, {kind})")
            text = writer.let(
                f"call {kind} {name}(ptr {place(whole)}, i32 1, {element} {mask}, {kind} zeroinitializer)"
            )
            branch.next = self._compared(access, [text for _, text in carried], text, lanes)
        return branch.result

    def _compared(self, access: ElementAccess, found: list[str], text: str, lanes: int) -> list[str]:
        """The least and the greatest with a vector more."""
        writer, kind, width = self._writer, f"i{8 * access.bytes}", 8 * access.bytes
        vector = llvm_type(kind, lanes)
        number = writer.let(f"and {vector} {text}, splat ({kind} {(1 << width - 1) - 1})")
        lower = writer.let(f"sub {vector} {number}, splat ({kind} 1)")
        return [
            writer.intrinsic("umin", kind, lanes, [found[0], lower]),
            writer.intrinsic("umax", kind, lanes, [found[1], number]),
        ]
