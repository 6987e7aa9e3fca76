"""Writes functions of nested loops, and finds the nest in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from jitree.dispatch.native import nests
from jitree.dispatch.native.build import build
from jitree.dispatch.native.source import from_program
from jitree.dispatch.native.ssa import SsaFunction
from jitree.vmfb.decode import BytecodeModule
from jitree.vmfb.words import FUSED
from tests.assembler import Assembler

REFS = 4
SIZES = 4
"""i64 arguments: bounds, bases and strides that the program does not know."""


@dataclass(frozen=True)
class LoopText:
    """Registers of a loop, and the instruction that says whether it goes on."""

    compare: str
    start: str
    bound: str
    step: str


@dataclass
class Text:
    """Lines of a function; every value has a register of its own."""

    lines: list[str] = field(default_factory=list)
    next: int = 2 * SIZES
    labels: int = 0

    def pair(self) -> str:
        self.next += 2
        return f"%i{self.next - 2}"

    def op(self, mnemonic: str, *operands: object) -> str:
        """An instruction with a result; its register."""
        register = self.pair()
        self.lines.append(f"{register} = {mnemonic} {', '.join(map(str, operands))}")
        return register

    def constant(self, number: float, kind: str = "i64") -> str:
        return self.op(f"const.{kind}", number)

    def load(self, kind: str, buffer: int, index: str) -> str:
        return self.op(f"buffer.load.{kind}", f"%r{buffer}", index)

    def store(self, kind: str, buffer: int, index: str, value: str) -> None:
        self.lines.append(f"buffer.store.{kind} %r{buffer}, {index}, {value}")

    def label(self) -> str:
        self.labels += 1
        return f"^b{self.labels}"

    def when(self, condition: str, then: Callable[[], str], otherwise: str) -> str:
        """A value that is computed under a condition, or another one."""
        true, end, result = self.label(), self.label(), self.pair()
        self.lines.append(f"cond_br {condition}, {true}, {end} {{{otherwise}->{result}}}")
        self.lines.append(f"{true}:")
        value = then()
        self.lines.append(f"br {end} {{{value}->{result}}}")
        self.lines.append(f"{end}:")
        return result

    def enter(self, header: str, start: str, variable: str) -> None:
        """Branches to a loop's header with the first value of its variable."""
        source, target = int(start[2:]), int(variable[2:])
        self.lines.append(f"br {header} {{%i{source}->%i{target}, %i{source + 1}->%i{target + 1}}}")

    def nest(self, loops: Sequence[LoopText], body: Callable[[list[str]], None]) -> None:
        """Loops around a body, from the outermost, which is given their variables."""
        variables = [self.pair() for _ in loops]
        exits = [self.label() for _ in loops]

        def write(depth: int) -> None:
            if depth == len(loops):
                body(variables)
                return
            header, inside, loop = self.label(), self.label(), loops[depth]
            self.enter(header, loop.start, variables[depth])
            self.lines.append(f"{header}:")
            condition = self.op(loop.compare, variables[depth], loop.bound)
            self.lines.append(f"cond_br {condition}, {inside}, {exits[depth]}")
            self.lines.append(f"{inside}:")
            write(depth + 1)
            self.lines.append(f"{variables[depth]} = add.i64 {variables[depth]}, {loop.step}")
            self.lines.append(f"br {header}")
            self.lines.append(f"{exits[depth]}:")

        write(0)

    def index(self, base: str | int, *terms: tuple[str, str | int]) -> str:
        """base + the sum of variable * factor."""
        total = self.constant(base) if isinstance(base, int) else base
        for variable, factor in terms:
            multiplier = self.constant(factor) if isinstance(factor, int) else factor
            total = self.op("fma.i64", variable, multiplier, total)
        return total


@dataclass(frozen=True)
class Sum:
    """So many more than what a register holds."""

    register: str
    more: int


Bound = int | str | Sum | tuple["Bound", "Bound"]
"""A number, a register, a sum, or two factors whose product it is."""


@dataclass(frozen=True)
class Level:
    """A loop."""

    bound: Bound
    start: Bound = 0
    step: int = 1
    compare: str = "cmp.lt.i64.s"


