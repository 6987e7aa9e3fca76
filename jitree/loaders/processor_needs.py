"""Tells what compiled code needs of the processor, and whether this one has it.

Compilers since August 2024 write what code is made for into the text of a ``vm.fail`` ("HAL device … not
found"). A feature that is stated there and missing here matters if an instruction of the code needs it: that
ends the process by SIGILL. Modules without the text are told by their code alone, for the features by which
levels of processors differ.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from jitree.base.records import NamedTuple
from jitree.codegen.image.shipped import levels_here
from jitree.errors import StatusError
from jitree.loaders.elf_file import MINIMUM_SIZE, read_elf
from jitree.loaders.elf_format import FATELF_MAGIC, PF_X, host_architecture, select_slice
from jitree.loaders.environment import host_cpu_data
from jitree.loaders.x86_code import Opcode, opcodes

if TYPE_CHECKING:
    from jitree.vmfb.schema import ModuleTables

_TARGET: Final = re.compile(
    rb'#hal\.executable\.target<"llvm-cpu", "([^"]+)", \{(?:cpu = "([^"]*)", )?cpu_features = "([^"]*)"'
)
"""In the text of a ``vm.fail``: the format, the processor and its features, as the compiler is told."""
_LEVELS: Final = frozenset(("avx", "avx2", "fma", "avx512f", "sve"))
"""Features that are looked for where a module does not say what it is compiled for."""
_IMPLIED: Final = {"avx512": ("avx512f", "avx2", "avx"), "avx2": ("avx",), "fma": ("avx",), "f16c": ("avx",)}
"""By how a feature's name begins."""
_TABLE: Final = os.path.join(os.path.dirname(__file__), "instructions.tsv")
_SHOWN: Final = 3
"""How many features a message names."""
_ELF_MAGIC: Final = b"\x7fELF"
_INSTRUCTIONS: Final = re.compile(r"(\w+):(\*|\w\w)(?:-(\w\w))?([+-])?(?:/(\w+))?")
_ALL: Final = -1

Rows: TypeAlias = Mapping[str, tuple[str, ...]]


class CompiledFor(NamedTuple):
    """What the compiler is told for one format of executables."""

    format: str
    cpu: str
    """Empty where it is told features alone."""
    features: frozenset[str]
    """LLVM's names of those that are on."""

    def lacks(self) -> str:
        """The features, of a target that has those which this processor lacks: the basic ones first."""
        names = sorted(self.features, key=lambda name: (name not in _LEVELS, name))
        more = len(names) - _SHOWN
        return f"{', '.join(names[:_SHOWN])} and {more} more features" if more > 1 else ", ".join(names)

    def refusal(self) -> str:
        """Says why executables cannot run here, and the way out."""
        level, flag = next(iter(levels_here()), ""), "--iree-llvmcpu-target-cpu="
        of, here = (f"for {self.cpu} " if self.cpu else ""), (f" ({level})" if level else "")
        own = f"{flag}{level}, with " if level else ""
        return (
            f"cannot run on this processor: its executables of format '{self.format}' are compiled {of}with "
            f"{self.lacks()}, which this processor{here} does not have; compile it with {own}{flag}generic "
            "for all processors, or for vmvx, which jitree compiles where it runs"
        )


def targets(module: ModuleTables) -> list[CompiledFor]:
    """What a module says that its executables are compiled for; nothing for modules that do not say."""
    found: dict[CompiledFor, None] = {}
    for match in _TARGET.finditer(module.bytecode):
        format, cpu, features = (str(part or b"", "ascii", "replace") for part in match.groups())
        found[CompiledFor(format, cpu, _with_implied(features.split(",")))] = None
    return list(found)


def _with_implied(features: list[str]) -> frozenset[str]:
    on = {name[1:] for name in features if name.startswith("+")}
    for prefix, implied in _IMPLIED.items():
        if any(name.startswith(prefix) for name in on):
            on.update(implied)
    return frozenset(on)


