"""Random loop nests with constants that wrap: all tiers leave the same memory and end the same way.

A nest is given by its number, and so is what it is called with.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from unittest.mock import patch

import numpy as np

from jitree.dispatch.context import Context
from jitree.dispatch.linking import BytecodeInstance
from jitree.errors import StatusError
from jitree.regs import machine
from jitree.regs.buffer import VmBuffer
from jitree.regs.ref_types import RefTypes
from jitree.vmfb.decode import BytecodeModule
from tests.assembler import Assembler, AssemblyError
from tests.checked.begin import let_only
from tests.codegen.images import few_passes
from tests.dispatch.harness import compile_here
from tests.dispatch.native.nests.programs import REFS, SIZES, Level, Sum, Text, argument, as_module, module
from tests.fuzz.campaign import CASES, Campaign, Result
from tests.hal.native_kernels import aligned

if TYPE_CHECKING:
    import numpy.typing as npt

Given = TypeVar("Given")
TIERS: Final = ("plain", "fast", "native")
AUTO: Final = "auto"
KINDS: Final = ("i8", "i16", "i32", "i64", "f32", "f64")
INPUTS: Final = 10
"""Calls of each nest."""
LENGTH: Final = 512
"""Bytes of each buffer, which lie in one block with as many before, between and after them."""
ALL_PASSES_EVERY: Final = 16
"""Of so many nests one goes through all that LLVM does for a program, which takes as long as two others."""
ODD: Final = (1, 9, 17, 25, 33)
"""Numbers of iterations of which vectors leave one."""
AUTO_EVERY: Final = 3
"""How many calls there are for each one on ``auto``, which needs a new context."""
APART: Final = tuple(LENGTH * (2 * ref + 1) for ref in range(REFS))
"""Where in the block."""

_ENDS: Final = ("br ", "cond_br", "return")
_NEAR: Final = (1, 2, 3, 7, 8, 63, 64, 2**31, 2**32, 2**61, 2**62, 2**63)
_COMPARES: Final = ("cmp.lt.i64.s", "cmp.lt.i64.u", "cmp.lt.i64.s", "cmp.eq.i64", "cmp.ne.i64")
_DIVISIONS: Final = ("div.i64.s", "div.i64.u", "rem.i64.s", "rem.i64.u")
_NARROWER: Final = (
    ("i64", "trunc.i64.i32", ("i8", "i16", "i32")),
    ("i32", "", ("i8", "i16")),
    ("f64", "trunc.f64.f32", ("f32",)),
)
"""What is loaded, what makes it narrower, and what is stored then."""


def _signed(number: int) -> int:
    return (number + 2**63) % 2**64 - 2**63


def extreme(source: random.Random) -> int:
    """A number near one that some width or product does not hold."""
    number = source.choice(_NEAR) + source.choice((0, 0, 0, 1, -1, 4, -8, 32, -32))
    return _signed(source.choice((number, number, -number)))


class NestWriter:
    """Writes the body of one nest."""

    def __init__(self, source: random.Random, text: Text, variables: Sequence[str]) -> None:
        self._source = source
        self._text = text
        self._variables = variables
        self._numbers: list[str] = list(variables)

    def write(self) -> None:
        kind = self._source.choice(KINDS)
        for _ in range(self._source.randint(1, 4)):
            self._numbers.append(self._number(2))
        place = self._wrapped() if self._source.random() < 0.6 else self._place()
        if self._source.random() < 0.4:
            self._text.store(kind, 0, place, self._value(kind, place))
            return
        end, inside = self._text.label(), self._text.label()
        limit = self._text.constant(self._source.choice((4, 8, 16, 64, LENGTH, extreme(self._source))))
        compared = place if self._source.random() < 0.6 else self._source.choice(self._numbers)
        condition = self._text.op(self._source.choice(_COMPARES[:2]), compared, limit)
        if self._source.random() < 0.3:
            other = self._text.op(self._source.choice(_COMPARES), *self._source.choices(self._numbers, k=2))
            condition = self._text.op("and.i32", condition, other)
        self._text.lines += [f"cond_br {condition}, {inside}, {end}", f"{inside}:"]
        self._text.store(kind, 0, place, self._value(kind, place))
        self._text.lines += [f"br {end}", f"{end}:"]

    def _small(self) -> str:
        """An index that buffers have, as compilers write them."""
        terms = [(variable, self._source.choice((0, 1, 1, 2, 4, 8))) for variable in self._variables]
        return self._text.index(self._source.choice((0, 0, 1, 5)), *terms)

    def _product(self) -> str:
        """A counter times a number that wraps in a few iterations."""
        return self._text.op(
            "mul.i64", self._source.choice(self._variables), self._text.constant(extreme(self._source))
        )

    def _wrapped(self) -> str:
        """An index that lies in the buffer only if what wraps is taken for what it is."""
        source, text, shape = self._source, self._text, self._source.random()
        number = self._product()
        if shape < 0.2:
            return number
        if shape < 0.4:
            divisor = text.constant(_signed(abs(extreme(source)) or 2))
            return text.op(source.choice(_DIVISIONS), number, divisor)
        if shape < 0.7:
            bound = text.constant(source.choice((0, 0, 1, extreme(source))))
            if source.random() < 0.3:
                bound = self._product()
            condition = text.op(source.choice(_COMPARES), number, bound)
            return text.op("select.i64", condition, self._small(), self._small())
        self._numbers = [number]  # which the predicate compares
        return text.index(source.choice((0, 1)), (number, source.choice((1, 2, 4, 8))))

    def _place(self) -> str:
        shape = self._source.random()
        if shape < 0.25:
            return self._small()
        number = self._source.choice(self._numbers)
        if shape < 0.5:
            return self._text.op("add.i64", self._small(), number)
        return number if shape < 0.8 else self._number(1)

    def _value(self, kind: str, place: str) -> str:
        own = place if self._source.random() < 0.5 else self._small()
        narrow = kind in ("i8", "i16")
        loads = f"{kind}.{self._source.choice('su')}" if narrow else kind
        loaded = self._text.load(loads, self._source.choice((0, 1, 1)), own)
        wide = "i32" if narrow else kind
        if kind == "i64" and self._source.random() < 0.6:
            return self._text.op("add.i64", loaded, self._source.choice(self._numbers))
        one = self._text.constant(self._source.choice((1, 3)), wide)
        return self._text.op(f"add.{wide}", loaded, one)

    def _number(self, depth: int) -> str:
        source, text = self._source, self._text
        if depth == 0 or source.random() < 0.15:
            choice = source.random()
            if choice < 0.6:
                return source.choice(self._numbers)
            return argument(source.randrange(SIZES)) if choice < 0.8 else text.constant(extreme(source))
        shape, left = source.random(), self._number(depth - 1)
        if shape < 0.3:
            return text.op("mul.i64", left, text.constant(extreme(source)))
        if shape < 0.5:
            return text.op(source.choice(("add.i64", "sub.i64")), left, self._number(depth - 1))
        if shape < 0.6:
            return text.op("shl.i64", left, text.constant(source.choice((1, 2, 31, 32, 60, 61, 62)), "i32"))
        if shape < 0.8:
            divisor = abs(extreme(source)) or 2
            return text.op(source.choice(_DIVISIONS), left, text.constant(_signed(divisor)))
        compared = text.constant(source.choice((0, 1, extreme(source))))
        condition = text.op(source.choice(_COMPARES), left, compared)
        return text.op("select.i64", condition, self._number(depth - 1), self._number(depth - 1))


def is_narrower(number: int) -> bool:
    """Whether a case is elements that become narrower, of which LLVM knows how many: it has all passes."""
    return number % (2 * ALL_PASSES_EVERY) == 0


def store_narrower(source: random.Random, text: Text, loaded: int, stored: int, place: str) -> None:
    """Stores an element of another buffer with fewer bits, perhaps the upper ones, perhaps at one place."""
    wide, operation, kinds = source.choice(_NARROWER)
    value = text.load(wide, loaded, place)
    value = text.op(operation, value) if operation else value
    if kinds[0] != "f32" and source.random() < 0.3:
        value = text.op("shr.i32.u", value, text.constant(16, "i32"))
    inside, end = text.label(), text.label()
    if is_one := source.random() < 0.3:
        only = text.op("cmp.eq.i64", place, text.constant(source.choice((0, 3, 16))))
        text.lines += [f"cond_br {only}, {inside}, {end}", f"{inside}:"]
    text.store(source.choice(kinds), stored, place, value)
    text.lines += [f"br {end}", f"{end}:"] if is_one else []


def nest(number: int) -> Assembler:
    """The module of a nest: ``f`` of four buffers and four numbers. Some loops begin at the last number."""
    source, starts = (random.Random(f"{part} {number}") for part in ("nest", "starts"))
    if is_narrower(number):
        return module([Level(source.choice(ODD))], lambda text, at: store_narrower(source, text, 1, 0, at[0]))
    levels = []
    depth = source.randint(1, 3)
    for position in range(depth):
        count: int | str = source.choice((1, 2, 3, 4, 5, 8, 17)[: 9 - 2 * depth])
        if source.random() < 0.3:
            count = argument(position)
        step, compare = source.choice((1, 1, 1, 2, 3)), source.choice(_COMPARES[:3])
        start = source.choice((0, 0, 0, 1, 0 if compare.endswith("u") else -2))
        if isinstance(count, int) and step == 1 and starts.random() < 0.3:
            first = argument(SIZES - 1)
            levels.append(Level(Sum(first, count), first, step, compare))
        else:
            levels.append(Level(count, start, step, compare))
    return module(levels, lambda text, at: NestWriter(source, text, at).write())


def inputs(number: int, count: int) -> Iterator[tuple[int, ...]]:
    """Numbers to call a nest with: numbers of iterations that are usual, and others."""
    source = random.Random(f"inputs {number}")
    for _ in range(count):
        usual = [source.choice((0, 1, 2, 3, 4, 7)) for _ in range(SIZES - 1)]
        if source.random() < 0.3:  # none is negative: an unsigned loop would not end
            usual[source.randrange(SIZES - 1)] = source.choice((16, 20, 33))
        yield (*usual, source.choice((0, 1, 5, -1, extreme(source))))


class Outcome(NamedTuple):
    """Of a call."""

    end: object
    memory: bytes
    """All memory around its buffers."""
    is_native: bool = False
    """Whether the module's functions have machine code."""


