"""Damaged executables: libraries, VMVX kernels and containers of CUDA are refused, or are what they were.

Of a library, what a loader reads is damaged, and what it says about itself: not its code, which no loader can
check. Damaged VMVX kernels run, on two tiers, and leave the same memory.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from functools import cache, partial
from typing import Final, NamedTuple
from unittest.mock import patch

from jitree.cuda import executable_format
from jitree.errors import StatusError
from jitree.loaders import embedded_elf
from jitree.loaders.elf_format import host_architecture
from tests.cuda.programs import DATA
from tests.fuzz import kernels
from tests.fuzz.campaign import CASES, Campaign, Result
from tests.fuzz.fields import Layout
from tests.fuzz.modules import LoopedError, in_time, prepare
from tests.fuzz.mutations import edges, fewer_changes, mutate
from tests.fuzz.nests import disagreements
from tests.loaders import samples
from tests.loaders.vmvx.programs import load

LIBRARIES: Final = ("tiny-3.13.0.so", "tiny_sources-20240410.859.so", "multi_export-3.9.0.so")
KERNELS: Final = 64
"""Random kernels that are damaged."""
_KINDS: Final = ("structure", "tables", "cuda", "kernel", "kernel")
_TABLES: Final = (".dynamic", ".dynsym", ".hash", ".rela.dyn", ".dynstr")
_RELOCATION: Final = 24
"""Bytes, of which the last eight are the addend."""
_TEXT: Final = 400
"""Bytes before and after the text of a container, which is most of it and is not read here."""
_INPUTS: Final = 2


class Case(NamedTuple):
    kind: str
    source: str
    number: int
    data: bytes


@cache
def _whole(kind: str, source: str) -> bytes:
    if kind == "kernel":
        return kernels.kernel(int(source)).module().build()
    return (DATA / source).read_bytes() if kind == "cuda" else samples.sample(source)


@cache
def _layout(source: str) -> Layout:
    return Layout(_whole("kernel", source))


@cache
def _places(kind: str, source: str) -> list[int]:
    """Where a file is damaged."""
    data = _whole(kind, source)
    if kind == "cuda":
        return [*range(_TEXT), *range(len(data) - _TEXT, len(data))]
    if kind == "structure":
        sections = [samples.section(data, name) for name in _TABLES]
        return [*range(64 + 56 * 8), *(at for start, size in sections for at in range(start, start + size))]
    start, size = samples.section(data, ".rodata")
    relocations, length = samples.section(data, ".rela.dyn")
    addends = range(relocations + 16, relocations + length, _RELOCATION)
    return [*range(start, start + size), *(at for at in addends for _ in range(16))]


def generate(number: int) -> Case:
    chance = random.Random(f"executable {number}")
    kind = _KINDS[number % len(_KINDS)] if samples.ON_X86_64 else chance.choice(_KINDS[2:])
    if kind == "kernel":
        source = str(chance.randrange(KERNELS))
        return Case(kind, source, number, mutate(_whole(kind, source), _layout(source), chance))
    files = sorted(path.name for path in DATA.glob("*.fb")) if kind == "cuda" else LIBRARIES
    source = chance.choice(files)
    damaged = bytearray(_whole(kind, source))
    edges(damaged, _places(kind, source), chance)
    if chance.random() < 0.02:
        del damaged[chance.randrange(len(damaged)) :]
    return Case(kind, source, number, bytes(damaged))


def smaller(case: Case) -> Iterator[Case]:
    for data in fewer_changes(_whole(case.kind, case.source), case.data):
        yield case._replace(data=data)


def run(case: Case) -> Result:
    counts = Counter({CASES: 1})
    found: list[str] = []
    try:
        found = _RUN[case.kind](case)
        counts[f"{case.kind}: loaded"] += 1
    except LoopedError:
        counts[f"{case.kind}: looped"] += 1
    except StatusError as error:
        counts[f"{case.kind}: {error.code.name}"] += 1
        if not error.message:
            found = ["a status without a message"]
    return found, counts


def _structure(case: Case) -> list[str]:
    architecture = host_architecture()
    assert architecture is not None
    with patch.object(embedded_elf, "_run", lambda address: None):  # damaged, that is any address
        embedded_elf.load_image(memoryview(case.data), architecture)
    return []


def _tables(case: Case) -> list[str]:
    executable = samples.load(case.data)
    executable.source_files()
    for ordinal in range(executable.function_count):
        executable.function_label(ordinal), executable.stage_locations(ordinal)
        executable.source_location(ordinal), executable.entry_point(ordinal)
    return []


def _cuda(case: Case) -> list[str]:
    executable_format.read(memoryview(case.data))
    return []


def _kernel(case: Case) -> list[str]:
    ways = {tier: load(case.data, tier) for tier in ("plain", "fast")}
    found: list[str] = []
    for given in kernels.inputs(case.number, _INPUTS):
        ends = {tier: in_time(partial(kernels.dispatched, way, given)) for tier, way in ways.items()}
        found += disagreements(f"damaged kernel {case.source} of {given}", ends)
    return found


_RUN: Final = {"structure": _structure, "tables": _tables, "cuda": _cuda, "kernel": _kernel}
CAMPAIGN: Final = Campaign(
    "damaged executables", generate, run, smaller, lambda case: case.data, 50, 20, prepare
)
