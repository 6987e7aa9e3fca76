"""Lays out what is known of instructions as :mod:`jitree.loaders.code_scan` reads it, and runs that.

``instructions.tsv`` has the instructions of each feature; what follows an opcode is here.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Iterable
from functools import cache
from typing import TYPE_CHECKING, Final

import numpy as np

from jitree.base.memory import address_of
from jitree.base.records import NamedTuple
from jitree.codegen import image
from jitree.codegen.image import Recipe
from jitree.codegen.record import size_of, words_of
from jitree.loaders import code_scan as scan

if TYPE_CHECKING:
    import numpy.typing as npt

RECIPE: Final = Recipe("needs", "what looks through machine code", "jitree.loaders.code_scan:generate", 3.0)
X86, ARM = "x86_64", "arm_64"

_FORMS: Final = {
    "m": scan.FORM_MODRM, "b": 1, "w": 2, "r": 4, "z": 4 | scan.FORM_SHORT, "j": scan.FORM_FLOW, ".": 0,
    "v": scan.FORM_REGISTER, "o": scan.FORM_ADDRESS, "t": scan.FORM_TEST8, "T": scan.FORM_TEST,
    "p": scan.FORM_PREFIX, "x": scan.FORM_REX, "E": scan.FORM_ESCAPE, "2": scan.FORM_VEX2,
    "3": scan.FORM_VEX3, "V": scan.FORM_EVEX, "X": scan.FORM_XOP,
}  # fmt: skip
"""What follows an opcode: a ModRM byte, constants of 1, 2, 4, and 4 or 2 bytes; whether it may jump."""
_OPCODES: Final = {
    scan.LEGACY: """00-03m 04b 05z 08-0bm 0cb 0dz 0fE 10-13m 14b 15z 18-1bm 1cb 1dz 20-23m 24b 25z 26p 28-2bm
        2cb 2dz 2ep 30-33m 34b 35z 36p 38-3bm 3cb 3dz 3ep 40-4fx 50-5f. 62V 63m 64-67p 68z 69mz 6ab 6bmb
        6c-6f. 70-7fjb 80mb 81mz 83mb 84-8em 8fX 90-99. 9b-9f. a0-a3o a4-a7. a8b a9z aa-af. b0-b7b b8-bfv
        c0-c1mb c2jw c3j c43 c52 c6mb c7mz c8wb c9. cajw cb-ccj cdb cfj d0-d3m d8-dfm e0-e3jb e4-e7b
        e8-e9jr ebjb ec-ef. f0p f1. f2-f3p f4j f5. f6t f7T f8-fd. fem ffjm""",
    scan.LEGACY + 1: """00-03m 05-09. 0bj 0dm 0e. 0fmb 10-1fm 20-23m 28-2fm 30-35. 37. 40-6fm 70-73mb 74-76m
        77. 78-7fm 80-8fjr 90-9fm a0-a2. a3m a4mb a5m a8-aa. abm acmb ad-b9m bamb bb-c1m c2mb c3m c4-c6mb
        c7m c8-cf. d0-ffm""",
    scan.VEX + 1: """10-17m 28-2fm 41-4bm 50-6fm 70-73mb 74-76m 77. 7c-7fm 90-93m 98-99m aem c2mb c4-c6mb
        d0-ffm""",
    scan.EVEX + 1: "10-17m 28-2fm 51-6fm 70-73mb 74-7fm c2mb c4-c6mb d1-fem",
    scan.XOP: "00-ffmb", scan.XOP + 1: "00-ffm", scan.XOP + 2: "00-ffmr",
    **dict.fromkeys((scan.LEGACY + 2, scan.VEX + 2, scan.EVEX + 2, scan.EVEX + 5, scan.EVEX + 6), "00-ffm"),
    **dict.fromkeys((scan.LEGACY + 3, scan.VEX + 3, scan.EVEX + 3), "00-ffmb"),
}  # fmt: skip
"""By space: bytes, and what follows them."""
_FLOWS: Final = (
    (scan.FLOW_UNDEFINED, "00"), (scan.FLOW_JUMP, "14 15 16 17"), (scan.FLOW_TEST, "36 37 b6 b7"),
    (scan.FLOW_CONDITION, "34 35 54 b4 b5"), (scan.FLOW_TRAP, "d4"), (scan.FLOW_RETURN, "d6"),
    (scan.FLOW_CALL, "94 95 96 97"),
)  # fmt: skip
"""First bytes of words."""
_SPAN: Final = re.compile(r"(\w\w)(?:-(\w\w))?(.*)")
_INSTRUCTIONS: Final = re.compile(r"(legacy|vex|evex|xop)(\d+):(\w\w)(?:-(\w\w))?((?:\.\w+)*)")
_FIRST_SPACES: Final = {"legacy": scan.LEGACY, "vex": scan.VEX, "evex": scan.EVEX, "xop": scan.XOP - 8}
_CONDITIONS: Final = {
    name: (first, bit)
    for first, names in (
        (scan.HAS_PREFIX, "p0 p66 pf3 pf2"), (scan.HAS_LENGTH, "l0 l1 l2"), (scan.HAS_WIDTH, "w0 w1"),
        (scan.HAS_DIGIT, "d0 d1 d2 d3 d4 d5 d6 d7"), (scan.HAS_MEMORY, "memory registers"),
    )
    for bit, name in enumerate(names.split())
}  # fmt: skip
_ALWAYS: Final = {first: sum(1 << bit for of, bit in _CONDITIONS.values() if of == first)
                  for first, _ in _CONDITIONS.values()}  # fmt: skip
with open(os.path.join(os.path.dirname(__file__), "instructions.tsv"), encoding="utf-8") as _file:
    _TABLE: Final = [line.rstrip("\n").split("\t") for line in _file if not line.startswith("#")]
"""Read when this is imported: a confined process opens no files."""


class ProcessorFeature(NamedTuple):
    """A feature of processors that compilers are told, by LLVM's name."""

    name: str
    instructions: tuple[str, ...]
    """Those that need it; none where that is no question."""
    reason: str
    """Why it is none."""


