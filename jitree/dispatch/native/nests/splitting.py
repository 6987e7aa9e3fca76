"""Takes loops apart whose variable is divided: the compiler's way to merge parallel loops, and to find the
tile that an element lies in.

A loop over ``n`` becomes one over the quotients and one over the remainders of its variable. Where ``n`` is
no multiple of the divisor, the last iterations of the inner loop are none of the program's: its accesses
then happen under the loop's own condition.
"""

from __future__ import annotations

from collections.abc import Iterator

from jitree.dispatch.native.nests.polynomials import Polynomial
from jitree.dispatch.native.nests.reading import Level, NotANest, PolynomialReader
from jitree.dispatch.native.ssa import PHI, SsaLoop, Value


def add_level(reader: PolynomialReader, loop: SsaLoop, level: Level) -> None:
    """Adds the next loop inwards, as two where that makes divisions disappear."""
    variable = loop.header.parameters[0]
    divisors = list(_divisors(loop, level)) if level.initial.number == 0 and level.step == 1 else []
    exact = [divisor for divisor in divisors if not level.bound.divided(divisor)[1].terms]
    if exact:
        outer = (level.bound.divided(exact[0])[0], 1)
        reader.add_split(variable, level, *_split(variable, level, outer, exact[0]))
        reader.not_negative |= exact[0].symbols()  # two negative factors make a positive product
    elif divisors and divisors[0].number is not None:
        outer = (level.bound, divisors[0].number)
        reader.add_split(variable, level, *_split(variable, level, outer, divisors[0]))
        reader.limits.append(loop.header.terminator.operands[0])
    else:
        reader.add(variable, level)


def _split(
    variable: Value, level: Level, outer: tuple[Polynomial, int], inner: Polynomial
) -> tuple[Level, Level]:
    """Loops up to a bound in steps, and up to the divisor."""
    zero = Polynomial.constant(0)
    counters = [
        Value(-2 * variable.number - part, "i64", PHI, [], (), variable.pc, variable.block) for part in (1, 2)
    ]
    bound, step = outer
    return (
        Level(counters[0], zero, bound, step, level.unsigned),
        Level(counters[1], zero, inner, 1, level.unsigned),
    )


def _divisors(loop: SsaLoop, level: Level) -> Iterator[Polynomial]:
    """What the variable is divided by in the loop, if that can be less than the number of iterations."""
    probe = PolynomialReader(loop)
    probe.add(loop.header.parameters[0], level)
    for block in sorted(loop.blocks, key=lambda block: block.order):
        for instruction in block.instructions:
            if not instruction.mnemonic.startswith(("div.i64", "rem.i64")):
                continue
            try:
                dividend, divisor = map(probe.read, instruction.operands)
            except NotANest:
                continue
            if dividend != Polynomial.symbol(level.counter) or level.bound == divisor:
                continue
            number, count = divisor.number, level.extent
            if number is None or (number > 1 and (count is None or count > number)):
                yield divisor