def memory_of(blocks: int) -> npt.NDArray[np.uint8]:
    """For so many buffers, with as many before, between and after them."""
    return aligned(np.arange(LENGTH * (2 * blocks + 1), dtype=np.uint8) % 5)


class Tier:
    """A context that calls ``f`` of a module again and again."""

    def __init__(self, loaded: BytecodeModule, tier: str) -> None:
        self._context = Context(RefTypes(), tier=tier)
        self._context.register([loaded])
        self._function = self._context.lookup("m.f")

    def call(self, numbers: Sequence[int], places: Sequence[int] = APART, length: int = LENGTH) -> Outcome:
        block = memory_of(REFS)
        let_only(block, places, length)
        buffers: list[Any] = [VmBuffer.alias(block[place : place + length]) for place in places]
        end: object = "done"
        try:
            self._context.invoke(self._function, [*buffers, *numbers])
        except StatusError as error:
            end = (error.code.name, error.message)
        (instance,) = self._context._instances
        is_native = isinstance(instance, BytecodeInstance) and instance.record.native is not None
        return Outcome(end, block.tobytes(), is_native)

    def __enter__(self) -> Tier:
        return self

    def __exit__(self, *exception: object) -> None:
        self._context.close()


def called(
    loaded: BytecodeModule, tier: str, numbers: Sequence[int], places: Sequence[int] = APART
) -> Outcome:
    """Calls ``f`` in a new context."""
    with Tier(loaded, tier) as anew:
        return anew.call(numbers, places)


