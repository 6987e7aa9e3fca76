"""Floating-point numbers from text, in any form that C's ``strtof`` and ``strtod`` take as a whole.

As those, a number is rounded once to the type that it is for, infinite where it is too large for that, and
refused where it would become zero without being zero.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from jitree.errors import InvalidArgumentError

_NUMBER: Final = re.compile(
    r"""(?P<sign>[+-]?)(?:
        nan(?:\((?P<payload>[0-9a-z_]*)\))?
      | (?P<infinite>inf(?:inity)?)
      | 0x(?P<hex>[0-9a-f]+\.?[0-9a-f]*|\.[0-9a-f]+)(?:p(?P<power>[+-]?[0-9]+))?
      | (?P<digits>[0-9]+\.?[0-9]*|\.[0-9]+)(?:e(?P<exponent>[+-]?[0-9]+))?
    )""",
    re.ASCII | re.IGNORECASE | re.VERBOSE,
)
_UNUSUAL: Final = re.compile(r"[^0-9.eE+-]")
"""What Python may read otherwise than C."""
_BEYOND: Final = 2.0**128
"""What follows the largest float of 32 bits."""
_PAYLOAD: Final = re.compile(r"0x[0-9a-f]+|[0-9]+", re.ASCII | re.IGNORECASE)
_PAYLOAD_BITS: Final = {32: 22, 64: 51}
"""By the bits of a type: how many of a NaN say what the program wants; the one above makes it a quiet one."""


def parse_float(text: str) -> float:
    """A number: ``1``, ``-1.5e3``, ``nan``, ``nan(0x7)``, ``infinity``, ``0x1.8p3``. INVALID_ARGUMENT for
    anything else."""
    if _UNUSUAL.search(text) is not None:
        return _value(_match(text))
    try:
        return float(text)
    except ValueError:
        raise InvalidArgumentError(f"'{text}' is not a number") from None


def parse_floats(texts: Sequence[str], bits: int) -> npt.NDArray[Any]:
    """Numbers as floats of 32 or 64 bits. INVALID_ARGUMENT for what is none, or too small."""
    wide = np.array([parse_float(text) for text in texts], np.float64)
    values: npt.NDArray[Any] = _narrowed(wide, texts) if bits == 32 else wide
    words = values.view(f"u{bits // 8}")
    for index in np.flatnonzero((values == 0) | (values != values)).tolist():
        text = texts[index]
        if values[index] != 0:
            words[index] |= _payload(_match(text)["payload"] or "", bits)
        elif text.strip("+-0.") and _is_something(_match(text)):
            raise InvalidArgumentError(f"'{text}' is too small for f{bits}: it would be zero")
    return values


def _match(text: str) -> re.Match[str]:
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise InvalidArgumentError(f"'{text}' is not a number")
    return match


def _value(match: re.Match[str]) -> float:
    """What it is, rounded to 64 bits."""
    if match["digits"] or match["infinite"]:
        return float(match[0])
    if not match["hex"]:
        return float(f"{match['sign']}nan")
    try:
        return float.fromhex(match[0])
    except OverflowError:
        return float(f"{match['sign']}inf")


def _narrowed(values: npt.NDArray[np.float64], texts: Sequence[str]) -> npt.NDArray[np.float32]:
    """The floats of 32 bits that are nearest to what the texts say. A value of 64 bits that is halfway
    between two of them has been rounded to that, or is exactly it: its text says to which side it belongs."""
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        narrow = values.astype(np.float32)
        wide = narrow.astype(np.float64).clip(-_BEYOND, _BEYOND)
        towards = np.where(wide > values, -np.inf, np.inf).astype(np.float32)
        other = np.nextafter(narrow, towards)
        next_to = other.astype(np.float64).clip(-_BEYOND, _BEYOND)
        halfway = (wide != values) & (wide - values == values - next_to)
    for index in np.flatnonzero(halfway).tolist():
        exact, value = _exact(_match(texts[index])), Fraction(float(values[index]))
        if exact != value:
            nearest = max if exact > value else min
            narrow[index] = nearest(narrow[index], other[index])
    return narrow


def _exact(match: re.Match[str]) -> Fraction:
    """The number itself. Only of those between two floats of 32 bits: the exponent is no large one."""
    if match["digits"]:
        return Fraction(match[0])
    whole, _, rest = match["hex"].partition(".")
    value = Fraction(int(whole + rest, 16)) * Fraction(2) ** (int(match["power"] or 0) - 4 * len(rest))
    return -value if match["sign"] == "-" else value


def _is_something(match: re.Match[str]) -> bool:
    return bool((match["digits"] or match["hex"]).strip("0."))


def _payload(text: str, bits: int) -> int:
    """As C reads it: hexadecimal, octal or decimal, and nothing where it is no number."""
    if _PAYLOAD.fullmatch(text) is None:
        return 0
    base = 16 if text[:2].lower() == "0x" else 8 if text[0] == "0" else 10
    try:
        return int(text, base) & (1 << _PAYLOAD_BITS[bits]) - 1
    except ValueError:  # `08`
        return 0
