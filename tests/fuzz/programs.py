"""Random programs of bytecode: all tiers give the same results, errors and memory, and leave no reference.

``dispatch/random_programs.py`` writes them. iree.runtime gives the same, where it is installed (`peers.py`).
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import islice
from typing import Any, Final, NamedTuple

from jitree.dispatch.context import Context
from jitree.errors import StatusError
from jitree.regs.buffer import VmBuffer
from jitree.regs.list import VmList
from jitree.regs.ref_types import RefTypes
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
from tests.fuzz.peers import ITEMS, LENGTH, SHOWN, Outcome, peer

CALLS: Final = 4
"""Of each program."""
NATIVE_EVERY: Final = 8
"""Of so many programs one is compiled, which takes as long as to interpret four."""
ALL_PASSES_EVERY: Final = 64
"""Of so many programs one goes through all that LLVM does."""
PEER_EVERY: Final = 3
"""Of so many programs iree.runtime is asked for one, if it is of the bytecode that it knows."""
PEER_BYTECODE: Final = 17
_SMALL: Final = range(-4, 21)
_SIZES: Final = range(-4, 71)


class Case(NamedTuple):
    lines: tuple[str, ...]
    bytecode: int
    tiers: tuple[str, ...]
    arguments: tuple[Arguments, ...]
    has_all_passes: bool
    has_peer: bool

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
        number % PEER_EVERY == 0,
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
    if case.has_peer and case.bytecode == PEER_BYTECODE:
        found += _differences_from_peer(case, counts)
    return found, counts


def _difference(what: str, expected: tuple[Any, ...], seen: tuple[Any, ...]) -> Iterator[str]:
    names = ("end", "memory", "references held")
    for name, first, second in zip(names, expected, seen, strict=True):
        if first != second:
            yield f"{what}: {name} {second}, not {first}"


_UNDEFINED: Final = re.compile(r"div|rem|global\..*indirect")
"""What iree.runtime leaves to the processor, or does beyond a module's memory: such lines are left out."""
_WRAPPED: Final = re.compile(r"byte range \[\d+, \d{19,}")
"""An offset or a length that iree.runtime lets wrap: the end of the range is inside of the buffer then."""


def _differences_from_peer(case: Case, counts: Counter[str]) -> Iterator[str]:
    """Up to what iree.runtime is known to do wrong, or has no memory for."""
    asked = peer()
    if asked is None:
        return
    lines = [line for line in case.lines if not _UNDEFINED.search(line)]
    built = (typed_program if "native" in case.tiers else program)("\n".join(lines)).build()
    answer = asked.ask(built, case.arguments)
    if answer is None:
        counts["programs that end iree.runtime"] += 1
        return
    if isinstance(answer, str):
        yield f"iree.runtime refuses it: {answer}"
        return
    seen = _like_peer(BytecodeModule.load(built), case.arguments)
    for given, ours, (end, *theirs) in zip(case.arguments, seen, answer, strict=False):
        counts["calls of iree.runtime"] += 1
        if "RESOURCE_EXHAUSTED" in (ours[0][1], *re.findall(r"\b[A-Z_]{8,}\b", str(end[1]))):
            return
        if end[0] == ours[0][0] == "status" and ours[0][1] in end[1]:
            end = ours[0]
        if repr(ours) != repr((end, *theirs)):  # by their texts: NaN is unlike itself
            yield f"a call with {given} by iree.runtime: {(end, *theirs)}, not {ours}"


def _like_peer(module: BytecodeModule, calls: Sequence[Arguments]) -> Iterator[Outcome]:
    """What a peer says of calls, up to one whose range wraps."""
    with Context(RefTypes(), tier="fast") as context:
        context.register([module])
        function = context.lookup("m.f")
        for given in calls:
            buffer, items = VmBuffer(LENGTH), VmList()
            for value in range(ITEMS):
                items.append(value)
            end: Outcome
            try:
                *values, ref = context.invoke(function, [*given, buffer, items])
                end = ("done", *values, _shown(ref))
            except StatusError as error:
                if _WRAPPED.search(error.message):
                    return
                end = ("status", error.code.name)
            yield end, bytes(buffer), [_shown(item) for item in islice(items, SHOWN)]


def _shown(value: object) -> object:
    if isinstance(value, VmBuffer):
        return bytes(value)
    return "list" if isinstance(value, VmList) else value


CAMPAIGN: Final = Campaign("programs of bytecode", generate, run, smaller, written, batch=32)