def called_on_auto(loaded: BytecodeModule, numbers: Sequence[int], length: int) -> Outcome:
    """A call that begins in the interpreter: what runs in a loop is taken for what runs for long."""
    with patch.object(machine, "FUEL", 3), patch.object(machine, "TIME", 0), Tier(loaded, AUTO) as anew:
        return anew.call(numbers, length=length)


def outcome(
    loaded: BytecodeModule, tier: str, numbers: Sequence[int], places: Sequence[int] = APART
) -> tuple[object, bytes]:
    """How a call ends, and what it leaves."""
    return called(loaded, tier, numbers, places)[:2]


class Case(NamedTuple):
    """The instructions of a nest, and what it is called with."""

    lines: tuple[str, ...]
    inputs: tuple[tuple[int, ...], ...]
    has_all_passes: bool
    """Whether LLVM does what it does for a program, or as little as it can."""


def generate(number: int) -> Case:
    lines = nest(number).text("f").splitlines()
    return Case(tuple(lines), tuple(inputs(number, INPUTS)), number % ALL_PASSES_EVERY == 0)


def fewer_lines(lines: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Texts without some lines, from half of them to one; blocks and what ends them stay."""
    size = len(lines) // 2
    while size:
        for start in range(0, len(lines), size):
            part = lines[start : start + size]
            kept = tuple(line for line in part if line.endswith(":") or line.startswith(_ENDS))
            if len(kept) < len(part):
                yield lines[:start] + kept + lines[start + size :]
        size //= 2


def smaller(case: Case) -> Iterator[Case]:
    if len(case.inputs) > 1:
        yield from (case._replace(inputs=(numbers,)) for numbers in case.inputs)
    yield from (case._replace(lines=lines) for lines in fewer_lines(case.lines))


def written(case: Case) -> bytes:
    """The text of a test."""
    return "\n".join([*(f"// {numbers}" for numbers in case.inputs), *case.lines, ""]).encode()


def edged(plain: Callable[[Given, int], Outcome], inputs: Sequence[Given]) -> Iterator[tuple[Given, int]]:
    """The inputs, with whole buffers, and one that ends well also with buffers that just suffice for it, and
    with a byte less."""
    yield from ((given, LENGTH) for given in inputs)
    for given in inputs:
        if plain(given, LENGTH).end == "done":
            lengths = range(LENGTH + 1)
            least = bisect_left(lengths, True, key=lambda length: plain(given, length).end == "done")
            yield from ((given, length) for length in (least, least - 1) if length >= 0)
            return


def run(case: Case) -> Result:
    """What tiers disagree on, and what was called. Natively, a nest that is refused is scalar code."""
    text = Text(list(case.lines))
    try:
        loaded = BytecodeModule.load(as_module(text).build())
    except (AssemblyError, StatusError):  # too small
        return [], Counter()
    with nullcontext() if case.has_all_passes else few_passes():
        native = compile_here(loaded)
    counts: Counter[str] = Counter({CASES: 1, "functions that are not compiled": len(native.refusals)})
    found: list[str] = []
    with ExitStack() as stack:
        tiers = {tier: stack.enter_context(Tier(loaded, tier)) for tier in TIERS}
        plain = tiers["plain"]
        every = edged(lambda numbers, length: plain.call(numbers, length=length), case.inputs)
        for number, (numbers, length) in enumerate(every):
            ends = {name: tier.call(numbers, length=length) for name, tier in tiers.items()}
            if number % AUTO_EVERY == 0:
                ends[AUTO] = called_on_auto(loaded, numbers, length)
                counts["calls on auto that go over to machine code"] += ends[AUTO].is_native
            counts["calls"] += len(ends)
            counts["calls that end with a status"] += ends["plain"].end != "done"
            found += disagreements(f"a call with {numbers} and {length} bytes", ends)
    return found, counts


def disagreements(what: str, ends: Mapping[str, Outcome]) -> Iterator[str]:
    """A line for each way that does not end as the first one does."""
    first, *others = ends
    expected = ends[first]
    for way in others:
        end, memory, _ = ends[way]
        if (end, memory) != expected[:2]:
            other = "" if memory == expected.memory else ", other memory"
            yield f"{what}: {expected.end} on {first}, {end} on {way}{other}"


CAMPAIGN: Final = Campaign("random nests", generate, run, smaller, written, batch=4)