def argument(position: int) -> str:
    """The register of an i64 argument."""
    return f"%i{2 * position}"


def bound_register(text: Text, bound: Bound) -> str:
    """Where a bound is."""
    if isinstance(bound, int):
        return text.constant(bound)
    if isinstance(bound, str):
        return bound
    if isinstance(bound, Sum):
        return text.op("add.i64", bound.register, text.constant(bound.more))
    return text.op("mul.i64", *(bound_register(text, factor) for factor in bound))


def merged(bounds: Sequence[Bound]) -> Bound:
    """The bound of one loop in place of several."""
    product = bounds[-1]
    for bound in reversed(bounds[:-1]):
        product = (bound, product)
    return product


def digits(text: Text, variable: str, bounds: Sequence[Bound]) -> list[str]:
    """The variables of loops that have been merged, as the compiler takes them apart."""
    found, rest = [], variable
    for place in range(1, len(bounds)):
        divisor = bound_register(text, merged(bounds[place:]))
        quotient, zero = text.op("div.i64.s", rest, divisor), text.constant(0)
        found.append(quotient)
        rest = text.op("rem.i64.s", variable, divisor)
        negative = text.op("cmp.lt.i64.s", rest, zero)
        rest = text.op("select.i64", negative, text.op("add.i64", rest, divisor), rest)
    return [*found, rest]


Body = Callable[[Text, list[str]], None]


Load = Callable[[Text, int, str], str]
"""Writes the load of an element of a buffer as a number, by its index; the register."""


def product(
    sizes: tuple[int, int, int], kind: str, loads: tuple[Load, Load], transposed: bool, apart: int = 1
) -> Body:
    """Rows, whose elements lie ``apart``, by a matrix, or by a transposed one, that begin at an odd
    element."""
    _, columns, depth = sizes

    def body(text: Text, at: list[str]) -> None:
        row, column, k = at
        out = text.index(7, (row, columns), (column, 1))
        place = ((column, depth), (k, 1)) if transposed else ((column, 1), (k, columns + 5))
        left = loads[0](text, 1, text.index(1, (row, apart * depth + 3), (k, apart)))
        right = loads[1](text, 2, text.index(3, *place))
        text.store(kind, 0, out, text.op(f"fma.{kind}", left, right, text.load(kind, 0, out)))

    return body


def product_ends(sizes: tuple[int, int, int], transposed: bool) -> tuple[int, int]:
    """Elements of both factors of such a product, from the beginning of their buffers on."""
    rows, columns, depth = sizes
    right = columns * depth if transposed else (depth - 1) * (columns + 5) + columns
    return 1 + (rows - 1) * (depth + 3) + depth, 3 + right


def program(levels: Sequence[Level], body: Body, arithmetic: str = FUSED) -> SsaFunction:
    """A function of some buffers and numbers with loops around a body, which rounds as kernels do."""
    loaded = BytecodeModule.load(module(levels, body).build(), None, arithmetic)
    return build(from_program(loaded.program), 0)


def module(levels: Sequence[Level], body: Body) -> Assembler:
    """A module of that function."""
    text = Text()
    bounds = [bound_register(text, level.bound) for level in levels]
    loops = [
        LoopText(level.compare, bound_register(text, level.start), bound, text.constant(level.step))
        for level, bound in zip(levels, bounds, strict=True)
    ]
    text.nest(loops, lambda variables: body(text, variables))
    text.lines.append("return []")
    return as_module(text)


def as_module(text: Text) -> Assembler:
    """A module of one function."""
    return Assembler("m").function("f", f"0{'r' * REFS}{'I' * SIZES}_v", "\n".join(text.lines))


def only_nest(function: SsaFunction) -> nests.Nest:
    """The nest of a function that is taken as a whole."""
    (found,) = nests.find(function)
    assert isinstance(found, nests.Nest), found.reason
    return found


def refusals(function: SsaFunction) -> list[str]:
    return [found.reason for found in nests.find(function) if isinstance(found, nests.NestRefusal)]
