"""Random programs of bytecode: all tiers give the same results, errors and memory, and leave no reference.

``dispatch/random_programs.py`` writes them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any, Final, NamedTuple

from jitree.errors import StatusError
from jitree.vmfb.decode import BytecodeModule
from tests.assembler import Assembler, AssemblyError
from tests.codegen.images import few_passes
from tests.dispatch.harness import compile_here
from tests.dispatch.random_programs import (
    Arguments,
    TypedWriter,
    Writer,
    outcomes,
    program,
    typed_program,
)
from tests.fuzz.campaign import CASES, Campaign, Result
from tests.fuzz.nests import fewer_lines

CALLS: Final = 4
"""Of each program."""
NATIVE_EVERY: Final = 8
"""Of so many programs one is compiled, which takes as long as to interpret four."""
ALL_PASSES_EVERY: Final = 64
"""Of so many programs one goes through all that LLVM does."""
_SMALL: Final = range(-4, 21)
_SIZES: Final = range(-4, 71)


class Case(NamedTuple):
    lines: tuple[str, ...]
    bytecode: int
    tiers: tuple[str, ...]
    arguments: tuple[Arguments, ...]
    has_all_passes: bool

    def module(self) -> Assembler:
        text = "\n".join(self.lines)
        return typed_program(text) if "native" in self.tiers else program(text, self.bytecode)


def generate(number: int) -> Case:
    chance = random.Random(f"program {number}")
    is_native = number % NATIVE_EVERY == 0
    writer = TypedWriter(chance.choice) if is_native else Writer(chance.choice)
    arguments = [(chance.choice(_SMALL), chance.choice(_SMALL), chance.choice(_SIZES)) for _ in range(CALLS)]
    return Case(
        tuple(writer.program().splitlines()),
        17 if is_native else chance.choice((15, 17)),
        ("plain", "fast", "native") if is_native else ("plain", "fast"),
        tuple(arguments),
        number % ALL_PASSES_EVERY == 0,
    )


def smaller(case: Case) -> Iterator[Case]:
    if len(case.arguments) > 1:
        yield from (case._replace(arguments=(given,)) for given in case.arguments)
    yield from (case._replace(lines=lines) for lines in fewer_lines(case.lines))


def written(case: Case) -> bytes:
    return "\n".join([*(f"// {given}" for given in case.arguments), *case.lines, ""]).encode()


def run(case: Case) -> Result:
    try:
        built = case.module().build()
        module = BytecodeModule.load(built)
    except (AssemblyError, StatusError):  # too small
        return [], Counter()
    if "native" in case.tiers:
        with nullcontext() if case.has_all_passes else few_passes():
            compile_here(module)
    counts = Counter({CASES: 1})
    found: list[str] = []
    by_tier = (outcomes(module, tier, case.arguments) for tier in case.tiers)
    for given, (expected, *others) in zip(case.arguments, zip(*by_tier, strict=True), strict=True):
        counts["calls"] += len(case.tiers)
        counts["calls that end with a status"] += expected[0][0] != "done"
        for tier, seen in zip(case.tiers[1:], others, strict=True):
            found += _difference(f"a call with {given} on {tier}", expected, seen)
    return found, counts


def _difference(what: str, expected: tuple[Any, ...], seen: tuple[Any, ...]) -> Iterator[str]:
    names = ("end", "memory", "references held")
    for name, first, second in zip(names, expected, seen, strict=True):
        if first != second:
            yield f"{what}: {name} {second}, not {first}"


CAMPAIGN: Final = Campaign("programs of bytecode", generate, run, smaller, written, batch=32)
