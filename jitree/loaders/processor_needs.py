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

if TYPE_CHECKING:
    from jitree.vmfb.schema import ModuleTables


LEGACY, VEX, EVEX = "legacy", "vex", "evex"


class Opcode(NamedTuple):
    """An instruction: how it is encoded, and which one it is."""

    offset: int
    encoding: str
    map: int
    """0: one byte; 1: after 0F; 2: after 0F 38; 3: after 0F 3A; 5 and 6: of EVEX alone."""
    byte: int
    prefix: int
    """0, 66, F3 or F2, in hexadecimal."""
    wide: bool
    """Whether vectors have more than 128 bits."""
    doubled: bool
    """Whether elements have the larger of two sizes (REX.W, VEX.W, EVEX.W)."""


_PREFIXES: Final = frozenset(b"\x66\xf2\xf3\x2e\x36\x3e\x26\x64\x65\x67\xf0")
_MEANING: Final = (0, 0x66, 0xF3, 0xF2)
"""Prefixes as VEX and EVEX count them."""

_ROWS: Final = {
    0: """00-03 m  04 b  05 z  08-0b m  0c b  0d z  10-13 m  14 b  15 z  18-1b m  1c b  1d z  20-23 m  24 b
          25 z  28-2b m  2c b  2d z  30-33 m  34 b  35 z  38-3b m  3c b  3d z  50-5f .  63 m  68 z  69 mz
          6a b  6b mb  6c-6f .  70-7f b  80 mb  81 mz  83 mb  84-8f m  90-99 .  9b-9f .  a0-a3 o  a4-a7 .
          a8 b  a9 z  aa-af .  b0-b7 b  b8-bf v  c0-c1 mb  c2 w  c3 .  c6 mb  c7 mz  c8 wb  c9 .  ca w
          cb-cc .  cd b  cf .  d0-d3 m  d8-df m  e0-e7 b  e8-e9 r  eb b  ec-ef .  f1 .  f4-f5 .  f6 mb  f7 mz
          f8-fd .  fe-ff m""",
    1: """00-03 m  05-09 .  0b .  0d m  0e .  0f mb  10-1f m  20-23 m  28-2f m  30-35 .  37 .  40-6f m
          70-73 mb  74-76 m  77 .  78-7f m  80-8f r  90-9f m  a0-a2 .  a3 m  a4 mb  a5 m  a8-aa .  ab m  ac mb
          ad-b9 m  ba mb  bb-c1 m  c2 mb  c3 m  c4-c6 mb  c7 m  c8-cf .  d0-ff m""",
    2: "00-ff m",
    3: "00-ff mb",
    5: "00-ff m",
    6: "00-ff m",
}
"""By map: bytes, and what follows them: ``.`` nothing, ``m`` a ModRM byte, ``b``, ``w``, ``z`` constants of
1, 2, and 2 or 4 bytes, ``v`` one as long as the register, ``o`` an address, ``r`` a distance of 4 bytes."""
_TESTS: Final = (0xF6, 0xF7)
"""Bytes of several instructions, of which only TEST has a constant."""
_SIZES: Final = {".": 0, "b": 1, "w": 2, "r": 4}


def _table(rows: str) -> dict[int, str]:
    fields, table = rows.split(), {}
    for span, follows in zip(fields[::2], fields[1::2], strict=True):
        first, _, last = span.partition("-")
        table.update(dict.fromkeys(range(int(first, 16), int(last or first, 16) + 1), follows))
    return table


_FOLLOWS: Final = {number: _table(rows) for number, rows in _ROWS.items()}


def opcodes(code: bytes) -> Iterator[Opcode]:
    """The instructions of machine code, to the first bytes that are none."""
    at, end = 0, len(code)
    padded = code + bytes(16)
    while at < end:
        found, size = _next(padded, at)
        if not size or at + size > end:
            return
        yield found
        at += size


