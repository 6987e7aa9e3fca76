"""Writes the LLVM IR of a nest: vectors, loops, accesses, conditions.

What does not change in a loop is written in front of it, and what a block has already is not written again:
LLVM's passes would find both, in many times the time that this takes. Loops of much work look after signals
between their parts. :class:`NestContext` is what a nest has to know of the function around it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Final, Protocol

from jitree.base.records import NamedTuple
from jitree.codegen.ir_text import PURE, PURE_OTHERS, FunctionText, Iteration, llvm_type
from jitree.dispatch.native import rows
from jitree.dispatch.native.emitter import Emitter
from jitree.dispatch.native.nests.structure import Level
from jitree.dispatch.native.prelude import BYTES
from jitree.dispatch.native.rows import on_pointers
from jitree.dispatch.native.site import MUCH
from jitree.dispatch.native.ssa import Block, SsaFunction, SsaLoop, Value, operand
from jitree.dispatch.semantics import SEMANTICS


class NestBuffer(NamedTuple):
    """A reference as a buffer: LLVM operands."""

    address: str
    length: str
    """Bytes (i64); 0 for null and what is no ``vm.buffer``."""
    room: str
    """Bytes that may be written."""


class NestContext:
    """Made for one nest, whose first block is under construction."""

    def __init__(self, emitter: Emitter, loop: SsaLoop, deopt: str, exit: str) -> None:
        self._emitter = emitter
        self._math: dict[str, str] = {}
        self._stopped = ""
        self.deopt = deopt
        """Label to go to when nothing of the nest has happened and the interpreter is to run it."""
        self.exit = exit
        """Label after the nest."""
        self.done = done_label(loop.header)
        """Label of the nest's last block, which branches to ``exit``."""
        self.prefix = f"n{loop.header.pc}."
        """What all local names of the nest begin with."""
        self.access = BYTES
        """Suffix of loads and stores of buffer bytes."""
        self.live_outs = list(loop.header.parameters)
        """Values that the nest has to define under their names."""

        self.declare = emitter.module.declare
        self.define = emitter.module.define
        self.metadata = emitter.module.metadata

    def value(self, value: Value) -> str:
        """A value that is defined outside."""
        return operand(value)

    def buffer(self, value: Value) -> NestBuffer:
        """A reference from outside whose elements are read or written."""
        return NestBuffer(*(self._emitter.buffer(value, extent) for extent in ("address", "length", "room")))

    def is_bindings(self, value: Value) -> bool:
        """Whether a reference is a kernel's list of bindings."""
        return self._emitter.is_bindings(value)

    def packed(self, first: str, depth: int, blocks: int) -> str:
        """How far copies of constants are from them, 0: there is none (``../side_exits.py``)."""
        self.define(rows.function(self.declare, "packed"))
        self.define(on_pointers("packed"))
        return f"call fastcc i64 @vm.packed(ptr %state, ptr {first}, i64 {depth}, i64 {blocks})"

    def stopped(self) -> str:
        """Names the block for a call that ends within the nest."""
        if not self._stopped:
            self._stopped = self._emitter.fresh("stopped")
            with self._emitter.aside(self._stopped):
                self._emitter.set_fuel("0")
                self._emitter.jump(self.deopt)
        return self._stopped

    def math(self, mnemonic: str) -> str:
        """The address of the C function that an instruction is."""
        name = SEMANTICS[mnemonic].math_function
        assert name is not None
        if name not in self._math:
            self._math[name] = self._emitter.math(name)
        return self._math[name]


def done_label(header: Block) -> str:
    return f"n{header.pc}.done"


def nest_label(header: Block) -> str:
    """Names the block that every edge into a nest leads to."""
    return f"nest{header.pc}"


def leaves_nothing_else(function: SsaFunction, loop: SsaLoop) -> bool:
    """Whether only the header's parameters are needed after a nest."""
    for block in function.blocks:
        if block in loop.blocks:
            continue
        for value in block.entry.values():
            if value.block in loop.blocks and value not in loop.header.parameters:
                return False
    return True


class WrittenAnew(Protocol):
    """A nest (:class:`jitree.dispatch.native.nests.Nest`)."""

    @property
    def loop(self) -> SsaLoop: ...
    def emit(self, context: NestContext) -> str: ...


def emit_nest(emitter: Emitter, nest: WrittenAnew) -> None:
    """Writes a nest in place of its loops."""
    emitter.raw(nest.emit(nest_context(emitter, nest.loop)))


def nest_context(emitter: Emitter, loop: SsaLoop, deopt: str = "") -> NestContext:
    """Begins the block in which a nest is to be written. ``deopt``: where that goes when it cannot run;
    absent: the interpreter goes on at its header."""
    header = loop.header
    emitter.label(nest_label(header))
    initial = _parameters(emitter, loop)
    if not deopt:
        registers = {variable: initial.get(value, value) for variable, value in header.entry.items()}
        deopt = emitter.fresh("unfit")
        emitter.side_exit_block(deopt, header.instructions[0], registers, emitter.fuel_left)
    ((source, target),) = {(header, target) for _, target in loop.exits}
    exit_label = emitter.edge_from(source, target, done_label(header))
    return NestContext(emitter, loop, deopt, exit_label)