def need_of(module: ModuleTables, format: str) -> CompiledFor | None:
    """What executables of a module in a format need and this processor lacks; None if it can run them.

    Of several targets with one format a program takes the one that fits, so only what all need counts.
    """
    stated = [target for target in targets(module) if target.format == format]
    wanted = frozenset.intersection(*(target.features for target in stated)) if stated else _LEVELS
    missing = wanted & host_cpu_data().lacking
    found = next((feature for code in _codes(module) for feature in needed(code, missing)), None)
    if found is None:
        return None
    cpus = {target.cpu for target in stated}
    return CompiledFor(
        format, cpus.pop() if len(cpus) == 1 else "", missing if stated else frozenset((found,))
    )


@cache
def instructions(architecture: str) -> dict[str, tuple[str, ...]]:
    """The instructions that need each feature, as ``instructions.tsv`` has them."""
    with open(_TABLE, encoding="utf-8") as file:
        fields = [line.rstrip("\n").split("\t") for line in file if not line.startswith("#")]
    return {feature: tuple(rows.split()) for machine, feature, rows in fields if machine == architecture}


def need_of_executable(data: memoryview, format: str) -> CompiledFor | None:
    """Tells by its code what an executable needs and this processor lacks."""
    missing = _LEVELS & host_cpu_data().lacking
    found = next((feature for code in _code(data) for feature in needed(code, missing)), None)
    return None if found is None else CompiledFor(format, "", frozenset((found,)))


def _codes(module: ModuleTables) -> Iterator[bytes]:
    """Machine code for this machine among the constants."""
    for index in np.flatnonzero(module.rodata.lengths >= MINIMUM_SIZE).tolist():
        yield from _code(module.rodata[index].data)


def _code(data: memoryview) -> Iterator[bytes]:
    """Machine code for this machine, of an executable. Damaged libraries are for loaders to refuse."""
    architecture = host_architecture()
    if architecture is None or bytes(data[:4]) not in (_ELF_MAGIC, FATELF_MAGIC):
        return
    with suppress(StatusError):
        library = select_slice(data, architecture)
        for load in read_elf(library, architecture).loads:
            if load.flags & PF_X:
                yield bytes(library[load.offset : load.offset + load.file_size])


def needed(code: bytes, features: Collection[str]) -> Iterator[str]:
    """Those of the features that machine code of this machine needs, as they come; some more than once."""
    architecture = host_architecture()
    name = "" if architecture is None else architecture.name
    rows = {feature: row for feature, row in instructions(name).items() if feature in features}
    if rows:
        yield from _needed_by_words(code, rows) if name == "arm_64" else _needed_by_opcodes(code, rows)


def _needed_by_words(code: bytes, rows: Rows) -> Iterator[str]:
    words = np.frombuffer(code[: len(code) // 4 * 4], "<u4")
    for feature, row in rows.items():
        for text in row:
            mask, value = (int(part, 16) for part in text.split(":"))
            if (words & mask == value).any():
                yield feature


class _Condition(NamedTuple):
    """When an opcode needs a feature."""

    feature: str
    prefix: int | None
    is_wide: bool
    is_small: bool

    def holds(self, opcode: Opcode) -> bool:
        return (
            self.prefix in (None, opcode.prefix)
            and not (self.is_wide and not opcode.wide)
            and not (self.is_small and opcode.doubled)
        )


def _needed_by_opcodes(code: bytes, rows: Rows) -> Iterator[str]:
    conditions = _conditions(rows)
    for opcode in opcodes(code):
        space = f"{opcode.encoding}{opcode.map}"
        for place in ((opcode.encoding, _ALL), (space, _ALL), (space, opcode.byte)):
            for condition in conditions.get(place, ()):
                if condition.holds(opcode):
                    yield condition.feature


def _conditions(rows: Rows) -> dict[tuple[str, int], list[_Condition]]:
    """By encoding, or encoding and map, and byte."""
    found: dict[tuple[str, int], list[_Condition]] = {}
    for feature, row in rows.items():
        for text in row:
            match = _INSTRUCTIONS.fullmatch(text)
            assert match, text
            space, first, last, size, prefix = match.groups()
            condition = _Condition(feature, int(prefix, 16) if prefix else None, size == "+", size == "-")
            span = (_ALL,) if first == "*" else range(int(first, 16), int(last or first, 16) + 1)
            for byte in span:
                found.setdefault((space, byte), []).append(condition)
    return found
