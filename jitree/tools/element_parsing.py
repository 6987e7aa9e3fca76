"""Elements of tensors from text: integers, floats, booleans, complex numbers and hex of bytes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from jitree.base import elements
from jitree.errors import InvalidArgumentError, pass_interruption
from jitree.tools.number_parsing import parse_floats
from jitree.types import CLASS_BOOLEAN, ELEMENT_TYPES, ElementType, element_type, is_packed

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
        bits = int(opaque.group(1))
        if bits == 0 or bits % 8 or bits > 248:
            raise InvalidArgumentError(f"opaque element type '{name}' must be 8 to 248 bits, in whole bytes")
        return element_type(bits)
    known = " ".join(row.name for row in ELEMENT_TYPES if row.numerical_class)
    raise InvalidArgumentError(f"unknown element type '{name}'; known are {known} and *<bits>")


def parse_integer(text: str, low: int, high: int) -> int:
    """A decimal or ``0x`` integer between the bounds; leading zeros are decimal."""
    if _INTEGER.fullmatch(text) is None:
        raise InvalidArgumentError(f"'{text}' is not an integer")
    value = int(text, 16 if "x" in text or "X" in text else 10)
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
    """What a message about the number of elements adds where one element is not one plain number."""
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
