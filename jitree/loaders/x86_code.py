"""Splits machine code of x86-64 into instructions, as far as telling processors apart needs.

Lengths and encodings: Intel's manual, volume 2, chapter 2 and "Opcode Map". Code is read from its start, one
instruction after the other; bytes that are none end it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from jitree.base.records import NamedTuple

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
