"""Writes the LLVM IR of a nest: vectors, loops, accesses, conditions.

What does not change in a loop is written in front of it, and what a block has already is not written again:
LLVM's passes would find both, in many times the time that this takes. Loops of much work look after signals
between their parts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Final

from jitree.codegen.ir_text import FunctionText, Iteration, is_pure, llvm_type
from jitree.dispatch.native.nests.structure import Level
from jitree.dispatch.native.prelude import OWN_MEMORY
from jitree.dispatch.native.site import MUCH

if TYPE_CHECKING:
    from jitree.dispatch.native.nest_context import NestContext

WORK: Final = 1 << 22
"""Instructions on one element between two looks: a tenth of a millisecond in vectors; where each is a slow
function of the C library, a second."""
_NAME: Final = re.compile(r"%[-\w.]+")


@cache
def _order(lanes: tuple[int, ...]) -> str:
    return f"<{len(lanes)} x i32> <{', '.join(f'i32 {lane}' for lane in lanes)}>"


class _Front:
    """Keeps what is written in front of a loop."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.known: dict[str, str] = {}
        """Names by expression."""


class Writer(FunctionText):
    """Writes the text of one nest; names begin with the context's prefix."""

    def __init__(self, context: NestContext) -> None:
        super().__init__(context.prefix)
        self.context = context
        self._own = f"%{context.prefix}"
        self._fronts: list[_Front] = []
        """Of the loops under construction, from the outermost one."""
        self._depths: dict[str, int] = {}
        """In how many loops a value lies; one of the nest that is not here lies in all."""
        self._known: dict[str, str] = {}
        """Names by expression, in the block under construction."""

    def let(self, expression: str) -> str:
        if not is_pure(expression):
            return super().let(expression)
        inside, depth, known_depth = len(self._fronts), 0, self._depths.get
        for operand in _NAME.findall(expression) if inside else ():
            found = known_depth(operand)
            depth = max(depth, self.depth(operand) if found is None else found)
        known = self._known if depth >= inside else self._fronts[depth].known
        name = known.get(expression)
        if name is None:
            name = known[expression] = super().let(expression)
            if depth < inside:
                self._fronts[depth].lines.append(self._lines.pop())
            self._depths[name] = min(depth, inside)
        return name

    def depth(self, name: str) -> int:
        """In how many of the loops under construction a value changes."""
        depth = self._depths.get(name)
        if depth is None:
            return len(self._fronts) if name.startswith(self._own) else 0
        return depth

    def label(self, name: str) -> None:
        super().label(name)
        self._known = {}

    def go_on(self, name: str) -> None:
        super().label(name)

    @contextmanager
    def loop(
        self, start: str, end: str, step: int | str, carried: list[tuple[str, str]]
    ) -> Iterator[Iteration]:
        front = _Front()
        self._lines.append(front)
        self._fronts.append(front)
        with super().loop(start, end, step, carried) as iteration:
            self._depths.update(dict.fromkeys((iteration.counter, *iteration.values), len(self._fronts)))
            yield iteration
        self._fronts.pop()

    def text(self) -> str:
        lines: list[str] = []
        for line in self._lines:
            lines += [line] if isinstance(line, str) else line.lines
        return "\n".join(lines)

    def fresh(self, name: str) -> str:
        return super().fresh(self.context.prefix + name)

    def taken(self) -> str:
        """The text so far, which this no longer has."""
        text = self.text()
        self._lines = []
        self._known = {}
        return text

    def splat(self, kind: str, scalar: str, lanes: int) -> str:
        """A scalar, constant or not, in every lane."""
        if lanes == 1:
            return scalar
        scalar_type, vector = llvm_type(kind, 1), llvm_type(kind, lanes)
        if not scalar.startswith("%"):
            return f"splat ({scalar_type} {scalar})"
        first = self.let(f"insertelement {vector} poison, {scalar_type} {scalar}, i64 0")
        return self.let(f"shufflevector {vector} {first}, {vector} poison, <{lanes} x i32> zeroinitializer")

    def intrinsic(self, name: str, kind: str, lanes: int, operands: Sequence[str], extra: str = "") -> str:
        """A call of an LLVM intrinsic of one type; ``extra`` is appended to the operands."""
        vector = llvm_type(kind, lanes)
        suffix = kind if lanes == 1 else f"v{lanes}{kind}"
        parameters = [vector] * len(operands) + ["i1"] * extra.count("i1")
        self.context.declare(f"declare {vector} @llvm.{name}.{suffix}({', '.join(parameters)})")
        arguments = ", ".join(f"{vector} {operand}" for operand in operands)
        return self.let(f"call {vector} @llvm.{name}.{suffix}({arguments}{extra})")

    def shuffled(self, kind: str, order: Iterable[int], left: str, right: str = "poison") -> str:
        """Lanes of two vectors in another order."""
        return self.let(f"shufflevector {kind} {left}, {kind} {right}, {_order(tuple(order))}")

    def at(self, kind: str, pointer: str, index: int | str) -> str:
        """A pointer so many elements further on."""
        return self.let(f"getelementptr {kind}, ptr {pointer}, i64 {index}")

    def load(self, kind: str, pointer: str) -> str:
        """What buffers hold at a place."""
        return self.let(f"load {kind}, ptr {pointer}, align 1{self.context.access}")

    def masked_load(
        self, kind: str, element: str, lanes: int, pointer: str, mask: str, otherwise: str = "zeroinitializer"
    ) -> str:
        """The same under a mask."""
        vector, bits = f"<{lanes} x {kind}>", f"<{lanes} x i1>"
        name = f"@llvm.masked.load.v{lanes}{element}.p0"
        self.context.declare(f"declare {vector} {name}(ptr, i32, {bits}, {vector})")
        arguments = f"ptr {pointer}, i32 1, {bits} {mask}, {vector} {otherwise}"
        return self.let(f"call {vector} {name}({arguments})")

    def gathered(self, kind: str, element: str, lanes: int, places: str, mask: str | None) -> str:
        """An element for each lane; without a mask for all."""
        vector, bits, pointers = f"<{lanes} x {kind}>", f"<{lanes} x i1>", f"<{lanes} x ptr>"
        name = f"@llvm.masked.gather.v{lanes}{element}.v{lanes}p0"
        self.context.declare(f"declare {vector} {name}({pointers}, i32, {bits}, {vector})")
        arguments = (
            f"{pointers} {places}, i32 1, {bits} {mask or 'splat (i1 true)'}, {vector} zeroinitializer"
        )
        return self.let(f"call {vector} {name}({arguments})")

    def reduced(self, name: str, kind: str, lanes: int, text: str) -> str:
        """What an operation makes of all lanes."""
        vector, function = f"<{lanes} x {kind}>", f"@llvm.vector.reduce.{name}.v{lanes}{kind}"
        self.context.declare(f"declare {kind} {function}({vector})")
        return self.let(f"call {kind} {function}({vector} {text})")

    def numbers(self, kind: str, lanes: int, first: int = 0) -> str:
        """The number of each lane."""
        return "<" + ", ".join(f"{kind} {lane}" for lane in range(first, first + lanes)) + ">"

    def lanes_before(self, end: str, lanes: int, first: int = 0, relation: str = "slt") -> str:
        """A mask of the lanes, the first of which has a number, that come before an end."""
        bound = self.splat("i32", self.let(f"trunc i64 {end} to i32"), lanes)
        return self.let(f"icmp {relation} <{lanes} x i32> {self.numbers('i32', lanes, first)}, {bound}")

    @staticmethod
    def first_lanes(count: int, lanes: int) -> str:
        """A constant mask."""
        return "<" + ", ".join(f"i1 {'true' if lane < count else 'false'}" for lane in range(lanes)) + ">"

    def whole(self, start: str, end: str, size: int) -> tuple[str, str]:
        """The end of the last whole part of so many iterations, and what is left after it."""
        rest = self.let(f"urem i64 {self.let(f'sub i64 {end}, {start}')}, {size}")
        return self.let(f"sub i64 {end}, {rest}"), rest

    @contextmanager
    def loop_if_any(
        self, start: str, end: str, step: int, carried: list[tuple[str, str]]
    ) -> Iterator[Iteration]:
        """As :meth:`loop`, from start to end, which may be the same. What is left of it is the result."""
        with (
            self.maybe(self.let(f"icmp slt i64 {start}, {end}"), carried) as branch,
            self.loop(start, end, step, carried) as iteration,
        ):
            yield iteration
            branch.next = iteration.next
        iteration.result = branch.result

    @contextmanager
    def stack(self) -> Iterator[None]:
        """Gives what is taken of the stack inside back at the end."""
        self.context.declare("declare ptr @llvm.stacksave.p0()")
        saved = self.let("call ptr @llvm.stacksave.p0()")
        yield
        self.context.declare("declare void @llvm.stackrestore.p0(ptr)")
        self.do(f"call void @llvm.stackrestore.p0(ptr {saved})")