def _parameters(emitter: Emitter, loop: SsaLoop) -> dict[Value, Value]:
    """The header's parameters as they come from outside: new values where there are several ways in."""
    header = loop.header
    outside = [number for number, source in enumerate(header.predecessors) if source not in loop.blocks]
    found: dict[Value, Value] = {}
    for parameter in header.parameters:
        values = [parameter.operands[number] for number in outside]
        if len(values) == 1:
            found[parameter] = values[0]
            continue
        joined = Value(emitter.new_number(), parameter.type, "phi", values, (), header.pc, header)
        emitter.join(joined, header, outside)
        found[parameter] = joined
    return found


WORK: Final = 1 << 22
"""Instructions on one element between two looks: a tenth of a millisecond in vectors; where each is a slow
function of the C library, a second."""
_FEW: Final = 1 << 10
"""Loops that run at most so often count as if they did: what is computed from numbers takes longer to write,
compile and run than a look too many."""
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
        if expression.partition(" ")[0] not in PURE and not PURE_OTHERS.fullmatch(expression):
            return super().let(expression)
        inside, depth = len(self._fronts), 0
        for name in _NAME.findall(expression) if inside else ():
            found = self._depths.get(name)
            if found is None:
                found = inside if name.startswith(self._own) else 0
            if found > depth:
                depth = found
        known, lines = self._known, self._lines
        if depth < inside:
            known, lines = self._fronts[depth].known, self._fronts[depth].lines
        name = known.get(expression)
        if name is None:
            name = known[expression] = f"%{self._prefix}{self._names}"
            self._names += 1
            lines.append(f"  {name} = {expression}")
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
        return self.let(f"getelementptr {kind}, ptr {pointer}, i64 {index}") if index != "0" else pointer

    def load(self, kind: str, pointer: str) -> str:
        """What buffers hold at a place."""
        return self.let(f"load {kind}, ptr {pointer}, align 1{self.context.access}")

    def prefetch(self, pointer: str) -> None:
        """Asks for a line of memory, as far as the second-level cache: more at a time are under way there."""
        self.context.declare("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        self.do(f"call void @llvm.prefetch.p0(ptr {pointer}, i32 0, i32 2, i32 1)")

    def masked_load(
        self, kind: str, element: str, lanes: int, pointer: str, mask: str, otherwise: str = "zeroinitializer"
    ) -> str:
        """The same under a mask."""
        vector, bits = f"<{lanes} x {kind}>", f"<{lanes} x i1>"
        name = f"@llvm.masked.load.v{lanes}{element}.p0"
        self.context.declare(f"declare {vector} {name}(ptr, i32, {bits}, {vector})")
        arguments = f"ptr {pointer}, i32 1, {bits} {mask}, {vector} {otherwise}"
        return self.let(f"call {vector} {name}({arguments})")

    def masked_store(self, kind: str, element: str, lanes: int, text: str, pointer: str, mask: str) -> None:
        """Stores the lanes of a mask."""
        vector, name = f"<{lanes} x {kind}>", f"@llvm.masked.store.v{lanes}{element}.p0"
        self.context.declare(f"declare void {name}({vector}, ptr, i32, <{lanes} x i1>)")
        self.do(f"call void {name}({vector} {text}, ptr {pointer}, i32 1, <{lanes} x i1> {mask})")

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
        """Masks numbered lanes that come before an end."""
        bound = self.splat("i32", self.let(f"trunc i64 {end} to i32"), lanes)
        return self.let(f"icmp {relation} <{lanes} x i32> {self.numbers('i32', lanes, first)}, {bound}")

    @staticmethod
    def first_lanes(count: int, lanes: int) -> str:
        """A constant mask."""
        return "<" + ", ".join(f"i1 {'true' if lane < count else 'false'}" for lane in range(lanes)) + ">"

    def whole(self, start: str, end: str, size: int) -> tuple[str, str]:
        """Splits a range into whole parts and what is left."""
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
        self, writer: Writer, levels: Sequence[Level], extents: dict[Level, str], weight: int, block: int = 1
    ) -> None:
        """``levels`` as they are written, from the outermost; ``weight`` is that of the body. An iteration of
        the innermost one is ``block`` of those of the next around it."""
        self._writer = writer
        self._shares: dict[Level, str] = {}
        self._known, self._factor = max(weight, 1), ""
        for level in reversed(levels):
            self._shares[level] = self._share(block)
            block = 1
            if level.extent is not None or level.most <= _FEW:
                self._known *= max(level.most, 1)
            else:
                factor = writer.let(f"uitofp i64 {extents[level]} to double")
                self._factor = writer.let(f"fmul double {factor}, {self._factor}") if self._factor else factor

    def _share(self, block: int) -> str:
        """Iterations between two looks, of ``block`` times the work that is known now."""
        if not self._factor:
            return str(max(WORK // (self._known * block), 1))
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
        most = level.most
        if not f"{start}{end}".count("%"):
            most = min(most, int(end) - int(start))
        if not chunk.startswith("%") and most <= int(chunk):
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
        is_to_end = writer.let("call fastcc i1 @vm.look(ptr %state)")
        writer.branch(is_to_end, writer.context.stopped(), going_on)
        writer.label(going_on)