@cache
def features(architecture: str) -> dict[str, ProcessorFeature]:
    """What ``instructions.tsv`` has of an architecture, by name."""
    rows = (row for row in _TABLE if row[0] == architecture)
    return {
        name: ProcessorFeature(name, tuple(text.split()) if not reason else (), "".join(reason))
        for _, name, text, *reason in rows
    }


class InstructionTables(NamedTuple):
    """What a scan for some features reads. The numbers of features are their places among these."""

    names: tuple[str, ...]
    forms: npt.NDArray[np.uint8]
    sizes: npt.NDArray[np.uint8]
    rules: npt.NDArray[np.int32]
    conditions: npt.NDArray[np.int64]


@cache
def tables(architecture: str, wanted: frozenset[str]) -> InstructionTables | None:
    """Those for the features that have instructions; None where none has."""
    known = features(architecture)
    names = tuple(name for name in known if name in wanted and known[name].instructions)
    if not names:
        return None
    make = _x86_rules if architecture == X86 else _arm_rules
    rules, conditions = make([known[name].instructions for name in names])
    forms = _forms() if architecture == X86 else _flows()
    return InstructionTables(names, forms, _sizes(), rules, np.array(conditions, np.int64))


@cache
def _forms() -> npt.NDArray[np.uint8]:
    forms = np.full((scan.SPACES, 256), scan.FORM_UNKNOWN, np.uint8)
    for space, text in _OPCODES.items():
        for item in text.split():
            first, last, follows = _matched(_SPAN, item)
            forms[space, int(first, 16) : int(last or first, 16) + 1] = sum(map(_FORMS.__getitem__, follows))
    return forms


def _matched(pattern: re.Pattern[str], text: str) -> tuple[str, ...]:
    match = pattern.fullmatch(text)
    assert match, text
    return match.groups()


@cache
def _flows() -> npt.NDArray[np.uint8]:
    flows = np.zeros(256, np.uint8)
    for flow, text in _FLOWS:
        flows[list(bytes.fromhex(text))] = flow
    return flows


@cache
def _sizes() -> npt.NDArray[np.uint8]:
    """Of a ModRM byte, the SIB byte and the distance that it asks for."""
    mode, memory = np.divmod(np.arange(256), 64)
    memory %= 8
    distance = np.select([mode == 1, (mode == 2) | ((mode == 0) & (memory == 5))], [1, 4])
    sizes: npt.NDArray[np.uint8] = (1 + ((memory == 4) & (mode < 3)) + distance).astype(np.uint8)
    return sizes