class Looks:
    """Writes loops that look after signals between parts of much work."""

    def __init__(
        self, writer: Writer, levels: Sequence[Level], extents: dict[Level, str], weight: int
    ) -> None:
        """``levels`` as they are written, from the outermost; ``weight`` is that of the body."""
        self._writer = writer
        self._shares: dict[Level, str] = {}
        self._known, self._factor = max(weight, 1), ""
        for level in reversed(levels):
            self._shares[level] = self._share()
            if level.extent is not None:
                self._known *= level.extent
            else:
                factor = writer.let(f"uitofp i64 {extents[level]} to double")
                self._factor = writer.let(f"fmul double {factor}, {self._factor}") if self._factor else factor

    def _share(self) -> str:
        """Iterations between two looks, where one is as much work as is known now."""
        if not self._factor:
            return str(max(WORK // self._known, 1))
        share = self._writer.let(f"fdiv double {WORK / self._known:e}, {self._factor}")
        return self._at_least_one(self._writer.let(f"fptosi double {share} to i64"))

    def _at_least_one(self, number: str) -> str:
        return self._writer.intrinsic("smax", "i64", 1, [number, "1"])

    def end(self) -> None:
        """After the loops: the next branch of the function looks at the clock if they were much work."""
        writer = self._writer
        if self._factor:
            is_much = writer.let(f"fcmp ogt double {self._factor}, {MUCH / self._known:e}")
            left = writer.let("load i64, ptr %fuel.at, align 8")
            writer.do(
                f"store i64 {writer.let(f'select i1 {is_much}, i64 1, i64 {left}')}, ptr %fuel.at, align 8"
            )
        elif self._known > MUCH:
            writer.do("store i64 1, ptr %fuel.at, align 8")

    @contextmanager
    def loop(
        self, level: Level, start: str, end: str, step: int, carried: list[tuple[str, str]]
    ) -> Iterator[Iteration]:
        """As :meth:`Writer.loop`, over a level's counter."""
        writer, chunk = self._writer, self._chunk(level, step)
        constant = not f"{start}{end}{chunk}".count("%")
        if constant and int(end) - int(start) <= int(chunk):
            with writer.loop(start, end, step, carried) as iteration:
                yield iteration
            return
        with writer.loop(start, end, chunk, carried) as part:
            following = writer.let(f"add i64 {part.counter}, {chunk}")
            last = writer.intrinsic("smin", "i64", 1, [following, end])
            values = [(kind, value) for (kind, _), value in zip(carried, part.values, strict=True)]
            with writer.loop(part.counter, last, step, values) as iteration:
                yield iteration
            part.next = iteration.next
            with writer.maybe(writer.let(f"icmp slt i64 {last}, {end}"), []):
                self._look()

    def _chunk(self, level: Level, step: int) -> str:
        share = self._shares[level]
        if not share.startswith("%"):
            return str(max(int(share) // step, 1) * step)
        if step == 1:
            return share
        steps = self._at_least_one(self._writer.let(f"udiv i64 {share}, {step}"))
        return self._writer.let(f"mul i64 {steps}, {step}")

    def _look(self) -> None:
        writer, going_on = self._writer, self._writer.fresh("going_on")
        is_to_end = writer.let(f"call fastcc i1 @vm.look(ptr %state){OWN_MEMORY}")
        writer.branch(is_to_end, writer.context.stopped(), going_on)
        writer.label(going_on)
