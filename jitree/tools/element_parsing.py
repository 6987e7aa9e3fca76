"""Parses elements of tensors: integers, floats, booleans, complex numbers and hex bytes.

Floats have any form that C's ``strtof`` and ``strtod`` take as a whole. As those, a number is rounded once to
the type that it is for, infinite where it is too large for that, and refused where it would become zero
without being zero.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from jitree.base import elements
from jitree.base.arguments import number_of
from jitree.errors import InvalidArgumentError, pass_interruption
from jitree.types import CLASS_BOOLEAN, ELEMENT_TYPES, ElementType, element_type, is_packed

if TYPE_CHECKING:
    from fractions import Fraction

    import numpy.typing as npt

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

_SEPARATORS: Final = str.maketrans("[],", "   ")
_INTEGER: Final = re.compile(r"[+-]?(?:0[xX][0-9a-fA-F]+|[0-9]+)")
_OPAQUE_TYPE: Final = re.compile(r"\*([0-9]+)")
_NOT_IN_COMPLEX: Final = re.compile(r"[^\x00-\x7f]|_")
"""What Python takes in numbers, and C does not."""
_BOOLEANS: Final = {"0": 0, "1": 1, "true": 1, "false": 0}
_COMPLEX_CLASS: Final = 0x23
_BY_NAME: Final = {row.name: row for row in ELEMENT_TYPES} | {
    "complex<f32>": element_type(0x23000040),
    "complex<f64>": element_type(0x23000080),
}


def parse_float(text: str) -> float:
    """A number: ``1``, ``-1.5e3``, ``nan``, ``nan(0x7)``, ``infinity``, ``0x1.8p3``.

    INVALID_ARGUMENT for anything else.
    """
    if _UNUSUAL.search(text) is not None:
        return _value(_match(text))
    try:
        return float(text)
    except ValueError:
        raise InvalidArgumentError(f"'{text}' is not a number") from None


def parse_floats(texts: Sequence[str], bits: int) -> npt.NDArray[Any]:
    """Numbers as floats of 32 or 64 bits.

    INVALID_ARGUMENT for what is none, or too small.
    """
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
    """The floats of 32 bits that are nearest to what the texts say.

    A value of 64 bits that is halfway between two of them has been rounded to that, or is exactly it: its
    text says to which side it belongs.
    """
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        narrow = values.astype(np.float32)
        wide = narrow.astype(np.float64).clip(-_BEYOND, _BEYOND)
        towards = np.where(wide > values, -np.inf, np.inf).astype(np.float32)
        other = np.nextafter(narrow, towards)
        next_to = other.astype(np.float64).clip(-_BEYOND, _BEYOND)
        halfway = (wide != values) & (wide - values == values - next_to)
    if not halfway.any():
        return narrow
    from fractions import Fraction  # slow to import

    for index in np.flatnonzero(halfway).tolist():
        exact, value = _exact(_match(texts[index])), Fraction(float(values[index]))
        if exact != value:
            nearest = max if exact > value else min
            narrow[index] = nearest(narrow[index], other[index])
    return narrow


def _exact(match: re.Match[str]) -> Fraction:
    """The number itself.

    Only of those between two floats of 32 bits: the exponent is no large one.
    """
    from fractions import Fraction

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


def split_elements(text: str) -> list[str]:
    """Elements are separated by blanks, commas and brackets in any mixture."""
    return text.translate(_SEPARATORS).split()


def find_element_type(name: str) -> ElementType:
    """The element type called ``name``; raises INVALID_ARGUMENT for an unknown one."""
    row = _BY_NAME.get(name)
    if row is not None:
        return row
    opaque = _OPAQUE_TYPE.fullmatch(name)
    if opaque is not None:
        bits = number_of(opaque.group(1))
        if bits == 0 or bits % 8 or bits > 248:
            raise InvalidArgumentError(f"opaque element type '{name}' must be 8 to 248 bits, in whole bytes")
        return element_type(bits)
    known = " ".join(row.name for row in ELEMENT_TYPES if row.numerical_class)
    raise InvalidArgumentError(f"unknown element type '{name}'; known are {known} and *<bits>")


def parse_integer(text: str, low: int, high: int) -> int:
    """A decimal or ``0x`` integer between the bounds; leading zeros are decimal."""
    if _INTEGER.fullmatch(text) is None:
        raise InvalidArgumentError(f"'{text}' is not an integer")
    value = number_of(text, 16 if "x" in text or "X" in text else 10)
    if not low <= value <= high:
        raise InvalidArgumentError(f"{text} is out of range; must be between {low} and {high}")
    return value


def integer_range(row: ElementType) -> tuple[int, int]:
    """Least and greatest value that text may give; signless types take the signed and unsigned range, but of
    64 bits only the signed one, as the reference tools do."""
    if row.name.startswith("si") or row.name == "i64":
        return -(1 << (row.bits - 1)), (1 << (row.bits - 1)) - 1
    if row.name.startswith("ui"):
        return 0, (1 << row.bits) - 1
    return -(1 << (row.bits - 1)), (1 << row.bits) - 1


def parse_elements(tokens: list[str], row: ElementType) -> npt.NDArray[Any]:
    """One array item per token: the element's storage (packed types: one int16 per element)."""
    return _parser(row)(tokens, row)