def _x86_rules(rows: Iterable[tuple[str, ...]]) -> tuple[npt.NDArray[np.int32], list[int]]:
    """By opcode, where its conditions begin, each chain of them once; number 0 is none."""
    chains: dict[int, tuple[int, ...]] = {}
    for number, row in enumerate(rows):
        for text in row:
            encoding, at, first, last, said = _matched(_INSTRUCTIONS, text)
            condition = _condition(said.split(".")[1:]) | number << scan.FEATURE
            space = 256 * (_FIRST_SPACES[encoding] + int(at))
            for opcode in range(space + int(first, 16), space + int(last or first, 16) + 1):
                chains[opcode] = (*chains.get(opcode, ()), condition)
    rules, conditions = np.zeros(scan.SPACES * 256, np.int32), [0]
    places: dict[tuple[int, ...], int] = {}
    for opcode, chain in chains.items():
        if chain not in places:
            places[chain] = len(conditions)
            conditions += (*chain[:-1], chain[-1] | scan.IS_LAST)
        rules[opcode] = places[chain]
    return rules, conditions


def _condition(names: Iterable[str]) -> int:
    """Bits of what an instruction may have: all where nothing is said."""
    said: dict[int, int] = {}
    for name in names:
        first, bit = _CONDITIONS[name]
        said[first] = said.get(first, 0) | 1 << bit
    return sum(bits << first for first, bits in (_ALWAYS | said).items())


def _arm_rules(rows: Iterable[tuple[str, ...]]) -> tuple[npt.NDArray[np.int32], list[int]]:
    """By the first byte of a word, where its conditions begin: mask, value, feature."""
    chains: dict[int, list[tuple[int, int]]] = {}
    for number, row in enumerate(rows):
        for text in row:
            mask, value = (int(part, 16) for part in text.split(":"))
            for byte in range(256):
                if byte & mask >> 24 == value >> 24:
                    chains.setdefault(byte, []).append((value << 32 | mask, number << scan.FEATURE))
    rules, conditions = np.zeros(256, np.int32), [0, 0]
    for byte, chain in chains.items():
        rules[byte] = len(conditions) // 2
        for pair in chain:
            conditions += pair
        conditions[-1] |= scan.IS_LAST
    return rules, [word - (word >> 63 << 64) for word in conditions]


# -- scanning ----------------------------------------------------------------------------------------------

_FUNCTION: Final = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
_ENTRIES: Final = {X86: scan.scan_opcodes, ARM: scan.scan_words}
_WORDS: Final = words_of(scan.CodeScan)
_SHORTEST: Final = 16
"""Bytes of a function, as compilers put them into their places. Of many shorter ones not all are read."""


def needed(
    code: memoryview, starts: npt.NDArray[np.int64], architecture: str, wanted: frozenset[str]
) -> frozenset[str]:
    """Those of the features that functions of machine code need.

    ``code`` goes on for :data:`PADDING` bytes; ``starts``: where functions begin, ascending.
    """
    read = tables(architecture, wanted)
    if read is None or not len(starts):
        return frozenset()
    ends = np.append(starts, len(code) - scan.PADDING)
    record = np.zeros(size_of(scan.CodeScan) // 8, np.int64)
    known = np.zeros(len(code) // 8 + 1, np.uint8)
    np.bitwise_or.at(known, starts >> 3, (1 << (starts & 7)).astype(np.uint8))
    waiting = np.empty(len(code) // _SHORTEST + 1, np.int64)
    record[_WORDS.count] = len(starts)
    record[_WORDS.most] = len(waiting)
    record[_WORDS.wanted] = (1 << len(read.names)) - 1
    memory = (
        np.frombuffer(code, np.uint8), ends, read.forms, read.sizes, read.rules, read.conditions, known,
        waiting,
    )  # fmt: skip
    record[: len(memory)] = list(map(address_of, memory))
    found = _entry(architecture)(address_of(record))
    return frozenset(name for number, name in enumerate(read.names) if found >> number & 1)


def _entry(architecture: str) -> Callable[[int], int]:
    """The machine code, once it is there."""
    ready = image.get(RECIPE)
    if ready is None:
        return _interpreted(architecture)
    return _FUNCTION(ready.addresses[_ENTRIES[architecture].__name__])


def _interpreted(architecture: str) -> Callable[[int], int]:
    """The same, run by Python."""
    return lambda address: _ENTRIES[architecture](scan.CodeScan(address))
