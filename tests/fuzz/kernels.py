"""Random VMVX kernels whose constants, workgroups and bindings are extreme: every way to run a kernel leaves
the same memory and ends the same way.

Where ``nests.py`` picks loops by their shape, a kernel here is instructions on whatever values there are, of
32 and of 64 bits, in one to three nests one after the other, which meet in scratch memory or in bindings that
overlap.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Final, NamedTuple

from jitree.dispatch.native import nests
from jitree.dispatch.native.build import build
from jitree.dispatch.native.source import from_program
from jitree.errors import StatusError
from jitree.hal.command_list import DIRECT, CommandList
from jitree.hal.local import executor
from jitree.loaders.vmvx.executable import VmvxExecutable
from jitree.regs.memory import address_of
from jitree.vmfb.decode import BytecodeModule
from tests.assembler import AssemblyError
from tests.codegen.images import few_passes
from tests.dispatch.native.nests.programs import LoopText
from tests.fuzz import nests as nest_cases
from tests.fuzz.campaign import CASES, Campaign, Result
from tests.fuzz.nests import KINDS, LENGTH, Outcome, disagreements, extreme, memory_of
from tests.hal.native_kernels import ALL
from tests.loaders.vmvx.cut_programs import FIRST_BINDING, KernelText, most_parts, run_parts, with_code
from tests.loaders.vmvx.programs import load

BINDINGS: Final = 3
INPUTS: Final = 8
"""Dispatches of each kernel."""
APART: Final = (LENGTH, 3 * LENGTH, 5 * LENGTH)
SIZES, BOUNDS, DATA = range(0, 3), range(3, 5), range(5, 9)
"""Constants of a dispatch: usual numbers of iterations, any numbers of iterations, and words of numbers of 64
bits."""
WORDS: Final = len(SIZES) + len(BOUNDS) + len(DATA)

_SMALL: Final = (0, 1, 1, 2, 3, 4, 8, 16)
_WIDE: Final = ("add.i64", "sub.i64", "mul.i64", "min.i64.s", "max.i64.s", "and.i64", "xor.i64")
_NARROW: Final = ("add.i32", "sub.i32", "mul.i32", "and.i32", "xor.i32")
_DIVISIONS: Final = ("div.{}.s", "div.{}.u", "rem.{}.s", "rem.{}.u")
_COMPARES: Final = ("cmp.lt.{}.s", "cmp.lt.{}.u", "cmp.eq.{}", "cmp.ne.{}")
_FLOATS: Final = ("add", "mul", "sub")
"""No minimum or maximum: of denormal numbers tiers do not all give zeros."""
_EXTENSIONS: Final = ("ext.i32.i64.s", "ext.i32.i64.u")


class Inputs(NamedTuple):
    """Of one dispatch."""

    workgroups: tuple[int, int, int]
    constants: tuple[int, ...]
    places: tuple[int, ...]
    """Where bindings begin in the memory around them."""
    length: int = LENGTH
    """Bytes of each."""


class KernelWriter:
    """Writes one kernel."""

    def __init__(self, source: random.Random) -> None:
        self._source = source
        self._text = KernelText(BINDINGS)
        text = self._text
        self._groups = [text.op(source.choice(_EXTENSIONS), f"%i{place}") for place in (0, 1, 6)]
        self._sizes = [self._word(number) for number in SIZES]
        self._bounds = [self._word(number) for number in BOUNDS]
        low, high = (text.op("ext.i32.i64.u", self._load_word(number)) for number in DATA[:2])
        shifted = text.op("shl.i64", high, text.constant(32, "i32"))
        data = [text.op("or.i64", low, shifted), self._word(DATA[2])]
        self._outside = [*self._groups, *self._sizes, *data]
        self._narrow_outside = [self._load_word(DATA[3]), text.op("trunc.i64.i32", data[0])]
        self._references = [*range(FIRST_BINDING, FIRST_BINDING + BINDINGS)]
        if source.random() < 0.5:
            self._references.append(text.scratch(LENGTH // 4))
        self._at: list[str] = []
        self._wild: list[str] = []
        """Counters of loops that may not end but by touching what no buffer has."""

    def write(self) -> KernelText:
        if self._source.random() < 0.3:
            self._chain()
            return self._text
        for _ in range(self._source.choice((1, 1, 2, 3))):
            if self._source.random() < 0.4:
                self._outside.append(self._number(2, self._outside))
            self._nest()
        return self._text

    def _load_word(self, number: int) -> str:
        return self._text.op("buffer.load.i32", "%r1", self._text.constant(number))

    def _word(self, number: int) -> str:
        return self._text.op(self._source.choice(_EXTENSIONS), self._load_word(number))

    # -- loops -------------------------------------------------------------------------------------------

    def _nest(self) -> None:
        source, text = self._source, self._text
        depth = source.randint(1, 3)
        wild: list[int] = []
        loops: list[LoopText] = []
        for level in reversed(range(depth)):
            compare = source.choice(("cmp.lt.i64.s", "cmp.lt.i64.s", "cmp.lt.i64.u"))
            start, step = source.choice((0, 0, 0, 1)), source.choice((1, 1, 1, 2, 3))
            is_last, shape = all(loop.bound in self._known for loop in loops), source.random()
            count = source.choice((1, 2, 3, 4, 8, 17)[: 9 - 2 * depth])
            bound = self._constant(count + start)
            if shape < 0.25 and is_last:
                bound, wild = source.choice([*self._bounds, *self._sizes]), [*wild, level]
            elif shape < 0.5:
                least = text.op("min.i64.s", source.choice(self._sizes), bound)
                bound = text.op("max.i64.s", least, text.constant(-1))
                compare = "cmp.lt.i64.s"
            elif shape < 0.6 and is_last:
                product = text.op("mul.i64", *source.choices(self._sizes, k=2))
                bound, wild = text.op("mul.i64", product, text.constant(2)), [*wild, level]
            if level in wild and source.random() < 0.5:
                compare = "cmp.lt.i64.s"
            loops.insert(0, LoopText(compare, text.constant(start), bound, text.constant(step)))
        text.nest(loops, lambda at: self._body(at, [at[level] for level in wild]))

    _known: frozenset[str] = frozenset()
    """Constants that are numbers of iterations."""

    def _constant(self, number: int) -> str:
        register = self._text.constant(number)
        self._known |= {register}
        return register

    def _chain(self) -> None:
        """Nests that fill, add to and read the same elements of scratch memory, or nearly so."""
        source, text = self._source, self._text
        scratch, columns = text.scratch(LENGTH // 4), source.choice((2, 4, 8))
        rows: int | str = source.choice((1, 3, 8))
        if source.random() < 0.7:
            rows = source.choice([*self._sizes, *self._outside[-2:]])
        kind, compare = source.choice(("i32", "i32", "f32")), "cmp.lt.i64.s"
        last = source.choice((1, 2))
        for step in range(last + 1):
            loops: list[int | str] = [rows, columns]
            if step == last and source.random() < 0.3:
                compare = "cmp.lt.i64.u"
            if source.random() < 0.3:
                count = text.constant(rows) if isinstance(rows, int) else rows
                loops = [text.op("mul.i64", count, text.constant(columns))]
            factors = [(columns, 1), (1, source.choice((4, 8)))][source.random() < 0.2]
            if 0 < step < last and source.random() < 0.4:
                loops.append(source.choice((2, 3)))
            write = self._clear if step == 0 else self._give if step == last else self._add
            text.loops(loops, partial(write, kind, scratch, factors), compare)

    def _clear(self, kind: str, scratch: int, factors: tuple[int, int], at: list[str]) -> None:
        number = self._text.constant(self._source.choice((0, 7, 7)), kind)
        self._text.store(kind, scratch, self._linear(factors, at), number)

    def _add(self, kind: str, scratch: int, factors: tuple[int, int], at: list[str]) -> None:
        text, place = self._text, self._linear(factors, at)
        loaded = text.load(kind, self._source.choice(self._references[:BINDINGS]), place)
        text.store(kind, scratch, place, text.op(f"add.{kind}", text.load(kind, scratch, place), loaded))

    def _give(self, kind: str, scratch: int, factors: tuple[int, int], at: list[str]) -> None:
        text, place = self._text, self._linear(factors, at)
        text.store(kind, FIRST_BINDING, place, text.load(kind, scratch, place))

    def _linear(self, factors: tuple[int, int], at: list[str]) -> str:
        return self._text.index(0, *zip(at, factors if len(at) > 1 else (1,), strict=False))

    def _body(self, at: list[str], wild: list[str]) -> None:
        source, text = self._source, self._text
        self._at = at
        if wild:  # ends the loop soon, if nothing else does
            reference = source.choice(self._references)
            index = text.index(0, *((counter, source.choice((1, 4))) for counter in wild))
            text.load("i32", reference, index)
        values = [*at, *self._outside]
        for _ in range(source.randint(0, 3)):
            values.append(self._number(2, values))
        for _ in range(source.choice((1, 1, 1, 2))):
            self._statement(values)

    def _statement(self, values: list[str]) -> None:
        source, text = self._source, self._text
        kind, place = source.choice(KINDS), self._place(values)
        reference = source.choice(self._references)
        if source.random() < 0.6:
            text.store(kind, reference, place, self._value(kind, reference, place, values))
            return
        inside, end = text.label(), text.label()
        text.lines += [f"cond_br {self._condition(values, place)}, {inside}, {end}", f"{inside}:"]
        text.store(kind, reference, place, self._value(kind, reference, place, values))
        text.lines += [f"br {end}", f"{end}:"]

    # -- numbers -----------------------------------------------------------------------------------------

    def _affine(self) -> str:
        """A place that buffers have, as compilers write it."""
        source = self._source
        terms = [(counter, source.choice(_SMALL)) for counter in self._at]
        if source.random() < 0.3:
            terms.append((source.choice(self._groups), source.choice(_SMALL)))
        if source.random() < 0.1:
            terms.append((source.choice(self._at), source.choice(self._sizes)))  # type: ignore[arg-type]
        return self._text.index(source.choice((0, 0, 1, 5)), *terms)

    def _place(self, values: list[str]) -> str:
        shape = self._source.random()
        if shape < 0.5:
            return self._affine()
        other = self._number(1, values) if shape < 0.8 else self._source.choice(values)
        if shape < 0.7:
            return other
        if shape < 0.9:
            return self._text.op("add.i64", self._affine(), other)
        return self._text.op("select.i64", self._condition(values, other), other, self._affine())

    def _number(self, depth: int, values: Sequence[str]) -> str:
        """64 bits."""
        source, text = self._source, self._text
        if depth == 0:
            return source.choice(values) if source.random() < 0.8 else text.constant(extreme(source))
        shape, left = source.random(), self._number(depth - 1, values)
        if shape < 0.4:
            return text.op(source.choice(_WIDE), left, self._number(depth - 1, values))
        if shape < 0.55:
            return text.op(f"{source.choice(_DIVISIONS).format('i64')}", left, self._divisor(values))
        if shape < 0.65:
            amount = text.constant(source.choice((1, 3, 31, 32, 33, 60, 61, 63, 64, 65)), "i32")
            return text.op(source.choice(("shl.i64", "shr.i64.s", "shr.i64.u")), left, amount)
        if shape < 0.75:
            other = self._number(depth - 1, values)
            return text.op("select.i64", self._condition(values, left), left, other)
        if shape < 0.8:
            return text.op("fma.i64", left, self._number(0, values), self._number(0, values))
        return text.op(source.choice(_EXTENSIONS), self._narrow(depth, values))

    def _divisor(self, values: Sequence[str]) -> str:
        shape = self._source.random()
        if shape < 0.5:
            return self._text.constant(self._source.choice((2, 3, 4, 8, 64)))
        return self._text.constant(extreme(self._source) or 1) if shape < 0.8 else self._number(0, values)

    def _narrow(self, depth: int, values: Sequence[str]) -> str:
        """32 bits."""
        source, text = self._source, self._text
        if depth == 0 or source.random() < 0.3:
            if source.random() < 0.3:
                return source.choice(self._narrow_outside)
            return text.op("trunc.i64.i32", self._number(0, values))
        shape, left = source.random(), self._narrow(depth - 1, values)
        if shape < 0.5:
            return text.op(source.choice(_NARROW), left, self._narrow(depth - 1, values))
        constant = (extreme(source) + 2**31) % 2**32 - 2**31
        if shape < 0.7:
            return text.op(source.choice(("mul.i32", "add.i32")), left, text.constant(constant, "i32"))
        if shape < 0.85:
            divisor = text.constant(constant or 3, "i32")
            return text.op(source.choice(_DIVISIONS).format("i32"), left, divisor)
        width = source.choice(("ext.i8.i32.s", "ext.i8.i32.u", "ext.i16.i32.s", "ext.i16.i32.u"))
        return text.op(width, left)

    def _condition(self, values: Sequence[str], number: str) -> str:
        source, text = self._source, self._text
        compared = text.constant(source.choice((0, 1, 4, 8, 64, extreme(source))))
        if source.random() < 0.3:
            compared = self._number(0, values)
        if source.random() < 0.3:
            number = self._number(1, values)
        condition = text.op(source.choice(_COMPARES).format("i64"), number, compared)
        if source.random() < 0.25:
            other = text.op(source.choice(_COMPARES).format("i64"), self._number(0, values), compared)
            return text.op(source.choice(("and.i32", "or.i32", "xor.i32")), condition, other)
        return condition

    # -- elements ----------------------------------------------------------------------------------------

    def _value(self, kind: str, reference: int, place: str, values: Sequence[str]) -> str:
        """What is stored: something of what is there, of another buffer, or of a number."""
        source, text = self._source, self._text
        shape = source.random()
        if shape < 0.25 and kind == "i64":
            return source.choice(values)
        if shape < 0.25 and kind == "i32":
            return self._narrow(1, values)
        wide = "i32" if kind in ("i8", "i16") else kind
        own = self._load(kind, reference, place)
        if shape < 0.45:
            return text.op(f"add.{wide}", own, text.constant(source.choice((1, 3)), wide))
        other_place = place if source.random() < 0.4 else self._affine()
        other = source.choice(self._references)
        if source.random() < 0.3 and wide == "i32":
            loaded = self._chosen(self._condition(values, other_place), kind, other, other_place)
        else:
            loaded = self._load(kind, other, other_place)
        if shape < 0.7:
            return loaded
        is_same = (other, other_place) == (reference, place)  # the greater of equal denormals is either or 0
        operations = _FLOATS if wide == "f32" and not is_same else _FLOATS[:2]
        return text.op(f"{source.choice(operations)}.{wide}", own, loaded)

    def _load(self, kind: str, reference: int, place: str) -> str:
        sign = f".{self._source.choice('su')}" if kind in ("i8", "i16") else ""
        return self._text.load(f"{kind}{sign}", reference, place)

    def _chosen(self, condition: str, kind: str, reference: int, place: str) -> str:
        otherwise = self._text.constant(2, "i32")
        return self._text.when(condition, lambda: self._load(kind, reference, place), otherwise)


def kernel(number: int) -> KernelText:
    if nest_cases.is_narrower(number):
        source, text = random.Random(f"narrower {number}"), KernelText(BINDINGS)
        stored, loaded = FIRST_BINDING, FIRST_BINDING + 1
        text.loops(
            [source.choice(nest_cases.ODD)],
            lambda at: nest_cases.store_narrower(source, text, loaded, stored, at[0]),
        )
        return text
    return KernelWriter(random.Random(f"kernel {number}")).write()


def inputs(number: int, count: int) -> Iterator[Inputs]:
    source = random.Random(f"inputs {number}")
    for _ in range(count):
        words = [source.choice((0, 1, 2, 3, 4, 7, 16, 33, -1, -1)) for _ in SIZES]
        words += [source.choice((2, 5, -3, 2**31 - 1, -(2**31), extreme(source))) for _ in BOUNDS]
        wide = [source.choice((0, 1, 4, -1, extreme(source))) for _ in DATA]
        words += [wide[0], wide[0] >> 32, *wide[1:3]]
        places = list(APART)
        if source.random() < 0.4:
            places[source.randrange(1, BINDINGS)] = APART[0] + 64 * source.choice((-1, 0, 0, 1, 2))
        workgroups = (source.choice((1, 1, 1, 2, 3)), source.choice((1, 1, 1, 2)), 1)
        yield Inputs(workgroups, tuple((word + 2**31) % 2**32 - 2**31 for word in words), tuple(places))


def dispatched(executable: VmvxExecutable, given: Inputs, parts: int = 0) -> Outcome:
    """A dispatch; in parts, if there are any."""
    memory = memory_of(BINDINGS)
    end: object = "done"
    try:
        if parts:
            blocks = [memory[place : place + given.length] for place in given.places]
            run_parts(executable, given.workgroups[0], given.constants, blocks, parts, parts)
        else:
            commands = CommandList()
            bindings = [(DIRECT, address_of(memory) + place, given.length, ALL) for place in given.places]
            commands.dispatch(executable, 0, given.workgroups, given.constants, bindings)
            executor.require_native_executor().execute(commands, *commands.bind(()))
    except StatusError as error:
        end = (error.code.name, error.message)
    return Outcome(end, memory.tobytes())


class Case(NamedTuple):
    """The instructions of a kernel, and its dispatches."""

    lines: tuple[str, ...]
    inputs: tuple[Inputs, ...]
    has_all_passes: bool


def generate(number: int) -> Case:
    has_all_passes = number % nest_cases.ALL_PASSES_EVERY == 0
    return Case(tuple(kernel(number).lines), tuple(inputs(number, INPUTS)), has_all_passes)


def smaller(case: Case) -> Iterator[Case]:
    if len(case.inputs) > 1:
        yield from (case._replace(inputs=(given,)) for given in case.inputs)
    yield from (case._replace(lines=lines) for lines in nest_cases.fewer_lines(case.lines))


def run(case: Case) -> Result:
    """What ways to run a kernel disagree on, and what was run."""
    text = KernelText(BINDINGS)
    text.lines = list(case.lines)
    try:
        built = text.module().build()
        module = BytecodeModule.load(built)
    except (AssemblyError, StatusError):  # too small
        return [], Counter()
    ways = {tier: load(built, tier) for tier in ("plain", "fast")}
    with nullcontext() if case.has_all_passes else few_passes():
        native = with_code(lambda: load(built, "native"))
    # Parts are called by this thread, which does not take denormal numbers for zeros.
    is_exact = not any(f"{name}.f" in line for line in text.lines for name in _FLOATS)
    most = most_parts(native) if is_exact else 0
    loops = nests.find(build(from_program(module.program), 0))
    counts: Counter[str] = Counter({CASES: 1, "kernels that can be cut": most > 1})
    counts["nests"] = sum(isinstance(loop, nests.Nest) for loop in loops)
    found: list[str] = []
    plain = ways["plain"]
    every = nest_cases.edged(
        lambda given, length: dispatched(plain, given._replace(length=length)), case.inputs
    )
    for given in (given._replace(length=length) for given, length in every):
        ends = {tier: dispatched(executable, given) for tier, executable in ways.items()}
        ends["native"] = dispatched(native, given)
        if most > 1 and given.workgroups == (1, 1, 1) and ends["plain"].end == "done":
            ends["parts"] = dispatched(native, given, 3)
            counts["calls in parts"] += 1
        counts["calls"] += len(ends)
        counts["calls that end with a status"] += ends["plain"].end != "done"
        found += disagreements(f"a dispatch of {given}", ends)
    return found, counts


CAMPAIGN: Final = Campaign("random VMVX kernels", generate, run, smaller, nest_cases.written, batch=2)