def spelling_of(row: ElementType) -> str:
    """Explains a number of elements where one element is not one plain number."""
    if row.numerical_class == _COMPLEX_CLASS:
        return f"; an element of type {row.name} is one word: `1+2j`, or the hex of its {row.bits // 8} bytes"
    return ""


def _parser(row: ElementType) -> Callable[[list[str], ElementType], npt.NDArray[Any]]:
    if elements.is_float(row):
        return _parse_floats
    if elements.is_integer(row):
        return _parse_integers
    if row.numerical_class == CLASS_BOOLEAN:
        return _parse_booleans
    if row.numerical_class == _COMPLEX_CLASS:
        return _parse_complex
    return _parse_hex


def _parse_integers(tokens: list[str], row: ElementType) -> npt.NDArray[Any]:
    low, high = integer_range(row)
    mask = (1 << row.bits) - 1
    values = [parse_integer(token, low, high) & mask for token in tokens]
    return np.array(values, np.int16 if is_packed(row) else f"u{row.bits // 8}")


def _parse_floats(tokens: list[str], row: ElementType) -> npt.NDArray[Any]:
    if row.bits == 64:
        return parse_floats(tokens, 64)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        return parse_floats(tokens, 32).astype(row.dtype, copy=False)


def _parse_booleans(tokens: list[str], row: ElementType) -> npt.NDArray[Any]:
    values = [_BOOLEANS[token] if token in _BOOLEANS else _hex_bytes(token, 1)[0] for token in tokens]
    return np.array(values, np.uint8)


def _parse_complex(tokens: list[str], row: ElementType) -> npt.NDArray[Any]:
    size = row.bits // 8
    parts = []
    for token in tokens:
        if len(token) == 2 * size and all(digit in "0123456789abcdefABCDEF" for digit in token):
            parts.append(bytes.fromhex(token))
            continue
        try:
            if _NOT_IN_COMPLEX.search(token):
                raise ValueError(token)
            parts.append(np.array(complex(token)).astype(row.dtype).tobytes())
        except ValueError as error:
            pass_interruption(error)
            raise InvalidArgumentError(
                f"'{token}' is neither a complex number (`1+2j`) nor the hex of its {size} bytes"
            ) from None
    return np.frombuffer(b"".join(parts), f"V{size}")


def _parse_hex(tokens: list[str], row: ElementType) -> npt.NDArray[Any]:
    size = row.bits // 8
    return np.frombuffer(b"".join(_hex_bytes(token, size) for token in tokens), f"V{size}")


def _hex_bytes(token: str, size: int) -> bytes:
    try:
        raw = bytes.fromhex(token)
    except ValueError as error:
        pass_interruption(error)
        raise InvalidArgumentError(f"'{token}' is not the hex of the element's bytes") from None
    if len(raw) != size:
        raise InvalidArgumentError(
            f"binary hex element count mismatch: '{token}' has {len(token)} digits, expected {2 * size}"
        )
    return raw