def _next(code: bytes, start: int) -> tuple[Opcode, int]:
    """The instruction at a place, and its size; size 0 for none."""
    at, prefix, operand, address = start, 0, False, False
    while code[at] in _PREFIXES and at - start < 14:
        operand |= code[at] == 0x66
        address |= code[at] == 0x67
        prefix = code[at] if code[at] in (0xF2, 0xF3) else prefix
        at += 1
    prefix = prefix or (0x66 if operand else 0)
    long, wide, encoding, number = False, False, LEGACY, 0
    if code[at] & 0xF0 == 0x40:
        long, at = bool(code[at] & 8), at + 1
    first = code[at]
    if first in (0xC4, 0xC5):
        last = code[at + 2 if first == 0xC4 else at + 1]
        encoding, number = VEX, code[at + 1] & 31 if first == 0xC4 else 1
        prefix, wide, long = _MEANING[last & 3], bool(last & 4), first == 0xC4 and last > 127
        at += 3 if first == 0xC4 else 2
    elif first == 0x62:
        if code[at + 1] & 8 or not code[at + 2] & 4:
            return Opcode(start, EVEX, 0, first, 0, False, False), 0
        encoding, number, prefix = EVEX, code[at + 1] & 7, _MEANING[code[at + 2] & 3]
        wide, long, at = bool(code[at + 3] & 0x60), code[at + 2] > 127, at + 4
    elif first == 0x0F:
        at += 1
        number = {0x38: 2, 0x3A: 3}.get(code[at], 1)
        at += number > 1
    opcode = Opcode(start, encoding, number, code[at], prefix, wide, long)
    follows = _FOLLOWS.get(number, {}).get(code[at], "")
    if not follows:
        return opcode, 0
    at += 1
    if number == 0 and opcode.byte in _TESTS and code[at] >> 3 & 7 > 1:
        follows = "m"
    short = operand and not long
    sizes = _SIZES | {"z": 2 if short else 4, "v": 8 if long else 2 if short else 4, "o": 4 if address else 8}
    for kind in follows:
        at += _modrm_size(code, at) if kind == "m" else sizes[kind]
    return opcode, at - start


def _modrm_size(code: bytes, at: int) -> int:
    """A ModRM byte, and the SIB byte and distance that it asks for."""
    mode, memory = code[at] >> 6, code[at] & 7
    if mode == 3:
        return 1
    size = 1
    base = memory
    if memory == 4:
        size, base = 2, code[at + 1] & 7
    if mode == 1:
        return size + 1
    return size + 4 if mode == 2 or base == 5 else size


# -- Instructions of x86 ---------------------------------------------------------------------------------
#
# Lengths and encodings: Intel's manual, volume 2, chapter 2 and "Opcode Map". Code is read from its start,
# one instruction after the other; bytes that are none end it.


_FORMATS: Final = (
    "embedded-elf", "system-elf", "system-dylib", "system-dll", "system-wasm", "embedded-macho", "static",
    "vmvx-bytecode", "cuda-nvptx", "rocm-hsaco", "hip-hsaco", "amdgcn", "vulkan-spirv", "metal-metallib",
    "metal-msl", "webgpu-wgsl", "webgpu-spirv",
)  # fmt: skip
"""How the names of executable formats begin."""
_LONGEST_FORMAT: Final = 64
_TARGET: Final = re.compile(
    rb'#hal\.executable\.target<"llvm-cpu", "([^"]+)", \{(?:cpu = "([^"]*)", )?cpu_features = "([^"]*)"'
)
"""In the text of a ``vm.fail``: the format, the processor and its features, as the compiler is told."""
_LEVELS: Final = frozenset(("avx", "avx2", "fma", "avx512f", "sve"))
"""Features that are looked for where a module does not say what it is compiled for."""
_IMPLIED: Final = {"avx512": ("avx512f", "avx2", "avx"), "avx2": ("avx",), "fma": ("avx",), "f16c": ("avx",)}
"""By how a feature's name begins."""
with open(os.path.join(os.path.dirname(__file__), "instructions.tsv"), encoding="utf-8") as _file:
    _TABLE: Final = [line.rstrip("\n").split("\t") for line in _file if not line.startswith("#")]
"""Read when this is imported: a confined process opens no files."""
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


def executable_formats(module: ModuleTables) -> list[str]:
    """Names the executable formats in the module's constants, in order of their appearance."""
    found = []
    for segment in module.rodata:
        if segment.external or not 0 < len(segment.data) <= _LONGEST_FORMAT:
            continue
        text = bytes(segment.data).decode("latin-1")
        if text.startswith(_FORMATS) and text.isprintable() and text not in found:
            found.append(text)
    return found


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
    codes = _codes(module) if missing else ()
    found = next((feature for code in codes for feature in needed(code, missing)), None)
    if found is None:
        return None
    cpus = {target.cpu for target in stated}
    return CompiledFor(
        format, cpus.pop() if len(cpus) == 1 else "", missing if stated else frozenset((found,))
    )


@cache
def instructions(architecture: str) -> dict[str, tuple[str, ...]]:
    """The instructions that need each feature, as ``instructions.tsv`` has them."""
    return {feature: tuple(rows.split()) for machine, feature, rows in _TABLE if machine == architecture}


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
