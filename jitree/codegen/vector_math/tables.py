"""Numbers that vector math looks up, as ``tables.tsv`` has them: the same bits everywhere.

Integers compute them (:mod:`computed`), those of erf in a tenth of a second, and a program that waits for its
first machine code would wait for that. So ``python -m jitree.codegen.vector_math.computed`` writes a file.

A function of rows or values stands for its table; its name is the table's, in the file and in machine code.
"""

from __future__ import annotations

import functools
import os
import struct
from collections.abc import Mapping
from typing import Final

TANH_STEP: Final = 37.0 / 8192.0
TANH_MASK: Final = 2047
ERF_STEP: Final = 1.0 / 256.0
ERF_MASK: Final = 2047
TANH_LIMIT: Final = 9.125
ERF_LIMIT: Final = 3.9375
"""tanh and erf of more round to 1 in binary32."""

PIECE_BITS: Final = 28
FIRST_PIECE_BITS: Final = 26
"""Bits of a piece, and of the first one, after the point."""
PIECES: Final = 5
FIRST_EXPONENT: Final = 96
"""The exponent of the first row of quarter turns, as binary32 counts: 2**-31."""

TANH_OFFSET: Final = 0.66015625
TANH_SHIFT: Final = 20
ERF_OFFSET: Final = 1.41015625
ERF_SHIFT: Final = 19
"""Bits of a number plus the offset that begin at the shift tell the row of :func:`tanh_pieces` and of
:func:`erf_pieces` that holds it."""
PIECE_NUMBERS: Final = 10
"""Numbers in a row of these."""

Values = tuple[float, ...]
Rows = tuple[Values, ...]
Pairs = tuple[tuple[float, float], ...]

FILE: Final = os.path.join(os.path.dirname(__file__), "tables.tsv")
"""A line for each table: its name, and its numbers one after the other, each as the hexadecimal digits of its
64 bits."""


@functools.cache
def tanh_values() -> Values:
    """tanh of all multiples of the step."""
    return _values("tanh_values")


@functools.cache
def tanh_rests() -> Values:
    """What these lack."""
    return _values("tanh_rests")


@functools.cache
def erf_slopes() -> Values:
    """2 / sqrt(pi) * exp(-c**2) for all multiples c of the step."""
    return _values("erf_slopes")


@functools.cache
def erf_values() -> Values:
    """erf of all multiples of the step."""
    return _values("erf_values")


@functools.cache
def erf_rests() -> Values:
    """What these lack."""
    return _values("erf_rests")


@functools.cache
def exponential_rows() -> Pairs:
    """1 / n! from 24 to 1."""
    return _pairs("exponential_rows")


@functools.cache
def sine_rows() -> Pairs:
    """Coefficients of sin(r) / r in r**2, the last first."""
    return _pairs("sine_rows")


@functools.cache
def cosine_rows() -> Pairs:
    """Coefficients of cos(r) in r**2, the last first."""
    return _pairs("cosine_rows")


@functools.cache
def quarter_turns() -> Values:
    """2**(e - 150) * 2 / pi modulo 4, for exponents as binary32 counts them, in pieces of 28 bits each."""
    return _values("quarter_turns")


@functools.cache
def powers_of_two() -> Pairs:
    """2**(n / 32), and what that lacks, in relation to it."""
    return _pairs("powers_of_two")


@functools.cache
def tanh_pieces() -> Rows:
    """Polynomials in place of tanh; see :mod:`pieces`."""
    return _rows("tanh_pieces")


@functools.cache
def erf_pieces() -> Rows:
    return _rows("erf_pieces")


def _values(name: str) -> Values:
    data = bytes.fromhex(_lines()[name])
    return struct.unpack(f">{len(data) // 8}d", data)


def _pairs(name: str) -> Pairs:
    values = _values(name)
    return tuple(zip(values[::2], values[1::2], strict=True))


def _rows(name: str) -> Rows:
    values = _values(name)
    return tuple(values[start : start + PIECE_NUMBERS] for start in range(0, len(values), PIECE_NUMBERS))


@functools.cache
def _lines() -> Mapping[str, str]:
    with open(FILE, encoding="ascii") as file:
        return dict(line.rstrip("\n").split("\t") for line in file)
